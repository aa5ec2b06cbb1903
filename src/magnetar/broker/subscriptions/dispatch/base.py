"""The common part of all dispatch policies: the context, reading new entries, and the bytes of a MESSAGE.

Only the subscription calls a policy, one call at a time. The policy sends the allowed messages, with one effect per
consumer and call, and requests the entries that it has to read. Nothing is sent to a consumer without permits, to one
whose connection accepts no more bytes, or to one with too many unacknowledged messages.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.broker.subscriptions.dispatch.context import DispatchContext
from magnetar.broker.subscriptions.dispatch.log_reader import LogReader
from magnetar.core.ids import Position
from magnetar.effects.outbox import Send, Timer
from magnetar.storage.cursor import words_of
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.storage.positions import PositionSet
from magnetar.wire import commands

ACTIVE_CHANGE_VERSION: Final = 12
"""Clients below this protocol version do not know ACTIVE_CONSUMER_CHANGE."""

TURN_MS: Final = 1
"""The penalty of the subscription that was served last, so that it comes after others that wait for the same rate."""

WAKE_MS_MIN: Final = 5
"""Between two looks at a dispatch rate: at high rates many messages go at a time, not each by its own timer."""

MARKER: Final = int(EntryFlags.MARKER)
CHUNK: Final = int(EntryFlags.CHUNK)


NOTHING_DRAINS: Final = {
    "drainingHashesCount": 0,
    "drainingHashesClearedTotal": 0,
    "drainingHashesUnackedMessages": 0,
}
"""Statistics of a subscription, or consumer, without keys."""


@dataclass(frozen=True, slots=True)
class KeySharedPolicy:
    """The options of a Key_Shared consumer (KeySharedMeta).

    Attributes:
        sticky: the consumers name their hash ranges; else the ranges are split between them automatically.
        ranges: ranges of hash slots, both ends inclusive, when sticky.
        out_of_order: order by key is not needed.
    """

    sticky: bool = False
    ranges: tuple[tuple[int, int], ...] = ()
    out_of_order: bool = False

    @property
    def mode(self) -> str:
        """The mode in statistics."""
        return "STICKY" if self.sticky else "AUTO_SPLIT"


class Dispatcher(ABC):
    """The policy of one subscription type.

    Attributes:
        consumers: in the order of their coming.
    """

    sub_type: ClassVar[SubType]

    def __init__(self, context: DispatchContext) -> None:
        self.context = context
        self.consumers: list[Consumer] = []
        self.reading = LogReader(context, self.dispatch)
        self.closed = False
        self._again_at_end = False
        self._rate_due_ms = 0
        """Time of the timer that continues what a rate delays; 0: none is set, or the rate has changed since."""

    # -------------------------------------------------------------------------------------------------- to implement

    @abstractmethod
    def check(self, consumer: Consumer, policy: KeySharedPolicy) -> None:
        """Check that one more consumer may join.

        Raises:
            BrokerError: it may not.
        """

    @abstractmethod
    def add(self, consumer: Consumer, policy: KeySharedPolicy) -> None:
        """A consumer came; `check` said yes."""

    @abstractmethod
    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer; its unacknowledged entries go to others."""

    @abstractmethod
    def remove_all(self) -> None:
        """Remove all consumers at once: none takes over from another."""

    @abstractmethod
    def dispatch(self) -> bool:
        """Send what can be sent now; whether anything was."""

    @abstractmethod
    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None) -> None:
        """Send again what a consumer did not acknowledge: all of it, or the entries at `positions`."""

    @abstractmethod
    def settled(self, consumer: Consumer, positions: Iterable[Position]) -> None:
        """These entries are acknowledged; `consumer` said so."""

    @abstractmethod
    def settled_part(self, consumer: Consumer, position: Position, messages: int) -> None:
        """This many messages of a batch are acknowledged, not all; `settled` follows for the rest of the ACK."""

    @abstractmethod
    def acknowledged_elsewhere(self, entries: PositionSet, parts: Mapping[Position, int]) -> None:
        """Another cluster's consumers acknowledged entries, and numbers of messages of batches; the cursor has them.

        This sends nothing: more may follow in the same event. `dispatch` is called at its end.
        """

    @abstractmethod
    def mark_delete_moved(self) -> bool:
        """The cursor moved forward by other means than a consumer's acknowledgements; whether anything was sent."""

    @abstractmethod
    def restart(self) -> None:
        """The cursor was moved anywhere: forget everything and read from it. There are no consumers."""

    @abstractmethod
    def in_flight(self) -> int:
        """Messages that the consumers were sent and did not acknowledge."""

    def in_the_way(self, consumer: Consumer, policy: KeySharedPolicy) -> Consumer | None:
        """The consumer with the exclusive access, or the hash slots, that a new consumer of this type requires; None:
        there is none.
        """
        return None

    @property
    def active(self) -> Consumer | None:
        """The one that gets everything, of the types that have such a one."""
        return None

    @property
    def waits(self) -> bool:
        """Whether a consumer could receive more, and everything available was read."""
        return self._at_end and any(consumer.can_receive for consumer in self.consumers)

    @property
    def _at_end(self) -> bool:
        return not self.context.held and not self.reading.in_flight and self.reading.after >= self.context.log.last

    @property
    def stopped(self) -> tuple[Position, str] | None:
        """The entry that could not be read, in front of which everything waits, and why; None: none."""
        return self.reading.stopped

    @property
    def reads_again(self) -> int:
        """Reads under way of entries that are to be sent again."""
        return 0

    def stats(self) -> dict[str, Any]:
        """The policy's part of the subscription's statistics, with Pulsar's keys."""
        return {}

    def consumer_stats(self, consumer: Consumer) -> dict[str, Any]:
        """The policy's part of a consumer's."""
        return NOTHING_DRAINS

    def validate(self) -> None:
        """Check what must hold after every step."""
        self.reading.validate()
        assert len({id(consumer) for consumer in self.consumers}) == len(self.consumers), "a consumer is listed twice"

    # -------------------------------------------------------------------------------------------------------- shared

    def close(self) -> None:
        """Nothing more is sent or read; timers and reads that come back find nothing to do."""
        self.closed = True
        self.reading.stop()

    def dispatch_again(self) -> None:
        """Continue in an event of its own: one call must not fill the outbox with more than a consumer's socket
        accepts.
        """
        if not self._again_at_end:
            self._again_at_end = True
            self.context.outbox.put(Timer(self.context.outbox.now_ms, self._go_on))

    def throttled(self) -> bool:
        """Whether nothing may be sent now because of a rate; a timer continues when sending is allowed."""
        if not self.context.rates or self.context.messages_by_rate() > 0:
            return False
        if not self._rate_due_ms:
            self.context.count_throttled()
            outbox = self.context.outbox
            # Others wait for the same rate: a subscription that was just served comes after those that were not.
            behind = TURN_MS if self.context.take_served() else 0
            self._rate_due_ms = outbox.now_ms + max(self.context.wait_ms(), WAKE_MS_MIN) + behind
            outbox.put(Timer(self._rate_due_ms, self._rate_due))
        return True

    def _rate_due(self, now_ms: int) -> None:
        if now_ms >= self._rate_due_ms:
            self._rate_due_ms = 0
        if not self.closed:
            self.dispatch()

    def limits_changed(self) -> None:
        """The limits changed: delayed entries may be sent, and the next wait follows the new rate."""
        self._rate_due_ms = 0
        if not self.closed:
            self.dispatch()

    def _go_on(self, now_ms: int) -> None:
        self._again_at_end = False
        if not self.closed:
            self.dispatch()

    def tell_active(self, consumer: Consumer, active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE, to clients that know it."""
        if consumer.protocol_version >= ACTIVE_CHANGE_VERSION:
            command = commands.active_consumer_change(consumer.consumer_id, active)
            self.context.outbox.put(Send(consumer.connection, (command,)))


def append_message(
    buffers: list[bytes], consumer: Consumer, partition: int, entry: StoredEntry, redelivery: int, ack_bits: int
) -> None:
    """Add one MESSAGE to what is sent: its header and the stored bytes, not copied."""
    data = entry.data
    words: Sequence[int] = words_of(ack_bits) if ack_bits else ()
    buffers.append(
        commands.message_header(
            consumer.consumer_id, entry.ledger, entry.entry, partition, redelivery, words, consumer.epoch, len(data)
        )
    )
    buffers.append(data)


def count_sent(consumer: Consumer, entries: int, messages: int, size: int, now_ms: int) -> None:
    """Count what was just put into a consumer's Send."""
    consumer.permits -= messages
    consumer.messages_out += messages
    consumer.entries_out += entries
    consumer.bytes_out += size
    if entries:  # of what was looked at, all may have been acknowledged before
        consumer.last_consumed_ms = now_ms
        if not consumer.first_sent_ms:
            consumer.first_sent_ms = now_ms
