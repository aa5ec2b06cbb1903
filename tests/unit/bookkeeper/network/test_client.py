"""The client of ledgers over real sockets, with bookies in memory and a real ZooKeeper."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient

from magnetar.bookkeeper.ledgers.metadata import DigestType, LedgerState
from magnetar.bookkeeper.ledgers.reader import ReaderLimits
from magnetar.bookkeeper.ledgers.writer import WriterLimits
from magnetar.bookkeeper.network import writable
from magnetar.bookkeeper.network.client import BookKeeper, Limits
from magnetar.bookkeeper.network.connection import ConnectionLimits
from magnetar.bookkeeper.network.errors import (
    EntryUnreadable,
    LedgerFenced,
    LedgerRefused,
    NoSuchLedger,
    NotWritable,
    RecoveryFailed,
    TooFewBookies,
    TooMuchUnconfirmed,
)
from magnetar.bookkeeper.protocol.messages import Code
from tests.support import zookeeper as servers
from tests.support.scripted_bookie import ScriptedBookie
from tests.support.storing_bookie import Storage


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ZooKeeper]:
    server = servers.ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.kill()


@pytest.fixture
def tree(server: servers.ZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(hosts=server.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


class World(NamedTuple):
    """A client and its bookies."""

    client: BookKeeper
    bookies: list[ScriptedBookie]
    storages: list[Storage]
    connect: Callable[..., Awaitable[BookKeeper]]

    def of(self, ledger: writable.WritableLedger, index: int) -> tuple[ScriptedBookie, Storage]:
        """A bookie of a ledger's ensemble."""
        name = ledger.metadata.segments[-1].ensemble[index]
        at = next(at for at, bookie in enumerate(self.bookies) if bookie.id == name)
        return self.bookies[at], self.storages[at]


Test = Callable[[World], Awaitable[Any]]


@pytest.fixture
def run(server: servers.ZooKeeper, tree: KazooClient) -> Callable[..., None]:
    """Runs a test with four bookies."""
    root = f"/test-{uuid.uuid4().hex}"
    servers.make_bookkeeper(tree, root)

    @contextlib.asynccontextmanager
    async def world(limits: Limits | None) -> AsyncIterator[World]:
        storages = [Storage() for _ in range(4)]
        bookies = [ScriptedBookie(storage) for storage in storages]
        async with contextlib.AsyncExitStack() as stack:
            for bookie in bookies:
                await stack.enter_async_context(bookie)
                tree.create(f"{root}/available/{bookie.id}", b"")

            async def connect() -> BookKeeper:
                made = await BookKeeper.connect(server.hosts, root=root, limits=limits)
                return await stack.enter_async_context(made)

            yield World(await connect(), bookies, storages, connect)

    def bounded(test: Test, limits: Limits | None = None) -> None:
        async def whole() -> None:
            async with asyncio.timeout(200), world(limits) as made:
                await test(made)

        asyncio.run(whole())

    return bounded


def payloads(count: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]


@pytest.mark.parametrize("digest", DigestType)
def test_what_is_written_is_read(run: Callable[..., None], digest: DigestType) -> None:
    async def test(world: World) -> None:
        ledger = await world.client.create(digest=digest, write_quorum=2, custom={"name": b"x"})
        assert await asyncio.gather(*map(ledger.append, payloads(100))) == list(range(100))
        assert ledger.last_confirmed == 99
        closed = await ledger.close()
        assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 99)
        reader = await world.client.open(ledger.id)
        assert [payload async for _, payload, _ in reader.entries()] == payloads(100)
        assert [payload for _, payload, _ in await reader.read(40, 42)] == payloads(43)[40:]
        assert reader.metadata.custom == {"name": b"x"}
        with pytest.raises(NotWritable, match="closed"):
            ledger.append(b"more")
        with pytest.raises(EntryUnreadable, match="entries 0 to 99 can be read"):
            await reader.read(99, 100)

    run(test)


def test_a_writer_is_bounded_and_room_is_waited_for(run: Callable[..., None]) -> None:
    async def test(world: World) -> None:
        ledger = await world.client.create()
        for number in range(3):
            ledger.append(b"%d" % number)
        assert not ledger.has_room
        with pytest.raises(TooMuchUnconfirmed):
            ledger.append(b"too much")
        await ledger.room()
        assert await ledger.append(b"3") == 3
        with pytest.raises(ValueError, match="at most"):
            ledger.append(bytes(writable.PAYLOAD_BYTES_MAX + 1))
        assert (await ledger.close()).last_entry == 3

    run(test, Limits(writer=WriterLimits(entries_max=3)))


def test_a_slow_bookie_slows_its_writer(run: Callable[..., None]) -> None:
    async def test(world: World) -> None:
        ledger = await world.client.create()
        slow, storage = world.of(ledger, 0)
        await ledger.append(b"begin")
        storage.silent = True
        # An ack quorum confirms the entries; the third bookie has not answered.
        while ledger.has_room:
            await ledger.append(bytes(1000))
        with pytest.raises(TooMuchUnconfirmed, match="has not answered what was sent"):
            ledger.append(b"too much")
        waiting = asyncio.create_task(ledger.room())
        storage.silent = False
        slow.cut()  # what it has not answered fails
        await waiting
        await ledger.append(b"end")
        assert slow.id not in ledger.metadata.segments[-1].ensemble
        await ledger.close()

    run(test, Limits(connections=ConnectionLimits(bytes_max=10_000)))


@pytest.mark.parametrize("code", [Code.READ_ONLY, Code.IO_ERROR])
def test_a_bookie_that_refuses_is_replaced(run: Callable[..., None], code: Code) -> None:
    async def test(world: World) -> None:
        ledger = await world.client.create()
        await ledger.append(b"entry 0")
        bookie, storage = world.of(ledger, 1)
        storage.code = code
        await asyncio.gather(*map(ledger.append, payloads(50)[1:]))
        while bookie.id in ledger.metadata.segments[-1].ensemble:
            await ledger.append(b"more")
        closed = await ledger.close()
        assert len(closed.segments) == 2
        reader = await world.client.open(ledger.id)
        assert [payload async for _, payload, _ in reader.entries()][:50] == payloads(50)

    run(test)


def test_a_bookie_with_too_much_to_do_is_asked_again_and_stays(run: Callable[..., None]) -> None:
    async def test(world: World) -> None:
        ledger = await world.client.create(ack_quorum=3)
        bookie, storage = world.of(ledger, 1)
        storage.code = Code.TOO_MANY
        done = ledger.append(b"entry 0")
        await bookie.until(lambda: len(bookie.adds()) == 3)
        assert not done.done()
        storage.code = Code.OK
        assert await done == 0
        assert len((await ledger.close()).segments) == 1

    run(test)


def test_a_takeover_refuses_the_former_writer(run: Callable[..., None]) -> None:
    async def test(world: World) -> None:
        other = await world.connect()
        ledger = await world.client.create()
        await asyncio.gather(*map(ledger.append, payloads(100)))
        opened = await other.open(ledger.id)
        assert not opened.closed
        assert opened.last_readable <= 99
        reader = await other.recover(ledger.id)
        assert (reader.closed, reader.last_readable) == (True, 99)
        assert [payload async for _, payload, _ in reader.entries()] == payloads(100)
        with pytest.raises(LedgerFenced, match=f"ledger {ledger.id}: another client recovers the ledger"):
            await ledger.append(b"late")
        with pytest.raises(NotWritable) as later:
            ledger.append(b"later")
        assert isinstance(later.value.__cause__, LedgerFenced)
        with pytest.raises(LedgerFenced):
            await ledger.close()
        again = await other.recover(ledger.id)
        assert again.last_readable == 99

    run(test)


def test_a_follower_sees_all_entries_until_the_end(run: Callable[..., None]) -> None:
    async def test(world: World) -> None:
        other = await world.connect()
        ledger = await world.client.create()
        reader = await other.open(ledger.id)
        seen: list[bytes] = []
        all_seen = asyncio.Event()

        async def follow() -> None:
            async for _, payload, _ in reader.follow():
                seen.append(payload)
                if len(seen) == 20:
                    all_seen.set()

        following = asyncio.create_task(follow())
        for payload in payloads(20):
            await ledger.append(payload)
        await all_seen.wait()  # the writer is idle, and says that the last entry is confirmed
        await ledger.close()
        await following
        assert seen == payloads(20)

    run(test)


def test_reads_are_bounded(run: Callable[..., None]) -> None:
    async def test(world: World) -> None:
        ledger = await world.client.create()
        await asyncio.gather(*map(ledger.append, payloads(40)))
        await ledger.close()
        reader = await world.client.open(ledger.id)
        # The second part of a long read is asked for while the first one is under way.
        with pytest.raises(EntryUnreadable, match=f"^ledger {ledger.id}: 1 reads are under way: the limit is reached$"):
            await reader.read(0, 39)
        assert len(await reader.read(0, 9)) == 10

    run(test, Limits(reader=ReaderLimits(reads_max=1)))


def test_a_client_lets_go_of_a_ledger_that_it_deletes(run: Callable[..., None]) -> None:
    async def test(world: World) -> None:
        ledger, other = await world.client.create(), await world.client.create()
        await ledger.append(b"entry 0")
        await ledger.append(b"entry 1")  # its header says that the first one is confirmed
        reader = await world.client.open(ledger.id)

        async def follow() -> None:
            async for _ in reader.follow():
                pass

        following = asyncio.create_task(follow())
        assert [payload for _, payload, _ in await reader.read(0, 0)] == [b"entry 0"]
        await world.client.delete(ledger.id)
        gone = f"^ledger {ledger.id} is no longer open in this client$"
        with pytest.raises(EntryUnreadable, match=gone):
            await following
        with pytest.raises(EntryUnreadable, match=gone):
            await reader.read(0, 0)
        with pytest.raises(NotWritable, match=f"^ledger {ledger.id} was abandoned$"):
            ledger.append(b"entry 2")
        assert await other.append(b"entry 0") == 0

    run(test)


def test_a_ledger_that_was_abandoned_is_not_closed(run: Callable[..., None]) -> None:
    async def test(world: World) -> None:
        ledger = await world.client.create()
        await ledger.append(b"entry 0")
        ledger.abandon()
        with pytest.raises(NotWritable, match=f"^ledger {ledger.id} was abandoned$"):
            await ledger.close()
        await asyncio.sleep(0)  # what it would have begun is on its way before the next request
        assert (await world.client.metadata(ledger.id)).state is LedgerState.OPEN

    run(test)


def test_errors_are_one_line(run: Callable[..., None]) -> None:
    async def test(world: World) -> None:
        with pytest.raises(TooFewBookies, match="^4 bookies take entries: an ensemble of 5 needs as many$"):
            await world.client.create(ensemble=5)
        with pytest.raises(ValueError, match="each must be at least as large as the next"):
            await world.client.create(ensemble=2, write_quorum=3)
        with pytest.raises(NoSuchLedger):
            await world.client.open(77)
        ledger = await world.client.create(password=b"secret")
        await ledger.append(b"entry 0")
        for refused in (world.client.open, world.client.recover):
            with pytest.raises(LedgerRefused, match=f"^ledger {ledger.id} has another password$"):
                await refused(ledger.id, password=b"wrong")
            with pytest.raises(LedgerRefused, match=f"^ledger {ledger.id} has the digest CRC32C, not HMAC$"):
                await refused(ledger.id, digest=DigestType.HMAC)
        for bookie in world.bookies:
            await bookie.stop()
        with pytest.raises(TooFewBookies, match=f"ledger {ledger.id}: none of its bookies answers; bookie 127"):
            await world.client.open(ledger.id)
        with pytest.raises(RecoveryFailed, match="recover it again later"):
            await world.client.recover(ledger.id, patience_s=0)

    run(test)


def test_a_ledger_whose_bookies_are_gone_fails_after_its_patience(run: Callable[..., None]) -> None:
    async def test(world: World) -> None:
        ledger = await world.client.create(ensemble=4)
        await ledger.append(b"entry 0")
        for bookie in world.bookies:
            await bookie.stop()
        with pytest.raises(TooFewBookies, match=f"ledger {ledger.id}: too few bookies .*; bookie 127"):
            await ledger.append(b"entry 1")

    run(test, Limits(writer=replace(WriterLimits(), patience_s=0.3, retry_s=0.1)))


def test_bookies_that_are_registered_and_cannot_be_reached_are_not_tried_without_an_end(
    run: Callable[..., None],
) -> None:
    async def test(world: World) -> None:
        # Each change may choose the bookie that the change before took out.
        ledger = await world.client.create(ensemble=3)
        await ledger.append(b"entry 0")
        for bookie in world.bookies:
            await bookie.stop()
        with pytest.raises(TooFewBookies, match=f"ledger {ledger.id}: too few bookies .*; bookie 127"):
            await ledger.append(b"entry 1")

    run(test, Limits(writer=replace(WriterLimits(), patience_s=0.3, retry_s=0.1)))


def test_closing_the_client_fails_what_is_open(run: Callable[..., None]) -> None:
    async def test(world: World) -> None:
        other = await world.connect()
        ledger = await other.create()
        await ledger.append(b"entry 0")
        for storage in world.storages:
            storage.silent = True
        done = ledger.append(b"entry 1")
        await other.close()
        with pytest.raises(NotWritable, match="abandoned"):
            await done
        with pytest.raises(NotWritable, match="abandoned"):
            ledger.append(b"entry 2")

    run(test)
