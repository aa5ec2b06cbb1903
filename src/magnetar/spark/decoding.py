"""Entries to rows: batches, and the Arrow columns of the format `pulsar`.

A value is copied once, from the receive buffer (or the decompressed bytes) into the column's data. Per message, Python
only does what cannot be done per batch: finding the start of the next message.
"""

import base64
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from magnetar.spark.compression import Undecodable
from magnetar.spark.typed import Misfit, Run, Typed
from magnetar.wire.metadata import readable
from magnetar.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from magnetar.wire.varint import varint

SCHEMA: Final = (
    "value binary, __key binary, __topic string, __messageId binary, __publishTime timestamp, __eventTime timestamp, "
    "__messageProperties map<string,string>"
)
"""Columns and types as the JVM connector names them, for topics without a schema."""

RAW: Final = dict(column.split(" ") for column in SCHEMA.split(", "))
"""Types by name."""

_TIME: Final = pa.timestamp("us", tz="UTC")
_PROPERTIES: Final = pa.map_(pa.string(), pa.string())
TYPES: Final[dict[str, pa.DataType]] = {
    "value": pa.binary(),
    "__key": pa.binary(),
    "__topic": pa.string(),
    "__messageId": pa.binary(),
    "__publishTime": _TIME,
    "__eventTime": _TIME,
    "__messageProperties": _PROPERTIES,
}

TIME_MS_MAX: Final = (2**63 - 1) // 1000
"""The last time that Spark's timestamps have, in milliseconds."""

ROWS_MAX: Final = 16_384
BYTES_MAX: Final = 4 << 20
"""One record batch: large enough that its fixed costs vanish, small enough for the worker's memory."""

_SIZE: Final = struct.Struct(">I")
_SINGLE: Final = SingleMessageMetadata.FromString


def key_bytes(key: str | bytes, encoded: bool) -> bytes:
    """A partition key as the producer gave it."""
    raw = key.encode() if isinstance(key, str) else key
    if encoded:
        try:
            return base64.b64decode(raw, validate=True)
        except ValueError:
            return raw
    return raw


class Rows:
    """Collects messages of one topic and makes record batches of them.

    Args:
        topic: full name of the partition.
        partition: its number, -1 if it is not a partition.
        columns: of `TYPES` or of the schema, in the order wanted.
        key_wanted: only messages with this key (another filter above this one decides in the end); None: all.
        typed: decodes those of the schema; None: there are none.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Sequence[str],
        key_wanted: Callable[[bytes | None], bool] | None = None,
        typed: Typed | None = None,
    ) -> None:
        self._topic, self._columns, self._wanted, self._typed = topic, tuple(columns), key_wanted, typed
        self._partition = b"" if partition < 0 else b"\x18" + varint(partition)
        self._suffixes: dict[int, list[bytes]] = {}
        self._with_ids = "__messageId" in columns
        self._plain = not set(columns) & {"__key", "__eventTime", "__messageProperties"} and key_wanted is None
        if typed is not None and "key" in typed.columns:  # it may travel as the message's key
            self._plain = False
        self._clear()

    def _clear(self) -> None:
        self.rows = self.bytes = 0
        self._values: list[memoryview | None] = []
        self._keys: list[bytes | None] = []
        self._ids: list[bytes] = []
        self._times: list[tuple[int, int]] = []
        self._events: list[int] = []
        self._properties: list[list[tuple[str, str]] | None] = []
        self._any_properties = False
        self._runs: list[Run] = []

    @property
    def full(self) -> bool:
        """Whether `take` should be called."""
        return self.rows >= ROWS_MAX or self.bytes >= BYTES_MAX

    def add(self, ledger: int, entry: int, seen: MessageMetadata, body: memoryview) -> None:
        """One message that is an entry of its own, uncompressed."""
        key = key_bytes(seen.partition_key, seen.partition_key_b64_encoded) if seen.HasField("partition_key") else None
        if self._wanted is not None and not self._wanted(key):
            return
        self._values.append(None if seen.null_value else body)
        self._keys.append(key)
        self._events.append(seen.event_time)
        self._set_properties(seen.properties)
        if self._with_ids:
            self._ids.append(self._prefix(ledger, entry))
        self._count(ledger, entry, seen, 1, len(body))

    def add_batch(
        self,
        ledger: int,
        entry: int,
        seen: MessageMetadata,
        body: memoryview,
        first: int,
        past: int,
        ack_set: Sequence[int],
    ) -> None:
        """Messages of a batch, uncompressed: those with first <= index < past that are still to be delivered.

        Raises:
            Undecodable: the batch does not fit its count.
        """
        count = seen.num_messages_in_batch
        prefix = self._prefix(ledger, entry)
        suffixes = self._suffixes.get(count)
        if suffixes is None:
            end = b"\x30" + varint(count)
            suffixes = self._suffixes[count] = [b"\x20" + varint(index) + end for index in range(count)]
        values, keys, ids, events = self._values, self._keys, self._ids, self._events
        plain, with_ids, wanted = self._plain, self._with_ids, self._wanted
        unpack, size_all, at = _SIZE.unpack_from, len(body), 0
        before, total = len(values), 0
        try:
            for index in range(min(count, past)):
                begin = at + 4
                end = begin + unpack(body, at)[0]
                one = _SINGLE(body[begin:end])  # type: ignore[arg-type]  # any buffer will do
                size = one.payload_size
                at = end + size
                if size < 0 or at > size_all:
                    raise ValueError
                if index < first or one.compacted_out or (ack_set and not ack_set[index >> 6] >> (index & 63) & 1):
                    continue
                if not plain:
                    key = (
                        key_bytes(one.partition_key, one.partition_key_b64_encoded)
                        if one.HasField("partition_key")
                        else None
                    )
                    if wanted is not None and not wanted(key):
                        continue
                    keys.append(key)
                    events.append(one.event_time)
                    self._set_properties(one.properties)
                values.append(None if one.null_value else body[end:at])
                total += size
                if with_ids:
                    ids.append(prefix + suffixes[index])
        except (DecodeError, ValueError, struct.error, IndexError) as error:
            raise Undecodable(f"is not a batch of {count} messages ({type(error).__name__})") from None
        self._count(ledger, entry, seen, len(values) - before, total)

    def _set_properties(self, properties: Any) -> None:
        if properties:
            self._any_properties = True
            self._properties.append([(readable(item.key), readable(item.value)) for item in properties])
        else:
            self._properties.append(None)

    def _count(self, ledger: int, entry: int, seen: MessageMetadata, rows: int, size: int) -> None:
        self.rows += rows
        self.bytes += size
        self._times.append((seen.publish_time, rows))
        if self._typed is not None and rows:
            self._runs.append(Run(ledger, entry, seen.schema_version, rows))

    def _prefix(self, ledger: int, entry: int) -> bytes:
        return b"\x08" + varint(ledger) + b"\x10" + varint(entry) + self._partition

    def take(self) -> pa.RecordBatch:
        """Take the collected rows as a record batch; the next batch begins empty."""
        makers: dict[str, Callable[[], pa.Array]] = {
            "value": lambda: _binary(self._values),
            "__key": lambda: pa.array(self._keys, pa.binary()),
            "__topic": lambda: pa.repeat(pa.scalar(self._topic, pa.string()), self.rows),
            "__messageId": lambda: pa.array(self._ids, pa.binary()),
            "__publishTime": self._publish_times,
            "__eventTime": self._event_times,
            "__messageProperties": self._maps,
        }
        decoded = self._decoded()
        arrays = [decoded[name] if name in decoded else makers[name]() for name in self._columns]
        batch = pa.RecordBatch.from_arrays(arrays, names=list(self._columns))
        self._clear()
        return batch

    def _decoded(self) -> dict[str, pa.Array]:
        """The columns of the schema.

        Raises:
            Undecodable: names the message.
        """
        if self._typed is None:
            return {}
        try:
            return self._typed.arrays(self._values, self._keys, self._runs)
        except Misfit as misfit:
            at = misfit.index
            for run in self._runs:
                if at < run.rows:
                    raise Undecodable(
                        f"{self._topic}: the message at {run.ledger}:{run.entry} {misfit}; to have values as they are read "
                        "them as binary: allowDifferentTopicSchemas=true"
                    ) from None
                at -= run.rows
            raise

    def _publish_times(self) -> pa.Array:
        times = np.array(self._times, np.uint64).reshape(-1, 2)
        return _instants(np.repeat(times[:, 0], times[:, 1].astype(np.int64)))

    def _event_times(self) -> pa.Array:
        times = np.array(self._events, np.uint64)
        return _instants(times, times == 0)

    def _maps(self) -> pa.Array:
        if self._any_properties:
            return pa.array([properties or [] for properties in self._properties], _PROPERTIES)
        offsets = pa.array(np.zeros(self.rows + 1, np.int32))
        return pa.MapArray.from_arrays(offsets, pa.array([], pa.string()), pa.array([], pa.string()))


def _instants(times_ms: np.ndarray[Any, Any], missing: np.ndarray[Any, Any] | bool = False) -> pa.Array:
    """Timestamps; null where there is none, or none that a timestamp can be (clients write nanoseconds there, and anything)."""
    missing = missing | (times_ms > TIME_MS_MAX)
    times: np.ndarray[Any, Any] = np.where(missing, 0, times_ms).astype(np.int64) * 1000
    return pa.array(times, mask=missing).view(_TIME)


def _binary(values: list[memoryview | None]) -> pa.Array:
    """A binary column; the one copy of the values."""
    nulls = None in values
    present: list[Any] = [b"" if value is None else value for value in values] if nulls else values
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, present), np.int32, len(present)), out=offsets[1:])
    validity = None
    if nulls:
        bits = np.fromiter((value is not None for value in values), np.bool_, len(values))
        validity = pa.py_buffer(np.packbits(bits, bitorder="little"))
    data = pa.py_buffer(b"".join(present))
    return pa.Array.from_buffers(pa.binary(), len(values), [validity, pa.py_buffer(offsets), data])
