"""The log under crashes and failing writes and syncs: what was confirmed is there, once, and no name is given twice."""

import errno
import os
import random
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from magnetar.core.ids import NONE, Position
from magnetar.core.settings import BrokerConfig
from magnetar.runtime.log import housekeeping
from magnetar.runtime.log import thread as logthread
from magnetar.runtime.log.lanes import Lanes
from magnetar.storage import log, topiclog
from magnetar.storage.entries import Append, Location, NewEntry, StoredEntry
from magnetar.storage.ledgerfile import LedgerFile
from magnetar.storage.recovery import Recovered
from magnetar.storage.retention import Retention
from magnetar.storage.topiclog import EntryCache, LedgerIds, TopicLog
from magnetar_sim.host.memory_files import MemoryFiles

FOLDER = Path("/log")
LEDGERS = Path("/ledgers")
WORLDS = int(os.environ.get("MAGNETAR_SEEDS", "150"))
TOPICS = ["persistent://public/default/a", "persistent://public/default/b"]


class Saved(NamedTuple):
    """What the metadata store has of a topic."""

    first_ledger: int
    next_index: int

    def watermark_positions(self) -> dict[str, Position]:
        return {}

    def end_position(self) -> Position:
        return NONE


class World:
    """One broker's log and two topics, driven step by step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.files = MemoryFiles(self.random)
        self.now_ms = 1000
        self.incarnations = {name: 100 + n for n, name in enumerate(TOPICS)}
        self.confirmed: dict[str, dict[Position, StoredEntry]] = {name: {} for name in TOPICS}
        self.indexes: dict[tuple[str, int], bytes] = {}
        self.number = 0
        self.thread: Lanes | None = None
        self.saved: dict[str, Saved] = {}
        self.told = 0
        self.open(first=True)

    def open(self, *, first: bool = False) -> None:
        self.events: list[tuple[str, object]] = []
        self.changed = threading.Condition()
        self.in_flight = 0
        self.fenced = False

        def report(kind: str, what: object) -> None:
            with self.changed:
                self.events.append((kind, what))
                self.changed.notify()

        config = BrokerConfig(segment_bytes=4096, disk_free_bytes_min=0)
        self.thread = Lanes(
            self.files,
            FOLDER,
            config,
            on_appended=lambda batch: report("appended", batch),
            on_failed=lambda batch, error: report("failed", batch),
            on_healed=lambda: report("healed", None),
            heal_pauses_s=(0.0005,),
            ledgers=LedgerFile(self.files, LEDGERS, threading.Lock()),
        )
        recovered = self.thread.start()
        assert not recovered.problems, recovered.problems
        self.check_known(recovered)
        ids = LedgerIds(max(recovered.last_ledger, 200))
        cache = EntryCache(1 << 20)
        self.logs = {
            name: TopicLog(
                name,
                self.incarnations[name],
                ids,
                cache,
                ledger_entries_max=7,
                recovered=recovered.topics.get((name, self.incarnations[name])),
                saved=self.saved.get(name),
                fresh=first,
            )
            for name in TOPICS
        }
        self.check_recovered(recovered)

    def check_known(self, recovered: Recovered) -> None:
        """The file of ledgers is never ahead of the log: a crash looks like no loss."""
        for ledger, known in recovered.known.items():
            saved = self.saved.get(known.topic)
            if saved is not None and ledger < saved.first_ledger:
                continue
            found = recovered.topics[known.topic, known.incarnation].ledgers.get(ledger)
            there = 0 if found is None else found.entries - found.missing
            assert there >= known.entries, f"{known.entries} entries of ledger {ledger} are told of, and {there} there"
            self.told += known.entries

    def check_recovered(self, recovered: Recovered) -> None:
        assert self.thread is not None
        for name, topic in self.logs.items():
            topic.validate()
            found: dict[Position, StoredEntry] = {}
            if topic.first != NONE:
                for entry in self.thread.read(topic.locations(topic.first, 10**6, 1 << 30)):
                    found[entry.position] = entry
            for position, entry in self.confirmed[name].items():
                assert found.get(position) == entry, f"{name} {position} was confirmed and is not there"
            order = [int(entry.data[:8]) for entry in found.values()]
            assert order == sorted(set(order)), f"{name}: {order} out of order or twice"
            # What was written and not confirmed may be there: from now on it is.
            for position, entry in found.items():
                self.confirm(name, position, entry)

    def confirm(self, name: str, position: Position, entry: StoredEntry) -> None:
        known = self.confirmed[name].setdefault(position, entry)
        assert known.data == entry.data, f"{name} {position} names two entries"
        bound = self.indexes.setdefault((name, entry.first_index), entry.data)
        assert bound == entry.data, f"{name}: origin index {entry.first_index} names two entries"

    def publish(self) -> None:
        if self.fenced:
            return
        assert self.thread is not None
        name = self.random.choice(TOPICS)
        entries = []
        for _ in range(self.random.randint(1, 4)):
            self.number += 1
            data = b"%08d" % self.number + self.random.randbytes(self.random.choice((1, 40, 900)))
            entries.append(NewEntry(data, 0, self.random.choice((1, 1, 5)), self.now_ms))
        self.now_ms += 1
        self.in_flight += 1
        self.thread.submit(self.logs[name].stage(entries, self.now_ms))

    def drop(self) -> None:
        """Retention: all ledgers of a topic but the last."""
        assert self.thread is not None
        name = self.random.choice(TOPICS)
        trim = self.logs[name].trim(None, self.now_ms, Retention(0, 0))
        if trim is not None:
            self.saved[name] = Saved(trim.first_ledger, trim.next_index)
            self.logs[name].forget(trim)
            self.thread.drop(trim.ledgers)
            for position in [each for each in self.confirmed[name] if each.ledger < trim.first_ledger]:
                del self.confirmed[name][position]

    def settle(self) -> None:
        """Take in what the log thread reported, waiting until nothing is in flight and the log is sound."""
        with self.changed:
            while self.in_flight or self.fenced:
                assert self.changed.wait_for(lambda: self.events, 20), "the log thread does not answer"
                self.take()

    def take(self) -> None:
        for kind, what in self.events:
            if kind == "appended":
                assert isinstance(what, list)
                for append, location in what:
                    assert isinstance(append, Append)
                    assert isinstance(location, Location)
                    self.in_flight -= 1
                    self.logs[append.topic].confirm(append, location)
                    for entry in append.entries:
                        self.confirm(append.topic, entry.position, entry)
            elif kind == "failed":
                assert isinstance(what, list)
                self.fenced = True
                self.in_flight -= len(what)
                for append in what:
                    self.logs[append.topic].fail()
            else:
                self.fenced = False
        self.events.clear()

    def crash(self) -> None:
        """Power cut: unsynced bytes are anybody's guess, reports that were not taken are lost."""
        assert self.thread is not None
        after = self.cut_short() or self.files.crash()
        self.files.inject(lambda _kind, _path: OSError(errno.EIO, "the old world is over"))
        self.thread.stop()
        self.files = after
        self.open()

    def cut_short(self) -> MemoryFiles | None:
        """What a power cut leaves between what is written and that it is synced, in either lane; None: there was none."""
        left: list[MemoryFiles] = []
        at = self.random.choice(("no", "sync", "sync", "sync"))

        def cut(kind: str, _path: Path) -> OSError | None:
            if not left and kind == at and self.random.random() < 0.5:
                left.append(self.files.crash())
            return OSError(errno.EIO, "the power is gone") if left else None

        self.files.inject(cut)
        for _ in range(self.random.randint(1, 6)):
            self.publish()
        with self.changed:
            while self.in_flight and not self.fenced and not left:
                assert self.changed.wait_for(lambda: self.events or left, 20), "the log thread does not answer"
                self.take()
        return left[0] if left else None

    def step(self) -> None:
        dice = self.random.random()
        if dice < 0.6:
            self.publish()
        elif dice < 0.7:
            self.settle()
        elif dice < 0.75:
            self.drop()
        elif dice < 0.85:
            self.files.fail_next(
                self.random.choice(("write", "sync", "sync")), OSError(errno.EIO, "Input/output error")
            )
            if self.random.random() < 0.3:
                self.files.fail_next("create", OSError(errno.ENOSPC, "No space left on device"))
        elif dice < 0.93:
            self.settle()
            for topic in self.logs.values():
                topic.validate()
        else:
            self.crash()


@pytest.mark.parametrize("large_bytes", [700, 1 << 30], ids=["two lanes", "one lane"])
@pytest.mark.parametrize("block", range(10))
def test_confirmed_entries_survive(monkeypatch: pytest.MonkeyPatch, block: int, large_bytes: int) -> None:
    monkeypatch.setattr(topiclog, "LARGE_BYTES", large_bytes)
    monkeypatch.setattr(log, "PIECE_BYTES", 300)
    monkeypatch.setattr(housekeeping, "REWRITE_BYTES_MIN", 1_000)
    monkeypatch.setattr(logthread, "MARK_S", 0.0)
    monkeypatch.setattr(logthread, "MARK_SHARE", 0)
    told = 0
    if block % 2:
        monkeypatch.setattr(logthread, "RECENTLY_S", 0.0)
    for seed in range(block * (WORLDS // 10), (block + 1) * (WORLDS // 10)):
        world = World(seed)
        try:
            for _ in range(40):
                world.step()
            world.settle()
            world.crash()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        finally:
            assert world.thread is not None
            world.thread.stop()
        told += world.told
    assert told > 0
