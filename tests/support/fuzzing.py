"""A client that breaks Pulsar's protocol in every way it can think of, from a seed, against a real broker process.

    episode(seed): a connection; mostly a CONNECT; then a sequence of commands of all kinds, each made right and then spoiled:
        fields left out, made extreme, doubled, unknown ones added; ids that are not open, closed, or open twice; another
        command inside than the type says; frames cut, flipped, with lengths that lie; payloads where none belong; and
        now and then nothing is read, or everything is sent at once; then it goes, or resets the connection

With a `Login` it presents itself: tokens that are right, forged, expired or about to expire, with AUTH_RESPONSEs that were asked
for or not; and half of the connections are links, whose commands are made so that they fit what the broker told before, and
then spoiled like all others.

Names come from a small pool, so that what the broker holds afterwards is bounded, and what it still holds is a leak.

    python tools/fuzz.py --minutes 20 [--seed N]      # starts a broker of its own, prints every hundredth seed
"""

import base64
import contextlib
import os
import random
import select
import socket
import struct
import time
import urllib.error
import urllib.parse
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt
import pulsar
from crc32c import crc32c
from google.protobuf.descriptor import FieldDescriptor

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import FrameDecoder, FrameError
from magnetar.wire.limits import LIMITS
from magnetar.wire.metadata import build
from magnetar.wire.varint import varint
from tests.support.brokers import BrokerProcess, World
from tests.support.fuzzing_http import HttpFuzzer

TOPICS: Final = [f"persistent://public/default/fuzz-{number}" for number in range(6)] + [
    "non-persistent://public/default/fuzz-np",
    "persistent://public/default/fuzz-p-partition-0",
]
SUBSCRIPTIONS: Final = [f"fuzz-s{number}" for number in range(4)]
BAD_NAMES: Final = [
    "",
    "x",
    "persistent://",
    "persistent://public",
    "persistent://public/default/",
    "persistent://nobody/nowhere/x",
    "persistent://public/default/" + "y" * 70_000,
    "persistent://public/default/\x00",
    "persistent://public/default/a\nb",
    "persistent://public/default/fuzz-0-partition-99999999999999999999",
    "non-persistent://public/default/../x",
    "topic://public/default/x",
    "pulsar.repl.x",
    "pulsar.dedup",
    "\u202e\U0001f600" * 40,
    "a" * 300,
]
PATTERNS: Final = [
    ".*",
    "persistent://public/default/fuzz-.*",
    "persistent://public/default/fuzz-[0-3]",
    "persistent://public/default/(fuzz|guard)-(p|[0-9a-f]+)",
    "(a+)+b",
    "((a{999}){999}){999}",
    ".*(a|b).{12}",
    "(.*a){300}.*b",
    "(" * 400 + ")" * 400,
    "[^\\d-\\Q]\\E]",
    "(?i)\\x{10ffff}*",
    "(?=a)\\1{2,1}",
    "persistent://" * 3,
    "x" * 70_000,
]
"""Of topics' names: some that a client sends, and some that a broker has to refuse, or to bear."""
NUMBERS: Final = [
    0,
    1,
    2,
    3,
    7,
    255,
    65_535,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 53),
    1 << 62,
]
_NUMBERS_64: Final = [*NUMBERS, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1]

_FLOATS: Final = {FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT}
_SIGNED: Final = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_SINT32,
    FieldDescriptor.TYPE_SINT64,
    FieldDescriptor.TYPE_SFIXED32,
    FieldDescriptor.TYPE_SFIXED64,
}
_BITS_32: Final = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_SINT32,
    FieldDescriptor.TYPE_FIXED32,
    FieldDescriptor.TYPE_SFIXED32,
}

COMMAND_FIELDS: Final = {
    field.number: field for field in pb.BaseCommand.DESCRIPTOR.fields if field.message_type is not None
}
"""Command type -> the field of BaseCommand that carries it (the numbers are the same)."""

TRANSACTIONS: Final = [50, 52, 54, 56, 58, 60, 62]
"""Refused, one by one: the connection goes on."""

UNKNOWN: Final = [kind for kind in range(1, 100) if kind not in COMMAND_FIELDS] + [200, 999, 1990, 5_000, (1 << 29) - 1]
"""Types for which our BaseCommand has no field: all that Pulsar may give a meaning yet, and what is nobody's."""

USUAL: Final = [
    4,
    4,
    5,
    5,
    6,
    6,
    6,
    6,
    10,
    10,
    11,
    11,
    12,
    15,
    16,
    18,
    19,
    20,
    21,
    23,
    25,
    28,
    29,
    32,
    34,
    39,
    64,
    64,
    67,
]
"""What clients send, as often as it is tried."""

LINKS: Final = [
    1000,
    1002,
    1002,
    1004,
    1004,
    1004,
    1004,
    1006,
    1006,
    1008,
    1008,
    1010,
    1012,
    1012,
    1014,
    1017,
    1018,
    1018,
    5,
    6,
    6,
    4,
]
"""What links send, and some of what they may send besides."""

_GEO_FROM: Final = 1000
_APPEND: Final = 1004
_RESTORE: Final = 1012
_AUTH_RESPONSE: Final = 37
_WATCH: Final = 64
_WATCH_CLOSE: Final = 67

LARGE_BYTES: Final = 200_000
LARGE_ITEMS: Final = 20_001
"""What is filled up is that large at most: a frame is not, either."""

HERE: Final = "aa"
THERE: Final = "bb"
"""The cluster that is fuzzed, and the one that links say they come from; it need not run."""

SECURED: Final = f"""
[namespaces."public/default"]
clusters = ["{HERE}", "{THERE}"]

[authentication]
methods = ["token"]
secret_key_files = ["secret.key"]
refresh_ms = 60_000
failed_logins_max = 1_000_000

[authorization]
superusers = ["root"]
replicate_roles = ["linker"]
"""
"""Where connections present themselves, and may be links. Failed logins are not slowed down: all come from one address."""


@dataclass(frozen=True)
class Login:
    """What connections present.

    Attributes:
        secret: of tokens; b"": there is no authentication, and nobody is a link.
    """

    secret: bytes = b""

    def token(self, role: str, valid_s: float = 3_600) -> str:
        """A right one."""
        return jwt.encode({"sub": role, "exp": time.time() + valid_s}, self.secret, algorithm="HS256")

    def shown(self, chance: random.Random, role: str, valid_s: float = 3_600) -> bytes:
        """Mostly a right one."""
        right = self.token(role, valid_s).encode()
        wrong = [b"", right[:-3], right + b"x", right.replace(b".", b"", 1), chance.randbytes(300), b"x" * 70_000]
        wrong += [self.token(role, -10).encode(), self.token("nobody").encode(), self.token("root").encode()]
        return right if chance.random() < 0.9 else chance.choice(wrong)


def secured(folder: Path) -> tuple[World, Login]:
    """A world to fuzz with `Login`: only its cluster `HERE` is started."""
    login = Login(os.urandom(64))
    (folder / "secret.key").write_bytes(base64.b64encode(login.secret))
    (folder / "secret.key").chmod(0o600)
    world = World(folder, [HERE, THERE], SECURED)
    broker = world[HERE]
    broker.headers["Authorization"] = f"Bearer {login.token('root', 86_400)}"
    broker.start()
    return world, login


class Fuzzer:
    """One episode.

    Args:
        seed: decides everything.
        port: of the broker.
        login: what it presents.
    """

    def __init__(self, seed: int, port: int, login: Login = Login()) -> None:
        self.chance = random.Random(seed)
        self._port = port
        self._login = login
        self.link = bool(login.secret) and self.chance.random() < 0.5
        self._role = "linker" if self.link else "root"
        self._expires = bool(login.secret) and self.chance.random() < 0.02
        self._entries: list[bytes] = []
        self._boot = self._counter = 0
        self._states: dict[str, tuple[int, int]] = {}
        self._marks: dict[str, tuple[int, int]] = {}
        self._appends: dict[int, str] = {}
        self._tickets: list[int] = [0, 1]
        self._requests = 0
        self._producers: list[int] = []
        self._asked: dict[int, int] = {}
        self._consumers: list[int] = []
        self._seen: list[tuple[int, int]] = [(0, 0), (1, 0)]
        self._decoder = FrameDecoder(1 << 26)
        self.answers: Counter[int] = Counter()

    # -------------------------------------------------------------------------------------------------------- fields

    def _pick(self, values: Any) -> Any:
        return self.chance.choice(values)

    def _number(self, field: FieldDescriptor) -> int:
        bits = 32 if field.type in _BITS_32 else 64
        value = int(self._pick(_NUMBERS_64)) if self.chance.random() < 0.8 else self.chance.getrandbits(bits)
        value &= (1 << bits) - 1
        if field.type in _SIGNED and value >> (bits - 1):
            value -= 1 << bits
        return value

    def _value(self, field: FieldDescriptor, depth: int) -> Any:
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self.chance.random() < 0.5
        if field.type == FieldDescriptor.TYPE_ENUM:
            assert field.enum_type is not None
            return self._pick(field.enum_type.values).number
        if field.type in _FLOATS:
            return self._pick([0.0, -1.0, 1e308, float("inf"), float("nan")])
        if field.type == FieldDescriptor.TYPE_STRING:
            return self._pick([*BAD_NAMES, *TOPICS, *SUBSCRIPTIONS, *PATTERNS])
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self.chance.randbytes(int(self._pick([0, 1, 8, 9, 100, 70_000])))
        return self._number(field)

    def spoil(self, message: Any, depth: int = 0, rate: float = 0.25) -> None:
        """Change some fields of a message: gone, extreme, repeated; deeper ones as well."""
        for field in message.DESCRIPTOR.fields:
            if self.chance.random() > rate:
                continue
            if field.message_type is not None:
                if depth > 3:
                    continue
                if field.is_repeated:
                    for _ in range(int(self._pick([0, 1, 2, 3, 40]))):
                        self.spoil(getattr(message, field.name).add(), depth + 1, 0.6)
                elif self.chance.random() < 0.5:
                    getattr(message, field.name).SetInParent()
                    self.spoil(getattr(message, field.name), depth + 1, 0.5)
                else:
                    message.ClearField(field.name)
            elif field.is_repeated:
                some = getattr(message, field.name)
                some.extend(
                    self._value(field, depth) for _ in range(int(self._pick([0, 1, 2, 33, 1_000]))) if depth < 2
                )
            elif self.chance.random() < 0.3:
                message.ClearField(field.name)
            else:
                setattr(message, field.name, self._value(field, depth))

    def fill_up(self, message: Any) -> None:
        """Bring one field to its limit (`wire.limits`), or just beyond it."""
        parts = [
            message,
            *(value for field, value in message.ListFields() if field.message_type and not field.is_repeated),
        ]
        chosen = self._pick(parts)
        fields = [field for field in chosen.DESCRIPTOR.fields if field.name in LIMITS.get(chosen.DESCRIPTOR.name, {})]
        if not fields:
            return
        field = self._pick(fields)
        most = LIMITS[chosen.DESCRIPTOR.name][field.name]
        size = min(most + int(self._pick([-1, 0, 1, 1, 2])), LARGE_BYTES)
        if not field.is_repeated:
            text = field.type == FieldDescriptor.TYPE_STRING
            setattr(chosen, field.name, "y" * size if text else self.chance.randbytes(size))
        elif field.message_type is None:
            getattr(chosen, field.name).extend([self._value(field, 0)] * min(size, LARGE_ITEMS))
        else:
            items = getattr(chosen, field.name)
            self.complete(items.add())
            items.extend([items[-1]] * (min(size, LARGE_ITEMS, 4_000_000 // (items[-1].ByteSize() + 1)) - 1))

    def complete(self, message: Any) -> None:
        """Give required fields that are missing something: what lacks one is not even parsed, and nothing behind it heard."""
        for field in message.DESCRIPTOR.fields:
            if field.message_type is not None:
                if field.is_repeated:
                    for each in getattr(message, field.name):
                        self.complete(each)
                elif field.is_required or message.HasField(field.name):
                    getattr(message, field.name).SetInParent()
                    self.complete(getattr(message, field.name))
            elif field.is_required and not message.HasField(field.name):
                setattr(message, field.name, self._value(field, 0))

    # ------------------------------------------------------------------------------------------------------ commands

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    def _id(self, known: list[int], usual: float) -> int:
        if known and self.chance.random() < usual:
            return int(self._pick(known))
        return int(self._pick([0, 1, 2, 3, 4, 5, 1 << 40, (1 << 64) - 1]))

    def _message_id(self, into: Any) -> None:
        ledger, entry = self._pick(self._seen)
        if self.chance.random() < 0.5:
            entry = (entry + int(self._pick([0, 1, 2, 1_000, 1 << 32, 1 << 63]))) & ((1 << 64) - 1)
        into.ledgerId, into.entryId = ledger, entry
        if self.chance.random() < 0.3:
            into.batch_index = int(self._pick([-1, 0, 1, 100, (1 << 31) - 1, -(1 << 31)]))
        if self.chance.random() < 0.3:
            into.ack_set.extend(
                self._pick([0, 1, -1, -(1 << 63), (1 << 63) - 1]) for _ in range(int(self._pick([1, 2, 500])))
            )

    def command(self, kind: int) -> pb.BaseCommand:
        """A command of a kind, mostly as a client would send it."""
        made = pb.BaseCommand(type=kind)
        body: Any = None
        field = COMMAND_FIELDS.get(kind)
        if field is not None:
            body = getattr(made, field.name)
            body.SetInParent()
            names = body.DESCRIPTOR.fields_by_name
            if "request_id" in names:
                body.request_id = self._request()
            if "topic" in names and not names["topic"].is_repeated:
                body.topic = self._pick(TOPICS)
            if kind >= _GEO_FROM and "topic" in names and self.chance.random() < 0.95:
                body.topic = self._pick(TOPICS[:6])
            if "namespace" in names:
                body.namespace = "public/default"
            if "producer_id" in names:
                body.producer_id = self._id(self._producers, 0.97 if kind == 6 else 0.6 if kind == 5 else 0.8)
            if "consumer_id" in names:
                body.consumer_id = self._id(self._consumers, 0.5 if kind == 4 else 0.9)
            self._fill(kind, body)
        return made

    def _fill(self, kind: int, body: Any) -> None:
        if kind == 2:
            body.client_version = self._pick(["fuzz", "Pulsar-CPP-v3.5.1", ""])
            body.protocol_version = self._pick([0, 1, 6, 12, 18, 21, 99])
            self._present(body)
        elif kind == 4:
            body.subscription = self._pick(SUBSCRIPTIONS)
            body.subType = self._pick([0, 1, 1, 2, 3])
            body.initialPosition = self._pick([0, 1])
            body.durable = self.chance.random() < 0.8
            self._consumers.append(body.consumer_id)
        elif kind == 5:
            if self.chance.random() < 0.3:
                body.producer_name = self._pick(["a", "b", "c"])
            body.producer_access_mode = self._pick([0, 0, 0, 1, 2, 3])
            self._asked[body.request_id] = body.producer_id
        elif kind == 6:
            body.sequence_id = self._pick([0, 1, 2, 3, 1 << 62])
            self._transaction(body, 0.03)
        elif kind in TRANSACTIONS and kind not in {50, 62}:
            self._transaction(body, 0.9)
        elif kind == 10:
            self._transaction(body, 0.05)
            body.ack_type = self._pick([0, 0, 1])
            for _ in range(int(self._pick([0, 1, 1, 2, 50]))):
                self._message_id(body.message_id.add())
        elif kind == 11:
            body.messagePermits = self._pick([0, 1, 10, 1_000, (1 << 31), (1 << 32) - 1])
        elif kind == 20:
            for _ in range(int(self._pick([0, 1, 3, 50]))):
                self._message_id(body.message_ids.add())
        elif kind == 28:
            if self.chance.random() < 0.5:
                self._message_id(body.message_id)
            else:
                body.message_publish_time = self._pick(_NUMBERS_64)
        elif kind in {_WATCH, _WATCH_CLOSE}:
            body.watcher_id = self._pick([0, 1, 2, 3, 1 << 40, (1 << 64) - 1])
            if kind == _WATCH:
                body.topics_pattern = self._pick(PATTERNS[:4] if self.chance.random() < 0.8 else PATTERNS)
                if self.chance.random() < 0.3:
                    body.topics_hash = self._pick(["00000000", "", "x" * 1_000])
        elif kind == _AUTH_RESPONSE:
            body.client_version = "fuzz"
            body.response.auth_method_name = self._pick(["token", "token", "token", "basic", "magnetar-link", ""])
            body.response.auth_data = self._login.shown(self.chance, self._role) if self._login.secret else b"x"
        elif kind >= _GEO_FROM:
            self._fill_geo(kind, body)

    def _present(self, body: Any) -> None:
        if not self._login.secret:
            return
        body.auth_method_name = "magnetar-link" if self.link else self._pick(["token"] * 30 + ["basic", "tls", "", "x"])
        body.auth_data = self._login.shown(self.chance, self._role, 1.2 if self._expires else 3_600)
        body.feature_flags.supports_auth_refresh = self._expires or self.chance.random() < 0.5

    # ----------------------------------------------------------------------------------------------- commands of links

    def _fill_geo(self, kind: int, body: Any) -> None:
        names = body.DESCRIPTOR.fields_by_name
        if "to" in names and self.chance.random() < 0.9:
            body.to = self._pick([THERE, THERE, THERE, THERE, HERE, "cc", ""])
        if "source" in names:
            body.source = self._pick([THERE] * 20 + [HERE, "cc", "no cluster"])
        if "uuid" in names:
            body.uuid = self._pick(["uuid-of-bb"] * 20 + ["uuid-of-another", ""])
        if "counter" in names:
            body.counter = self._pick([0, 0, self._counter, 1 << 62])
        match kind:
            case 1000:
                body.wait_ms = self._pick([0, 0, 1, 50, 20_000, (1 << 32) - 1])
                body.pipeline = self._pick(["", "one", "two"])
                body.lease_ms = self._pick([0, 1, 1_000, (1 << 32) - 1])
                body.boot = self._pick([0, self._boot])
            case 1002:
                self._place(body.after)
                if self.chance.random() < 0.3:
                    self._place(body.up_to)
                body.bytes_max = self._pick([0, 1, 1_000, 1 << 20, (1 << 32) - 1])
                if self.chance.random() < 0.2:
                    body.origin = self._pick([HERE, THERE, ""])
            case 1004:
                body.incarnation, body.gen = self._pick([1, 1, 1, 1, 2]), 1
                begin = self._marks.get(body.topic, (-1, -1))
                body.p.ledger, body.p.entry = begin
                self._columns(body, begin, "")
                self._appends[body.request_id] = body.topic
            case 1006:
                for _ in range(int(self._pick([0, 1, 1, 5]))):
                    self._commit(body.commits.add())
                for _ in range(int(self._pick([0, 0, 1, 3]))):
                    self._learn(body.learned.add())
                body.pipeline = self._pick(["", "one"])
            case 1008:
                for topic in self.chance.sample(TOPICS[:6], int(self._pick([0, 1, 3, 6]))):
                    one = body.topics.add(topic=topic, incarnation=self._pick([1, 1, 1, 1, 2]), partitions=0)
                    if self.chance.random() < 0.02:
                        one.topic, one.partitions = TOPICS[-1], int(self._pick([1, 2, 3]))
                    if self.chance.random() < 0.3:
                        self._place(one.last)
                    if self.chance.random() < 0.3:
                        self._place(one.start)
            case 1012:
                body.cluster, body.peer = self._pick([HERE] * 9 + [THERE]), self._pick([THERE] * 9 + ["cc"])
                body.partitions = 0
                if self.chance.random() < 0.8:
                    body.incarnation = int(self._pick([1, 1, 2, 1 << 62]))
                    self._columns(body, (int(self._pick([0, 1, 2])), int(self._pick([0, 5, 1_000]))), HERE)
            case 1014:
                body.schema_numbering = self._pick([0, 1, 1 << 40])
                body.versions.extend(
                    int(self._pick([0, 1, 7, 1 << 62])) for _ in range(int(self._pick([0, 1, 3, 500])))
                )
            case 1018:
                body.pipeline, body.wait_ms = self._pick(["p", "q"]), int(self._pick([0, 0, 100, 1 << 31]))
                body.epoch, body.reader = int(self._pick([1, 2, 3, 1 << 62])), int(self._pick([0, 1, 2, 1 << 62]))
                body.bytes_max = int(self._pick([0, 1, 1_000, 1 << 31]))
            case 1017:
                body.ticket = self._pick(self._tickets)
                for version in (0, 1):
                    if self.chance.random() < 0.5:
                        found = body.found.add(version=version)
                        found.schema.name, found.schema.type = "s", int(self._pick([0, 1, 2, 4]))
                        found.schema.schema_data = self._pick([b"", b'"string"', b"{", b'{"type":"record"}'])
                    else:
                        body.missing.append(version)
                if self.chance.random() < 0.1:
                    body.reason = "cannot be asked"
            case _:
                pass

    def _place(self, into: Any) -> None:
        into.ledger, into.entry = self._pick([(-1, -1), *self._marks.values(), *self._seen[-3:], (1 << 62, 0)])

    def _columns(self, body: Any, after: tuple[int, int], origin: str) -> None:
        """Entries behind a position, with what a request says of them; mostly what is true."""
        self._entries = []
        ledger, entry = (max(0, after[0]), after[1])
        index = int(self._pick([0, 0, entry + 1, 1 << 40]))
        for _ in range(int(self._pick([1, 1, 2, 5, 100]))):
            entry += int(self._pick([1, 1, 1, 7]))
            meta = pb.MessageMetadata(producer_name="f", sequence_id=index, publish_time=1)
            if origin and self.chance.random() < 0.95:
                meta.replicated_from = origin
            count = int(self._pick([1, 1, 1, 3]))
            if count > 1:
                meta.num_messages_in_batch = count
            if self.chance.random() < 0.1:
                meta.schema_version = struct.pack(">Q", int(self._pick([0, 1, 1 << 62])))
            if self.chance.random() < 0.02:
                self.spoil(meta, rate=0.2)
                self.complete(meta)
            data = build(meta, self.chance.randbytes(int(self._pick([0, 1, 100]))))
            if self.chance.random() < 0.01:
                data = data[:-1] + bytes([data[-1] ^ 1])
            self._entries.append(data)
            body.ledgers.append(ledger)
            body.entries.append(entry & ((1 << 62) - 1))
            body.first_indexes.append(index)
            body.counts.append(count if self.chance.random() < 0.99 else 0)
            body.sizes.append(len(data))
            index += count

    def _commit(self, into: Any) -> None:
        into.topic = self._pick(TOPICS[:6])
        into.incarnation, gen = self._states.get(into.topic, (1, 1))
        self._place(into.cursor.c)
        into.cursor.s.CopyFrom(into.cursor.c)
        if self.chance.random() < 0.2:
            self._place(into.cursor.s)
        into.cursor.gen = self._pick([gen, gen, gen, gen + 1, 0])
        if self.chance.random() < 0.2:
            into.blocked, into.reason = self._pick(["policy", "schema", "", "x" * 1_000]), "fuzz"

    def _learn(self, into: Any) -> None:
        into.topic = self._pick(TOPICS[:6])
        into.incarnation, gen = self._states.get(into.topic, (1, 1))
        self._place(into.watermark)
        into.gen, into.counter = self._pick([gen, gen, 0, gen + 1]), self._pick([0, self._counter, 1 << 62])
        into.foreign = self.chance.random() < 0.1

    def _transaction(self, body: Any, rate: float) -> None:
        if self.chance.random() < rate:
            body.txnid_least_bits, body.txnid_most_bits = self._pick(_NUMBERS_64), self._pick(_NUMBERS_64)

    def _unknown(self, kind: int) -> bytes:
        """A body for a type that has no field here: what a request of Pulsar's looks like, or noise, or none."""
        chance = self.chance.random()
        if chance < 0.1:
            return b""
        if chance < 0.5:
            name = self._pick(TOPICS).encode()
            body = b"\x08" + varint(self._request()) + b"\x10" + varint(self._pick(_NUMBERS_64))
            body += b"\x1a" + varint(len(name)) + name
        else:
            body = self.chance.randbytes(int(self._pick([0, 1, 8, 100, 70_000])))
        # Mostly its own field, as a length and bytes; else any field in any wire type, whose bytes then lie about it.
        tag = kind << 3 | 2 if self.chance.random() < 0.8 else self.chance.getrandbits(14)
        return varint(tag) + varint(len(body)) + body

    def _payload(self) -> bytes:
        meta = pb.MessageMetadata(producer_name="f", sequence_id=0, publish_time=int(self._pick([0, 1, 1 << 40])))
        if self.chance.random() < 0.4:
            self.spoil(meta, rate=0.2)
        elif self.chance.random() < 0.2:
            meta.deliver_at_time = int(
                self._pick([-(1 << 63), -1, 1, int(time.time() * 1000) + 50, 1 << 45, (1 << 63) - 1])
            )
        if self.chance.random() < 0.9:
            self.complete(meta)
        head = meta.SerializePartialToString()
        body = struct.pack(">I", len(head)) + head + self.chance.randbytes(int(self._pick([0, 1, 100, 5_000])))
        data = bytearray(b"\x0e\x01" + struct.pack(">I", crc32c(body)) + body)
        if self.chance.random() < 0.15:
            for _ in range(3):
                data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
        if self.chance.random() < 0.05:
            data = data[: self.chance.randrange(len(data))]
        return bytes(data)

    def frame(self) -> bytes:
        """The bytes of one more command, right or wrong."""
        return self.framed(self._kind())

    def _kind(self) -> int:
        chance = self.chance.random()
        if chance < 0.97:
            kind = int(self._pick(LINKS if self.link else USUAL))
            if kind == 6 and not self._producers:
                kind = int(self._pick([5, 5, 5, 4]))  # a SEND for a producer that is not open ends the connection
        elif chance < 0.985:
            kind = int(self._pick(TRANSACTIONS))
        elif chance < 0.992:
            kind = int(self._pick(sorted(COMMAND_FIELDS)))
        else:
            kind = int(self._pick(UNKNOWN))
        return kind

    def framed(self, kind: int) -> bytes:
        """The bytes of a command of a kind, right or wrong."""
        made: Any = pb.BaseCommand()
        with contextlib.suppress(ValueError):  # a type that the enumeration does not have is put in as bytes below
            made = self.command(kind)
        if self.chance.random() < 0.25 and kind in COMMAND_FIELDS:
            self.spoil(getattr(made, COMMAND_FIELDS[kind].name), rate=float(self._pick([0.1, 0.3, 1.0])))
        if self.chance.random() < 0.02:  # another command inside than the type says, or one more
            other = COMMAND_FIELDS[int(self._pick(sorted(COMMAND_FIELDS)))]
            if self.chance.random() < 0.5 and kind in COMMAND_FIELDS:
                made.ClearField(COMMAND_FIELDS[kind].name)
            getattr(made, other.name).SetInParent()
        if self.chance.random() < 0.03 and kind in COMMAND_FIELDS:
            self.fill_up(getattr(made, COMMAND_FIELDS[kind].name))
        if self.chance.random() < 0.95 and made.HasField("type"):
            self.complete(made)
        head = made.SerializePartialToString()
        if not made.HasField("type"):
            head = b"\x08" + bytes([kind & 0x7F | 0x80, kind >> 7]) + head
        if kind not in COMMAND_FIELDS:
            head += self._unknown(kind)
        if self.chance.random() < 0.03:  # fields that nobody knows
            head += b"\xfa\xff\x03" + bytes([5]) + self.chance.randbytes(5)
        with_payload = kind == 6 if self.chance.random() < 0.98 else kind != 6
        if kind in {_APPEND, _RESTORE} and self.chance.random() < 0.97:
            payload = b"".join(self._entries)
        else:
            payload = self._payload() if with_payload else b""
        total = 4 + len(head) + len(payload)
        data = bytearray(struct.pack(">II", total, len(head)) + head + payload)
        if self.chance.random() < 0.01:  # lengths that lie
            data[int(self._pick([0, 4])) :][:4] = b""
            struct.pack_into(
                ">I", data, int(self._pick([0, 4])), int(self._pick([0, 1, 3, total + 7, 1 << 20, (1 << 32) - 1]))
            )
        if self.chance.random() < 0.01:
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
        return bytes(data)

    # ------------------------------------------------------------------------------------------------------- running

    def run(self) -> None:
        """Connect, misbehave, go."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=20) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reads = self.chance.random() < 0.9
            with contextlib.suppress(OSError):
                if self.chance.random() < 0.95:
                    hello = self.command(2)
                    if self.chance.random() < 0.05:
                        self.spoil(hello.connect)
                    head = hello.SerializePartialToString()
                    self._send(link, struct.pack(">II", 4 + len(head), len(head)) + head, reads)
                if self._expires:
                    self._prove(link)
                steps = int(self._pick([1, 5, 30, 100]))
                burst = self.chance.random() < 0.3
                together = b""
                for _ in range(steps):
                    data = self.frame()
                    if burst:
                        together += data
                        continue
                    self._send(link, data, reads)
                    if reads and (self._asked or self.chance.random() < 0.05):
                        self._read(link, 0.01)
                        self._asked.clear()
                if together:
                    self._send(link, together, reads)
                if reads:
                    self._read(link, 0.01)
                if self.chance.random() < 0.2:
                    link.sendall(self.frame()[: self.chance.randrange(1, 12)])
                if self.chance.random() < 0.3:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset

    def _prove(self, link: socket.socket) -> None:
        """Wait to be asked for another token, as one that is about to expire makes the broker, and answer something."""
        deadline = time.monotonic() + 2
        while not self.answers[36] and time.monotonic() < deadline:
            self._read(link, 0.2)
        for _ in range(int(self._pick([0, 1, 1, 1, 2]))):
            self._send(link, self.framed(_AUTH_RESPONSE), reads=True)
            self._read(link, float(self._pick([0.0, 0.05])))

    def _send(self, link: socket.socket, data: bytes, reads: bool) -> None:
        view = memoryview(data)
        deadline = time.monotonic() + 10
        while view and time.monotonic() < deadline:
            readable, writable, _ = select.select([link] if reads else [], [link], [], 1.0)
            if readable:
                self._read(link, 0)
            if writable:
                link.setblocking(False)
                try:
                    view = view[link.send(view[: 1 << 16]) :]
                finally:
                    link.setblocking(True)
            elif not reads:
                return  # it takes nothing more from one who reads nothing

    def _read(self, link: socket.socket, wait_s: float) -> None:
        while select.select([link], [], [], wait_s)[0]:
            data = link.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            try:
                frames = self._decoder.feed(data)
            except FrameError as error:
                raise AssertionError(f"the broker sent a malformed frame: {error}") from error
            for frame in frames:
                kind = frame.command.type
                self.answers[kind] += 1
                if kind == 17 and frame.command.producer_success.producer_ready:
                    self._producers.append(self._asked.get(frame.command.producer_success.request_id, 0))
                elif kind == 7:
                    self._saw(frame.command.send_receipt.message_id)
                elif kind == 9:
                    self._saw(frame.command.message.message_id)
                elif kind > _GEO_FROM:
                    self._told(frame.command)

    def _told(self, command: Any) -> None:
        """An answer to a link: what later commands have to fit."""
        match command.type:
            case 1001:
                told = command.geo_topics_response
                self._boot, self._counter = told.boot, told.counter
                self._states |= {one.topic: (one.incarnation, one.cursor.gen) for one in told.topics}
                self._seen += [(one.last.ledger, one.last.entry) for one in told.topics]
                del self._seen[:-50]
            case 1005:
                told = command.geo_append_response
                topic = self._appends.pop(told.request_id, TOPICS[0])
                self._marks[topic] = (told.persisted.ledger, told.persisted.entry)
            case 1009:
                for one in command.geo_watermarks_response.topics:
                    self._marks[one.topic] = (one.persisted.ledger, one.persisted.entry)
            case 1016:
                self._tickets.append(command.geo_schemas_wanted.ticket)
            case _:
                pass

    def _saw(self, message_id: Any) -> None:
        self._seen.append((message_id.ledgerId, message_id.entryId))
        del self._seen[:-50]


# ------------------------------------------------------------------------------------------------------- the judgement


def descriptors(pid: int) -> int:
    """Open file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Guard:
    """An official client beside the fuzzer, that must notice nothing.

    Args:
        broker: whom both speak to.
        login: what it presents.
    """

    def __init__(self, broker: BrokerProcess, login: Login = Login()) -> None:
        extra = {"authentication": pulsar.AuthenticationToken(login.token("root", 86_400))} if login.secret else {}
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, os.devnull)
        self._client = pulsar.Client(broker.url, operation_timeout_seconds=20, logger=logger, **extra)
        topic = f"guard-{uuid.uuid4().hex[:8]}"
        self._consumer = self._client.subscribe(topic, "guard", consumer_type=pulsar.ConsumerType.Shared)
        self._producer = self._client.create_producer(topic)
        self._sent = 0

    def check(self) -> None:
        """One message there and back, exactly that one."""
        self._sent += 1
        wanted = b"%d" % self._sent
        self._producer.send(wanted)
        message = self._consumer.receive(20_000)
        assert message.data() == wanted, f"{message.data()!r} instead of {wanted!r}"
        assert message.redelivery_count() == 0
        self._consumer.acknowledge(message)

    def close(self) -> None:
        """It goes."""
        self._client.close()


def clean(broker: BrokerProcess) -> None:
    """Delete what the fuzzer made: every topic but those of guards."""
    for topic in broker.rest("GET", "/admin/v2/persistent/public/default/partitioned"):
        local = urllib.parse.quote(topic.partition("public/default/")[2], safe="")
        broker.rest("DELETE", f"/admin/v2/persistent/public/default/{local}/partitions?force=true")
    for domain in ("persistent", "non-persistent"):
        for topic in broker.rest("GET", f"/admin/v2/{domain}/public/default"):
            local = topic.partition("public/default/")[2]
            if local.startswith("guard-"):
                continue
            try:
                broker.rest(
                    "DELETE", f"/admin/v2/{domain}/public/default/{urllib.parse.quote(local, safe='')}?force=true"
                )
            except urllib.error.HTTPError as error:
                if error.code not in {404, 405, 409}:
                    raise


def fuzz(
    broker: BrokerProcess,
    first_seed: int,
    more: Callable[[int], bool],
    tell: Callable[[str], None] = lambda _line: None,
    *,
    clean_every: int = 500,
    login: Login = Login(),
    http: bool = False,
) -> int:
    """Episodes from one seed on, of HTTP if that is said, while `more(number)`; how many there were.

    Raises:
        AssertionError: the broker died or answered nonsense, another client was disturbed, or the log has a traceback or
            more than one line per connection. The seed is in its text.
    """
    process = broker.process
    assert process is not None
    guard = Guard(broker, login)
    number = 0
    lines_before = broker.log.read_text().count("\n")
    start = time.monotonic()
    answers: Counter[int] = Counter()
    try:
        while more(number):
            seed = first_seed + number
            try:
                fuzzer = HttpFuzzer(seed, broker.http_port) if http else Fuzzer(seed, broker.pulsar_port, login)
                fuzzer.run()
                answers += fuzzer.answers
                if number % 10 == 9:
                    guard.check()
            except Exception as error:
                end = broker.log.read_text()[-3_000:]
                raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{end}") from error
            assert process.poll() is None, f"seed {seed}: the broker is gone\n{broker.log.read_text()[-3_000:]}"
            number += 1
            if number % clean_every == 0:
                clean(broker)
            if number % 100 == 0:
                tell(
                    f"{number} episodes, seed {seed}, {time.monotonic() - start:.0f} s, "
                    f"{resident_bytes(process.pid) >> 20} MiB, {descriptors(process.pid)} descriptors, "
                    f"{broker.log.read_text().count(chr(10)) - lines_before} lines in the log; answers {dict(answers)}"
                )
        guard.check()
    finally:
        guard.close()
    log = broker.log.read_text()
    assert "Traceback" not in log, f"seeds from {first_seed}: {log[log.index('Traceback') - 500 :][:3_000]}"
    lines = log.count("\n") - lines_before
    # Each connection can be closed for one reason; what else is told is rate-limited or about its few topics.
    assert lines <= number * 1.2 + 50, f"{lines} lines in the log of {number} connections"
    return number
