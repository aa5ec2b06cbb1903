"""What a broker does with its files before it is one."""

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import magnetar.app as application
from magnetar.app import BrokerApp
from magnetar.broker.waiting.registration import NO_BROKERS, Brokers
from magnetar.core.config import load, single
from magnetar.core.errors import StorageError
from magnetar.core.settings import BrokerConfig, BrokerEndpoints, ClusterConfig
from magnetar.metadata.topic_records import LAST_LEDGER_KEY, TOPIC_PREFIX, TopicRecord
from magnetar.runtime.broker_storage import BrokerStorage, LogReports
from magnetar.runtime.local_storage import check_together, open_local, start_log
from magnetar.runtime.log.files import OsFiles
from magnetar.runtime.security.secrets import read_link_token
from magnetar.runtime.stores.sqlite import SqliteStore
from magnetar.storage.recovery import Recovered, recover
from magnetar.storage.topiclog import RecoveredTopic
from tests.support.brokers import free_port
from tests.support.folders import leaving_garbage
from tests.unit.storage.harness import INCARNATION, TOPIC, Log


def test_a_link_token_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "data" / "link.token"
    token = read_link_token(path)
    assert len(token) > 30 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_link_token(path) == token
    assert [one.name for one in path.parent.iterdir()] == ["link.token"]


def test_one_that_is_there_may_be_where_nobody_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a secret that is mounted."""

    opened = os.open

    def refused(name: Path, flags: int, *more: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError(13, "Permission denied")
        return opened(name, flags, *more)

    path = tmp_path / "link.token"
    path.touch(0o600)
    path.write_text("secret\n")
    monkeypatch.setattr(os, "open", refused)
    assert read_link_token(path) == b"secret"


def test_what_another_life_left_is_not_in_the_way(tmp_path: Path) -> None:
    """It was killed while it made the token; in a container the next one has the same process id."""
    path = tmp_path / "link.token"
    (tmp_path / f".link.token.{os.getpid()}").touch()
    assert read_link_token(path)


def test_what_is_no_secret_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "link.token"
    path.touch(0o600)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(StorageError, match="is not text"):
        read_link_token(path)
    path.write_bytes(b"")
    with pytest.raises(StorageError, match="is empty"):
        read_link_token(path)
    path.write_bytes(bytes(1 << 20))
    with pytest.raises(StorageError, match="should hold one line"):
        read_link_token(path)
    path.chmod(0o644)
    with pytest.raises(StorageError, match="can be read by others"):
        read_link_token(path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(StorageError, match="is not a regular file"):
        read_link_token(path)
    path.unlink()
    path.mkdir(0o700)
    with pytest.raises(StorageError, match="is not a regular file"):
        read_link_token(path)


def test_messages_whose_metadata_is_elsewhere_are_not_cleared_away(tmp_path: Path) -> None:
    """Another store than the log's own: a lost file, or a mistake in [metadata] store."""
    config = single("a", tmp_path, free_port(), free_port())
    folder = config.cluster_dir("a")

    def start() -> None:
        async def run() -> None:
            app = BrokerApp(config, "a")
            try:
                await app.start()
            finally:
                await app.stop()

        with leaving_garbage():
            asyncio.run(run())

    start()
    log = Log(OsFiles(), folder / "log")
    log.append(log.topic(), "kept")
    log.stop()
    before = {path.name: path.stat().st_size for path in (folder / "log").iterdir()}
    for path in folder.glob("meta.sqlite*"):
        path.unlink()
    with pytest.raises(StorageError, match=r"persistent://public/default/t: they would be deleted") as refused:
        start()
    assert "meta.sqlite" in str(refused.value)
    after = {path.name: path.stat().st_size for path in (folder / "log").iterdir()}
    assert after | before == after
    (folder / "store.mark").unlink()  # that of the store before: this one takes its place
    store = SqliteStore(folder / "meta.sqlite")
    store.apply({TOPIC_PREFIX + TOPIC: TopicRecord(incarnation=INCARNATION, created_ms=1).encode()})
    store.close()
    start()
    again = recover(OsFiles(), folder / "log").topics
    assert again[TOPIC, INCARNATION].ledger_ids()


def test_a_store_whose_topics_were_all_deleted_belongs_to_its_log(tmp_path: Path) -> None:
    recovered = Recovered(topics={("persistent://public/default/t", 7): RecoveredTopic()})
    check_together({LAST_LEDGER_KEY: b"7"}, recovered, "sqlite", tmp_path)
    check_together({}, Recovered(), "sqlite", tmp_path)
    with pytest.raises(StorageError, match=r"zookeeper://h:1/p\) knows no topic"):
        check_together({"tenants/public": b"{}"}, recovered, "zookeeper://h:1/p", tmp_path)


@pytest.mark.parametrize(("parts", "number"), [(2, errno.ENOSPC), (0, errno.ENOSPC), (2, errno.EIO)])
def test_a_log_is_begun_on_a_full_disk_with_room_from_the_reserve(parts: int, number: int) -> None:
    attempts: list[int] = []
    given: list[int] = []

    class Full:
        def start(self) -> Recovered:
            attempts.append(1)
            if len(attempts) > 2:
                return Recovered()
            error = StorageError("cannot write to the log")
            raise error from OSError(number, os.strerror(number))

    class Room:
        def give(self) -> bool:
            given.append(1)
            return len(given) <= parts

    if parts == 2 and number == errno.ENOSPC:
        assert start_log(Full(), Room()) == Recovered()  # type: ignore[arg-type]
        assert len(given) == 2
    else:
        with pytest.raises(StorageError, match="cannot write"):
            start_log(Full(), Room())  # type: ignore[arg-type]
        assert len(attempts) == 1


def test_a_broker_whose_folder_is_moved_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it would confirm from then on is not where its next life looks."""
    monkeypatch.setattr(application, "FOLDER_LOOK_S", 0.01)
    config = single("a", tmp_path, free_port(), free_port())
    folder = config.cluster_dir("a")

    async def run() -> None:
        app = BrokerApp(config, "a")
        try:
            await app.start()
            folder.rename(tmp_path / "elsewhere")
            (folder / "log").mkdir(parents=True)
            await asyncio.wait_for(app.driver.stopped.wait(), 20)
            with pytest.raises(StorageError, match="another folder is at"):
                app.store.apply({"a": b"1"})
        finally:
            await app.stop()

    with leaving_garbage():
        asyncio.run(run())
    assert caplog.text.count("the broker stops: another folder is at") == 1
    assert [path.name for path in folder.rglob("*")] == ["log"]


def test_a_broker_takes_over_with_the_keys_that_were_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a key is wrong when it takes over: the former one stays in force, as in a broker that serves."""
    opening = pytest.importorskip("magnetar.runtime.bookkeeper.opening")
    key = tmp_path / "key"
    key.write_bytes(bytes(range(65, 113)))
    key.chmod(0o600)
    (tmp_path / "clusters.toml").write_text(
        f'[magnetar]\ndata_dir = "data"\n[clusters.one]\nstorage = "bookkeeper"\nstore = "zookeeper://127.0.0.1:1/one"\n'
        f'[clusters.one.brokers.a]\npulsar = "127.0.0.1:{free_port()}"\nhttp = "127.0.0.1:{free_port()}"\n'
        '[authentication]\nmethods = ["token"]\nsecret_key_files = ["key"]\n'
    )
    config = load(tmp_path / "clusters.toml")

    class Opening:
        """Another broker serves until the key's file is wrong; the storage is a folder."""

        def __init__(
            self,
            _cluster: ClusterConfig,
            _endpoints: BrokerEndpoints,
            reports: LogReports,
            stack: contextlib.ExitStack,
            changed: Callable[[Brokers], None],
        ) -> None:
            self._reports, self._stack = reports, stack

        def register(self) -> None:
            """It is registered."""

        def wait(self, waits: Callable[[], None]) -> None:
            """The other broker serves."""
            waits()
            key.write_bytes(b"short")

        def open(self, _broker: BrokerConfig) -> BrokerStorage:
            """The log."""
            return open_local(config, "one", self._reports, self._stack)

        def seen(self) -> Brokers:
            """None of them."""
            return NO_BROKERS

    monkeypatch.setattr(opening, "Opening", Opening)

    async def run() -> None:
        app = BrokerApp(config, "one/a")
        try:
            await app.start()
            assert app.broker.access.enabled
        finally:
            await app.stop()

    with leaving_garbage():
        asyncio.run(run())
