r"""Opening large batches outside the event loop, and the messages that wait for this.

    SEND --- its batch is small ---> opened and checked at once
        \-- else: its producer waits ---(its turn comes, one batch is opened)---> checked and stored, then the messages after it

To find idempotency keys in a batch, the broker decompresses it and goes through its messages. That takes up to 0.3 s
for 16 MiB or 65,536 messages, so it is done by `effects.outbox.Compute`. The whole broker opens one batch at a time,
and connections take turns: logins with passwords use the same thread, and wait for one batch at most.

SENDs of one producer stay in order: messages after such a batch wait for it. Other producers do not wait. Waiting
messages count against their connection like those that wait for a publish rate, so the socket is not read while there
are many.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple, Protocol

from magnetar.broker.publish.producers import Producer
from magnetar.effects.outbox import Compute, Outbox
from magnetar.wire.frame import Frame
from magnetar.wire.idempotency_keys import Found, KeyProperty, find
from magnetar.wire.metadata import Inspected


class Job:
    """Something that is to be opened.

    Attributes:
        work: see `effects.outbox.Compute`.
        then: gets what it returned, unless the job was given up.
        wanted: false: it was given up.
    """

    __slots__ = ("then", "wanted", "work")

    def __init__(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.work, self.then, self.wanted = work, then, True


class Openings:
    """The batches that a broker opens outside its event loop, one at a time. Their senders take turns.

    There is at most one job for each producer, of each request of a link or a restore that waits, and of each topic
    that reads its log at a start, so their number is limited by the limits of those.

    Args:
        outbox: the broker's.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._queues: OrderedDict[Hashable, deque[Job]] = OrderedDict()
        self._current: Job | None = None

    def open(self, who: Hashable, work: Callable[[], Any], then: Callable[[Any], None]) -> Job:
        """Open something in its turn, then call `then` in an event of its own.

        Args:
            who: takes turns with others; the number of a connection, or the name of a topic.
            work: pure; catches its own errors.
            then: gets what `work` returned.
        """
        job = Job(work, then)
        self._queues.setdefault(who, deque()).append(job)
        self._next()
        return job

    def give_up(self, who: Hashable, job: Job) -> None:
        """The outcome of a job is no longer wanted."""
        job.wanted = False
        queue = self._queues.get(who)
        if queue is not None and job in queue:
            queue.remove(job)
            if not queue:
                del self._queues[who]

    def _next(self) -> None:
        if self._current is not None or not self._queues:
            return
        who, queue = next(iter(self._queues.items()))
        job = self._current = queue.popleft()
        if queue:
            self._queues.move_to_end(who)
        else:
            del self._queues[who]
        self._outbox.put(Compute(job.work, self._opened))

    def _opened(self, result: Any) -> None:
        job, self._current = self._current, None
        assert job is not None
        self._next()
        if job.wanted:
            job.then(result)

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self._current is not None or not self._queues, (
            "something waits to be opened, and nothing is being opened"
        )
        assert all(self._queues.values()), "an empty queue"


class Elsewhere(NamedTuple):
    """SENDs that wait until the batch of the first one is opened.

    Attributes:
        frames: they and what came with them, in order.
        name: the property that is looked for.
        seen: the first one's entry.
    """

    frames: list[Frame]
    name: KeyProperty
    seen: Inspected


class _Waiting:
    """The waiting messages of one producer."""

    __slots__ = ("frames", "job", "publisher", "size", "then")

    def __init__(self, publisher: "Publisher", frames: list[Frame]) -> None:
        self.publisher, self.frames = publisher, frames
        self.size = sum(len(frame.payload) for frame in frames)
        self.job: Job | None = None
        self.then: Callable[[], None] | None = None


class Publisher(Protocol):
    """The connection of a producer (`broker.session.producers.SessionProducers`)."""

    def take(self, producer: Producer, frames: list[Frame], found: Found | None) -> Elsewhere | None:
        """Publish SENDs up to one that has to be opened elsewhere; `found` is of the first one, None: it was not opened yet."""

    def throttled(self, size: int) -> None:
        """Count this many more waiting bytes (or fewer, if negative)."""


class InOrder:
    """The SENDs of one connection's producers, in the order of each.

    Args:
        openings: the broker's.
        connection: its number.
    """

    def __init__(self, openings: Openings, connection: int) -> None:
        self._openings, self._connection = openings, connection
        self._waiting: dict[Producer, _Waiting] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def publish(self, publisher: Publisher, producer: Producer, frames: list[Frame]) -> None:
        """Publish after the waiting messages of the producer."""
        waiting = self._waiting.get(producer)
        if waiting is None:
            self._wait(publisher, producer, publisher.take(producer, frames, None))
            return
        size = sum(len(frame.payload) for frame in frames)
        waiting.frames += frames
        waiting.size += size
        publisher.throttled(size)

    def _wait(self, publisher: Publisher, producer: Producer, elsewhere: Elsewhere | None) -> None:
        if elsewhere is None:
            return
        waiting = self._waiting[producer] = _Waiting(publisher, elsewhere.frames)
        publisher.throttled(waiting.size)
        work = partial(find, elsewhere.name, elsewhere.seen)
        waiting.job = self._openings.open(self._connection, work, partial(self._go_on, producer))

    def _go_on(self, producer: Producer, found: Found) -> None:
        waiting = self._waiting.pop(producer)
        publisher = waiting.publisher
        publisher.throttled(-waiting.size)
        self._wait(publisher, producer, publisher.take(producer, waiting.frames, found))
        if waiting.then is not None:
            self.when_published(producer, waiting.then)

    def when_published(self, producer: Producer, then: Callable[[], None]) -> None:
        """Call `then` when nothing of a producer waits here, at once if that is so; never, if it is gone before."""
        waiting = self._waiting.get(producer)
        if waiting is None:
            then()
        else:
            waiting.then = then

    def forget(self, producer: Producer) -> None:
        """A producer is gone, and with it what waited: its client got no receipt and sends it again."""
        waiting = self._waiting.pop(producer, None)
        if waiting is not None:
            assert waiting.job is not None
            self._openings.give_up(self._connection, waiting.job)
            waiting.publisher.throttled(-waiting.size)
