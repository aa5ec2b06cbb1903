"""A key-value store as one file of a log: a snapshot of all keys, then the transactions since. Pure: bytes in, bytes out.

    magic (12), then frames (`storage.frames`) of MessagePack
    snapshot      [version, {key: [value, version]}], several; the last one is followed by
    transaction   [version, {key: value}, [deleted keys]], each with a version that is one more than that before

A transaction whose frame is not whole ends the file: it was not confirmed. A whole frame after it means damage.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from magnetar.core.errors import StorageError
from magnetar.storage.frames import HEAD_BYTES, pack_frame, read_frames

MAGIC: Final = b"MAGNETARK\x00\x00\x01"

KEYS_PER_FRAME: Final = 1_024
"""Size of a part of a snapshot: some 200 KB for cursors of usual size."""

Keys = dict[str, tuple[bytes, int]]
"""Key -> value and version."""


class Transaction(msgspec.Struct, array_like=True, tag="t"):
    """One transaction.

    Attributes:
        version: of the store after it, and of each key that it puts.
        puts: key -> new value.
        deletes: keys that are gone.
    """

    version: int
    puts: dict[str, bytes]
    deletes: list[str]


class Snapshot(msgspec.Struct, array_like=True, tag="s"):
    """A part of a snapshot.

    Attributes:
        version: of the store.
        keys: some of its keys.
        last: whether no other part follows.
    """

    version: int
    keys: Keys
    last: bool


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Transaction | Snapshot)


def apply(keys: Keys, transaction: Transaction) -> None:
    """Carry out a transaction."""
    for key in transaction.deletes:
        keys.pop(key, None)
    for key, value in transaction.puts.items():
        keys[key] = value, transaction.version


def snapshot(keys: Mapping[str, tuple[bytes, int]], version: int) -> Iterator[bytes]:
    """The buffers of a new file."""
    yield MAGIC
    items = list(keys.items())
    for at in range(0, max(len(items), 1), KEYS_PER_FRAME):
        last = at + KEYS_PER_FRAME >= len(items)
        yield pack_frame(_ENCODER.encode(Snapshot(version, dict(items[at : at + KEYS_PER_FRAME]), last)))


def pack(transaction: Transaction) -> bytes:
    """The bytes of a transaction, to be appended."""
    return pack_frame(_ENCODER.encode(transaction))


def read(data: bytes) -> tuple[Keys, int]:
    """Read a file: its keys, and the version of the last transaction.

    Raises:
        StorageError: it is no such file, its snapshot is not whole, or a transaction is damaged.
    """
    if not data.startswith(MAGIC):
        raise StorageError("it does not begin as a file of states: it is something else, or of another version")
    view = memoryview(data)
    keys: Keys = {}
    version, whole, end = -1, False, len(MAGIC)
    for body, end in read_frames(view, len(MAGIC)):
        try:
            frame = _DECODER.decode(body)
        except msgspec.DecodeError as error:
            raise StorageError(f"the frame that ends at {end} cannot be read: {error}") from error
        if isinstance(frame, Snapshot):
            if whole:
                raise StorageError(f"a second snapshot ends at {end}")
            keys |= frame.keys
            version, whole = frame.version, frame.last
        elif not whole or frame.version != version + 1:
            raise StorageError(f"transaction {frame.version} follows {version}, in front of {end}")
        else:
            version = frame.version
            apply(keys, frame)
    if not whole:
        raise StorageError(f"its snapshot is not whole, at {end}")
    length = int.from_bytes(view[end : end + 4], "little")
    if any(True for _ in read_frames(view, end + HEAD_BYTES + length)):
        raise StorageError(f"the frame at {end} is damaged, and others follow it")
    return keys, version
