"""What is recognised as a plain message means the same to the usual decoders, and the broker does the same with it."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from magnetar.core.errors import BrokerError, ProtocolError
from magnetar.core.ids import Position
from magnetar.core.names import NamespaceName
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.metadata.policies.types import PublishRate
from magnetar.storage.entries import NewEntry
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame, PlainSend
from magnetar.wire.frames import FrameDecoder, FrameError
from magnetar.wire.plain_sends import PlainMessages
from magnetar.wire.varint import varint
from tests.support.geoworld import TOPIC, Client, Node, World

NAMESPACE = NamespaceName.parse("public/default")
COMMAND_BYTES_MAX = 1 << 19

# ------------------------------------------------------------------------------------------------------------- bytes


def long_varint(value: int, extra: int) -> bytes:
    """A number in `extra` bytes more than it needs, which decoders accept up to ten bytes in all."""
    short = varint(value)
    if not extra:
        return short
    return short[:-1] + bytes([short[-1] | 0x80]) + b"\x80" * (extra - 1) + b"\x00"


NUMBERS = st.one_of(
    st.integers(0, 300), st.integers(0, 1 << 22), st.sampled_from([127, 128, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
)
VARINTS = st.builds(long_varint, NUMBERS, st.sampled_from([0, 0, 0, 0, 1, 2, 9]))


def field(number: int, value: bytes) -> bytes:
    """A field that is a number."""
    return varint(number << 3) + value


def text(number: int, value: bytes) -> bytes:
    """A field that is bytes."""
    return varint(number << 3 | 2) + varint(len(value)) + value


OTHER_FIELDS = st.one_of(
    st.builds(field, st.integers(1, 40), VARINTS),
    st.builds(text, st.integers(1, 40), st.binary(max_size=4)),
    st.sampled_from([b"\x18\x02", b"\x18\x81\x00", b"\x38\x01", b"\x40\x01", b"\x30\x07", b"\x20\x00", b"\x28\x00"]),
)


@st.composite
def near(draw: st.DrawFn, fields: list[bytes]) -> bytes:
    """Fields as they are, or in another order, twice, missing, or with others in between."""
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        change = draw(st.sampled_from(["add", "swap", "twice", "drop"]))
        at = draw(st.integers(0, max(0, len(fields) - 1)))
        if change == "add":
            fields.insert(draw(st.integers(0, len(fields))), draw(OTHER_FIELDS))
        elif change == "swap":
            fields.reverse()
        elif fields and change == "twice":
            fields.insert(draw(st.integers(0, len(fields))), fields[at])
        elif fields:
            del fields[at]
    return b"".join(fields)


@st.composite
def commands(draw: st.DrawFn, sequence: st.SearchStrategy[bytes] = VARINTS) -> bytes:
    """A BaseCommand of type SEND, or something close to one."""
    fields = [b"\x08" + draw(st.one_of(st.just(b"\x01"), VARINTS)), b"\x10" + draw(sequence)]
    if draw(st.booleans()):
        fields.append(b"\x18\x01")
    send = draw(near(fields))
    size = draw(st.sampled_from([varint(len(send))] * 6 + [long_varint(len(send), 1), varint(len(send) + 1)]))
    return draw(
        near([draw(st.sampled_from([b"\x08\x06"] * 6 + [b"\x08\x86\x00", b"\x08\x05"])), b"\x32" + size + send])
    )


NAME = "p-1"
PRODUCERS = {1: NAME, 2: "p-2"}
"""Id -> name."""


@st.composite
def payloads(draw: st.DrawFn, sequence: st.SearchStrategy[bytes] = VARINTS) -> bytes:
    """An entry's bytes, or something close to it."""
    name = draw(st.sampled_from([NAME] * 6 + ["p-2", "p-10", "", "\xe4"])).encode()
    times = st.one_of(st.just(varint(1_700_000_000_000)), VARINTS)
    seen = draw(near([text(1, name), b"\x10" + draw(sequence), b"\x18" + draw(times)]))
    body = draw(st.one_of(st.binary(max_size=20), st.integers(0, 300).map(bytes)))
    size = len(seen) + draw(st.sampled_from([0] * 9 + [1, -1, 400]))
    rest = max(0, size).to_bytes(4, "big") + seen + body
    checksum = crc32c(rest) ^ draw(st.sampled_from([0] * 9 + [1]))
    return draw(st.sampled_from([b"\x0e\x01"] * 9 + [b"\x0e\x02"])) + checksum.to_bytes(4, "big") + rest


def framed(command: bytes, payload: bytes) -> bytes:
    """A frame's bytes."""
    return (4 + len(command) + len(payload)).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + payload


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Some frames in a row, some of them mutated or cut off."""
    parts = st.one_of(st.builds(framed, commands(), payloads()), st.just(framed(b"\x08\x12\x92\x01\x00", b"")))
    data = bytearray(b"".join(draw(st.lists(parts, min_size=1, max_size=6))))
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        data[draw(st.integers(0, min(len(data) - 1, 80)))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))])


CUTS = st.lists(st.integers(0, 90), max_size=8)


def decoded(data: bytes, cuts: list[int], *, plain: bool) -> tuple[list[Frame], str]:
    """The frames of bytes that arrive in pieces of these lengths, and the fault, if there is one."""
    decoder = FrameDecoder(1 << 20)
    if plain:
        decoder.limit(COMMAND_BYTES_MAX)
    frames: list[Frame] = []
    for start, end in itertools.pairwise([0, *itertools.accumulate(cuts), max(len(data), sum(cuts))]):
        try:
            frames += decoder.feed(data[start:end])
        except FrameError as error:
            return [*frames, *error.frames], str(error)
    return frames, ""


# ---------------------------------------------------------------------------------------------------------- decoders


def send_bytes(sequence: int, *, producer: int = 1, name: str = NAME, time: int = 1, body: bytes = b"x") -> bytes:
    """A plain message as clients send it."""
    command = b"\x08\x06\x32" + text(0, b"\x08" + varint(producer) + b"\x10" + varint(sequence))[1:]
    rest = text(1, name.encode()) + b"\x10" + varint(sequence) + b"\x18" + varint(time)
    rest = len(rest).to_bytes(4, "big") + rest + body
    return framed(command, b"\x0e\x01" + crc32c(rest).to_bytes(4, "big") + rest)


def meaning(frame: Frame) -> tuple[pb.BaseCommand, bytes]:
    """A frame's content; whether its one message was counted is not seen by anybody."""
    command = frame.command
    if command.send.num_messages == 1:
        command.send.ClearField("num_messages")
    return command, frame.payload


@given(streams(), CUTS)
@settings(max_examples=200)
@example(send_bytes(5) + send_bytes(2**62), [])
@example(framed(b"\x08\x06\x32\x06\x08\x01\x10\x80\x80\x00", b""), [3, 9])
@example(framed(b"\x08\x06\x32\x05\x08\x01\x10\x07", b""), [])
@example(framed(b"\x08\x06\x32\x04\x08\x01\x10\x87\x01", b""), [])
def test_a_recognised_command_is_the_decoded_one(data: bytes, cuts: list[int]) -> None:
    usual, fault = decoded(data, cuts, plain=False)
    seen, said = decoded(data, cuts, plain=True)
    assert said == fault
    assert list(map(meaning, seen)) == list(map(meaning, usual))
    for frame, known in zip(seen, usual, strict=True):
        if isinstance(frame, PlainSend):
            send = known.command.send
            assert not send.HasField("txnid_most_bits")
            assert not send.HasField("txnid_least_bits")
            for name in ("producer_id", "sequence_id", "num_messages", "highest_sequence_id", "marker"):
                assert getattr(frame.send, name) == getattr(send, name)


@pytest.mark.parametrize("number", [0, 127, 128, 16_383, 16_384, 2**21, 2**35, 2**63 - 1])
@pytest.mark.parametrize("more", [b"", b"\x18\x01"])
def test_what_clients_send_is_recognised(number: int, more: bytes) -> None:
    for producer, sequence in ((number, 5), (5, number)):
        send = b"\x08" + varint(producer) + b"\x10" + varint(sequence) + more
        command = b"\x08\x06\x32" + varint(len(send)) + send
        ((frame,), _) = decoded(framed(command, b"p"), [], plain=True)
        assert isinstance(frame, PlainSend)
        assert (frame.producer_id, frame.sequence_id, frame.payload) == (producer, sequence, b"p")


@pytest.mark.parametrize(
    "send",
    [
        b"\x08\x01\x10\x05\x18\x02",
        b"\x08\x01\x10\x05\x30\x09",
        b"\x08\x01\x10\x05\x38\x01",
        b"\x08\x01\x10\x05\x40\x01",
        b"\x08\x01\x10\x05\x20\x00",
        b"\x10\x05\x08\x01",
        b"\x08\x01\x10\x05\x10\x06",
        b"\x08\x01\x10" + varint(2**63),
    ],
)
def test_what_says_more_is_decoded(send: bytes) -> None:
    ((frame,), fault) = decoded(framed(b"\x08\x06\x32" + varint(len(send)) + send, b""), [], plain=True)
    assert type(frame) is Frame
    assert not fault


@given(st.lists(payloads(), max_size=5), st.sampled_from([40, 300, 1 << 20]))
@settings(max_examples=200)
def test_recognised_metadata_are_the_decoded_ones(items: list[bytes], bytes_max: int) -> None:
    plain = PlainMessages(NAME)
    found = plain.entries(items, bytes_max)
    sequences = plain.sequence_ids(found)
    for payload, entry, sequence in zip(items, found, sequences, strict=False):
        seen = metadata.inspect(payload, message_bytes_max=bytes_max)
        metadata.check_client_entry(seen, marker=False)
        assert entry == NewEntry(seen.payload, seen.flags, seen.count, seen.publish_time)
        assert len(payload) <= bytes_max
        known = seen.metadata
        assert (known.producer_name, known.sequence_id, known.highest_sequence_id) == (NAME, sequence, 0)
        assert [one.name for one, _ in known.ListFields()] == ["producer_name", "sequence_id", "publish_time"]
    if len(found) < len(items):
        refused = items[len(found)]
        try:
            seen = metadata.inspect(refused, message_bytes_max=bytes_max - 10)
        except (BrokerError, ProtocolError):
            return
        usual = pb.MessageMetadata(
            producer_name=NAME, sequence_id=seen.metadata.sequence_id, publish_time=seen.metadata.publish_time
        )
        shortest = usual.SerializeToString()
        numbers = seen.metadata.sequence_id, seen.metadata.publish_time
        assert refused[:2] != b"\x0e\x01" or refused[10 : seen.metadata_end] != shortest or max(numbers) >= 2**63


def sealed(
    seen: bytes, *, size: int = 0, checksum: int = 0, magic: bytes = b"\x0e\x01", body: bytes = b"body"
) -> bytes:
    """An entry's bytes; `size` and `checksum` make them wrong by this much."""
    rest = (len(seen) + size).to_bytes(4, "big") + seen + body
    return magic + (crc32c(rest) ^ checksum).to_bytes(4, "big") + rest


PLAIN = text(1, NAME.encode()) + b"\x10\x05\x18\x07"
FAULTS = {
    "none": sealed(PLAIN),
    "nothing behind the metadata": sealed(PLAIN, body=b""),
    "checksum": sealed(PLAIN, checksum=1 << 31),
    "metadata that end behind the entry": sealed(PLAIN, size=5),
    "metadata that would end behind the entry": sealed(PLAIN, size=5, body=b""),
    "metadata that end before their last byte": sealed(PLAIN, size=-1),
    "metadata that end in the body": sealed(PLAIN, size=1, body=b"\x20\x00"),
    "magic": sealed(PLAIN, magic=b"\x0e\x02"),
    "another name": sealed(text(1, b"p-2") + PLAIN[5:]),
    "a longer name": sealed(text(1, b"p-10") + PLAIN[5:]),
    "no time": sealed(PLAIN[:-2]),
    "two times": sealed(PLAIN + b"\x18\x08"),
    "another name behind": sealed(PLAIN + text(1, b"p-2")),
    "a property": sealed(PLAIN + text(4, b"\x0a\x01k\x12\x01v")),
    "a batch of one": sealed(PLAIN + b"\x58\x01"),
    "a negative time": sealed(PLAIN[:-1] + varint(2**64 - 1)),
    "a number of eleven bytes": sealed(PLAIN[:-1] + b"\x80" * 10 + b"\x00"),
    "too short": sealed(PLAIN)[:12],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_enough(fault: str) -> None:
    found = PlainMessages(NAME).entries([FAULTS[fault], FAULTS["none"]], 1 << 20)
    assert len(found) == (2 if fault in {"none", "nothing behind the metadata"} else 0)


@pytest.mark.parametrize(("bytes_max", "found"), [(0, 1), (-1, 0)])
def test_the_largest_payload_is_recognised(bytes_max: int, found: int) -> None:
    assert len(PlainMessages(NAME).entries([FAULTS["none"]], len(FAULTS["none"]) + bytes_max)) == found


# ------------------------------------------------------------------------------------------------------------ broker


class Setting(NamedTuple):
    """What a broker is asked to do with messages."""

    numbers: bool = False
    keys: bool = False
    encrypted: bool = False
    size: int = 0
    rate: int = 0
    pending: int = 0


class Side:
    """A broker with two producers of one connection, which gets its bytes with or without the recogniser."""

    def __init__(self, setting: Setting, *, plain: bool) -> None:
        limits = {"pending_publish_bytes_max": setting.pending} if setting.pending else {}
        self.node: Node = World("ab", limits=limits)["a"]
        self.node.hold_stores = False
        change: dict[str, Any] = {}
        if setting.numbers:
            change["deduplication_enabled"] = True
        if setting.keys:
            change["idempotency"] = IdempotencyPolicy(property="k", window_seconds=600)
        if setting.size:
            change["max_message_size"] = setting.size
        if setting.rate:
            change["publish_rate"] = PublishRate(messages=setting.rate)
        if setting.encrypted:
            change["encryption_required"] = True
        if change:
            self.node.apply(self.node.broker.resources.change_policies(NAMESPACE, **change))
        self.node.create()
        self.node.world.advance(100)
        self.said: list[bytes] = []
        self.client: Client = self.node.client()
        known = self.client.got

        def got(buffers: Any) -> None:
            buffers = [bytes(buffer) for buffer in buffers]
            self.said.append(b"".join(buffers))
            known(buffers)

        self.client.got = got  # type: ignore[method-assign]
        for number, name in PRODUCERS.items():
            opened = pb.CommandProducer(topic=TOPIC, producer_id=number, request_id=number, producer_name=name)
            opened.encrypted = True
            self.client.send(pb.BaseCommand(type=5, producer=opened))
            self.node.world.work()
        self.decoder = FrameDecoder(1 << 20)
        if plain:
            self.decoder.limit(COMMAND_BYTES_MAX)
        self.recognised = 0

    def take(self, data: bytes) -> None:
        """One read of the connection."""
        frames = self.decoder.feed(data)
        self.recognised += sum(type(frame) is PlainSend for frame in frames)
        self.node.run(self.node.broker.frames, self.client.number, frames)

    @property
    def everything(self) -> dict[str, Any]:
        """All that a client, an operator or a later start of the broker may see of it."""
        node, topic = self.node, self.node.topic
        numbers = topic.deduplication.numbers if topic.deduplication is not None else None
        session = node.broker.sessions.get(self.client.number)
        producers = [topic.producers.rival(name) for name in PRODUCERS.values()]
        return {
            "answers": b"".join(self.said),
            "log": {
                str(name): bytes(node.files.content(folder / name))
                for folder in [node.log._folder]
                for name in node.files.names(folder)
            },
            "entries": [topic.log.cached_at(position) for position in positions(node)],
            "numbers": None if numbers is None else (numbers.snapshot(), [(n, x.pushed) for n, x in numbers]),
            "keys": None if topic.idempotency is None else (topic.idempotency.table.tail, len(topic.idempotency.pending)),
            "counters": (topic.messages_in, topic.bytes_in, topic.entries_in, topic.chunked, topic.in_flight),
            "producers": [x and (x.stats(), x.pending, x.entries) for x in producers],
            "waiting": topic.publish_throttle.waiting_messages if topic.publish_throttle is not None else 0,
            "pending": node.broker.pending_bytes,
            "held": session.connection.held if session is not None else "gone",
            "notes": list(node.notes),
        }  # fmt: skip


def positions(node: Node) -> list[Any]:
    """Of all entries."""
    infos = node.topic.log.ledger_infos()
    return [Position(ledger.ledger, entry) for ledger in infos for entry in range(ledger.entries)]


SEQUENCES = st.integers(0, 12).map(varint)
IDS = st.sampled_from([1, 1, 1, 2])
"""Of producers; most messages are of one."""


@st.composite
def valid(draw: st.DrawFn) -> bytes:
    """A message that decodes, mostly a plain one."""
    producer = draw(IDS)
    if draw(st.integers(0, 3)):
        body = bytes(draw(st.sampled_from([1, 10, 200])))
        sequence, time = draw(st.integers(0, 12)), draw(st.integers(1, 3))
        return send_bytes(sequence, producer=producer, name=PRODUCERS[producer], time=time, body=body)
    seen = pb.MessageMetadata(
        producer_name=draw(st.sampled_from([NAME, NAME, "p-2"])), sequence_id=draw(st.integers(0, 12)), publish_time=1
    )
    command = pb.CommandSend(producer_id=producer, sequence_id=seen.sequence_id)
    match draw(st.integers(0, 9)):
        case 0:
            seen.num_messages_in_batch = command.num_messages = draw(st.integers(1, 3))
        case 1:
            seen.properties.add(key="k", value=draw(st.sampled_from("ab")))
        case 2:
            seen.partition_key = "k"
        case 3:
            seen.schema_version = b"\x01"
        case 4:
            seen.deliver_at_time = 5
        case 5:
            seen.encryption_keys.add(key="k", value=b"v")
        case 6:
            seen.uuid, seen.chunk_id, seen.num_chunks_from_msg, seen.total_chunk_msg_size = "u", 0, 2, 9
        case 7:
            seen.highest_sequence_id = command.highest_sequence_id = seen.sequence_id + 1
        case 8:
            seen.replicated_from = "b"
        case 9:
            command.txnid_least_bits = 1
    send = pb.BaseCommand(type=6, send=command).SerializeToString()
    return framed(send, metadata.build(seen, bytes(draw(st.sampled_from([0, 1, 200])))))


ODD = st.builds(framed, commands(SEQUENCES), payloads(SEQUENCES))
READS = st.lists(st.one_of(valid(), valid(), valid(), ODD), min_size=1, max_size=8).map(b"".join)
STEPS = st.lists(st.one_of(READS, st.sampled_from(["write", "fail", "time"])), min_size=1, max_size=6)
SETTINGS = st.sampled_from(
    [
        *[Setting(), Setting(numbers=True)] * 2,
        *[Setting(keys=True), Setting(numbers=True, keys=True), Setting(encrypted=True)],
        *[Setting(size=150), Setting(rate=3), Setting(numbers=True, rate=2), Setting(pending=500)],
    ]
)


def play(side: Side, steps: list[Any]) -> list[dict[str, Any]]:
    """Everything after each step."""
    seen = []
    side.node.hold_log = True
    for step in steps:
        if step == "write":
            side.node.log.cycle()
        elif step == "time":
            side.node.hold_log = False
            side.node.world.advance(700)
            side.node.hold_log = True
        elif step == "fail":
            side.node.files.fail_next("writev", OSError(5, "no"))
            side.node.files.fail_next("write_through", OSError(5, "no"))
            side.node.log.cycle()
        else:
            try:
                side.take(step)
            except FrameError as error:
                seen.append({"fault": str(error)})
                break
        seen.append(side.everything)
    side.node.hold_log = False
    side.node.world.advance(1_000)
    return [*seen, side.everything]


@given(SETTINGS, STEPS)
@settings(max_examples=60)
@example(
    Setting(numbers=True), [send_bytes(1) + send_bytes(2) + send_bytes(2) + send_bytes(1) + send_bytes(3), "write"]
)
@example(Setting(size=150), [send_bytes(1) + send_bytes(2, body=bytes(200)) + send_bytes(3), "write"])
@example(Setting(rate=3), [b"".join(map(send_bytes, range(9))), "time", "time", "time"])
@example(Setting(numbers=True), [send_bytes(1), "fail", send_bytes(2) + send_bytes(1), "write"])
def test_a_broker_does_the_same_with_plain_messages(setting: Setting, steps: list[Any]) -> None:
    usual, plain = (play(Side(setting, plain=recognises), steps) for recognises in (False, True))
    assert plain == usual


@pytest.mark.parametrize("setting", [Setting(), Setting(numbers=True)])
def test_plain_messages_are_taken_without_being_inspected(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(setting, plain=True)
    never: Callable[..., Any] = lambda *_args, **_more: pytest.fail("inspected")  # noqa: E731
    monkeypatch.setattr(metadata, "inspect", never)
    side.take(b"".join(map(send_bytes, range(5))))
    side.node.world.work()
    assert side.recognised == 5
    assert side.node.topic.messages_in == 5
    assert [command.send_receipt.sequence_id for command in side.client.answers if command.type == 7] == [0, 1, 2, 3, 4]
