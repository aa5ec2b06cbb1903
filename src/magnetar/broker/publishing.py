"""What one read of a connection brought for one producer: inspected, judged, and appended in as few appends as possible.

    frames -> inspect -> (idempotency keys: look up) -> (deduplication: judge) -> entries -> one append
                 |         | known: a receipt behind       | duplicate: a receipt behind those of what came before
                 | refused | all that is staged            | unknown: an error; the producer has to come back and send again
                 v
               SEND_ERROR

With deduplication, a refusal that the client will answer by sending again ends the producer: what it has already
pipelined behind the refused message would else be stored first, and the message itself would then count as a duplicate.
"""

from typing import TYPE_CHECKING

from magnetar.broker.deduplication import Verdict
from magnetar.broker.effects import Note
from magnetar.broker.idempotency_judging import Keyed
from magnetar.broker.producers import Producer
from magnetar.broker.topic import MessageNotAllowed, Topic
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.storage.entries import NewEntry
from magnetar.wire import commands, metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import Frame

if TYPE_CHECKING:
    from magnetar.broker.session import Session


class Publishing:
    """One read's messages of one producer.

    Args:
        session: the connection.
        producer: who sends; ready.
        topic: where it publishes.
        link: whether the connection is a link's.
    """

    __slots__ = (
        "_before",
        "_deduplication",
        "_entries",
        "_idempotency",
        "_link",
        "_producer",
        "_receipts",
        "_session",
        "_size",
        "_topic",
    )

    def __init__(self, session: "Session", producer: Producer, topic: Topic, *, link: bool) -> None:
        self._session = session
        self._producer = producer
        self._topic = topic
        self._link = link
        numbers = producer.numbers
        # A producer without numbers was there when deduplication was switched on: it is just being closed.
        self._deduplication = topic.deduplication if numbers is not None else None
        self._before = numbers.mark() if self._deduplication is not None and numbers is not None else None
        self._idempotency = topic.idempotency
        self._entries: list[NewEntry] = []
        self._receipts: list[tuple[int, int]] = []
        self._size = 0

    def take(self, frames: list[Frame], message_bytes_max: int) -> None:
        """Handle the frames in order, up to the first that ends the producer."""
        deduplication, idempotency, producer = self._deduplication, self._idempotency, self._producer
        numbers = producer.numbers
        keyed: Keyed | None = None
        if idempotency is not None and not self._keys_known(frames[0].command.send):
            return
        for frame in frames:
            send = frame.command.send
            try:
                seen = metadata.inspect(frame.payload, message_bytes_max=message_bytes_max)
                metadata.check_client_entry(seen, marker=send.marker, link=self._link)
                self._topic.check_entry(seen, len(frame.payload))
                if idempotency is not None:
                    keyed = idempotency.judge(seen)
                    if keyed is not None and not keyed.count:
                        if not self._known(send, keyed):
                            return
                        continue
                if deduplication is not None and numbers is not None:
                    verdict = deduplication.judge(producer.name, numbers, seen.flags, seen.metadata)
                    if verdict:
                        if not self._repeated(send, verdict):
                            return
                        continue
            except BrokerError as error:
                if not self._refused(send, error):
                    return
                continue
            if idempotency is not None:
                idempotency.take(keyed.keys if keyed is not None else [], seen.publish_time)
            if keyed is not None:
                self._entries.append(NewEntry(keyed.data, seen.flags, keyed.count, seen.publish_time))
            else:
                self._entries.append(NewEntry(seen.payload, seen.flags, seen.count, seen.publish_time))
            self._receipts.append((send.sequence_id, send.highest_sequence_id))
            self._size += len(frame.payload)
        self._append()

    def _append(self) -> bool:
        """Send what was collected on its way; whether the producer may go on."""
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
            self._session.send(commands.send_error(producer.producer_id, receipts[0][0], error.code, error.message))
            if self._idempotency is not None:
                self._idempotency.give_back()
            elif before is None:
                return True
            if before is not None and producer.numbers is not None:
                producer.numbers.go_back(before)
            self._session.evict_producer(producer)
            return False
        self._session.broker.publishing(self._session, append, size)
        return True

    def _keys_known(self, send: pb.CommandSend) -> bool:
        """Whether it is known which idempotency keys are stored; a producer that is early has to come back."""
        assert self._idempotency is not None
        try:
            self._idempotency.check()
        except BrokerError as error:
            producer = self._producer
            self._session.send(commands.send_error(producer.producer_id, send.sequence_id, error.code, error.message))
            self._session.evict_producer(producer)
            return False
        return True

    def _known(self, send: pb.CommandSend, keyed: Keyed) -> bool:
        """All messages of an entry are stored already."""
        if not self._append():
            return False
        assert self._idempotency is not None
        self._topic.answer(
            self._producer, (send.sequence_id, send.highest_sequence_id), self._idempotency.position(keyed.first)
        )
        return True

    def _repeated(self, send: pb.CommandSend, verdict: Verdict) -> bool:
        if not self._append():
            return False
        if verdict is Verdict.DUPLICATE:
            self._topic.repeat(self._producer, (send.sequence_id, send.highest_sequence_id))
            return True
        error = BrokerError(
            ErrorCode.PERSISTENCE,
            f"whether sequence id {send.sequence_id} of {self._topic.text} gets into the log is not known yet: send again",
        )
        self._session.send(commands.send_error(self._producer.producer_id, send.sequence_id, error.code, error.message))
        self._session.evict_producer(self._producer)
        return False

    def _refused(self, send: pb.CommandSend, error: BrokerError) -> bool:
        if not self._append():
            return False
        session, producer = self._session, self._producer
        session.outbox.put(
            Note("warning", f"refused a message of {session.address} on {self._topic.text}: {error.message}")
        )
        if isinstance(error, MessageNotAllowed) and session.client_version.startswith("Pulsar-CPP"):
            self._topic.refuse_alone(producer, send.sequence_id, error)
            return True
        session.send(commands.send_error(producer.producer_id, send.sequence_id, error.code, error.message))
        if self._deduplication is None:
            return True
        session.evict_producer(producer)
        return False
