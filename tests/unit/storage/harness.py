"""A log thread over a file system in memory, with its reports collected; everything waits for events, nothing sleeps."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from magnetar.core.ids import NONE, Position
from magnetar.core.settings import BrokerConfig
from magnetar.runtime.log.lanes import Lanes
from magnetar.runtime.log.thread import LogThread
from magnetar.storage.entries import Append, Location, NewEntry, StoredEntry
from magnetar.storage.files import Files
from magnetar.storage.recovery import Recovered, recover
from magnetar.storage.topiclog import EntryCache, LedgerIds, TopicLog
from magnetar_sim.host.memory_files import MemoryFiles

FOLDER = Path("/log")
TOPIC = "persistent://public/default/t"
INCARNATION = 1000
WAIT_S = 20


def entry(text: str | bytes, **fields: Any) -> NewEntry:
    data = text.encode() if isinstance(text, str) else text
    values: dict[str, Any] = {"flags": 0, "count": 1, "publish_time": 5, **fields}
    return NewEntry(data, **values)


class Log:
    """One broker's log with its reports, and topics on it.

    Args:
        files, folder: where it is; by default in memory.
        lanes: whether it has the lane of large appends, too.
        config: of the broker.
    """

    def __init__(
        self, files: Files | None = None, folder: Path = FOLDER, *, lanes: bool = False, **config: Any
    ) -> None:
        self.files: Any = files if files is not None else MemoryFiles(random.Random(1))
        self.folder = folder
        self.config = BrokerConfig(**{"disk_free_bytes_min": 0, **config})
        self.changed = threading.Condition()
        self.reports: list[tuple[str, Any]] = []
        self.lanes = lanes
        self.thread: LogThread | Lanes = (Lanes if lanes else LogThread)(
            self.files,
            folder,
            self.config,
            on_appended=lambda batch: self._report("appended", batch),
            on_failed=lambda batch, error: self._report("failed", (batch, error)),
            on_healed=lambda: self._report("healed", None),
            heal_pauses_s=(0.001,),
            salt=lambda: b"saltsalt",
        )
        self.recovered: Recovered = self.thread.start()
        self.ids = LedgerIds(self.recovered.last_ledger)
        self.cache = EntryCache(1 << 20)
        self.topics: dict[str, TopicLog] = {}

    def _report(self, kind: str, what: Any) -> None:
        with self.changed:
            self.reports.append((kind, what))
            self.changed.notify_all()

    def topic(self, name: str = TOPIC, incarnation: int = INCARNATION, **options: Any) -> TopicLog:
        recovered = self.recovered.topics.get((name, incarnation))
        fresh = options.pop("fresh", recovered is None)
        log = TopicLog(name, incarnation, self.ids, self.cache, recovered=recovered, fresh=fresh, **options)
        self.topics[name] = log
        return log

    def wait(self, what: Callable[[list[tuple[str, Any]]], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: what(self.reports), WAIT_S), f"not reported: {self.reports}"

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.reports]

    def wait_for(self, kind: str, times: int = 1) -> None:
        self.wait(lambda reports: sum(each == kind for each, _ in reports) >= times)

    def settle(self, appends: list[Append]) -> None:
        """Wait until each of these is answered, and tell the topics in the order of the reports."""
        wanted = set(map(id, appends))
        done: set[int] = set()
        while not wanted <= done:
            with self.changed:
                assert self.changed.wait_for(lambda: bool(self.reports), WAIT_S), "an append is not answered"
                new, self.reports = self.reports, []
            for kind, what in new:
                if kind == "appended":
                    for append, location in what:
                        self.confirm(append, location)
                        done.add(id(append))
                elif kind == "failed":
                    for append in what[0]:
                        self.topics[append.topic].fail()
                        done.add(id(append))

    def confirm(self, append: Append, location: Location) -> None:
        self.topics[append.topic].confirm(append, location)

    def append(self, topic: TopicLog, *texts: str | bytes, durable: bool = True, **fields: Any) -> Append:
        """Stage, submit, wait, confirm."""
        append = topic.stage([entry(text, **fields) for text in texts], 1000, durable=durable)
        self.thread.submit(append)
        self.settle([append])
        return append

    def read(self, topic: TopicLog) -> list[StoredEntry]:
        if topic.first == NONE:
            return []
        return self.thread.read(topic.locations(topic.first, 1 << 30, 1 << 40))

    def restart(self, files: Files | None = None, **config: Any) -> "Log":
        self.thread.stop()
        return Log(files or self.files, self.folder, lanes=self.lanes, **config)

    def stop(self) -> None:
        self.thread.stop()


def stored(files: Files, name: str = TOPIC, incarnation: int = INCARNATION) -> list[Position]:
    """What recovery finds of a topic."""
    found = recover(files, FOLDER).topics.get((name, incarnation))
    if found is None:
        return []
    return [Position(ledger, at) for ledger in found.ledger_ids() for at in range(found.ledgers[ledger].entries)]
