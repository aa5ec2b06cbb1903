"""Publishing the messages of one producer that one read of a connection received: checked, and appended in as few
appends as possible.

    frames -> inspect -> (idempotency keys: look up) -> (deduplication: judge) -> entries -> one append
                 |         | known: a receipt after      | duplicate: a receipt after those of earlier messages
                 | refused | all that is staged          | unknown: an error; the producer has to reconnect and send again
                 |         | large batch: it and all after it wait until it is opened (`broker.publish.opening`)
                 v
               SEND_ERROR, after the receipts of earlier messages: clients expect it at their oldest pending message

With deduplication, a refusal after which the client sends the message again ends the producer. Otherwise the messages
that it has already pipelined after the refused one would be stored first, and the message itself would then count as a
duplicate.
"""

from collections.abc import Iterator
from itertools import takewhile
from operator import attrgetter
from typing import Final, Protocol

from magnetar.broker.connection import Connection
from magnetar.broker.publish.idempotency.judging import NEW, WHOLE_MASK, Keyed
from magnetar.broker.publish.idempotency.topic import TopicIdempotency
from magnetar.broker.publish.opening import Elsewhere
from magnetar.broker.publish.producers import Producer
from magnetar.broker.publish.sequence_numbers import Verdict
from magnetar.broker.topics.topic import MessageNotAllowed, Topic
from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.effects.outbox import Note
from magnetar.storage.entries import Append, EntryFlags, NewEntry
from magnetar.wire import commands, metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame, PlainSend
from magnetar.wire.idempotency_keys import SPECIAL, Found, KeyRefused, takes_long
from magnetar.wire.metadata import BatchCountError, Inspected, MessageTooLargeError

Send = pb.CommandSend | PlainSend
"""A SEND, decoded or recognised."""

NO_TRANSACTIONS: Final = "this broker serves no transactions"

_is_plain: Final = PlainSend.__instancecheck__
_payload: Final = attrgetter("payload")

_BATCH: Final = int(EntryFlags.BATCH)
_FAIL_ONE_ALONE: Final = ("Pulsar-CPP", "Pulsar-Java")
"""Clients that fail one message that is not allowed, and continue with the next."""

_OF_ONE_MESSAGE: Final = (MessageNotAllowed, KeyRefused, MessageTooLargeError, BatchCountError)
"""Refusals that the same message would get again, whenever it comes."""


def in_transaction(command: Send | pb.CommandAck) -> bool:
    """Whether it names a transaction. By presence: the first transaction of Pulsar's first coordinator is (0, 0)."""
    if isinstance(command, PlainSend):
        return False
    return command.HasField("txnid_most_bits") or command.HasField("txnid_least_bits")


def refused_id(send: Send) -> int:
    """The sequence id of a refused SEND in the error: for a batch it is the highest. Java's client compares with that
    one, and ignores an error that names another.
    """
    return max(send.sequence_id, send.highest_sequence_id)


def error_for_client(error: BrokerError, client_version: str) -> BrokerError:
    """The error in a form that the client can handle: for one message that is not allowed, the C++ client gets the
    error that it knows as a wrong checksum (see `MessageNotAllowed`).
    """
    if isinstance(error, _OF_ONE_MESSAGE) and client_version.startswith("Pulsar-CPP"):
        return BrokerError(ErrorCode.CHECKSUM, error.message)
    return error


def check_transaction(send: Send) -> None:
    """Refuse a message of a transaction: stored now it would be read before, or without, its commit.

    Raises:
        MessageNotAllowed: NOT_ALLOWED.
    """
    if in_transaction(send):
        raise MessageNotAllowed(ErrorCode.NOT_ALLOWED, NO_TRANSACTIONS)


class Publisher(Protocol):
    """The producers of one connection (`session.producers.SessionProducers`)."""

    @property
    def connection(self) -> Connection:
        """The connection."""

    def evict(self, producer: Producer) -> None:
        """The broker closes a producer: its client looks the topic up again."""

    def publishing(self, append: Append, size: int) -> None:
        """This many published bytes are in flight to the disk."""


class Publishing:
    """The messages of one producer from one read.

    Args:
        publisher: the producers of its connection.
        producer: the producer; ready.
        topic: its topic.
    """

    __slots__ = (
        "_before",
        "_deduplication",
        "_entries",
        "_idempotency",
        "_producer",
        "_publisher",
        "_receipts",
        "_size",
        "_topic",
    )

    def __init__(self, publisher: Publisher, producer: Producer, topic: Topic) -> None:
        self._publisher = publisher
        self._producer = producer
        self._topic = topic
        numbers = producer.numbers
        # A producer without numbers was there when deduplication was switched on: it is just being closed.
        self._deduplication = topic.deduplication if numbers is not None else None
        self._before = numbers.mark() if self._deduplication is not None and numbers is not None else None
        self._idempotency = topic.idempotency
        self._entries: list[NewEntry] = []
        self._receipts: list[tuple[int, int]] = []
        self._size = 0

    def take(self, frames: list[Frame], message_bytes_max: int, found: Found | None = None) -> Elsewhere | None:
        """Handle the frames in order, up to the first that ends the producer, or has to be opened outside the event
        loop.

        Args:
            frames: SENDs.
            message_bytes_max: largest entry.
            found: the result of opening the first frame's batch; None: it was not opened yet.

        Returns:
            The remaining frames, to be passed again when their first batch is opened; None: none.

        Raises:
            ProtocolError: the connection has to end.
        """
        try:
            if self._idempotency is not None:
                return self._take_keyed(self._idempotency, frames, message_bytes_max, found)
            self._take(frames, message_bytes_max)
            return None
        except ProtocolError:
            # Earlier messages are valid, and are expected in the log: their numbers and keys are used.
            self._append()
            raise

    def _take(self, frames: list[Frame], message_bytes_max: int) -> None:
        deduplication, numbers, name = self._deduplication, self._producer.numbers, self._producer.name
        new = verdict = Verdict.NEW
        limits = self._topic.limits
        plain_max = 0 if limits.encrypted else min(limits.message_bytes, message_bytes_max)
        at, total = 0, len(frames)
        while at < total and (at := self._take_plain(frames, at, plain_max)) < total:
            frame = frames[at]
            at += 1
            send = frame.send
            try:
                seen = metadata.inspect(frame.payload, message_bytes_max=message_bytes_max)
                metadata.check_client_entry(seen, marker=send.marker)
                check_transaction(send)
                self._topic.check_entry(seen, len(frame.payload))
                if deduplication is not None and numbers is not None:
                    verdict = deduplication.judge(name, numbers, seen.flags, seen.metadata)
            except BrokerError as error:
                if not self._refused(send, error):
                    return
                continue
            if verdict is not new:
                if not self._repeated(send, verdict):
                    return
                continue
            self._entries.append(NewEntry(seen.payload, seen.flags, seen.count, seen.publish_time))
            self._receipts.append((send.sequence_id, send.highest_sequence_id))
            self._size += len(frame.payload)
        self._append()

    def _take_plain(self, frames: list[Frame], at: int, bytes_max: int) -> int:
        """Take the plain messages from `at` on that no check could refuse; returns where the usual way has to continue."""
        if type(frames[at]) is not PlainSend:
            return at
        producer = self._producer
        # One by one: the first message whose metadata are not plain is the end. To check all that follow in advance would be
        # repeated after each such message.
        entries = producer.plain.entries(map(_payload, takewhile(_is_plain, frames[at:])), bytes_max)
        if self._deduplication is not None and producer.numbers is not None:
            sequence_ids = producer.plain.sequence_ids(entries)
            del entries[self._deduplication.leading_new(producer.numbers, sequence_ids) :]
        end = at + len(entries)
        self._entries += entries
        self._receipts += [(frame.send.sequence_id, 0) for frame in frames[at:end]]
        self._size += sum([len(entry.data) for entry in entries])
        return end

    def _judge(self, seen: Inspected) -> Verdict:
        deduplication, numbers = self._deduplication, self._producer.numbers
        if deduplication is None or numbers is None:
            return Verdict.NEW
        return deduplication.judge(self._producer.name, numbers, seen.flags, seen.metadata)

    def _take_keyed(
        self, idempotency: TopicIdempotency, frames: list[Frame], message_bytes_max: int, found: Found | None
    ) -> Elsewhere | None:
        """The same with idempotency keys, which are looked up for all frames at once."""
        if not self._keys_known(frames[0].send) or self._take_new(idempotency, frames, message_bytes_max):
            return None
        if found is not None and found.name is not idempotency.name:
            found = None  # keys were switched off and on meanwhile
        keys, numbers, distinct = idempotency.look_up([frame.payload for frame in frames])
        judged = self._deduplication is not None
        taken, pending = idempotency.taken, idempotency.pending
        for frame, key, number in zip(frames, keys, numbers, strict=True):
            send = frame.send
            keyed: Keyed | None = None
            try:
                seen = metadata.inspect(frame.payload, message_bytes_max=message_bytes_max)
                metadata.check_client_entry(seen, marker=send.marker)
                check_transaction(send)
                self._topic.check_entry(seen, len(frame.payload))
                if key is None or seen.flags & SPECIAL:
                    opened = found if frame is frames[0] else None
                    size = len(seen.payload) - seen.metadata_end
                    if seen.flags & _BATCH and opened is None and takes_long(seen.count, seen.metadata, size):
                        return self._elsewhere(idempotency, frames, frame, seen)
                    keyed = idempotency.judge(seen, opened)
                    known = keyed.first if keyed is not None and not keyed.count else NEW
                elif distinct and number == NEW:
                    known = NEW
                else:
                    known = idempotency.number(key, number)
                verdict = self._judge(seen) if judged and known == NEW else Verdict.NEW
            except BrokerError as error:
                if not self._refused(send, error):
                    return None
                continue
            if known != NEW:
                if not self._known(send, known):
                    return None
                continue
            if verdict:
                if not self._repeated(send, verdict):
                    return None
                continue
            data, count = seen.payload, seen.count
            if keyed is not None:
                idempotency.take(keyed.keys, seen.publish_time)
                distinct = False
                data, count = keyed.data, keyed.count
            elif key is None or seen.flags & SPECIAL:
                taken.append(0)
            else:
                pending[key] = seen.publish_time & WHOLE_MASK
                taken.append(1)
            self._entries.append(NewEntry(data, seen.flags, count, seen.publish_time))
            self._receipts.append((send.sequence_id, send.highest_sequence_id))
            self._size += len(frame.payload)
        self._append()
        return None

    def _elsewhere(
        self, idempotency: TopicIdempotency, frames: list[Frame], first: Frame, seen: Inspected
    ) -> Elsewhere | None:
        """A batch is too large to be opened here: earlier messages are appended, and it waits together with later
        ones.
        """
        if not self._append():
            return None
        at = next(number for number, frame in enumerate(frames) if frame is first)
        return Elsewhere(frames[at:], idempotency.name, seen)

    def _take_new(self, idempotency: TopicIdempotency, frames: list[Frame], message_bytes_max: int) -> bool:
        """Fast path for the most frequent case: single messages with new keys. Returns False, with no side effect, for others."""
        if self._deduplication is not None:
            return False
        keys = idempotency.new_keys(self._sound(frames, message_bytes_max))
        if keys is None or len(keys) < len(frames):
            self._entries, self._receipts, self._size = [], [], 0
            return False
        idempotency.take_new(keys, self._entries)
        self._append()
        return True

    def _sound(self, frames: list[Frame], message_bytes_max: int) -> Iterator[tuple[bytes, int]]:
        """Entries with the ends of their metadata, up to one that is refused or not simply one message.

        One at a time, and of what was read nothing is kept but the entry: so it is in the processor's cache when its key is
        looked for, and the next one is read into the same memory.
        """
        topic = self._topic
        entries, receipts = self._entries, self._receipts
        for frame in frames:
            send = frame.send
            try:
                seen = metadata.inspect(frame.payload, message_bytes_max=message_bytes_max)
                metadata.check_client_entry(seen, marker=send.marker)
                check_transaction(send)
                topic.check_entry(seen, len(frame.payload))
            except (BrokerError, ProtocolError):
                return
            if seen.flags & SPECIAL:
                return
            entries.append(NewEntry(seen.payload, seen.flags, seen.count, seen.publish_time))
            receipts.append((send.sequence_id, send.highest_sequence_id))
            self._size += len(frame.payload)
            yield seen.payload, seen.metadata_end

    def _append(self) -> bool:
        """Append the collected entries; returns whether the producer may continue."""
        if not self._entries:
            return True
        producer, before = self._producer, self._before
        entries, self._entries = self._entries, []
        receipts, self._receipts = self._receipts, []
        size, self._size = self._size, 0
        if before is not None and producer.numbers is not None:
            self._before = producer.numbers.mark()
        try:
            append = self._topic.publish(producer, entries, receipts, self._before)
        except BrokerError as error:
            if self._idempotency is None and before is None:
                self._topic.refuse(producer, max(receipts[0]), error)
                return True
            self._publisher.connection.send(
                commands.send_error(producer.producer_id, max(receipts[0]), error.code, error.message)
            )
            if self._idempotency is not None:
                self._idempotency.give_back()
            if before is not None and producer.numbers is not None:
                producer.numbers.go_back(before)
            self._publisher.evict(producer)
            return False
        self._publisher.publishing(append, size)
        return True

    def _keys_known(self, send: Send) -> bool:
        """Whether the stored idempotency keys are known; a producer that is too early has to reconnect."""
        assert self._idempotency is not None
        try:
            self._idempotency.check()
        except BrokerError as error:
            producer = self._producer
            self._publisher.connection.send(
                commands.send_error(producer.producer_id, refused_id(send), error.code, error.message)
            )
            self._publisher.evict(producer)
            return False
        return True

    def _known(self, send: Send, number: int) -> bool:
        """All messages of an entry are stored already."""
        if not self._append():
            return False
        assert self._idempotency is not None
        self._topic.answer(
            self._producer, (send.sequence_id, send.highest_sequence_id), self._idempotency.table.position(number)
        )
        return True

    def _repeated(self, send: Send, verdict: Verdict) -> bool:
        if not self._append():
            return False
        if verdict is Verdict.DUPLICATE:
            self._topic.repeat(self._producer, (send.sequence_id, send.highest_sequence_id))
            return True
        error = BrokerError(
            ErrorCode.PERSISTENCE,
            f"whether sequence id {send.sequence_id} of {self._topic.text} gets into the log is not known yet: send again",
        )
        self._publisher.connection.send(
            commands.send_error(self._producer.producer_id, refused_id(send), error.code, error.message)
        )
        self._publisher.evict(self._producer)
        return False

    def _fail(self, sequence_id: int, error: BrokerError) -> None:
        """Answer a SEND with an error, at once."""
        producer_id = self._producer.producer_id
        self._publisher.connection.send(commands.send_error(producer_id, sequence_id, error.code, error.message))

    def _refused(self, send: Send, error: BrokerError) -> bool:
        if not self._append():
            return False
        connection, producer = self._publisher.connection, self._producer
        connection.outbox.put(
            Note("warning", f"refused a message of {connection.address} on {self._topic.text}: {error.message}")
        )
        alone = isinstance(error, _OF_ONE_MESSAGE) and connection.client_version.startswith(_FAIL_ONE_ALONE)
        if alone or self._deduplication is None:
            self._topic.refuse(producer, refused_id(send), error_for_client(error, connection.client_version))
            return True
        self._fail(refused_id(send), error)
        self._publisher.evict(producer)
        return False
