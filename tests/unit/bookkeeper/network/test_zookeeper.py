"""BookKeeper's part of a real ZooKeeper: ledgers by compare-and-set, ids, watches, registered bookies, what is no cluster."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from magnetar.bookkeeper.ledgers.metadata import (
    BookieId,
    DigestType,
    LedgerMetadata,
    LedgerState,
    Segment,
    Versioned,
)
from magnetar.bookkeeper.network import zookeeper
from magnetar.bookkeeper.network.errors import NoSuchLedger, ZooKeeperError
from magnetar.bookkeeper.network.zookeeper import RegisteredBookies, ZooKeeper, address_of, registered_address
from magnetar.bookkeeper.protocol.bookkeeper_pb2 import BookieServiceInfo
from tests.support import zookeeper as servers

METADATA = LedgerMetadata(
    ensemble_size=1,
    write_quorum=1,
    ack_quorum=1,
    state=LedgerState.OPEN,
    segments=(Segment(0, (BookieId("127.0.0.1:3181"),)),),
    digest=DigestType.CRC32C,
    password=b"secret",
    token=7,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ZooKeeper]:
    server = servers.ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.kill()


@pytest.fixture
def client(server: servers.ZooKeeper) -> Iterator[KazooClient]:
    """To prepare, and to look."""
    client = KazooClient(hosts=server.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def root(client: KazooClient) -> str:
    """A formatted root of one test."""
    root = f"/test-{uuid.uuid4().hex}"
    servers.make_bookkeeper(client, root)
    return root


class Bookies:
    """Notes what is registered."""

    def __init__(self) -> None:
        self.found = RegisteredBookies()
        self._came = asyncio.Event()

    def __call__(self, found: RegisteredBookies) -> None:
        self.found = found
        self._came.set()

    async def until(self, check: Callable[[RegisteredBookies], bool]) -> None:
        async with asyncio.timeout(120):
            while not check(self.found):
                self._came.clear()
                await self._came.wait()


@contextlib.asynccontextmanager
async def opened(hosts: str, root: str, bookies: Bookies | None = None, **more: float) -> AsyncIterator[ZooKeeper]:
    made = ZooKeeper(hosts, root, bookies or Bookies(), **more)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def lose_an_answer(store: ZooKeeper, monkeypatch: pytest.MonkeyPatch, which: Callable[[Any], bool]) -> list[Any]:
    """Lose the connection after the first request with such an answer was carried out; the list gets the answer."""
    real, lost = store._call, list[Any]()

    async def call(request: Callable[[], Any]) -> Any:
        answer = await real(request)
        if not lost and which(answer):
            lost.append(answer)
            raise zookeeper.ConnectionLoss
        return answer

    monkeypatch.setattr(store, "_call", call)
    return lost


def run(test: Callable[[], Awaitable[Any]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(200):
            await test()

    asyncio.run(bounded())


def test_ledgers_are_created_read_updated_and_deleted(
    server: servers.ZooKeeper, client: KazooClient, root: str
) -> None:
    async def test() -> None:
        async with opened(server.hosts, root) as store:
            assert store.instance == "the-instance"
            ledger, versioned = await store.create(METADATA)
            assert versioned == Versioned(METADATA, 0)
            assert await store.read(ledger) == versioned
            recovering = replace(METADATA, state=LedgerState.IN_RECOVERY)
            assert await store.update(ledger, recovering, 0) == 1
            assert await store.update(ledger, METADATA, 0) is None, "a conflict is a value"
            assert await store.read(ledger) == Versioned(recovering, 1)
            await store.delete(ledger)
            with pytest.raises(NoSuchLedger, match=f"there is no ledger {ledger}$"):
                await store.read(ledger)
            with pytest.raises(NoSuchLedger):
                await store.delete(ledger)
            assert await store.update(ledger, METADATA, 1) is None
            assert "00" not in client.get_children(root), "nodes that have no ledgers any longer are deleted"

    run(test)


def test_ids_are_as_java_gives_them(server: servers.ZooKeeper, client: KazooClient, root: str) -> None:
    async def test() -> None:
        async with opened(server.hosts, root) as store:
            assert [await store.new_id() for _ in range(3)] == [0, 1, 2]
            ledger, _ = await store.create(METADATA)
            assert ledger == 3
            assert client.exists(f"{root}/00/0000/L0003")
            # Another client has used up the short ones.
            client.create(f"{root}/idgen-long/HOB-0000000002", b"", makepath=True)
            client.create(f"{root}/idgen-long/HOB-0000000001", b"")
        async with opened(server.hosts, root) as store:
            ledger, _ = await store.create(METADATA)
            assert ledger == 2 << 32
            assert (await store.read(ledger)).metadata == METADATA

    run(test)


def test_one_of_two_creators_of_the_same_ledger_loses(server: servers.ZooKeeper, root: str) -> None:
    async def test() -> None:
        async with opened(server.hosts, root) as store:
            assert await store.create_at(5, METADATA) == Versioned(METADATA, 0)
            # The answer was lost, so the creator tries again.
            assert await store.create_at(5, METADATA) == Versioned(METADATA, 0)
            assert await store.create_at(5, replace(METADATA, token=8)) is None
            assert await store.create_at(5, replace(METADATA, token=0)) is None

    run(test)


def test_a_creation_whose_answer_is_lost_is_done_once(
    server: servers.ZooKeeper, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with opened(server.hosts, root) as store:
            lost = lose_an_answer(store, monkeypatch, lambda answer: isinstance(answer, str) and "/L" in answer)
            ledger, versioned = await store.create(METADATA)
            assert lost == [f"{root}/00/0000/L{ledger:04d}"]
            assert versioned == Versioned(METADATA, 0)
            assert ledger == 0

    run(test)


def test_an_update_whose_answer_is_lost_is_read(
    server: servers.ZooKeeper, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with opened(server.hosts, root) as store:
            ledger, _ = await store.create(METADATA)
            lose_an_answer(store, monkeypatch, lambda _: True)
            changed = replace(METADATA, state=LedgerState.IN_RECOVERY)
            assert await store.update(ledger, changed, 0) is None
            assert await store.read(ledger) == Versioned(changed, 1)

    run(test)


def test_a_watcher_sees_the_present_and_each_later_state_once(server: servers.ZooKeeper, root: str) -> None:
    async def test() -> None:
        async with opened(server.hosts, root) as store, opened(server.hosts, root) as other:
            ledger, _ = await store.create(METADATA)
            seen: asyncio.Queue[Versioned | None] = asyncio.Queue()
            unwatch = store.watch(ledger, seen.put_nowait)
            assert await seen.get() == Versioned(METADATA, 0)
            changed = replace(METADATA, state=LedgerState.IN_RECOVERY)
            await other.update(ledger, changed, 0)
            assert await seen.get() == Versioned(changed, 1)
            # Watches that come late or twice, or that were lost with a connection: look again, report nothing.
            for _ in range(3):
                store._watched[ledger].look.begin()
            store._now(True)
            await other.update(ledger, METADATA, 1)
            assert await seen.get() == Versioned(METADATA, 2)
            await other.delete(ledger)
            assert await seen.get() is None
            unwatch()
            unwatch()

    run(test)


def test_a_watched_ledger_is_read_again_when_the_connection_is_back_while_a_read_fails(
    server: servers.ZooKeeper, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with opened(server.hosts, root) as store:
            ledger, _ = await store.create(METADATA)
            real, failed = store._read, []

            async def read(ledger: int, watch: Callable[[object], None] | None) -> Versioned:
                if not failed:
                    failed.append(ledger)
                    store._now(True)
                    raise ZooKeeperError("ZooKeeper does not answer")
                return await real(ledger, watch)

            monkeypatch.setattr(store, "_read", read)
            seen: asyncio.Queue[Versioned | None] = asyncio.Queue()
            store.watch(ledger, seen.put_nowait)
            assert await seen.get() == Versioned(METADATA, 0)
            assert failed == [ledger]

    run(test)


def test_a_ledger_is_deleted_also_if_the_nodes_above_it_stay(
    server: servers.ZooKeeper, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with opened(server.hosts, root) as store:
            ledger, _ = await store.create(METADATA)
            real, answers = store._call, []

            async def call(request: Callable[[], Any]) -> Any:
                if answers:
                    raise NoAuthError
                answers.append(await real(request))
                return answers[0]

            with monkeypatch.context() as patched:
                patched.setattr(store, "_call", call)
                await store.delete(ledger)
            with pytest.raises(NoSuchLedger):
                await store.read(ledger)

    run(test)


def test_two_watchers_and_one_that_leaves(server: servers.ZooKeeper, root: str) -> None:
    async def test() -> None:
        async with opened(server.hosts, root) as store:
            ledger, _ = await store.create(METADATA)
            stays: asyncio.Queue[Versioned | None] = asyncio.Queue()
            leaves: list[Versioned | None] = []
            unwatch = store.watch(ledger, leaves.append)
            store.watch(ledger, stays.put_nowait)
            await stays.get()
            unwatch()
            before = len(leaves)
            await store.update(ledger, METADATA, 0)
            while (found := await stays.get()) is None or found.version < 1:
                pass
            assert len(leaves) == before

    run(test)


def test_registered_bookies_are_followed(server: servers.ZooKeeper, client: KazooClient, root: str) -> None:
    def info(port: int) -> bytes:
        made = BookieServiceInfo()
        made.endpoints.add(id="admin", host="127.0.0.9", port=8080, protocol="http")
        made.endpoints.add(id="x", host="127.0.0.5", port=port, protocol="bookie-rpc")
        return made.SerializeToString()

    async def test() -> None:
        bookies = Bookies()
        client.create(f"{root}/available/127.0.0.1:3181", b"")
        async with opened(server.hosts, root, bookies) as store:
            plain, named = BookieId("127.0.0.1:3181"), BookieId("rack-7")
            assert bookies.found == RegisteredBookies(frozenset({plain}), frozenset(), {plain: ("127.0.0.1", 3181)})
            client.create(f"{root}/available/rack-7", info(4000))
            await bookies.until(lambda found: named in found.writable)
            assert store.address(named) == ("127.0.0.5", 4000)
            # It becomes read-only: first there, then no longer here, as bookies do.
            client.create(f"{root}/available/readonly/rack-7", info(4000), makepath=True)
            client.delete(f"{root}/available/rack-7")
            await bookies.until(lambda found: named in found.read_only and named not in found.writable)
            assert store.address(named) == ("127.0.0.5", 4000)
            # It comes back at another address.
            client.create(f"{root}/available/rack-7", info(5000))
            client.delete(f"{root}/available/readonly/rack-7")
            await bookies.until(lambda found: found.addresses.get(named) == ("127.0.0.5", 5000))
            client.delete(f"{root}/available/127.0.0.1:3181")
            await bookies.until(lambda found: plain not in found.writable)
            assert store.address(plain) == ("127.0.0.1", 3181), "its name says it"

    run(test)


def test_requests_wait_for_a_server_that_is_started_again(tmp_path: Path) -> None:
    async def test() -> None:
        server = servers.ZooKeeper(tmp_path)
        try:
            helper = KazooClient(hosts=server.hosts)
            helper.start()
            servers.make_bookkeeper(helper, "/ledgers")
            helper.create("/ledgers/available/127.0.0.1:1", b"")
            helper.stop()
            helper.close()
            bookies = Bookies()
            async with opened(server.hosts, "/ledgers", bookies, lost_s=120) as store:
                ledger, _ = await store.create(METADATA)
                seen: asyncio.Queue[Versioned | None] = asyncio.Queue()
                store.watch(ledger, seen.put_nowait)
                assert await seen.get() == Versioned(METADATA, 0)
                server.kill()
                reading = asyncio.create_task(store.read(ledger))
                creating = asyncio.create_task(store.create(METADATA))
                await asyncio.get_running_loop().run_in_executor(None, server.start)
                assert await reading == Versioned(METADATA, 0)
                other, _ = await creating
                assert other > ledger
                # Watches were lost with the connection.
                changed = replace(METADATA, state=LedgerState.IN_RECOVERY)
                assert await store.update(ledger, changed, 0) == 1
                assert await seen.get() == Versioned(changed, 1)
        finally:
            server.kill()

    run(test)


def test_a_server_that_is_lost_is_one_line(tmp_path: Path) -> None:
    async def test() -> None:
        server = servers.ZooKeeper(tmp_path)
        helper = KazooClient(hosts=server.hosts)
        helper.start()
        servers.make_bookkeeper(helper, "/ledgers")
        helper.stop()
        helper.close()
        async with opened(server.hosts, "/ledgers", lost_s=0.3) as store:
            server.kill()
            with pytest.raises(ZooKeeperError, match=r"^zookeeper://.*: ZooKeeper does not answer within 0.3 s$"):
                await store.read(1)

    run(test)


def failure(hosts: str, root: str) -> str:
    async def test() -> str:
        made = ZooKeeper(hosts, root, Bookies())
        with pytest.raises(ZooKeeperError) as raised:
            await made.open(0.5 if hosts[-2:] == ":1" else 30)
        return str(raised.value)

    return asyncio.run(test())


def test_what_is_no_cluster_is_one_line(server: servers.ZooKeeper, client: KazooClient, root: str) -> None:
    assert failure(server.hosts, "/nothing") == (
        f"zookeeper://{server.hosts}/nothing is not the root of a BookKeeper cluster; `bookkeeper shell initnewcluster` "
        "makes it"
    )
    client.set(f"{root}/LAYOUT", b"2\norg.example.Other:1")
    assert "the node LAYOUT says b'2\\norg.example.Other:1'" in failure(server.hosts, root)
    assert failure("127.0.0.1:1", "/ledgers") == (
        "zookeeper://127.0.0.1:1/ledgers: ZooKeeper does not answer within 0.5 s: 127.0.0.1:1: Connection refused"
    )


def test_metadata_that_cannot_be_read_name_the_ledger(
    server: servers.ZooKeeper, client: KazooClient, root: str
) -> None:
    async def test() -> None:
        async with opened(server.hosts, root) as store:
            ledger, _ = await store.create(METADATA)
            client.set(f"{root}/00/0000/L0000", b"nonsense")
            with pytest.raises(ZooKeeperError, match=f"ledger {ledger}: metadata of a ledger begins with b'nonsense'"):
                await store.read(ledger)

    run(test)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("a:1", ("a", 1)),
        ("rack-7", None),
        ("a:", None),
        (":1", None),
        ("a:0", None),
        ("a:65536", None),
        ("a:b", None),
        ("fe80::1:3181", ("fe80::1", 3181)),
    ],
)
def test_the_address_in_a_name(name: str, address: tuple[str, int] | None) -> None:
    assert address_of(BookieId(name)) == address


@pytest.mark.parametrize("content", [b"", b"\xff\xff", BookieServiceInfo().SerializeToString()])
def test_old_bookies_register_no_address(content: bytes) -> None:
    assert registered_address(content) is None
