"""Checks that the parts of a data folder belong together, and implements `magnetar recover` for folders in which they do not.

The log has the messages of topics. The metadata store has the topics that exist and those that were deleted. The mark has the
number of the store's newest transaction. A start refuses a store that went back in time; the log keeps topics that the store lost
until an operator decides.
"""

import contextlib
import logging
import sqlite3
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from magnetar.broker.catalog.deletion_proofs import Loss, Unknown, begin_proving, deletion_key, missing, sort_out
from magnetar.core.addresses import SQLITE
from magnetar.core.config import Config
from magnetar.core.errors import StorageError
from magnetar.core.ids import EARLIEST
from magnetar.core.names import TopicName
from magnetar.metadata.keys import cluster_key
from magnetar.metadata.policies.namespace import ClusterData, Policies, TenantInfo
from magnetar.metadata.resources import Resources
from magnetar.metadata.store import Store
from magnetar.metadata.topic_records import (
    CURSOR_PREFIX,
    LAST_LEDGER_KEY,
    TOPIC_PREFIX,
    TopicRecord,
    cursor_key,
    split_cursor_key,
)
from magnetar.runtime.log.files import OsFiles, sync_folder, write_small
from magnetar.runtime.log.folder import FolderLock, explain, read_uuid
from magnetar.runtime.log.reserve import Reserve
from magnetar.runtime.stores.mark import StoreMark
from magnetar.runtime.stores.opening import open_store
from magnetar.runtime.stores.sqlite import SCHEMA_VERSION, SqliteStore, checksum_of, is_whole
from magnetar.storage.cache import EntryCache
from magnetar.storage.cursor import Cursor
from magnetar.storage.ledgerfile import Known, LedgerFile
from magnetar.storage.ledgerids import LedgerIds
from magnetar.storage.recovery import Recovered, recover
from magnetar.storage.topiclog import RecoveredTopic, TopicLog

logger = logging.getLogger("magnetar.broker")

STORE_ID_KEY: Final = "broker/store"
"""The id of a metadata store, a uuid: its number of transactions says something about this store alone."""

MARK_FILE: Final = "store.mark"
LEDGER_FILE: Final = "ledgers"
EVERYTHING: Final = "all"
"""Given as the name of a topic, it means all of them."""

SUBSCRIPTION: Final = "recovered"
"""Subscription of a topic that came back without any: it holds the messages, which retention would delete otherwise."""


def store_address(store: str, folder: Path) -> str:
    """Where the metadata store is, for people."""
    return str(folder / "meta.sqlite") if store == SQLITE else store


def check_store(mark: StoreMark, stored: Mapping[str, bytes], version: int, address: str, cluster: str) -> None:
    """Refuse a metadata store that is older than the data folder, or another one than the folder's.

    Args:
        mark: of the folder.
        stored, version: of the store.
        address: of the store, for people.
        cluster: whose folder it is.

    Raises:
        StorageError: one line, with the way out.
    """
    if mark.damaged:
        logger.warning(
            "store.mark of the data folder is damaged, so it is unknown whether %s went back in time", address
        )
    if mark.found is None:
        return
    way = (
        f"put back the newest copy, or accept this one, which loses all later changes: magnetar recover {cluster} "
        "--accept-store"
    )
    known = stored.get(STORE_ID_KEY, b"").decode("utf-8", "replace")
    if known != mark.found.store:
        raise StorageError(f"the metadata store {address} is not the one that this data folder was used with: {way}")
    if version < mark.found.version:
        raise StorageError(
            f"the metadata store {address} went back in time: its last change is {version}, and change {mark.found.version} was "
            f"confirmed: {way}"
        )


def check_log(
    recovered: Recovered, ledgers: LedgerFile, stored: Mapping[str, bytes], log: Path, cluster: str
) -> tuple[list[Loss], list[int]]:
    """Compare the log with what should be in it: see `broker.catalog.deletion_proofs.missing`.

    Raises:
        StorageError: there is no log at all, and there should be.
    """
    if ledgers.damaged:
        logger.warning("the file of ledgers next to %s is damaged, so it is unknown whether the log is complete", log)
    losses, dropped = missing(stored, recovered)
    topics = {each.topic for each in losses}
    if ledgers.missing or ledgers.damaged:
        topics |= {key.removeprefix(TOPIC_PREFIX) for key in stored if key.startswith(TOPIC_PREFIX)}
    if not recovered.segments and topics:
        raise StorageError(
            f"there is no log in {log}, and the metadata store knows {len(topics)} topics that should be in it, such as "
            f"{min(topics)}: put it back, or accept the loss of those messages: magnetar recover {cluster} --accept-loss"
        )
    return losses, dropped


def check_uuid(uuid: str, stored: Mapping[str, bytes], store: str, folder: Path, cluster: str) -> None:
    """Refuse an identity that is not the one that the metadata store in the same folder knows.

    Raises:
        StorageError: one line, with the way out.
    """
    data = stored.get(cluster_key(cluster))
    if store != SQLITE or data is None:
        return  # in ZooKeeper the metadata outlive a lost disk, and with it an identity
    try:
        known = msgspec.json.decode(data, type=ClusterData).uuid
    except msgspec.DecodeError as error:
        raise StorageError(f"the stored record of cluster {cluster} is damaged: {error}") from error
    if known and known != uuid:
        raise StorageError(
            f"{folder / 'uuid'} says {uuid}, and the metadata store knows {cluster} as {known}: the other clusters would take it "
            f"for another one; put back what the file held, or have the store's written: magnetar recover {cluster} --uuid"
        )


def begin_mark(mark: StoreMark, store: Store, stored: dict[str, bytes]) -> None:
    """From now on the folder and its store belong together; gives the store an id if it has none.

    Raises:
        StorageError: it cannot be written.
    """
    if STORE_ID_KEY not in stored:
        stored[STORE_ID_KEY] = str(uuid.uuid4()).encode()
        store.apply({STORE_ID_KEY: stored[STORE_ID_KEY]})
    mark.begin(stored[STORE_ID_KEY].decode("utf-8", "replace"), store.version)


@dataclass
class Findings:
    """The findings and repairs of `magnetar recover`.

    Attributes:
        store: why a start refuses the metadata store, or "".
        log: why a start refuses the log, or "".
        unknown: topics that the log holds and the store does not know.
        lost: one line for each ledger of which entries are missing.
        damage: one line for each damaged range of the log.
        done: one line for each thing that was done.
    """

    store: str = ""
    log: str = ""
    unknown: list[Unknown] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing is left to decide."""
        return not (self.store or self.log or self.unknown or self.lost)


class Recovering:
    """A data folder whose broker is stopped, opened to be examined and repaired.

    Args:
        config: the whole configuration.
        cluster: whose.

    Raises:
        StorageError: there is no such folder, a broker uses it, or it cannot be read.
    """

    def __init__(self, config: Config, cluster: str) -> None:
        self._config = config
        self._cluster = cluster
        self.path = config.cluster_dir(cluster)
        self._store_address = store_address(config.metadata.store, self.path)
        self._stack = contextlib.ExitStack()
        if not (self.path / "VERSION").exists():
            raise StorageError(f"{self.path} is not a data folder of Magnetar")
        try:
            lock = FolderLock(self.path)
        except OSError as error:
            raise StorageError(explain(self.path, error)) from error
        self._stack.callback(lock.close)

    def close(self) -> None:
        """Let the broker use it."""
        self._stack.close()

    # ------------------------------------------------------------------------------------------------------- the parts

    def write_uuid(self) -> str:
        """Make the file `uuid` again from the metadata store; the uuid.

        Raises:
            StorageError: the store does not know it.
        """
        self._open_store()
        known = Resources.load(self._stored).cluster_data(self._cluster).uuid
        if not known:
            raise StorageError(f"the metadata store {self._store_address} does not know the uuid of {self._cluster}")
        try:
            write_small(self.path / "uuid", f"{known}\n")
        except OSError as error:
            raise StorageError(explain(self.path, error)) from error
        return known

    def salvage(self) -> str:
        """Copy what is whole of a damaged `meta.sqlite` into a new one; what was done, in one line.

        Raises:
            StorageError: the store is not SQLite, or nothing can be read.
        """
        if self._config.metadata.store != SQLITE:
            raise StorageError("the metadata are in ZooKeeper, which checks its own data: there is nothing to salvage")
        return salvage(self.path / "meta.sqlite", self._cluster)

    def _open_store(self) -> None:
        self._mark = StoreMark(self.path / MARK_FILE)
        self._stack.callback(self._mark.close)
        self._store = open_store(
            self._config.metadata.store,
            self._cluster,
            self.path,
            Reserve(self.path / "reserve"),
            zookeeper=self._config.metadata.zookeeper,
            on_commit=self._mark.keep,
        )
        self._stack.callback(self._store.close)
        self._stored = {key: value for key, (value, _version) in self._store.load().items()}

    def look(self) -> Findings:
        """Compare the parts.

        Raises:
            StorageError: one of them cannot be read.
        """
        self._open_store()
        self.found = Findings()
        try:
            check_store(self._mark, self._stored, self._store.version, self._store_address, self._cluster)
        except StorageError as error:
            self.found.store = str(error)
        files = OsFiles()
        self._ledgers = LedgerFile(files, self.path / LEDGER_FILE)
        try:
            known = self._ledgers.read()
            self._recovered: Recovered = recover(files, self.path / "log", known)
        except OSError as error:
            raise StorageError(explain(self.path, error)) from error
        try:
            losses, _ = check_log(self._recovered, self._ledgers, self._stored, self.path / "log", self._cluster)
        except StorageError as error:
            self.found.log = str(error)
            losses, _ = missing(self._stored, self._recovered)
        self.found.lost = list(map(str, losses))
        self.found.damage = [*self._recovered.problems, *self._recovered.odd]
        _, self.found.unknown = sort_out(self._stored, self._recovered.topics)
        return self.found

    def _write(self, puts: Mapping[str, bytes], done: str = "") -> None:
        self._store.apply(puts)
        self._stored.update(puts)
        if done:
            self.found.done.append(done)

    # ------------------------------------------------------------------------------------------------------- decisions

    def accept_store(self) -> None:
        """Accept a store that went back in time, or another one.

        Raises:
            StorageError: it cannot be written.
        """
        # First what a start would take for deleted: from now on only a proof counts.
        for piece in begin_proving({**self._stored, LAST_LEDGER_KEY: b"-1"}, ()):
            self._store.apply(piece.puts)
            self._stored |= piece.puts
        begin_mark(self._mark, self._store, self._stored)
        self.found.store = ""
        self.found.done.append(f"the metadata store {self._store_address} belongs to this data folder now")
        last = max(self._recovered.last_ledger, int(self._stored.get(LAST_LEDGER_KEY, b"-1")))
        puts: dict[str, bytes] = {LAST_LEDGER_KEY: str(last).encode()}
        read = {split_cursor_key(key)[0] for key in self._stored if key.startswith(CURSOR_PREFIX)}
        for (topic, incarnation), log in self._recovered.topics.items():
            data = self._stored.get(TOPIC_PREFIX + topic)
            record = None if data is None else TopicRecord.decode(topic, data)
            if record is not None and record.incarnation == incarnation and topic not in read and log.ledgers:
                puts |= self._subscription(topic, record, log)
                self.found.done.append(f"topic {topic} had no subscription: {SUBSCRIPTION} holds its messages")
        self._store.apply(puts)
        self._stored.update(puts)

    def accept_loss(self) -> None:
        """Accept that content of the log is missing; it is no longer reported.

        Raises:
            StorageError: that cannot be written.
        """
        for (topic, _), log in self._recovered.topics.items():
            data = self._stored.get(TOPIC_PREFIX + topic)
            record = None if data is None else TopicRecord.decode(topic, data)
            if record is not None and record.next_index < log.next_index:
                # The origin indexes of what is lost are not given again.
                record.next_index = log.next_index
                self._write({TOPIC_PREFIX + topic: record.encode()})
        kept: dict[int, Known] = {}
        for owner in self._recovered.topics.values():
            for ledger in owner.ledgers.values():
                known = self._recovered.known[ledger.ledger]
                if whole := ledger.entries - ledger.missing:
                    kept[ledger.ledger] = msgspec.structs.replace(known, entries=whole)
        try:
            self._ledgers.begin(kept)
            self._ledgers.close()
        except OSError as error:
            raise StorageError(explain(self.path, error)) from error
        if self.found.lost or self.found.log:
            self.found.done.append(f"missing content of {self.path / 'log'} is accepted: it is no longer reported")
        self.found.lost, self.found.log = [], ""

    def _subscription(self, topic: str, record: TopicRecord, log: RecoveredTopic) -> dict[str, bytes]:
        made = TopicLog(topic, record.incarnation, LedgerIds(), EntryCache(0), recovered=log, saved=record, fresh=False)
        return {cursor_key(topic, SUBSCRIPTION): Cursor.at(made, EARLIEST).encode()}

    def _named(self, topics: Iterable[str]) -> list[Unknown]:
        """Those of the unknown topics that these names mean.

        Raises:
            StorageError: there is none of a name.
        """
        chosen: list[Unknown] = []
        for name in topics:
            full = name if name == EVERYTHING else str(TopicName.parse(name))
            meant = [each for each in self.found.unknown if full in (EVERYTHING, each.topic)]
            if not meant and full != EVERYTHING:
                raise StorageError(f"no topic {full} is in the log without being in the metadata store")
            chosen += [each for each in meant if each not in chosen]
        return chosen

    def discard(self, topics: Iterable[str]) -> None:
        """Have the next start delete topics that the store does not know.

        Raises:
            StorageError: there is none of a name.
        """
        for each in self._named(topics):
            self._write(
                {deletion_key(each.incarnation): each.topic.encode()},
                f"topic {each.topic} (incarnation {each.incarnation}, {each.messages} messages) is deleted at the next start",
            )
            self.found.unknown.remove(each)

    def keep(self, topics: Iterable[str]) -> None:
        """Bring topics back that the store does not know, with a subscription that holds their messages.

        Raises:
            StorageError: there is none of a name, or another topic has it by now.
        """
        for each in sorted(self._named(topics), key=lambda one: -one.incarnation):
            if TOPIC_PREFIX + each.topic in self._stored:
                raise StorageError(
                    f"topic {each.topic} exists, and incarnation {each.incarnation} of it is in the log: they cannot both have "
                    "the name; delete the one that exists, or discard the other: magnetar recover "
                    f"{self._cluster} --discard {each.topic}"
                )
            found = self._recovered.topics[each.topic, each.incarnation]
            record = TopicRecord(
                incarnation=each.incarnation,
                created_ms=min(ledger.created_ms for ledger in found.ledgers.values()),
                next_index=found.next_index,
                watermarks={source: (at.ledger, at.entry) for source, at in found.watermarks.items()},
            )
            puts = {TOPIC_PREFIX + each.topic: record.encode()} | self._subscription(each.topic, record, found)
            puts |= self._surroundings(TopicName.parse(each.topic))
            self._write(
                puts,
                f"topic {each.topic} is back with {each.messages} messages, which subscription {SUBSCRIPTION} holds",
            )
            self.found.unknown.remove(each)

    def _surroundings(self, name: TopicName) -> dict[str, bytes]:
        """Tenant, namespace and partitioned topic of a topic that is brought back, as far as they are missing."""
        resources = Resources.load(self._stored)
        try:
            # Every start stores this: in a new store there are no clusters yet that tenants could be allowed in.
            first = resources.first_start(self._config, self._cluster, read_uuid(self.path, self._cluster))
        except OSError as error:
            raise StorageError(explain(self.path, error)) from error
        puts = dict(first.puts)
        resources.apply(first)
        if name.namespace_name.tenant not in resources.tenants():
            change = resources.create_tenant(
                name.namespace_name.tenant, TenantInfo(allowed_clusters=sorted(self._config.clusters))
            )
            puts |= change.puts
            resources.apply(change)
            self.found.done.append(f"tenant {name.namespace_name.tenant} is made again, without its roles")
        if not resources.has_namespace(name.namespace_name):
            change = resources.create_namespace(name.namespace_name, Policies(replication_clusters=[self._cluster]))
            puts |= change.puts
            resources.apply(change)
            self.found.done.append(f"namespace {name.namespace_name} is made again, without its policies")
        if name.base != name:
            count = resources.partitions(name.base)
            if TOPIC_PREFIX + str(name.base) not in self._stored and (count is None or count <= name.partition):
                if count is not None:
                    resources.apply(resources.delete_partitioned(name.base))
                puts |= resources.create_partitioned(name.base, name.partition + 1, {}).puts
        return puts


def salvage(path: Path, cluster: str) -> str:
    """Copy the readable part of a damaged SQLite store into a new file; the old one stays next to it.

    Raises:
        StorageError: nothing of it can be read, or the new one cannot be written.
    """
    try:
        records, version, lost = _whole_records(path)
    except (sqlite3.Error, ValueError) as error:  # of a damaged schema it gives back text that is none
        raise StorageError(
            f"nothing of {path} can be read ({error}): put back a copy, or move it away and continue with the log: "
            f"magnetar recover {cluster} --accept-store --keep all"
        ) from error
    fresh = path.with_name(path.name + ".salvaged")
    for suffix in ("", "-wal", "-shm"):
        fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
    _write_records(fresh, records, version)
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for suffix in ("-wal", "-shm", ""):
        old = path.with_name(path.name + suffix)
        if old.exists():
            old.rename(aside.with_name(aside.name + suffix))
    fresh.rename(path)
    sync_folder(path.parent)
    return f"{len(records)} records of {path} were whole and are in it again; {lost} were not; {aside} is what it was"


def _whole_records(path: Path) -> tuple[list[tuple[str, bytes, int]], int, str]:
    """Whole records, the highest version, and how many are lost, as text."""
    if not path.exists():
        raise StorageError(f"{path} does not exist: there is nothing to salvage")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.text_factory = lambda data: data.decode(errors="replace")
    found: dict[str, tuple[str, bytes, int]] = {}
    damaged = 0
    broken: list[Exception] = []
    try:
        old = connection.execute("PRAGMA user_version").fetchone()[0] < SCHEMA_VERSION
        columns = "key, value, version" if old else "key, value, version, checksum"
        # From both ends: the rows after an unreadable page are reached from the other one.
        for order in ("", " ORDER BY key DESC"):
            rows = connection.execute(f"SELECT {columns} FROM entries{order}")  # noqa: S608 - texts of ours
            while True:
                try:
                    row: Any = rows.fetchone()
                except (sqlite3.Error, ValueError) as error:
                    broken.append(error)
                    break
                if row is None:
                    break
                if old or is_whole(*row):
                    found[row[0]] = row[0], row[1], row[2]
                elif not order:
                    damaged += 1
            if not broken:
                break
        try:
            counter = connection.execute("SELECT max(version) FROM counter").fetchone()[0]
        except (sqlite3.Error, ValueError):
            counter = 0
    finally:
        connection.close()
    if broken and not found:
        raise broken[0]
    versions = [version for _, _, version in found.values()]
    highest = max([counter if isinstance(counter, int) else 0, *versions])
    return list(found.values()), highest, "an unknown number" if broken else str(damaged)


def _write_records(path: Path, records: list[tuple[str, bytes, int]], version: int) -> None:
    SqliteStore(path).close()
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO entries VALUES (?, ?, ?, ?)",
            [(key, value, each, checksum_of(key, value, each)) for key, value, each in records],
        )
        connection.execute("UPDATE counter SET version=?", (version,))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise StorageError(f"{path} cannot be written: {error}") from error
    finally:
        connection.close()
