"""Splitting ACK and REDELIVER_UNACKNOWLEDGED_MESSAGES commands with hundreds of thousands of message ids into portions.

A consumer may have any number of messages to give back at once, and some clients name them all in one command; there is
no limit that would not break one of them. So such a command is never decoded as a whole: it is split into several
commands, each with `PORTION_IDS` of its ids. `runtime.network.frame_slices` says why the effect is the same. First the
command is scanned to its end, `WALKED_IDS` ids at a time, because the fields after the ids decide the meaning of the
whole command (a transaction, the consumer epoch of redelivered messages).
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from magnetar.wire.varint import read_varint, varint

PORTION_IDS: Final = 1_000
"""Message ids of one portion: some 0.2 ms to decode."""

PORTION_BYTES: Final = 64 * 1024
"""The same in bytes: ids of batches may have long `ack_set`s."""

WALKED_IDS: Final = 2_000
"""Message ids that are looked at in one go, some 0.5 ms."""

TAIL_BYTES_MAX: Final = 1024
"""A ceiling on the fields after the ids."""

_ACK: Final = 10
_REDELIVER: Final = 20
_BEGINNINGS: Final = {_ACK: b"\x08\x0a\x52", _REDELIVER: b"\x08\x14\xa2\x01"}
"""The first bytes of such a command as every client writes them: its type, and the tag of its sub-command."""

_IDS: Final = {_ACK: 0x1A, _REDELIVER: 0x12}
"""Type -> tag of its message ids."""

_NUMBERS: Final = {_ACK: {0x08, 0x10}, _REDELIVER: {0x08}}
"""Type -> tags of the fields before the ids: the consumer, and the kind of acknowledgement."""

_ACK_TYPE: Final = 0x10
_TRANSACTION: Final = frozenset({0x30, 0x38})


def names_ids(raw: bytes) -> int:
    """The offset of the sub-command if the command is ACK or REDELIVER_UNACKNOWLEDGED_MESSAGES and nothing else; else
    0.
    """
    beginning = _BEGINNINGS.get(raw[1]) if len(raw) > 4 else None
    if beginning is None or not raw.startswith(beginning):
        return 0
    try:
        size, at = read_varint(raw, len(beginning))
    except IndexError:
        return 0
    return at if at + size == len(raw) else 0


def portions(raw: bytes) -> Iterator[bytes]:
    """The commands into which a long one is divided.

    Args:
        raw: a command that `names_ids` accepts.

    Yields:
        b"" for a pause, in which other work gets its turn; commands, each with some of the ids; or `raw`, if it cannot
        be divided.
    """
    kind = raw[1]
    tag, end = _IDS[kind], len(raw)
    at = begin = names_ids(raw)
    try:
        acks = b""
        while raw[at] in _NUMBERS[kind]:
            start = at
            _, at = read_varint(raw, at + 1)
            if raw[start] == _ACK_TYPE:
                acks = raw[start + 1 : at]
        head, cuts, count, last = raw[begin:at], [at], 0, at
        while at < end and raw[at] == tag:
            size = raw[at + 1]
            if size <= 0x7F:
                at += 2 + size
            else:
                size, at = read_varint(raw, at + 1)
                at += size
            count += 1
            if not count % PORTION_IDS or at - last >= PORTION_BYTES:
                cuts.append(at)
                last = at
            if not count % WALKED_IDS:
                yield b""
        tail = raw[at:]
        divisible = count > 0 and at <= end and len(tail) <= TAIL_BYTES_MAX and (kind != _ACK or acks == b"\0")
        while divisible and at < end:
            divisible = raw[at] != tag and (kind != _ACK or raw[at] not in _TRANSACTION) and raw[at] & 7 in {0, 2}
            size, behind = read_varint(raw, at + 1) if raw[at] <= 0x7F else read_varint(raw, read_varint(raw, at)[1])
            at = behind + size if raw[at] & 7 == 2 else behind
    except IndexError:  # it ends in the middle of something
        divisible = False
    if not divisible or at != end:
        yield raw
        return
    stop = end - len(tail)
    if cuts[-1] != stop:
        cuts.append(stop)
    for first, behind in pairwise(cuts):
        # The fields after the ids of an acknowledgement go into its last portion: the client expects one answer.
        more = tail if kind == _REDELIVER or behind == stop else b""
        body = b"".join((head, raw[first:behind], more))
        yield b"".join((_BEGINNINGS[kind], varint(len(body)), body))
