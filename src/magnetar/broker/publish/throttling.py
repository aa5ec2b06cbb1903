r"""A topic's publish rate: SENDs above it wait here, in the broker, and their receipts follow later.

    SEND --- tokens, and none waits ---> published at once
        \-- else: waits in the queue of its producer ---(tokens come)---> published, one entry of each producer in turn
             above a limit on the waiting bytes of a connection: its socket is not read until half of them are published

Nothing is refused: the client's queue of unanswered messages fills, and its `send` blocks (or times out, if
configured). While little waits, the connection is still read: acknowledgements and pings of the same connection
continue, which they could not if reading stopped at the first message above the rate. If a client closes its producer,
that takes effect after its waiting messages. If a producer ends in another way, its waiting messages are forgotten: the
client never got a receipt and sends them again.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from magnetar.broker.publish.producers import Producer
from magnetar.core.rates import Rate
from magnetar.effects.outbox import Outbox, Timer
from magnetar.wire.frame import Frame

THROTTLED_BYTES_MAX: Final = 256 * 1024
"""Back-pressure: above this many bytes that wait for a rate, a connection is not read. It is as much as a client has in
flight by default (1,000 small messages); times `connections_max`, it is the memory that throttled clients can use.
"""

WAKE_MS_MIN: Final = 5
"""Between two looks at the tokens: at high rates many messages go at a time, not each by its own timer."""


class Publisher(Protocol):
    """The connection of a producer (`broker.session.producers.SessionProducers`)."""

    def publish_now(self, producer: Producer, frames: list[Frame]) -> None:
        """Publish, whatever the rate says."""

    def throttled(self, size: int) -> None:
        """Count this many more waiting bytes (or fewer, if negative)."""


class Throttled(Protocol):
    """A topic, stored or not.

    Attributes:
        publish_throttle: its publish rate; None: it has none.
    """

    publish_throttle: "PublishThrottle | None"

    def publish_was_limited(self) -> None:
        """SENDs had to wait for the publish rate."""


def throttle_at(outbox: Outbox, rate: Rate | None, before: "PublishThrottle | None") -> "PublishThrottle | None":
    """The throttle of a topic: `before`, if there is one, with the new rate.

    Args:
        outbox: the broker's.
        rate: None: no limit; waiting messages are published at once.
        before: the topic's throttle until now.
    """
    if before is not None:
        before.set_rate(rate)
        return None if rate is None else before
    return None if rate is None else PublishThrottle(outbox, rate)


def admitted(topic: Throttled, producer: Producer, publisher: Publisher, frames: list[Frame]) -> list[Frame]:
    """The SENDs that a topic takes now, from the first on; the others wait."""
    if topic.publish_throttle is None:
        return frames
    passed = topic.publish_throttle.admit(producer, publisher, frames)
    if len(passed) < len(frames):
        topic.publish_was_limited()
    return passed


class _Waiting:
    """The waiting messages of one producer."""

    __slots__ = ("frames", "publisher", "size", "then")

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.frames: deque[Frame] = deque()
        self.size = 0
        self.then: Callable[[], None] | None = None


class PublishThrottle:
    """The publish rate of one topic, and the messages that wait for it.

    Args:
        outbox: the broker's.
        rate: None: no limit; waiting messages are published.
    """

    def __init__(self, outbox: Outbox, rate: Rate | None) -> None:
        self.rate = rate
        self._outbox = outbox
        self._waiting: dict[Producer, _Waiting] = {}
        self._armed = False

    @property
    def waiting_messages(self) -> int:
        """SENDs that wait."""
        return sum(len(one.frames) for one in self._waiting.values())

    def admit(self, producer: Producer, publisher: Publisher, frames: list[Frame]) -> list[Frame]:
        """The SENDs that may be published now, from the first on; the others wait."""
        if not self._waiting:
            passed = self._affordable(frames)
            if passed == len(frames):
                return frames
        else:
            passed = 0
        waiting = self._waiting.get(producer)
        if waiting is None:
            waiting = self._waiting[producer] = _Waiting(publisher)
        size = 0
        for frame in frames[passed:]:
            waiting.frames.append(frame)
            size += len(frame.payload)
        waiting.size += size
        publisher.throttled(size)
        self._arm()
        return frames[:passed]

    def _affordable(self, frames: list[Frame]) -> int:
        if self.rate is None:
            return len(frames)
        now_ms = self._outbox.now_ms
        messages, size = self.rate.messages(now_ms), self.rate.bytes(now_ms)
        for number, frame in enumerate(frames):
            if messages <= 0 or size <= 0:
                return number
            # The client's number; the rate is charged with the real one when the entry is stored.
            messages -= max(1, frame.send.num_messages)
            size -= len(frame.payload)
        return len(frames)

    def take(self, messages: int, size: int) -> None:
        """This much was published."""
        if self.rate is not None:
            self.rate.take(messages, size)

    def forget(self, producer: Producer) -> None:
        """A producer is gone, and with it what waited."""
        waiting = self._waiting.pop(producer, None)
        if waiting is not None:
            waiting.publisher.throttled(-waiting.size)

    def waits(self, producer: Producer) -> bool:
        """Whether something of a producer waits."""
        return producer in self._waiting

    def when_published(self, producer: Producer, then: Callable[[], None]) -> None:
        """Call `then` when all that waits of a producer is published; never, if it is gone before."""
        self._waiting[producer].then = then

    def set_rate(self, rate: Rate | None) -> None:
        """The policy changed; waiting messages use the new rate at once."""
        self.rate = rate
        self._go_on(self._outbox.now_ms)

    def _arm(self) -> None:
        if not self._armed and self._waiting:
            self._armed = True
            wait_ms = self.rate.wait_ms(self._outbox.now_ms) if self.rate is not None else 0
            self._outbox.put(Timer(self._outbox.now_ms + max(wait_ms, WAKE_MS_MIN), self._due))

    def _due(self, now_ms: int) -> None:
        self._armed = False
        self._go_on(now_ms)

    def _go_on(self, now_ms: int) -> None:
        """One SEND of each producer in turn, while there are tokens."""
        while self._waiting and (self.rate is None or self.rate.messages(now_ms) > 0):
            producer = next(iter(self._waiting))
            waiting = self._waiting.pop(producer)
            frame = waiting.frames.popleft()
            size = len(frame.payload)
            waiting.size -= size
            if waiting.frames:
                self._waiting[producer] = waiting  # after the others
            waiting.publisher.throttled(-size)
            waiting.publisher.publish_now(producer, [frame])
            if not waiting.frames and waiting.then is not None:
                waiting.then()
        self._arm()

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self._armed or not self._waiting, "somebody waits, and no timer is set"
        for producer, waiting in self._waiting.items():
            assert waiting.frames, "a producer waits with nothing"
            assert waiting.size == sum(len(frame.payload) for frame in waiting.frames), "waiting bytes are miscounted"
            assert not producer.closed, "a closed producer waits"
