"""The effects that the broker's machines ask for.

The machines never touch a socket, a file or a clock. They put effects into an `Outbox`; the driver (`runtime.driver`,
or the simulator) carries them out and answers with events. Effects of one outbox are carried out in its order.

The data flow guarantees that something is durable before its answer is sent: a receipt is put into an outbox only while
the *appended* event is handled, and a reply to a change of metadata only while the *stored* event is handled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from magnetar.core.ids import Position
from magnetar.storage.entries import Append, StoredEntry
from magnetar.storage.topiclog import Span, TopicLog


class Send(NamedTuple):
    """Write these buffers to a connection, in order."""

    connection: int
    buffers: Sequence[bytes | memoryview]


class Close(NamedTuple):
    """Close a connection after what was sent to it; `reason` is logged when not empty."""

    connection: int
    reason: str


class Hold(NamedTuple):
    """Stop (or resume) reading from a connection: back-pressure on a publisher. Its unread bytes stay in its socket."""

    connection: int
    hold: bool


class FrameLimit(NamedTuple):
    """Frames of this connection, which is let in, may from now on have this many bytes.

    Attributes:
        command_bytes_max: the same of their commands alone.
        link: it is a link's: those carry many entries in a frame, and may be silent for longer.
    """

    connection: int
    frame_bytes_max: int
    command_bytes_max: int
    link: bool = False


class Sync(NamedTuple):
    """Call `then(error)` when everything is durable that was written, or asked for, before; error is "" if it is."""

    then: Callable[[str], None]


class Drop(NamedTuple):
    """These ledgers are no longer needed; the log may free their space."""

    ledgers: tuple[int, ...]


class Write(NamedTuple):
    """Append to the log; answered by `appended(append)` or `append_failed(append, error)`."""

    append: Append


class Read(NamedTuple):
    """Read entries from the log, from `start` on (inclusive), in order, at least one if there is one.

    Answered by calling `then(entries, error)` on the machine's own thread; `error` is one line or "".

    Attributes:
        only: when not empty, only these entries (ascending, `start` is the first). Entries close together are read by
            one access to the disk, including the bytes between them. Entries that are gone are left out.
    """

    topic: str
    start: Position
    entries_max: int
    bytes_max: int
    then: Callable[[list[StoredEntry], str], None]
    only: Sequence[Position] = ()

    def find(self, log: TopicLog) -> tuple[list[StoredEntry], list[Span]]:
        """The entries, if the recent ones in memory suffice; else none, and their locations on the disk."""
        if not self.only:
            cached = log.cached(self.start, self.entries_max, self.bytes_max)
            if cached:
                log.count_hits(len(cached), log.cached_bytes)
                return cached, []
            spans = log.locations(self.start, self.entries_max, self.bytes_max)
        else:
            spans = log.locations_of(self.only, self.bytes_max)
        log.count_reads(spans)
        return [], spans


class Store(NamedTuple):
    """Put and delete keys of the metadata store, all or nothing; then `then(error)`, durable, error is "" if done."""

    puts: dict[str, bytes]
    deletes: tuple[str, ...]
    then: Callable[[str], None] | None


class Timer(NamedTuple):
    """Call `then(now_ms)` once, when the clock reaches `at_ms`."""

    at_ms: int
    then: Callable[[int], None]


class Compute(NamedTuple):
    """Run `work` on another thread, then `then(result)` on the machine's own thread.

    For work that takes long by design (password hashes), or because a client made it large (batches). `work` is pure
    and catches its own errors.
    """

    work: Callable[[], Any]
    then: Callable[[Any], None]


class Note(NamedTuple):
    """One line for the broker's log. `level` is a name of the logging module."""

    level: str
    text: str


Effect = Send | Close | Hold | FrameLimit | Write | Sync | Drop | Read | Store | Timer | Compute | Note


@dataclass(slots=True)
class Outbox:
    """The effects of one broker's machines, and their only source of the time.

    Attributes:
        now_ms: the clock of timers, pauses and rates, set by the driver before each event: ms since the epoch as the wall clock
            has them, but it never goes back within a run (docs/design/storage.md#time).
        ahead_ms: the distance by which `now_ms` is ahead of the accepted time of day, after the system's clock was set
            back or jumped ahead.
        moment_s: a finer clock, set likewise, of which only differences have a meaning. It is for measurements; no
            decision depends on it.
        effects: since the last drain.
        wake: called by the driver's owner when effects were added outside an event (never by machines).
    """

    now_ms: int = 0
    ahead_ms: int = 0
    moment_s: float = 0.0
    effects: list[Effect] = field(default_factory=list)

    @property
    def day_ms(self) -> int:
        """The time of day, ms, for comparison with the times of messages, tokens and other clusters. It may go back.

        Timers, pauses and rates use `now_ms`. Code that deletes, delivers or refuses by age, and times that other
        clusters compare with their clocks, use this.
        """
        return self.now_ms - self.ahead_ms

    def put(self, effect: Effect) -> None:
        """Ask for one effect."""
        self.effects.append(effect)

    def drain(self) -> list[Effect]:
        """Take what was asked so far."""
        effects, self.effects = self.effects, []
        return effects
