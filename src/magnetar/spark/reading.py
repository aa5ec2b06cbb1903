"""A task of the source: the messages of one stretch of one topic, as record batches.

The subscription begins at the last message that was read, so that its entry is delivered once more if it still exists:
then nothing after it was lost. A chunked message belongs to the stretch with its last chunk. If its first chunks are
before the stretch, they are found by its publish time, which all its chunks share.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from magnetar.core.errors import MagnetarError
from magnetar.core.names import TopicName
from magnetar.schemas.types import Definition
from magnetar.spark.client import Client, Entry, Reader, TopicGone
from magnetar.spark.columns import Columns
from magnetar.spark.compression import Undecodable, uncompress
from magnetar.spark.decoding import Rows
from magnetar.spark.offsets import EARLIEST, MessagePosition
from magnetar.spark.schemas import definition_of
from magnetar.spark.typed import Typed
from magnetar.wire.pulsar_pb2 import MessageMetadata

logger: Final = logging.getLogger("magnetar.spark")

QUIET_S: Final = 1.0
"""If nothing arrives for this time, the broker is asked whether there are more messages."""

CHUNKED_BYTES_MAX: Final = 512 << 20
"""A ceiling on chunks of incomplete messages in a task's memory."""

LOOK_BACK_MS: Final = 60_000
"""The first chunk of a message is searched for from this much before its publish time: brokers find times by search,
and several producers' clocks need not agree.
"""


class DataLost(MagnetarError):
    """Messages that were to be read no longer exist."""


@dataclass(frozen=True)
class Stretch:
    """The range that one task reads.

    Attributes:
        topic: one partition.
        after: exclusive.
        up_to: inclusive.
        check: whether `after` is a message that was read, so that its loss indicates that others are lost.
        from_ms, until_ms: publish times that are wanted, inclusive; None: all.
        keys: keys that are wanted; None: all.
    """

    topic: str
    after: MessagePosition
    up_to: MessagePosition
    check: bool = False
    from_ms: int | None = None
    until_ms: int | None = None
    keys: frozenset[bytes | None] | None = None


@dataclass
class _Partial:
    """Chunks of one message, in order."""

    metadata: MessageMetadata
    parts: list[memoryview] = field(default_factory=list)


class Chunks:
    """Puts chunked messages together again."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._partial: dict[str, _Partial] = {}
        self._bytes = 0

    def add(self, seen: MessageMetadata, body: memoryview) -> tuple[MessageMetadata, memoryview] | bool | None:
        """Take a chunk: the whole message when it was the last one, None when more are to come, False when chunks before it
        are missing.

        Raises:
            Undecodable: too many bytes of incomplete messages.
        """
        number, uuid = seen.chunk_id, seen.uuid
        if number == 0:
            dropped = self._partial.pop(uuid, None)
            self._bytes -= sum(map(len, dropped.parts)) if dropped is not None else 0
            self._partial[uuid] = _Partial(seen)
        partial = self._partial.get(uuid)
        if partial is None:
            return False
        if number < len(partial.parts):
            return None  # sent again by a client that got no answer
        if number > len(partial.parts):
            return False
        partial.parts.append(body)
        self._bytes += len(body)
        if self._bytes > CHUNKED_BYTES_MAX:
            raise Undecodable(f"more than {CHUNKED_BYTES_MAX} bytes of incomplete chunked messages in {self._where}")
        if number < seen.num_chunks_from_msg - 1:
            return None
        del self._partial[uuid]
        self._bytes -= sum(map(len, partial.parts))
        return partial.metadata, memoryview(b"".join(partial.parts))


class Task:
    """Reads one stretch; see the module's text.

    Args:
        client: to read by.
        stretch: what.
        columns: of `decoding.TYPES`, or of the schema.
        typed: those of the schema, with their types; None: there are none.
        fail_on_data_loss: raise when something is missing; otherwise it is logged.
        timeout_s: how long nothing may come although something should.
    """

    def __init__(
        self,
        client: Client,
        stretch: Stretch,
        columns: Sequence[str],
        typed: Columns | None = None,
        *,
        fail_on_data_loss: bool,
        timeout_s: float,
    ) -> None:
        self._client, self._stretch = client, stretch
        self._fail, self._timeout_s = fail_on_data_loss, timeout_s
        keys = stretch.keys
        wanted: Callable[[bytes | None], bool] | None = None if keys is None else keys.__contains__
        decoder = Typed(typed, self._schema) if typed else None
        self._rows = Rows(stretch.topic, TopicName.parse(stretch.topic).partition, columns, wanted, decoder)
        self._chunks = Chunks(stretch.topic)
        self._first: Entry | None = None

    def _schema(self, version: bytes) -> Definition | None:
        """The schema with a version, from the topic's registry."""
        return definition_of(self._client, self._stretch.topic, version)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows.

        Raises:
            DataLost, Undecodable, Down, Refused: one line each.
        """
        stretch = self._stretch
        try:
            reader = Reader(self._client, stretch.topic, stretch.after)
        except TopicGone as gone:
            self._lost(str(gone))
            return
        try:
            for entry in self._wanted(reader):
                self._take(entry)
                if self._rows.full:
                    yield self._rows.take()
            if self._rows.rows:
                yield self._rows.take()
        finally:
            reader.close()

    def _wanted(self, reader: Reader) -> Iterator[Entry]:
        """Entries up to the end of the stretch."""
        end = self._stretch.up_to
        quiet_since = time.monotonic()
        while True:
            try:
                for entry in reader.entries(QUIET_S):
                    self._check(entry)
                    position = entry.ledger, entry.entry
                    if position > (end.ledger, end.entry):
                        return
                    yield entry
                    if position == (end.ledger, end.entry):
                        return
                    quiet_since = time.monotonic()
                last = reader.last()
            except TopicGone as gone:
                self._lost(str(gone))
                return
            if (last.ledger, last.entry) < (end.ledger, end.entry):
                self._lost(f"{self._stretch.topic} ends at {_shown(last)}, and was read up to {_shown(end)} before")
                return
            if time.monotonic() - quiet_since > self._timeout_s:
                # The end itself may be gone, and with it everything: retention goes by ledgers.
                self._lost(
                    f"{self._stretch.topic}: nothing came up to {_shown(end)} within pollTimeoutMs={self._timeout_s * 1000:.0f}"
                )
                return

    def _check(self, entry: Entry) -> None:
        """Whether the first entry follows what was read before."""
        if self._first is not None:
            return
        self._first = entry
        after = self._stretch.after
        if not self._stretch.check or after == EARLIEST:
            return
        if entry.ledger != after.ledger or entry.entry > after.entry + 1:
            self._lost(
                f"{self._stretch.topic}: the message at {_shown(after)}, which was read last, no longer exists; "
                f"the next one is at {entry.ledger}:{entry.entry}, and others may be missing between them"
            )

    def _lost(self, what: str) -> None:
        if self._fail:
            raise DataLost(f"{what}; to continue without them set failOnDataLoss=false")
        logger.warning("%s (failOnDataLoss=false: continuing)", what)

    def _take(self, entry: Entry) -> None:
        stretch, seen = self._stretch, entry.metadata
        position = entry.ledger, entry.entry
        first, past = 0, 1 << 31
        if position == (stretch.after.ledger, stretch.after.entry):
            if stretch.after.index < 0:
                return
            first = stretch.after.index + 1
        elif position < (stretch.after.ledger, stretch.after.entry):
            return
        if position == (stretch.up_to.ledger, stretch.up_to.entry) and stretch.up_to.index >= 0:
            past = stretch.up_to.index + 1
        if seen.HasField("marker_type"):
            return
        published = seen.publish_time
        if not (stretch.from_ms or 0) <= published <= (stretch.until_ms if stretch.until_ms is not None else published):
            return
        try:
            self._add(entry, first, past)
        except Undecodable as error:
            raise Undecodable(f"{stretch.topic}: the message at {entry.ledger}:{entry.entry} {error}") from None

    def _add(self, entry: Entry, first: int, past: int) -> None:
        seen, body = entry.metadata, entry.body
        if seen.encryption_keys:
            raise Undecodable("is encrypted, and this format has no keys")
        if seen.HasField("num_messages_in_batch"):
            body = uncompress(seen.compression, seen.uncompressed_size, body)
            self._rows.add_batch(entry.ledger, entry.entry, seen, body, first, past, entry.ack_set)
            return
        if seen.num_chunks_from_msg > 1:
            whole = self._chunks.add(seen, body)
            if whole is False:
                whole = self._look_back(entry)
            if whole is None or isinstance(whole, bool):
                return
            seen, body = whole
        body = uncompress(seen.compression, seen.uncompressed_size, body)
        self._rows.add(entry.ledger, entry.entry, seen, body)

    def _look_back(self, entry: Entry) -> tuple[MessageMetadata, memoryview] | None:
        """The message whose chunk this is, from chunks before the stretch; None if they are not there, or more follow."""
        chunks = Chunks(self._stretch.topic)
        uuid = entry.metadata.uuid
        reader = Reader(self._client, self._stretch.topic, after_time_ms=entry.metadata.publish_time - LOOK_BACK_MS)
        try:
            for earlier in reader.entries(QUIET_S):
                if (earlier.ledger, earlier.entry) > (entry.ledger, entry.entry):
                    break
                if earlier.metadata.num_chunks_from_msg > 1 and earlier.metadata.uuid == uuid:
                    whole = chunks.add(earlier.metadata, earlier.body)
                    if (earlier.ledger, earlier.entry) == (entry.ledger, entry.entry):
                        if whole is None:
                            self._chunks = _merged(self._chunks, chunks)
                        return None if isinstance(whole, bool) else whole
        finally:
            reader.close()
        return None  # its first chunks were never stored, or are gone: no client would deliver it


def _merged(held: Chunks, found: Chunks) -> Chunks:
    held._partial.update(found._partial)
    held._bytes += found._bytes
    return held


def _shown(position: MessagePosition) -> str:
    if position == EARLIEST:
        return "its beginning"
    return f"{position.ledger}:{position.entry}" + (f":{position.index}" if position.index >= 0 else "")
