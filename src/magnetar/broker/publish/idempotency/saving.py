"""Storing the idempotency keys of one topic from time to time, together with the messages withdrawn because of them, in
one transaction.

The part of the log that the transaction covers need not be read again at a start; the rest is read, and its keys are
checked again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from magnetar.broker.publish.idempotency.block import BLOCK_SHIFT
from magnetar.broker.publish.idempotency.snapshot import VERSION, Record, Stored, block_key, encode_block, record_key
from magnetar.broker.publish.idempotency.withdrawals import PREFIX as WITHDRAWN
from magnetar.broker.publish.idempotency.withdrawals import Withdrawals
from magnetar.core.ids import NONE, Position
from magnetar.effects.outbox import Note, Outbox, Store

if TYPE_CHECKING:
    from magnetar.broker.publish.idempotency.table import KeyTable

SAVE_BLOCKS_MAX: Final = 4
"""Blocks encoded in one step: 400 KB; more of them follow when these are stored."""


class Saving:
    """The stored keys of a topic.

    Args:
        outbox: the broker's.
        topic: full name.
        withdrawals: the topic's withdrawn messages.

    Attributes:
        covered: up to this position the stored keys replace reading the log.
        saving: whether a transaction is in flight.
    """

    def __init__(self, outbox: Outbox, topic: str, withdrawals: Withdrawals) -> None:
        self.covered = NONE
        self.saving = False
        self._outbox = outbox
        self._topic = topic
        self._withdrawals = withdrawals
        self._first_block = 0
        self._tail = 0
        """Blocks before the one, and keys from the other on, are not stored."""
        self._block_max = -1
        """The highest block that was ever given to be stored."""

    def found(self, stored: Stored) -> None:
        """These keys are stored, and were loaded."""
        record = stored.record
        self.covered = record.covered
        self._first_block, self._tail, self._block_max = (
            record.head >> BLOCK_SHIFT,
            record.tail,
            record.tail >> BLOCK_SHIFT,
        )

    def discard(self, stored: Stored) -> None:
        """The stored keys cannot be used."""
        self.covered = NONE
        self._outbox.put(Store({}, tuple(stored.keys), lambda _error: None))

    def save(
        self, table: "KeyTable", durable: int, covered: Position, record: Record, again: Callable[[], None]
    ) -> None:
        """Store new keys, a few blocks at a time; `again` is called if more have to follow.

        Args:
            table: the keys.
            durable: the number after the last key whose message is in the log.
            covered: the end of the log.
            record: identifies the keys' topic and property.
            again: see above.
        """
        self.saving = True
        head = min(table.head, durable)
        first, start = head >> BLOCK_SHIFT, max(self._tail, head) >> BLOCK_SHIFT
        tail = durable
        complete = tail <= start + SAVE_BLOCKS_MAX << BLOCK_SHIFT
        if not complete:
            tail = start + SAVE_BLOCKS_MAX << BLOCK_SHIFT
            # The first one left out may share its entry with others: that entry is read again.
            position = table.position(tail)
            covered = Position(position.ledger, position.entry - 1)
        blocks = range(start, (tail - 1 >> BLOCK_SHIFT) + 1) if tail > head else range(0)
        puts = {block_key(self._topic, block): encode_block(table, block, tail) for block in blocks}
        record.ledger, record.entry = covered
        record.head, record.tail, record.newest_ms, record.version = head, tail, table.newest_ms, VERSION
        puts[record_key(self._topic)] = msgspec.json.encode(record)
        self._block_max = max([self._block_max, *blocks])
        gone = tuple(block_key(self._topic, block) for block in range(self._first_block, first))
        self._withdrawals.trim()
        version = self._withdrawals.version
        puts |= self.withdrawn()

        def stored(error: str) -> None:
            self.saving = False
            if error:
                self._outbox.put(Note("warning", f"cannot store the idempotency keys of {self._topic}: {error}"))
                return
            self.covered, self._tail, self._first_block = max(covered, self.covered), tail, first
            self._withdrawals.stored(version)
            if not complete:
                again()

        self._outbox.put(Store(puts, gone, stored))

    def withdrawn(self) -> dict[str, bytes]:
        """The withdrawn messages to be stored; nothing if they are."""
        return {WITHDRAWN + self._topic: self._withdrawals.encode()} if self._withdrawals.dirty else {}

    def delete(self) -> None:
        """Delete the stored keys, because keys were switched off. Withdrawn messages stay withdrawn."""
        keys = [block_key(self._topic, block) for block in range(self._first_block, self._block_max + 1)]
        version = self._withdrawals.version

        def deleted(error: str) -> None:
            if error:
                text = f"cannot delete the idempotency keys of {self._topic}: {error}; the next start will"
                self._outbox.put(Note("warning", text))
            else:
                self._withdrawals.stored(version)

        self._outbox.put(Store(self.withdrawn(), (record_key(self._topic), *keys), deleted))
