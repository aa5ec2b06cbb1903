"""Limiting the stored size of a cursor: if there are too many out-of-order acknowledgements, the rest stays in memory,
which is reported.
"""

from collections.abc import Callable

from magnetar.effects.outbox import Note, Outbox
from magnetar.storage.cursor import BYTES_STORED_MAX, Cursor


class CursorEncoder:
    """Encodes the cursor of one subscription within limits.

    Args:
        outbox: the broker's.
        owner: the subscription, as messages name it.
        ranges_max: runs of individually acknowledged entries that are stored (`cursor_ranges_max`).
        bytes_max: of what the stored cursor says in addition to its position, as far as the store takes it.
        on_left_out: called with how many more ranges or batches the stored cursor has no room for than the one before had.
    """

    def __init__(
        self, outbox: Outbox, owner: str, ranges_max: int, bytes_max: int, on_left_out: Callable[[int], None]
    ) -> None:
        self._outbox = outbox
        self._owner = owner
        self._ranges_max = ranges_max
        self._bytes_max = bytes_max
        self._on_left_out = on_left_out
        self._left_out = 0

    def encode(self, cursor: Cursor) -> bytes:
        """The cursor as stored. A note is put out when it begins to have more holes than are stored."""
        data = cursor.encode(self._ranges_max, bytes_max=self._bytes_max)
        left_out = cursor.runs_left_out + cursor.partials_left_out
        if left_out and not self._left_out:
            limit = f"cursor_ranges_max = {self._ranges_max}"
            if self._bytes_max < BYTES_STORED_MAX:
                limit += f", and {self._bytes_max} bytes of a cursor in ZooKeeper"
            self._outbox.put(
                Note(
                    "warning",
                    f"{self._owner} has more acknowledgements out of order than are stored: {left_out} ranges or batches "
                    f"are kept in memory only and come again after a restart ({limit})",
                )
            )
        if left_out > self._left_out:
            self._on_left_out(left_out - self._left_out)
        self._left_out = left_out
        return data
