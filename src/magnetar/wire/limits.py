"""The limits on every field of every command, in one table, and the scan that checks them before a command is decoded.

Protobuf makes an object of each field, so a command of 5 MB of small fields would stop a broker for half a second. And
the broker keeps the content of many fields as long as the producer or consumer exists. So:

- every text, every run of bytes and everything repeated has a limit in `LIMITS`; `tests/unit/wire/test_limits.py` fails for a
  field that has none;
- a command has at most `FIELDS_MAX` fields of any kind, known or not;
- a command of `FREE_BYTES` or fewer cannot break any of these limits and is not scanned: SEND, ACK and FLOW cost
  nothing more. The same holds for lists of message ids up to `FREE_IDS_BYTES`, as the official clients send them.

The scan is over the bytes, one step per field. It does not enter a sub-message that is too small to break a limit.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from magnetar.core.names import LOOKED_UP_BYTES_MAX
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.varint import varint

FREE_BYTES: Final = 256
"""Commands up to this size are not walked: no limit below may be so small that they break it. A test looks."""

FREE_IDS_BYTES: Final = 16 * 1024
"""The same for ACK and REDELIVER_UNACKNOWLEDGED_MESSAGES: a thousand message ids, as the official clients gather them."""

FIELDS_MAX: Final = 10_000
"""The most fields of a client's command: scanning takes some 3 ms, and decoding as long. The largest that clients send
have some hundred fields, except lists of message ids, which are taken in portions (`wire.dividing`).
"""

LINK_FIELDS_MAX: Final = 200_000
"""The most fields of a link's command: a handshake names 1,000 topics, with what each of up to 64 clusters retains."""

METADATA_FIELDS_MAX: Final = 5_000
"""The most fields of a message's metadata: mainly properties, each of which counts as one. Scanning and decoding take 7
ms.
"""

METADATA_FREE_BYTES: Final = 8 * 1024
"""Metadata up to this size is not walked: it decodes in less than a millisecond, whatever it holds."""

UNKNOWN_BYTES_MAX: Final = 16 * 1024
"""The most bytes in fields that this broker does not know, together: room for the fields of newer clients."""

NESTING_MAX: Final = 8
"""The deepest nesting of sub-messages; the protocol's own are three deep."""

COMMAND_BYTES_MAX: Final = 512 * 1024
"""Default of `command_bytes_max`."""

LINK_COMMAND_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest command of a link without its entries: the descriptions of 65,536 entries, or a handshake of 1,000 topics
of 64 clusters.
"""

_NAME: Final = 512
"""Names that are shown and kept: of producers, consumers, clients."""

_LOOKED_UP: Final = LOOKED_UP_BYTES_MAX
"""Names of topics and subscriptions as received. A name that is too long is refused as such (`core.names`)."""

_WORD: Final = 1024
"""Hashes, versions, listeners, clusters, uuids."""

_TEXT: Final = 64 * 1024
"""Reasons, and values of properties, which have limits in characters (`schemas.types`,
`metadata.policies.namespace`) or together (`client_metadata_bytes_max`)."""

_PAIRS: Final = 1_000
"""Properties of one producer, consumer, subscription, schema or lookup."""

_SCHEMA: Final = 1024 * 1024
"""A definition as it comes; one over 256 kB is refused as such (`schemas.registry`)."""

_PROOF: Final = 2 * 1024 * 1024
"""The credentials at a login: `token_bytes_max` is at most 1 MiB, and base64 makes it larger."""

_TOPICS: Final = 10_000
"""Topics in a command of a link, which names 1,000 at once."""

_ENTRIES: Final = 131_072
"""Entries in a command of a link: twice what it is handled with."""

_IDS: Final = 10_000
"""Message ids of a list that cannot be taken in portions."""

_ACK_SET: Final = 16_384
"""Words of 64 messages of a batch: a million, more than fit into one."""

_CLUSTERS: Final = 1_024
"""Marks of clusters and of their topics' incarnations; there are 64 clusters."""

LINK_METADATA_FIELDS_MAX: Final = 100_000
"""The same for a message that a link carries: it was stored where it was published, perhaps without that limit."""

_CONTENT: Final = 1 << 40
"""Part of a message, whose size is limited as a whole (`message_bytes_max`)."""


_RANGES: Final = 4_096
"""Ranges of hashes that one sticky consumer takes, of 65,536."""

_PASSED_OVER: Final = 16 * 1024
"""Fields that are neither used nor kept: the size of a command that is not scanned."""

LIMITS: Final[Mapping[str, Mapping[str, int]]] = {
    "KeyValue": {"key": _TEXT, "value": _TEXT},
    "KeyLongValue": {"key": _PASSED_OVER},
    "Schema": {"name": _TEXT, "schema_data": _SCHEMA, "properties": _PAIRS},
    "MessageIdData": {"ack_set": _ACK_SET},
    "EncryptionKeys": {"key": _CONTENT, "value": _CONTENT, "metadata": LINK_METADATA_FIELDS_MAX},
    "MessageMetadata": {
        "producer_name": _CONTENT,
        "properties": LINK_METADATA_FIELDS_MAX,
        "replicated_from": _CONTENT,
        "partition_key": _CONTENT,
        "replicate_to": LINK_METADATA_FIELDS_MAX,
        "encryption_keys": LINK_METADATA_FIELDS_MAX,
        "encryption_algo": _CONTENT,
        "encryption_param": _CONTENT,
        "schema_version": _CONTENT,
        "ordering_key": _CONTENT,
        "uuid": _CONTENT,
        "compacted_batch_indexes": _CONTENT,
        "schema_id": _CONTENT,
    },
    "CommandConnect": {
        "client_version": _NAME,
        "auth_data": _PROOF,
        "auth_method_name": _WORD,
        "proxy_to_broker_url": _TEXT,
        "original_principal": _WORD,
        "original_auth_data": _PROOF,
        "original_auth_method": _WORD,
        "proxy_version": _NAME,
    },
    "AuthData": {"auth_method_name": _WORD, "auth_data": _PROOF},
    "CommandAuthResponse": {"client_version": _NAME},
    "KeySharedMeta": {"hashRanges": _RANGES},
    "CommandSubscribe": {
        "topic": _LOOKED_UP,
        "subscription": _LOOKED_UP,
        "consumer_name": _NAME,
        "metadata": _PAIRS,
        "subscription_properties": _PAIRS,
    },
    "CommandPartitionedTopicMetadata": {"topic": _LOOKED_UP, "original_principal": _WORD},
    "CommandLookupTopic": {
        "topic": _LOOKED_UP,
        "original_principal": _WORD,
        "advertised_listener_name": _WORD,
        "properties": _PAIRS,
    },
    "CommandProducer": {
        "topic": _LOOKED_UP,
        "producer_name": _LOOKED_UP,
        "metadata": _PAIRS,
        "initial_subscription_name": _LOOKED_UP,
    },
    "CommandAck": {"message_id": _IDS, "properties": _PASSED_OVER},
    "CommandCloseProducer": {"assignedBrokerServiceUrl": _TEXT, "assignedBrokerServiceUrlTls": _TEXT},
    "CommandCloseConsumer": {"assignedBrokerServiceUrl": _TEXT, "assignedBrokerServiceUrlTls": _TEXT},
    "CommandRedeliverUnacknowledgedMessages": {"message_ids": _IDS},
    "CommandGetTopicsOfNamespace": {"namespace": _LOOKED_UP, "topics_pattern": 2 * _LOOKED_UP, "topics_hash": _WORD},
    "CommandWatchTopicList": {"namespace": _LOOKED_UP, "topics_pattern": 2 * _LOOKED_UP, "topics_hash": _WORD},
    "CommandGetSchema": {"topic": _LOOKED_UP, "schema_version": _WORD},
    "CommandGetOrCreateSchema": {"topic": _LOOKED_UP},
    "GeoMark": {"cluster": _WORD},
    "GeoSchemaSide": {"type": _WORD, "digest": _WORD},
    "GeoSchemaConflict": {"strategy": _WORD, "cause": _TEXT},
    "GeoSchema": {},
    "CommandGeoTopics": {"to": _WORD, "pipeline": _WORD},
    "CommandGeoFetch": {"to": _WORD, "pipeline": _WORD},
    "GeoGrant": {"topic": _LOOKED_UP},
    "GeoFetchTotals": {"down": _TEXT},
    "CommandGeoRead": {"topic": _LOOKED_UP, "to": _WORD, "origin": _WORD},
    "CommandGeoAppend": {
        "topic": _LOOKED_UP,
        "source": _WORD,
        "uuid": _WORD,
        "ledgers": _ENTRIES,
        "entries": _ENTRIES,
        "first_indexes": _ENTRIES,
        "counts": _ENTRIES,
        "sizes": _ENTRIES,
    },
    "GeoCommitTopic": {
        "topic": _LOOKED_UP,
        "blocked": _WORD,
        "reason": _TEXT,
        "ended": _WORD,
        "ended_reason": _TEXT,
    },
    "GeoLearnTopic": {"topic": _LOOKED_UP, "blocked": _WORD, "reason": _TEXT},
    "CommandGeoCommit": {
        "to": _WORD,
        "commits": _TOPICS,
        "learned": _TOPICS,
        "pipeline": _WORD,
        "trouble": _WORD,
        "reason": _TEXT,
        "grants": _TOPICS,
        "revoked": _TOPICS,
    },
    "GeoWatermarkQuery": {"topic": _LOOKED_UP, "retained": _CLUSTERS},
    "CommandGeoWatermarks": {"source": _WORD, "uuid": _WORD, "topics": _TOPICS},
    "CommandGeoStatus": {"to": _WORD},
    "CommandGeoRestore": {
        "topic": _LOOKED_UP,
        "cluster": _WORD,
        "peer": _WORD,
        "ledgers": _ENTRIES,
        "entries": _ENTRIES,
        "first_indexes": _ENTRIES,
        "counts": _ENTRIES,
        "sizes": _ENTRIES,
    },
    "CommandGeoSchemas": {"topic": _LOOKED_UP, "versions": _TOPICS},
    "CommandGeoSchemasBrought": {"found": _TOPICS, "missing": _TOPICS, "reason": _TEXT},
}
"""Message -> field -> at most: bytes of a text or of bytes, items of what is repeated. Numbers and flags need none, and what a
part may hold is said where that part is."""

REQUESTS: Final = frozenset(
    {2, 4, 5, 6, 10, 11, 12, 15, 16, 18, 19, 20, 21, 23, 25, 28, 29, 32, 34, 37, 39}
    | {50, 52, 54, 56, 58, 60, 62, 64, 67}
    | {1000, 1002, 1004, 1006, 1008, 1010, 1012, 1014, 1017, 1018}
)
"""Types of commands that a broker may receive. All other types count as unknown."""

_SIZED: Final = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
_PART: Final = FieldDescriptor.TYPE_MESSAGE
_FIXED: Final = {
    FieldDescriptor.TYPE_DOUBLE: 1,
    FieldDescriptor.TYPE_FIXED64: 1,
    FieldDescriptor.TYPE_SFIXED64: 1,
    FieldDescriptor.TYPE_FLOAT: 5,
    FieldDescriptor.TYPE_FIXED32: 5,
    FieldDescriptor.TYPE_SFIXED32: 5,
}
_FIXED_BYTES: Final = (0, 8, 0, 0, 0, 4, 0, 0)
"""The fixed size by wire type. The fields of a group, which this protocol does not use, follow it."""

_UNFINISHED: Final = bytes(range(128, 256))
"""The bytes of a varint but for its last one."""


class OverLimit(Exception):
    """A command breaks a limit; the text says which."""


class _Rule(NamedTuple):
    """The limit of one field.

    Attributes:
        name: of message and field.
        most: largest number of bytes or items; 0: no limit of its own.
        counts: whether items are limited, not bytes.
        packed: whether it holds several numbers.
        part: the plan of the sub-message.
    """

    name: str
    most: int
    counts: bool
    packed: bool
    part: "Plan | None"

    def check(self, items: int, size: int) -> None:
        """Check a number of items, or of bytes.

        Raises:
            OverLimit: it is above the limit.
        """
        if self.counts:
            if items > self.most:
                raise OverLimit(f"{self.name} has more than {self.most} items")
        elif self.most and size > self.most:
            raise OverLimit(f"{self.name} has {size} bytes, over {self.most}")


class Plan:
    """The limits of one kind of message.

    Args:
        descriptor: its protobuf descriptor.
        plans: the plans that exist already, by name.
        only: numbers of the fields that count as known; None: all.
        content: it is part of a client's message, whose size is limited as a whole: for a field that is not repeated any size
            is allowed.

    Attributes:
        rules: by tag.
        free: the largest size in bytes at which no field can break its limit: a sub-message up to this size is not walked.
    """

    def __init__(
        self,
        descriptor: Descriptor,
        plans: "dict[str, Plan]",
        only: frozenset[int] | None = None,
        *,
        content: bool = False,
    ) -> None:
        plans[descriptor.name] = self
        self.rules: dict[int, _Rule] = {}
        self.free = FREE_IDS_BYTES
        limits = LIMITS.get(descriptor.name, {})
        for field in descriptor.fields:
            if only is not None and field.number not in only:
                continue
            name, most = f"{descriptor.name}.{field.name}", limits.get(field.name, 0)
            if content and not field.is_repeated:
                most = _CONTENT
            tag = field.number << 3
            if field.type == _PART:
                kind = field.message_type
                assert kind is not None
                part = plans.get(kind.name) or Plan(kind, plans, content=content)
                self.rules[tag | 2] = _Rule(name, most, field.is_repeated, False, part)
                self.free = min(self.free, part.free, 2 * most if most else part.free)
            elif field.type in _SIZED:
                self.rules[tag | 2] = _Rule(name, most, field.is_repeated, False, None)
                self.free = min(self.free, 2 * most if field.is_repeated else most)
            else:
                self.rules[tag | _FIXED.get(field.type, 0)] = _Rule(name, most, field.is_repeated, False, None)
                if field.is_repeated:
                    self.rules[tag | 2] = _Rule(name, most, True, True, None)
                    self.free = min(self.free, most)


_plans: Final[dict[str, Plan]] = {}
COMMAND: Final = Plan(pb.BaseCommand.DESCRIPTOR, _plans, REQUESTS | {1})
METADATA: Final = Plan(pb.MessageMetadata.DESCRIPTOR, {}, content=True)


class Walk:
    """One walk over the bytes of a message.

    Args:
        raw: they.
        fields_max: fields that it may have, inner ones included.
    """

    def __init__(self, raw: bytes | memoryview, fields_max: int) -> None:
        self._raw = raw
        self._fields_max = fields_max
        self._left = fields_max
        self._unknown = 0

    def check(self, plan: Plan) -> None:
        """Check all limits of a message. Bytes that are not protobuf are left to the decoder.

        Raises:
            OverLimit: a limit is broken.
        """
        try:
            self._of(plan, 0, len(self._raw), 0)
        except IndexError:
            return  # it ends in the middle of something

    def _of(self, plan: Plan, at: int, end: int, depth: int) -> None:
        if depth > NESTING_MAX:
            raise OverLimit(f"it has parts nested deeper than {NESTING_MAX}")
        raw, rules, counts = self._raw, plan.rules, dict[str, int]()
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise OverLimit(f"it has more than {self._fields_max} fields")
            begin = at
            tag = raw[at]
            at += 1
            if tag > 0x7F:
                tag, at = _number(raw, at - 1)
            rule, size = rules.get(tag), 0
            if tag & 7 == 2:
                size, at = _number(raw, at)
                at += size
            elif tag & 7 == 0:
                while raw[at] > 0x7F:
                    at += 1
                at += 1
            else:
                at += _FIXED_BYTES[tag & 7]
            if at > end:
                return  # not protobuf
            if rule is None:
                self._unknown += at - begin
                if self._unknown > UNKNOWN_BYTES_MAX:
                    raise OverLimit(f"it has more than {UNKNOWN_BYTES_MAX} bytes in fields that are not known here")
                continue
            if rule.counts:
                items = counts.get(rule.name, 0) + (_packed(raw[at - size : at], rule.most) if rule.packed else 1)
                counts[rule.name] = items
                rule.check(items, size)
            elif size > FREE_BYTES:
                rule.check(0, size)
            if rule.part is not None:
                if size > rule.part.free:
                    self._of(rule.part, at - size, at, depth + 1)
                else:
                    self._left -= size >> 5


def _packed(raw: bytes | memoryview, most: int) -> int:
    """The number of numbers in one packed field; or its bytes, if these are not above the limit."""
    return len(raw) if len(raw) <= most else len(bytes(raw).translate(None, _UNFINISHED))


def _number(raw: bytes | memoryview, at: int) -> tuple[int, int]:
    """A varint, and the offset after it."""
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            return value, at + len(raw)  # not protobuf


def why_refused(raw: bytes, bytes_max: int, fields_max: int) -> str:
    """The limit that a command breaks; "" if none."""
    if len(raw) > bytes_max:
        return f"it has {len(raw)} bytes, over {bytes_max} (command_bytes_max)"
    try:
        Walk(raw, fields_max).check(COMMAND)
    except OverLimit as over:
        return str(over)
    return ""


def why_metadata_refused(raw: bytes | memoryview, fields_max: int = METADATA_FIELDS_MAX) -> str:
    """The same of a message's metadata."""
    try:
        Walk(raw, fields_max).check(METADATA)
    except OverLimit as over:
        return str(over)
    return ""


_HEAD_FIELDS_MAX: Final = 64
"""Fields in which the ids of a refused command are looked for."""


def heads(raw: bytes) -> pb.BaseCommand | None:
    """The beginning of a command that its refusal has to name: its type, and the numbers at the start of its
    sub-command.

    Returns:
        None if they are not where every client writes them.
    """
    try:
        if raw[0] != 8:
            return None
        kind, at = _number(raw, 1)
        if kind not in REQUESTS:
            return None
        tag, at = _number(raw, at)
        if tag != kind << 3 | 2:
            return None
        size, at = _number(raw, at)
        end, numbers = min(at + size, len(raw)), b""
        for _ in range(_HEAD_FIELDS_MAX):
            if at >= end:
                break
            begin = at
            tag, at = _number(raw, at)
            if tag & 7 == 2:
                size, at = _number(raw, at)
                at += size
            elif tag & 7:
                break
            else:
                _, at = _number(raw, at)
                numbers += raw[begin:at]
        return pb.BaseCommand.FromString(
            b"\x08" + varint(kind) + varint(kind << 3 | 2) + varint(len(numbers)) + numbers
        )
    except (IndexError, ValueError):
        return None
