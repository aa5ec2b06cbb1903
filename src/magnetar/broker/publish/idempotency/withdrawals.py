"""Withdrawn messages of a topic: they stay in the log, and no consumer gets them.

Of two messages with one idempotency key that two clusters accepted while they were not connected, one loses
(`broker.publish.idempotency.conflicts`). It counts as acknowledged in every subscription, also in ones that are created
later or moved back: it is not in the backlog, does not hold back retention, and is not read. Other clusters are not
informed: they decide the same on their own.

Withdrawals are stored together with the idempotency keys. Those that are missing there are decided again by reading the
log after them.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
from pyroaring import BitMap

from magnetar.broker.publish.idempotency.withdrawals_record import WithdrawalsRecord
from magnetar.core.ids import NONE, Position
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import EntryFlags
from magnetar.storage.positions import PositionSet
from magnetar.storage.topiclog import TopicLog

PREFIX: Final = "withdrawn/"
"""Key in the metadata store; the topic's name follows."""

MESSAGES_MAX: Final = 1_000_000
"""A ceiling per topic on withdrawn messages that are in the log: some MB at most. Beyond it both copies stay."""

_MARKER: Final = EntryFlags.MARKER


class Loser(NamedTuple):
    """A message that is withdrawn.

    Attributes:
        position: position of its entry.
        index: its index in its batch; -1: the entry is one message.
    """

    position: Position
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used


class Withdrawals:
    """The withdrawn messages of one topic.

    Args:
        log: of the topic.
        messages_max: a ceiling.

    Attributes:
        entries: all of whose messages are withdrawn.
        parts: of other batches, a bit set of the withdrawn ones.
        messages: how many there are.
        dirty: something is not stored.
    """

    def __init__(self, log: TopicLog, messages_max: int = MESSAGES_MAX) -> None:
        self.entries = PositionSet()
        self.parts: dict[Position, int] = {}
        self.messages = 0
        self.dirty = False
        self.version = 0
        self._log = log
        self._messages_max = messages_max

    def __bool__(self) -> bool:
        return bool(self.entries) or bool(self.parts)

    def has(self, loser: Loser) -> bool:
        """Whether a message is withdrawn already."""
        return loser.position in self.entries or bool(self.parts.get(loser.position, 0) >> max(loser.index, 0) & 1)

    def add(self, losers: Iterable[Loser]) -> list[Loser]:
        """Withdraw messages that are in the log; which were not before, and fit in."""
        fresh: list[Loser] = []
        for loser in losers:
            position = loser.position
            if self.messages >= self._messages_max or not self._log.valid(position) or self.has(loser):
                continue
            fresh.append(loser)
            full = (1 << self._log.count_at(position)) - 1
            before = self.parts.pop(position, 0)
            bits = full if loser.index < 0 else before | 1 << loser.index
            if bits & full == full:
                self.entries.add(*position)
            else:
                self.parts[position] = bits
            self.messages += bits.bit_count() - before.bit_count()
            self.touch()
        return fresh

    def absorb(self, other: "Withdrawals") -> None:
        """Withdraw all that are withdrawn in another set; whole entries at once, however many there are."""
        for ledger, entries in other.entries.ledgers.items():
            here = entries & self._log.message_ids(ledger)
            if here:
                known = self.entries.ledgers.get(ledger)
                self.entries.ledgers[ledger] = here if known is None else known | here
        self.entries.size = sum(map(len, self.entries.ledgers.values()))
        for position in [position for position in self.parts if position in other.entries]:
            del self.parts[position]
        for position, bits in other.parts.items():
            if position in self.entries or not self._log.valid(position):
                continue
            full = (1 << self._log.count_at(position)) - 1
            both = bits | self.parts.pop(position, 0)
            if both & full == full:
                self.entries.add(*position)
            else:
                self.parts[position] = both
        self._count()
        self.touch()

    def touch(self) -> None:
        """Something is not stored."""
        self.dirty = True
        self.version += 1

    def stored(self, version: int) -> None:
        """The state that was encoded at a version is durable."""
        self.dirty = self.version != version

    def acknowledge_in(self, cursor: Cursor) -> None:
        """Let them count as acknowledged by a cursor."""
        if self.entries:
            cursor.ack_set(self.entries)
        for position, bits in self.parts.items():
            if self._log.valid(position):  # else retention deleted it, and `trim` is still to come
                cursor.ack_indexes(position, ((1 << self._log.count_at(position)) - 1) & ~bits)

    # --------------------------------------------------------------------------------------------------- end of the log

    def last(self) -> Position:
        """The newest entry that a consumer can be given, or NONE."""
        return self.last_message()[0]

    def last_message(self, *beside: "Withdrawals") -> tuple[Position, int]:
        """The newest message that a consumer can get and that none of `beside` withdraws: its entry, or NONE, and its
        index in the batch, -1 if it is in none.
        """
        log = self._log
        hiding = [each for each in (self, *beside) if each]
        position = log.last_dispatchable()
        while log.valid(position):
            bits = 0
            for each in hiding:
                bits |= -1 if position in each.entries else each.parts.get(position, 0)
            index = log.batch_last_index(position)
            while index > 0 and bits >> index & 1:
                index -= 1
            if not (bits >> max(index, 0) & 1 or log.flags_at(position) & _MARKER):
                return position, index
            position = log.position_before(position)
        return NONE, -1

    # ------------------------------------------------------------------------------------------------------------ storing

    def trim(self) -> None:
        """Retention deleted ledgers: forget what was in them."""
        first = self._log.first
        low = self.entries.first()
        gone = [position for position in self.parts if position < first] if first != NONE else list(self.parts)
        if not gone and (low is None or (first != NONE and low >= first)):
            return
        for position in gone:
            del self.parts[position]
        if first == NONE:
            self.entries.clear()
        else:
            self.entries.take_up_to(Position(first.ledger, first.entry - 1))
        self._count()
        self.touch()

    def _count(self) -> None:
        between = self._log.messages_between
        whole = (between(Position(first.ledger, first.entry - 1), last) for first, last in self.entries.runs())
        self.messages = sum(whole) + sum(bits.bit_count() for bits in self.parts.values())

    def encode(self) -> bytes:
        """The stored form."""
        return msgspec.msgpack.encode(
            WithdrawalsRecord(
                incarnation=self._log.incarnation,
                entries={ledger: entries.serialize() for ledger, entries in self.entries.ledgers.items()},
                parts=[
                    (position.ledger, position.entry, bits.to_bytes((bits.bit_length() + 7) // 8, "little"))
                    for position, bits in self.parts.items()
                ],
            )
        )

    def load(self, data: bytes) -> None:
        """Load what `encode` made; messages of an earlier incarnation or after the end of the log are ignored.

        Raises:
            ValueError: it is damaged.
        """
        try:
            record = msgspec.msgpack.decode(data, type=WithdrawalsRecord)
            ledgers = {ledger: BitMap.deserialize(entries) for ledger, entries in record.entries.items()}
        except (msgspec.DecodeError, ValueError) as error:
            raise ValueError(f"withdrawn messages: {error}") from None
        if record.incarnation != self._log.incarnation:
            return
        for ledger, entries in ledgers.items():
            here = entries & self._log.message_ids(ledger)
            if here:
                self.entries.ledgers[ledger] = here
                self.entries.size += len(here)
        for ledger, entry, bits in record.parts:
            position = Position(ledger, entry)
            if self._log.valid(position):
                self.parts[position] = int.from_bytes(bits, "little")
        self._count()

    def validate(self) -> None:
        """Check what must hold after every step."""
        self.entries.validate()
        before = self.messages
        self._count()
        assert before == self.messages, f"{before} withdrawn messages are counted, {self.messages} there"
        for position, bits in self.parts.items():
            assert position not in self.entries, f"batch {position} is withdrawn twice"
            assert 0 < bits < (1 << self._log.count_at(position)) - 1, f"batch {position} is withdrawn as a whole"
