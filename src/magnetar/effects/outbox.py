"""What the broker's machines ask the world to do.

The machines never touch a socket, a file or a clock. They put effects into an `Outbox`; the driver (`runtime.driver`, or
the simulator) carries them out and answers with events. Order inside one outbox is order of execution.

What must be durable before what is sent is in the data flow, not in anybody's care: a receipt is put into an outbox only
while handling the *appended* event, a reply to a change of metadata only while handling the *stored* event.
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
    """Stop (or go on) reading from a connection: back-pressure on a publisher. What it sends stays in its socket."""

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
    """These ledgers hold nothing that anyone needs any more; the log may reclaim their room."""

    ledgers: tuple[int, ...]


class Write(NamedTuple):
    """Append to the log; answered by `appended(append)` or `append_failed(append, error)`."""

    append: Append


class Read(NamedTuple):
    """Read entries from the log, from `start` on (inclusive), in order, at least one if there is one.

    Answered by calling `then(entries, error)` on the machine's own thread; `error` is one line or "".

    Attributes:
        only: when not empty, these entries alone (ascending, `start` is the first): what lies near together is brought
            by one access to the disk, whatever lies between. Those that are gone are left out.
    """

    topic: str
    start: Position
    entries_max: int
    bytes_max: int
    then: Callable[[list[StoredEntry], str], None]
    only: Sequence[Position] = ()

    def find(self, log: TopicLog) -> tuple[list[StoredEntry], list[Span]]:
        """The entries, when recent ones in memory will do; else none, and where on the disk they lie."""
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
    """Run `work` where it holds nobody up, then `then(what it returned)` on the machine's own thread.

    For what takes the processor for long by design (password hashes), or because a client made it so (large batches).
    `work` is pure and catches its own errors.
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
    """Where one broker's machines put their effects, and the only way they know the time.

    Attributes:
        now_ms: wall clock in ms, set by the driver before each event; never goes back within a run.
        ahead_ms: how far that is ahead of the time of day that is believed: the system's clock was set back, or jumped ahead.
        moment_s: a finer clock, set likewise, of which only differences mean anything. It measures; nothing is decided by it.
        effects: since the last drain.
        wake: called by the driver's owner when effects were added outside an event (never by machines).
    """

    now_ms: int = 0
    ahead_ms: int = 0
    moment_s: float = 0.0
    effects: list[Effect] = field(default_factory=list)

    @property
    def day_ms(self) -> int:
        """The time of day, ms: what the times of messages, tokens and other clusters are compared with. It may go back.

        Timers, pauses and rates go by `now_ms`. What deletes, delivers or refuses by age, and what others will compare with
        their clocks, goes by this.
        """
        return self.now_ms - self.ahead_ms

    def put(self, effect: Effect) -> None:
        """Ask for one effect."""
        self.effects.append(effect)

    def drain(self) -> list[Effect]:
        """Take what was asked so far."""
        effects, self.effects = self.effects, []
        return effects
