"""The fuzzer of the protocol also says what this broker refuses or does not know: what it never sends is never tried."""

import struct
from collections import Counter

import pytest

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import CLIENT_COMMANDS, GEO_REQUESTS
from magnetar.wire.frame import Refused
from magnetar.wire.frames import FrameDecoder, FrameError, encode
from magnetar.wire.limits import COMMAND_BYTES_MAX
from tests.support.fuzzing import COMMAND_FIELDS, LINKS, TRANSACTIONS, UNKNOWN, USUAL, Fuzzer, Login


def read(data: bytes) -> pb.BaseCommand | None:
    """What a broker reads of a frame; None when that is an error."""
    if len(data) < 8 or struct.unpack(">I", data[:4])[0] != len(data) - 4:
        return None
    try:
        (frame,) = FrameDecoder(1 << 26).feed(data)
    except (FrameError, ValueError):
        return None
    return frame.command


def sent(seed: int, frames: int) -> tuple[Counter[int], Counter[str]]:
    """How often each type is in frames that a broker reads, and what else is in them."""
    fuzzer = Fuzzer(seed, 0)
    fuzzer._producers.append(1)  # as after the answer to a PRODUCER: without one there are no SENDs
    kinds: Counter[int] = Counter()
    more: Counter[str] = Counter()
    for _ in range(frames):
        command = read(fuzzer.frame())
        if command is None:
            continue
        kinds[command.type] += 1
        if command.type not in COMMAND_FIELDS and command.ByteSize() > pb.BaseCommand(type=command.type).ByteSize():
            more["unknown with a body"] += 1
        more["send in a transaction"] += command.type == 6 and command.send.HasField("txnid_most_bits")
        more["ack in a transaction"] += command.type == 10 and command.ack.HasField("txnid_most_bits")
    return kinds, more


def test_no_type_is_left_out() -> None:
    assert not CLIENT_COMMANDS - COMMAND_FIELDS.keys() - set(UNKNOWN)
    kinds, more = sent(1, 8_000)
    assert len(set(UNKNOWN) & kinds.keys()) > 20
    assert min(kinds[kind] for kind in TRANSACTIONS) > 10
    assert more["unknown with a body"] > 30
    assert more["send in a transaction"] > 30
    assert more["ack in a transaction"] > 30


FIELDS = {field.number for field in pb.BaseCommand.DESCRIPTOR.fields} - {1}
"""Every type that our protocol's file has a command for; 1 is the type itself."""


def test_every_type_of_the_protocol_is_in_the_table() -> None:
    assert set(COMMAND_FIELDS) == FIELDS
    # A number below 100 that we have no command for is Pulsar's, or may become so; the list needs no care then.
    assert set(range(1, 100)) <= FIELDS | set(UNKNOWN)
    assert not FIELDS & set(UNKNOWN)


def test_every_request_is_among_what_is_tried_often() -> None:
    seldom = {37}  # AUTH_RESPONSE: nobody asked for it, so it ends the connection; with `Login` it is asked for
    assert set(USUAL) | set(TRANSACTIONS) | seldom >= CLIENT_COMMANDS & FIELDS
    assert set(LINKS) >= GEO_REQUESTS


@pytest.mark.parametrize("kind", sorted(FIELDS | set(UNKNOWN)))
def test_every_type_goes_out_with_fields(kind: int) -> None:
    fuzzer = Fuzzer(kind, 0, Login(b"x" * 64))
    commands = [command for _ in range(60) if (command := read(fuzzer.framed(kind))) is not None]
    assert sum(command.type == kind for command in commands) > 10
    bodies = {command.SerializePartialToString() for command in commands}
    empty = kind in FIELDS and not pb.BaseCommand.DESCRIPTOR.fields_by_number[kind].message_type.fields
    assert len(bodies) > (1 if empty else 5)


def test_every_limit_of_a_request_is_tried_at_and_beyond_it() -> None:
    fuzzer = Fuzzer(5, 0)
    refused: Counter[str] = Counter()
    decoded = 0
    for kind in (5, 4, 23, 21, 34, 39, 64, 32):
        for _ in range(60):
            made = fuzzer.command(kind)
            fuzzer.fill_up(getattr(made, COMMAND_FIELDS[kind].name))
            fuzzer.complete(made)
            decoder = FrameDecoder(1 << 26)
            decoder.limit(COMMAND_BYTES_MAX)
            (frame,) = decoder.feed(encode(made))
            if isinstance(frame, Refused):
                refused[frame.reason.partition(" has ")[0]] += 1
            else:
                decoded += 1
    tried = {name.partition(".")[0] for name in refused}
    assert {"CommandProducer", "CommandSubscribe", "CommandLookupTopic", "CommandGetSchema"} <= tried
    assert len(refused) > 15 and decoded > 100


def test_links_send_entries_that_fit_what_they_say_of_them() -> None:
    fuzzer = Fuzzer(3, 0, Login(b"x" * 64))
    fitting = 0
    for _ in range(300):
        data = fuzzer.framed(1004)
        command = read(data)
        if command is not None and command.type == 1004:
            append = command.geo_append
            behind = len(data) - 8 - struct.unpack(">I", data[4:8])[0]
            fitting += 0 < len(append.ledgers) == len(append.sizes) and sum(append.sizes) == behind
    assert fitting > 100
