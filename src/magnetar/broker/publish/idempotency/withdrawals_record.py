"""The stored form of the withdrawn messages of a topic.

It has a module of its own because mypyc compiles `withdrawals`. In a compiled module msgspec sees the annotations of a class
without their parameters (`list`, not `list[tuple[int, int, bytes]]`), and then neither converts nor checks what is inside.
"""

import msgspec


class WithdrawalsRecord(msgspec.Struct, kw_only=True):
    """The withdrawn messages of a topic.

    Attributes:
        incarnation: of the topic's log.
        entries: ledger -> withdrawn entries, as `BitMap.serialize` makes them.
        parts: (ledger, entry, one bit per message of the batch, 1 = withdrawn, little endian).
    """

    incarnation: int
    entries: dict[int, bytes]
    parts: list[tuple[int, int, bytes]]
