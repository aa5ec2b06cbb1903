"""What a cluster tells the others, and when it need not tell of a deletion any more."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from magnetar.metadata.sync import events
from magnetar.metadata.sync.events import Header
from magnetar.metadata.sync.records import encoded
from magnetar.metadata.sync.stamps import US_PER_MS
from magnetar.metadata.sync.state import State
from magnetar.metadata.sync.updates import Snapshot, Update


class Telling(State):
    """Changes, beacons and snapshots; deletions that are confirmed."""

    # ------------------------------------------------------------------------------------------------------- publishing

    def _header(self, kind: events.EventKind, now_ms: int, **more: Any) -> Header:
        ahead: dict[str, int] = {}
        for record in self.ahead.values():
            for stamp in record.stamps():
                ahead[stamp.cluster] = max(ahead.get(stamp.cluster, 0), stamp.time_us // US_PER_MS - now_ms)
        return Header(
            self.cluster, kind, now_ms, self.digest, self.count, self.exclusions.patterns, ahead=ahead, **more
        )

    def _pages(self, paths: Iterable[str]) -> Iterator[list[tuple[str, Any]]]:
        page: list[tuple[str, Any]] = []
        size = 0
        for path in paths:
            record = self.records.get(path)
            if record is None:
                continue
            shared = self.exclusions.shared(path, record)
            data = self.wire(path, record) if shared is record else encoded(shared)
            if page and size + len(data) > events.EVENT_BYTES:
                yield page
                page, size = [], 0
            page.append((path, msgspec.Raw(data)))
            size += len(data) + len(path)
        yield page

    def changes(self, paths: Iterable[str], now_ms: int) -> list[bytes]:
        """Events that tell of local changes."""
        header = self._header("change", now_ms)
        return [events.encode(header, page, {}) for page in self._pages(paths) if page]

    def beacon(self, now_ms: int) -> bytes:
        """An event that tells nothing but its header."""
        return events.encode(self._header("beacon", now_ms), (), {})

    def snapshot(self, now_ms: int, *, hello: bool = False) -> Snapshot:
        """Everything, deletions included, with the stamps of the writers."""
        others = self._around.members() - {self.cluster}
        paths = [path for path in sorted(self.records) if path not in self.buried and not self.exclusions.path(path)]
        pages = list(self._pages(paths))
        messages = []
        for number, page in enumerate(pages):
            header = self._header("snapshot", now_ms, part=number, last=number == len(pages) - 1, hello=hello)
            awaits = {}
            for path, _wire in page:
                waiting = others - self._confirmed.get(path, set()) if path in self._dead else ()
                if waiting:
                    awaits[path] = tuple(sorted(waiting))
            messages.append(events.encode(header, page, awaits))
        return Snapshot(messages, {path: self.records[path] for path in paths})

    def listed(self, snapshot: Snapshot) -> None:
        """A snapshot is durable."""
        for path, record in snapshot.records.items():
            if path in self._dead and self.records.get(path) is record:
                self._listed.add(path)

    # -------------------------------------------------------------------------------------------------------- deletions

    def collect(self) -> Update:
        """Bury deletions that nobody can contradict any more: this cluster listed them in a snapshot of its own, and in a
        snapshot of every other cluster it saw the same deletion or something newer (docs/design/metadata.md#deletions).
        """
        update = Update()
        others = self._around.members() - {self.cluster}
        for path in sorted(self._listed - self.buried.keys()):
            if (
                path in self._dead
                and path not in self.projector.projected
                # What waits may be a newer deletion of the same, told together with the life that it ended.
                and path not in self.ahead
                and others <= self._confirmed.get(path, set())
            ):
                update.buried.append(path)
        many = len(self.buried) + len(update.buried) - self.buried_max
        if many > 0:
            update.forgotten = sorted([*self.buried, *update.buried], key=self._buried_time)[:many]
        return update

    def _buried_time(self, path: str) -> int:
        latest = self.records[path].latest
        return latest.time_us if latest is not None else 0

    @property
    def dead(self) -> int:
        """Deletions that are not buried yet."""
        return len(self._dead - self.buried.keys())
