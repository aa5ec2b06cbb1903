"""The metadata store in a real ZooKeeper: the public suite, lost connections, expired sessions, two writers."""

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from magnetar.core.addresses import parse_zookeeper
from magnetar.core.errors import StorageError
from magnetar.metadata.store import Store, VersionConflict
from magnetar.runtime.stores import zookeeper
from magnetar.runtime.stores.znodes import TRANSACTION_BYTES_MAX
from magnetar.runtime.stores.zookeeper import ZooKeeperStore
from tests.support.brokers import eventually
from tests.support.store_conformance import StoreConformance
from tests.support.zookeeper import ZooKeeper


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.kill()


@pytest.fixture
def place() -> str:
    """A path of one test."""
    return f"/magnetar/{uuid.uuid4().hex}"


class TestZooKeeperStore(StoreConformance):
    @pytest.fixture
    def store(self, server: ZooKeeper, place: str) -> Iterator[Store]:
        store = ZooKeeperStore(server.hosts, place)
        yield store
        store.close()


class TestSharedZooKeeperStore(StoreConformance):
    """The same where several stores may write."""

    @pytest.fixture
    def store(self, server: ZooKeeper, place: str) -> Iterator[Store]:
        store = ZooKeeperStore(server.hosts, place, exclusive=False)
        yield store
        store.close()


def test_what_was_written_is_there_again_and_versions_go_on(server: ZooKeeper, place: str) -> None:
    first = ZooKeeperStore(server.hosts, place)
    first.apply({"a/b": b"1", "..": b"2", ".": b"3", "ü/%2F": b"4"})
    before = first.load()
    first.close()
    again = ZooKeeperStore(server.hosts, place)
    assert again.load() == before
    again.apply({"a/b": b"5"}, ("..",), {"a/b": before["a/b"][1]})
    assert again.load()["a/b"][1] > before["a/b"][1]
    again.close()


def test_two_stores_see_each_others_changes_and_compare_and_set_holds(server: ZooKeeper, place: str) -> None:
    one, other = (ZooKeeperStore(server.hosts, place, exclusive=False) for _ in range(2))
    told: list[tuple[str, bytes | None, int]] = []
    seen = threading.Event()

    def watcher(key: str, value: bytes | None, version: int) -> None:
        told.append((key, value, version))
        if value is None:
            seen.set()

    other.watch("t/", watcher)
    one.apply({"t/a": b"1", "x": b"1"})
    one.apply({"t/a": b"2"})
    eventually(lambda: told and told[-1][1] == b"2")
    one.apply({}, ("t/a",))
    assert seen.wait(10)
    assert told[-1][:2] == ("t/a", None) and [each[2] for each in told] == sorted(each[2] for each in told)
    version = one.load()["x"][1]
    other.apply({"x": b"2"}, (), {"x": version})
    with pytest.raises(VersionConflict):
        one.apply({"x": b"3"}, (), {"x": version})
    # Deleted and made again by somebody else: ZooKeeper's own version of the node is what it was before.
    other.apply({}, ("x",))
    other.apply({"x": b"2"})
    with pytest.raises(VersionConflict):
        one.apply({"x": b"3"}, (), {"x": version + 1})
    one.close()
    other.close()


def test_many_writers_lose_nothing(server: ZooKeeper, place: str) -> None:
    stores = [ZooKeeperStore(server.hosts, place, exclusive=False) for _ in range(3)]

    def count(store: ZooKeeperStore) -> None:
        for _ in range(20):
            while True:
                value, version = store.load().get("n", (b"0", 0))
                try:
                    store.apply({"n": b"%d" % (int(value) + 1)}, (), {"n": version})
                except VersionConflict:
                    continue
                break

    threads = [threading.Thread(target=count, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].load()["n"][0] == b"60"
    for store in stores:
        store.close()


def test_a_second_broker_is_refused_until_the_first_is_gone(server: ZooKeeper, place: str) -> None:
    first = ZooKeeperStore(server.hosts, place)
    with pytest.raises(StorageError, match="in use by another broker"):
        ZooKeeperStore(server.hosts, place)
    first.close()
    ZooKeeperStore(server.hosts, place).close()


def test_an_oversized_write_is_refused_in_one_line_and_harms_nobody(server: ZooKeeper, place: str) -> None:
    store = ZooKeeperStore(server.hosts, place)
    with pytest.raises(StorageError, match="more than ZooKeeper takes at once") as refused:
        store.apply({"big": b"x" * (TRANSACTION_BYTES_MAX + 1)})
    assert "\n" not in str(refused.value)
    reports: list[str] = []
    for number in range(40):
        store.submit({f"k{number}": b"x" * 60_000}, (), reports.append)
    store.submit({"big": b"x" * 2_000_000}, (), reports.append)
    store.apply({"small": b"1"})
    assert reports[:40] == [""] * 40 and "more than" in reports[40]
    assert len(store.load()) == 41
    store.close()


def test_many_keys(server: ZooKeeper, place: str) -> None:
    store = ZooKeeperStore(server.hosts, place)
    for part in range(5):
        store.apply({f"topics/persistent://public/default/t-{part}-{n}": b"x" * 100 for n in range(600)})
    assert len(store.load()) == 3000
    store.close()


def test_writes_wait_while_the_server_hangs_and_happen_once(server: ZooKeeper, place: str) -> None:
    store = ZooKeeperStore(server.hosts, place, session_s=4)
    store.apply({"n": b"0"})
    reports: list[str] = []
    server.freeze(True)
    for number in range(50):
        store.submit({f"k{number}": b"%d" % number}, (), reports.append)
    server.freeze(False)
    store.apply({"end": b""})
    assert reports == [""] * 50
    found = store.load()
    assert len(found) == 52
    store.close()


def test_a_killed_server_comes_back_and_writing_goes_on(tmp_path: Path, place: str) -> None:
    own = ZooKeeper(tmp_path)
    store = ZooKeeperStore(own.hosts, place, session_s=4)
    reports: list[str] = []
    stop = threading.Event()
    submitted = 0
    halfway = threading.Event()

    def write() -> None:
        nonlocal submitted
        while not stop.is_set() and submitted < 20_000:
            done = threading.Event()
            store.submit({f"k{submitted}": b"x"}, (), lambda error, done=done: (reports.append(error), done.set()))  # type: ignore[misc]
            submitted += 1
            if submitted > 30:
                halfway.set()
            done.wait(60)

    thread = threading.Thread(target=write)
    thread.start()
    assert halfway.wait(30)
    own.kill()
    own.start()
    before = len(reports)
    eventually(lambda: len(reports) > before + 20, within_s=40)
    stop.set()
    thread.join()
    assert set(reports) == {""}
    assert len(store.load()) == submitted == len(reports)
    store.close()
    own.kill()


def _expire(store: ZooKeeperStore, server: ZooKeeper) -> None:
    """Have the session end: another client with its id and password closes it."""
    second = KazooClient(hosts=server.hosts, client_id=store._client.client_id, timeout=4)
    second.start()
    second.stop()
    second.close()


def test_an_expired_session_begins_anew(server: ZooKeeper, place: str) -> None:
    store = ZooKeeperStore(server.hosts, place, session_s=4)
    store.apply({"a": b"1"})
    session = store._client.client_id[0]
    _expire(store, server)
    store.apply({"a": b"2"}, (), {"a": store.load()["a"][1]})
    eventually(lambda: store._client.client_id is not None and store._client.client_id[0] != session, within_s=20)
    store.apply({"a": b"3"})
    assert store.load()["a"][0] == b"3"
    with pytest.raises(StorageError, match="in use"):
        ZooKeeperStore(server.hosts, place)
    store.close()


def test_who_lost_its_session_to_another_broker_writes_no_more(server: ZooKeeper, place: str) -> None:
    store = ZooKeeperStore(server.hosts, place, session_s=4)
    store.apply({"a": b"1"})
    real, taken = store._own, []

    def late() -> None:
        if not taken:
            taken.append(ZooKeeperStore(server.hosts, place))
        real()

    store._own = late  # type: ignore[method-assign]
    _expire(store, server)
    eventually(lambda: store._stale, within_s=20)
    with pytest.raises(StorageError, match="another broker took over"):
        store.apply({"a": b"2"})
    assert taken[0].load()["a"][0] == b"1"
    with pytest.raises(StorageError, match="writes no more"):
        store.apply({"a": b"2"})
    store.close()
    taken[0].close()


def test_nobody_there_is_one_line(place: str) -> None:
    from tests.support.brokers import free_port

    with pytest.raises(StorageError, match="does not answer within"):
        ZooKeeperStore(f"127.0.0.1:{free_port()}", place, start_s=0.3)


def test_closing_without_a_server_reports_what_was_not_stored(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ZooKeeper(tmp_path)
    store = ZooKeeperStore(own.hosts, place, session_s=4)
    own.kill()
    eventually(lambda: not store._connected, within_s=20)
    monkeypatch.setattr(zookeeper, "LOST_S", 0.2)
    reports: list[str] = []
    store.submit({"a": b"1"}, (), reports.append)
    store.close()
    assert len(reports) == 1 and "was not stored" in reports[0]


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("zookeeper://a:2181/magnetar", ("a:2181", "/magnetar")),
        ("zookeeper://a:1,b:2/x/y/", ("a:1,b:2", "/x/y")),
        ("zookeeper://a/magnetar", None),
        ("zookeeper://a:2181", None),
        ("zookeeper://a:2181/", None),
        ("zookeeper://a:2181/x/../y", None),
        ("zookeeper://a:99999/x", None),
        ("http://a:2181/x", None),
    ],
)
def test_urls(url: str, parsed: tuple[str, str] | None) -> None:
    if parsed is None:
        with pytest.raises(ValueError, match="zookeeper://host:2181/magnetar"):
            parse_zookeeper(url)
    else:
        assert parse_zookeeper(url) == parsed
