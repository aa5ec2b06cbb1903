"""The parameters of a WebSocket's URL, by Pulsar's names and with its defaults."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.broker.subscriptions.consumer import SubType
from magnetar.core.ids import EARLIEST, LATEST
from magnetar.core.names import check_subscription
from magnetar.core.numbers import whole_number
from magnetar.metadata.errors import BadRequest
from magnetar.wire import pulsar_pb2 as pb

QUEUE_MAX: Final = 10_000
"""A ceiling on messages that a WebSocket is sent without an acknowledgement, or that wait for their receipt."""

INT_MAX: Final = (1 << 31) - 1
"""Pulsar does not accept larger numbers of messages."""

NAME_CHARACTERS_MAX: Final = 512
"""A ceiling on names of producers and consumers."""

TIME_MS_MAX: Final = 24 * 3_600_000
"""A ceiling on times that are waited for."""

COMPRESSIONS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
HASHINGS: Final = ("JavaStringHash", "Murmur3_32Hash")
ROUTINGS: Final = ("SinglePartition", "RoundRobinPartition", "CustomPartition")
"""The first is what Pulsar's WebSockets do without the parameter, and with the last: order is kept."""
TYPES: Final = {
    "exclusive": SubType.EXCLUSIVE,
    "shared": SubType.SHARED,
    "failover": SubType.FAILOVER,
    "keyshared": SubType.KEY_SHARED,
    "key_shared": SubType.KEY_SHARED,
}


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The options of a producer.

    Attributes:
        name: "" for a name from the broker.
        first_sequence_id: id of its first message, less one; None: continue after the broker's last id of it.
        send_ms: the time for which a message waits for its receipt; 0: for ever.
        pending_max: most messages that wait for their receipts; at this number reading stops.
        hashing: the hash by which keys choose partitions.
        single: messages without a key go to one partition, else to one after the other.
        compression: one of `COMPRESSIONS`.
    """

    name: str
    first_sequence_id: int | None
    send_ms: int
    pending_max: int
    hashing: str
    single: bool
    compression: str


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The options of a consumer or a reader.

    Attributes:
        subscription: its name.
        kind: its type.
        durable: kept; False for readers.
        earliest: a new subscription begins with the first message.
        start: start of a reader: after this message; None: as `earliest` says.
        name: name of the consumer; "" for a name from the broker.
        priority: priority of dispatch.
        queue: most unacknowledged messages.
        pull: messages are sent only for permits.
        ack_ms: messages that are unacknowledged for this time are redelivered; 0: never.
        nack_ms: delay of the redelivery of a negatively acknowledged message.
        redeliveries_max: redeliveries of a message before it is sent to `dead_letters`; 0: no limit.
        dead_letters: a topic's name; "" for the default one.
    """

    subscription: str
    kind: SubType
    durable: bool
    earliest: bool
    start: pb.MessageIdData | None
    name: str
    priority: int
    queue: int
    pull: bool
    ack_ms: int
    nack_ms: int
    redeliveries_max: int
    dead_letters: str


def producer_options(query: Mapping[str, str]) -> ProducerOptions:
    """Read a producer's parameters; those about batches and encryption keys are ignored.

    Raises:
        BadRequest: a value is not possible.
    """
    first = query.get("initialSequenceId")
    return ProducerOptions(
        name=_name(query, "producerName"),
        first_sequence_id=None if first is None else _number("initialSequenceId", first, 2**62),
        send_ms=_asked(query, "sendTimeoutMillis", 30_000, TIME_MS_MAX),
        pending_max=_queue(query, "maxPendingMessages"),
        hashing=_choice(query, "hashingScheme", HASHINGS),
        single=_choice(query, "messageRoutingMode", ROUTINGS) != "RoundRobinPartition",
        compression=_choice(query, "compressionType", COMPRESSIONS),
    )


def consumer_options(query: Mapping[str, str], subscription: str) -> ConsumerOptions:
    """Read a consumer's parameters.

    Raises:
        BadRequest: a value is not possible. NameNotValid: the subscription's name is not.
    """
    kind = query.get("subscriptionType", "Exclusive")
    if kind.lower() not in TYPES:
        raise BadRequest(f"subscriptionType is Exclusive, Shared, Failover or Key_Shared, not {kind[:40]!a}")
    begin = query.get("subscriptionInitialPosition", "Latest")
    if begin.lower() not in {"latest", "earliest"}:
        raise BadRequest(f"subscriptionInitialPosition is Latest or Earliest, not {begin[:40]!a}")
    return ConsumerOptions(
        subscription=check_subscription(subscription),
        kind=TYPES[kind.lower()],
        durable=_choice(query, "subscriptionMode", ("Durable", "NonDurable")) == "Durable",
        earliest=begin.lower() == "earliest",
        start=None,
        name=_name(query, "consumerName"),
        priority=_asked(query, "priorityLevel", 0, 1_000),
        queue=_queue(query, "receiverQueueSize"),
        pull=_flag(query, "pullMode"),
        ack_ms=_ack_ms(query),
        nack_ms=_asked(query, "negativeAckRedeliveryDelay", 60_000, TIME_MS_MAX),
        redeliveries_max=_asked(query, "maxRedeliverCount", 0, 1_000_000),
        dead_letters=query.get("deadLetterTopic", ""),
    )


def reader_options(query: Mapping[str, str], subscription: str) -> ConsumerOptions:
    """Read a reader's parameters.

    Args:
        query: of the URL.
        subscription: a name that no other reader has.

    Raises:
        BadRequest: a value is not possible.
    """
    start = query.get("messageId", "latest")
    start_id = None if start.lower() in {"latest", "earliest"} else message_id(start)
    if start_id is None:
        at = EARLIEST if start.lower() == "earliest" else LATEST
        start_id = pb.MessageIdData(ledgerId=at.ledger % (1 << 64), entryId=at.entry % (1 << 64))
    return ConsumerOptions(
        subscription=subscription,
        kind=SubType.EXCLUSIVE,
        durable=False,
        earliest=start.lower() == "earliest",
        start=start_id,
        name=_name(query, "readerName"),
        priority=0,
        queue=_queue(query, "receiverQueueSize"),
        pull=_flag(query, "pullMode"),
        ack_ms=0,
        nack_ms=0,
        redeliveries_max=0,
        dead_letters="",
    )


def from_base64(text: str) -> bytes:
    """Bytes of their base64, with or without the padding at its end, as Java's decoder takes it.

    Raises:
        ValueError: it is not base64.
    """
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def message_id(text: str) -> pb.MessageIdData:
    """A message's id as texts have it: base64 of Pulsar's MessageIdData.

    Raises:
        BadRequest: it is not one.
    """
    try:
        found = pb.MessageIdData.FromString(from_base64(text))
    except (ValueError, DecodeError):
        raise BadRequest(f"{text[:80]!a} is not a message id in base64") from None
    if not found.IsInitialized():
        raise BadRequest(f"{text[:80]!a} is not a message id in base64")
    return found


def _asked(query: Mapping[str, str], key: str, default: int, most: int) -> int:
    return _number(key, query[key], most) if key in query else default


def _queue(query: Mapping[str, str], key: str) -> int:
    """A number of messages. A number above the maximum becomes the maximum, as in Pulsar."""
    return min(max(1, _asked(query, key, 1_000, INT_MAX)), QUEUE_MAX)


def _number(key: str, text: str, most: int) -> int:
    number = whole_number(text)
    if number is None or number > most:
        raise BadRequest(f"{key} is a whole number from 0 to {most}, not {text[:40]!a}")
    return number


def _ack_ms(query: Mapping[str, str]) -> int:
    found = _asked(query, "ackTimeoutMillis", 0, TIME_MS_MAX)
    if 0 < found < 1_000:
        raise BadRequest(f"ackTimeoutMillis is 0 (never) or 1000 or more, not {found}")
    return found


def _name(query: Mapping[str, str], key: str) -> str:
    name = query.get(key, "")
    if len(name) > NAME_CHARACTERS_MAX:
        raise BadRequest(f"{key} has {len(name)} characters; at most {NAME_CHARACTERS_MAX} are possible")
    return name


def _flag(query: Mapping[str, str], key: str) -> bool:
    return _choice(query, key, ("false", "true")) == "true"


def _choice(query: Mapping[str, str], key: str, choices: tuple[str, ...]) -> str:
    found = query.get(key, choices[0])
    for choice in choices:
        if found.lower() == choice.lower():
            return choice
    raise BadRequest(f"{key} is {', '.join(choices[:-1])} or {choices[-1]}, not {found[:40]!a}")
