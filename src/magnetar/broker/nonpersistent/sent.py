"""Counting the messages that a consumer of a non-persistent topic acknowledges, because acknowledgements name
entries.
"""

from collections.abc import Iterable
from typing import Final

from magnetar.storage.cursor import bits_of
from magnetar.wire.pulsar_pb2 import MessageIdData

ENTRIES_MAX: Final = 10_000
"""Entries of a consumer that are remembered one by one, at most: 1 MB. A receiver queue holds a thousand messages."""


class Sent:
    """The messages that were sent to one consumer and are not acknowledged.

    Attributes:
        messages: entry -> number of its unacknowledged messages, in the order of sending.
        older: number of unacknowledged messages of all earlier entries, of which only the sum is remembered.
    """

    __slots__ = ("_older_up_to", "messages", "older")

    def __init__(self) -> None:
        self.messages: dict[int, int] = {}
        self.older = 0
        self._older_up_to = -1

    def add(self, entry: int, messages: int) -> None:
        """It was sent an entry."""
        self.messages[entry] = messages
        if len(self.messages) > ENTRIES_MAX:
            self._older_up_to = next(iter(self.messages))
            self.older += self.messages.pop(self._older_up_to)

    def acknowledged(self, ids: Iterable[MessageIdData], *, cumulative: bool) -> int:
        """The number of messages that an acknowledgement covers; entries that were not sent, or are acknowledged
        already, count 0.
        """
        return sum(self._up_to(item) if cumulative else self._one(item) for item in ids)

    def _up_to(self, item: MessageIdData) -> int:
        found = 0
        if item.entryId > self._older_up_to:
            found, self.older = self.older, 0
        while self.messages and (first := next(iter(self.messages))) < item.entryId:
            found += self.messages.pop(first)
        return found + self._one(item)

    def _one(self, item: MessageIdData) -> int:
        left = self.messages.get(item.entryId, 0)
        if not left:
            one = 1 if self.older and item.entryId <= self._older_up_to else 0
            self.older -= one
            return one
        stays = min(left, bits_of(item.ack_set).bit_count()) if item.ack_set else 0
        if stays:
            self.messages[item.entryId] = stays
        else:
            del self.messages[item.entryId]
        return left - stays
