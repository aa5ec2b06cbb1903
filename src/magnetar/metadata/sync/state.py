"""What one cluster knows: its records, and what is stored of them."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from magnetar.core.errors import StorageError
from magnetar.metadata.sync.patterns import Exclusions
from magnetar.metadata.sync.projecting import Projector, Surroundings, there
from magnetar.metadata.sync.records import (
    DIGEST_MODULUS,
    EMPTY,
    Malformed,
    Record,
    covers,
    encoded,
    fingerprint,
    from_wire,
    print_of,
    to_wire,
)
from magnetar.metadata.sync.stamps import US_PER_MS, HybridClock, Stamp
from magnetar.metadata.sync.updates import AHEAD_PREFIX, BURIED_MAX, PEERS_MAX, RECORD_PREFIX, Peer, Update


class State:
    """The state of one cluster.

    Args:
        cluster: its name.
        around: what it asks of the cluster.
        ahead_ms_max: how far an event may be ahead of the wall clock before it has to wait (`metadata_clock_ahead_ms`).
        exclude: patterns of what stays local.
        buried_max: see `BURIED_MAX`.
    """

    def __init__(
        self,
        cluster: str,
        around: Surroundings,
        *,
        ahead_ms_max: int,
        exclude: Iterable[str] = (),
        buried_max: int = BURIED_MAX,
    ) -> None:
        self.cluster = cluster
        self._around = around
        self._ahead_us = ahead_ms_max * US_PER_MS
        self.buried_max = buried_max
        self.exclusions = Exclusions(exclude)
        self.projector = Projector(around, self.exclusions)
        self.clock = HybridClock()
        self.records: dict[str, Record] = {}
        self.ahead: dict[str, Record] = {}
        self.buried: dict[str, None] = {}
        self.peers: dict[str, Peer] = {}
        self.due: set[str] = set()
        self.digest = 0
        self.count = 0
        self._dead: set[str] = set()
        self._wires: dict[str, tuple[Record, bytes]] = {}
        self._listed: set[str] = set()
        self._confirmed: dict[str, set[str]] = {}

    # --------------------------------------------------------------------------------------------------------- starting

    def load(self, stored: Mapping[str, bytes]) -> None:
        """Take what is stored.

        Raises:
            StorageError: it is damaged; names the key.
        """
        for key, data in stored.items():
            prefix = RECORD_PREFIX if key.startswith(RECORD_PREFIX) else AHEAD_PREFIX
            if not key.startswith(prefix):
                continue
            path = key.removeprefix(prefix)
            try:
                told = msgspec.json.decode(data)
                record = from_wire(told)
            except (msgspec.DecodeError, Malformed) as error:
                raise StorageError(f"the stored value of {key} is damaged: {error}") from error
            if prefix == AHEAD_PREFIX:
                self.ahead[path] = record
                continue
            self._set(path, record)
            if told.get("p"):
                self.projector.projected.add(path)
            if told.get("b"):
                self.buried[path] = None
            for stamp in record.stamps():
                self.clock.see(stamp)

    # ---------------------------------------------------------------------------------------------------------- storing

    def stored(self, update: Update) -> tuple[dict[str, bytes], list[str]]:
        """The keys that an update puts and deletes, its documents included."""
        puts: dict[str, bytes] = dict(update.puts)
        deletes: list[str] = list(update.deletes)
        buried = set(update.buried)
        flipped = {path for path in update.puts if path not in self.projector.projected} | set(update.deletes)
        for path in update.records.keys() | flipped | buried | update.projected:
            record = update.records.get(path, self.records.get(path))
            if record is not None:
                puts[RECORD_PREFIX + path] = self._encoded(path, record, update, buried=path in buried)
        for path, waiting in update.ahead.items():
            if waiting == EMPTY:
                deletes.append(AHEAD_PREFIX + path)
            else:
                puts[AHEAD_PREFIX + path] = msgspec.json.encode(to_wire(waiting))
        for path in update.forgotten:
            puts.pop(RECORD_PREFIX + path, None)
            deletes.append(RECORD_PREFIX + path)
        return puts, deletes

    def _encoded(self, path: str, record: Record, update: Update, *, buried: bool) -> bytes:
        told = to_wire(record)
        projected = path in update.puts or path in update.projected or path in self.projector.projected
        if projected and path not in update.deletes:
            told["p"] = True
        if buried:
            told["b"] = True
        return msgspec.json.encode(told)

    def commit(self, update: Update, now_ms: int) -> None:
        """An update is durable."""
        for path, record in update.records.items():
            self._set(path, record)
            self.buried.pop(path, None)
            self._listed.discard(path)
            self._confirmed.pop(path, None)
            if not there(path, record) and path in update.told:
                # A local deletion takes the document with it.
                self.projector.projected.discard(path)
        for path, waiting in update.ahead.items():
            if waiting == EMPTY:
                self.ahead.pop(path, None)
            else:
                self.ahead[path] = waiting
        self.projector.projected |= update.puts.keys() | update.projected
        self.projector.projected -= set(update.deletes)
        self.due |= update.due
        for path in update.buried:
            self.buried[path] = None
            self._confirmed.pop(path, None)
        for path in update.forgotten:
            self._forget(path)
        self._hear(update, now_ms)

    def _hear(self, update: Update, now_ms: int) -> None:
        for header in update.heard:
            old = self.peers.get(header.cluster)
            if old is not None or len(self.peers) < PEERS_MAX:
                changed_ms = old.changed_ms if old is not None and old.header.digest == header.digest else now_ms
                self.peers[header.cluster] = Peer(header, now_ms, changed_ms)
        for cluster, path, record in update.listings:
            mine = self.records.get(path)
            if mine is not None and not there(path, mine) and covers(record, mine):
                self._confirmed.setdefault(path, set()).add(cluster)
        for path in update.wanted:
            if self.buried.pop(path, "") is None:
                self._listed.discard(path)
                # Everybody has confirmed it; that holds, only this cluster has to say so once more.
                self._confirmed[path] = set(self._around.members())

    def _set(self, path: str, record: Record) -> None:
        old = self.records.get(path)
        if there(path, old):
            assert old is not None
            self.digest = (self.digest - print_of(path, self.wire(path, old))) % DIGEST_MODULUS
            self.count -= 1
        self.records[path] = record
        self.projector.known(path)
        self._dead.discard(path)
        if there(path, record):
            self.digest = (self.digest + print_of(path, self.wire(path, record))) % DIGEST_MODULUS
            self.count += 1
        else:
            self._dead.add(path)

    def wire(self, path: str, record: Record) -> bytes:
        """A record as it travels; kept, because the next snapshot needs it again and must not hold the broker up."""
        kept = self._wires.get(path)
        if kept is None or kept[0] is not record:
            kept = self._wires[path] = (record, encoded(record))
        return kept[1]

    def _forget(self, path: str) -> None:
        self._wires.pop(path, None)
        self.records.pop(path, None)
        self.buried.pop(path, None)
        self._dead.discard(path)
        self._listed.discard(path)
        self._confirmed.pop(path, None)
        self.projector.forgotten(path)

    # ---------------------------------------------------------------------------------------------------------- looking

    def view(self, path: str) -> dict[str, tuple[Any, Stamp]]:
        """The fields of a document with their stamps."""
        record = self.records.get(path)
        if record is None or not there(path, record):
            return {}
        return {
            name: (msgspec.json.decode(cell.value), cell.stamp)
            for name, cell in sorted(record.fields.items())
            if cell.value is not None
        }

    def kept(self) -> dict[str, str]:
        """Documents that were deleted elsewhere and stay because topics of this cluster need them, and why."""
        found = {}
        for path in sorted(self.projector.projected):
            seen, kept = self.projector.seen(path, self.records.get)
            if seen and kept:
                found[path] = self.projector.kept_because(path)
        return found

    def hidden(self) -> list[str]:
        """Documents that exist and are not seen here."""
        return sorted(
            path
            for path, record in self.records.items()
            if path not in self._dead and path not in self.projector.projected and there(path, record)
        )

    def fingerprints(self) -> dict[str, str]:
        """Of everything that exists: to see what differs between two clusters."""
        return {
            path: f"{print_of(path, self.wire(path, record)):016x}"
            for path, record in sorted(self.records.items())
            if path not in self._dead and not self.exclusions.path(path)
        }

    def validate(self) -> None:
        """Check what must hold after every event (tests and the simulator call it)."""
        digest = sum(fingerprint(path, record) for path, record in self.records.items() if there(path, record))
        assert digest % DIGEST_MODULUS == self.digest, "the digest is not that of the records"
        assert self.buried.keys() <= self._dead, "something that exists is buried"
        newest = max((stamp.time_us for record in self.records.values() for stamp in record.stamps()), default=0)
        assert newest <= self.clock.latest_us, "the clock is behind a stored stamp"
