"""One GEO_APPEND: its entries, and what the destination's answer means for the topic that they are of.

No connection and no clock: both kinds of tasks and the simulator use it.
"""

from dataclasses import dataclass
from typing import Protocol

from magnetar.core.ids import Position
from magnetar.pipeline import messages as m
from magnetar.wire import pulsar_pb2 as pb


class Progress(Protocol):
    """The progress of one topic, as its sender needs it."""

    @property
    def route(self) -> m.Route:
        """The link's source and destination."""
        ...

    @property
    def topic(self) -> str:
        """Full name of the topic."""
        ...

    @property
    def incarnation(self) -> int:
        """Incarnation of the topic in its source."""
        ...

    @property
    def gen(self) -> int:
        """Generation of the link's cursor."""
        ...

    @property
    def schema_numbering(self) -> int:
        """Schema numbering of the entries' versions."""
        ...

    @property
    def trouble(self) -> str:
        """Why no more entries of the topic are sent; "" while they are."""
        ...

    def left(self) -> None:
        """One append less is under way."""
        ...

    def confirmed(self, append: "AppendRequest", duplicates: int) -> None:
        """The destination has persisted all of an append."""
        ...

    def throttled(self, throttle_ms: int) -> None:
        """The destination asks for a pause of this length."""
        ...

    def fail(
        self, trouble: str, reason: str, kind: str = "", at: m.Pair | None = None, conflict: m.Packed = b""
    ) -> None:
        """No more entries of the topic can be sent; only the first trouble counts, as later ones follow from it."""
        ...


@dataclass(slots=True)
class AppendRequest:
    """One GEO_APPEND on its way.

    Attributes:
        progress: of its topic.
        p: the position sent before the first entry.
        last: position of the last entry.
        ledgers, entries, first_indexes, counts, sizes: of each entry, as on the wire.
        data: the entries' bytes.
        messages: in all entries.
        oldest_publish_ms: of all entries.
    """

    progress: Progress
    p: Position
    last: Position
    ledgers: list[int]
    entries: list[int]
    first_indexes: list[int]
    counts: list[int]
    sizes: list[int]
    data: memoryview
    messages: int
    oldest_publish_ms: int

    def command(self) -> pb.BaseCommand:
        """The command; the data follows it in the frame."""
        progress = self.progress
        command = pb.BaseCommand(type=pb.GEO_APPEND)
        append = command.geo_append
        append.topic, append.source, append.uuid = progress.topic, progress.route.source, progress.route.uuid
        append.incarnation, append.gen = progress.incarnation, progress.gen
        append.p.ledger, append.p.entry = self.p
        append.schema_numbering = progress.schema_numbering
        append.ledgers.extend(self.ledgers)
        append.entries.extend(self.entries)
        append.first_indexes.extend(self.first_indexes)
        append.counts.extend(self.counts)
        append.sizes.extend(self.sizes)
        return command

    def stored(self, persisted: Position) -> "AppendRequest | None":
        """The part of it up to a position; None if no entry has that position."""
        positions = list(zip(self.ledgers, self.entries, strict=True))
        if persisted not in positions:
            return None
        stored = positions.index(persisted) + 1
        size = sum(self.sizes[:stored])
        return AppendRequest(
            self.progress, self.p, persisted, self.ledgers[:stored], self.entries[:stored], self.first_indexes[:stored],
            self.counts[:stored], self.sizes[:stored], self.data[:size], sum(self.counts[:stored]), self.oldest_publish_ms,
        )  # fmt: skip

    def answered(self, answer: pb.CommandGeoAppendResponse) -> None:
        """Report to the progress what the destination answered.

        What is persisted counts. An append that is refused, blocked or stored in part only ends its topic: later entries would
        have to be refused, too.
        """
        progress, persisted = self.progress, Position(answer.persisted.ledger, answer.persisted.entry)
        if answer.blocked:
            self._blocked(persisted, answer)
        elif answer.refused:
            progress.fail(m.REFUSED, f"the destination has {persisted}")
        elif answer.retry or persisted < self.last:
            progress.fail(m.RETRY, answer.reason or f"only {persisted} is persisted")
        elif not progress.trouble:
            progress.confirmed(self, answer.duplicates)

    def _blocked(self, persisted: Position, answer: pb.CommandGeoAppendResponse) -> None:
        """An entry blocks: the entries before it are stored, and settled."""
        progress, stored = self.progress, self.stored(persisted)
        if stored is not None and not progress.trouble:
            progress.confirmed(stored, min(answer.duplicates, len(stored.entries)))
        at = (answer.position.ledger, answer.position.entry) if answer.HasField("position") else None
        conflict = answer.conflict.SerializeToString() if answer.HasField("conflict") else b""
        progress.fail(m.BLOCKED, answer.reason, answer.blocked, at, conflict)
