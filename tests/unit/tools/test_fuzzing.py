"""The fuzzer of the protocol also says what this broker refuses or does not know: what it never sends is never tried."""

import struct
from collections import Counter

from tests.support.fuzzing import COMMAND_FIELDS, TRANSACTIONS, UNKNOWN, Fuzzer

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import CLIENT_COMMANDS
from magnetar.wire.frames import FrameDecoder, FrameError


def sent(seed: int, frames: int) -> tuple[Counter[int], Counter[str]]:
    """How often each type is in frames that a broker reads, and what else is in them."""
    fuzzer = Fuzzer(seed, 0)
    fuzzer._producers.append(1)  # as after the answer to a PRODUCER: without one there are no SENDs
    kinds: Counter[int] = Counter()
    more: Counter[str] = Counter()
    for _ in range(frames):
        data = fuzzer.frame()
        if len(data) < 8 or struct.unpack(">I", data[:4])[0] != len(data) - 4:
            continue
        try:
            (frame,) = FrameDecoder().feed(data)
        except FrameError:
            continue
        command = frame.command
        kinds[command.type] += 1
        if command.type not in COMMAND_FIELDS and command.ByteSize() > pb.BaseCommand(type=command.type).ByteSize():
            more["unknown with a body"] += 1
        more["send in a transaction"] += command.type == 6 and command.send.HasField("txnid_most_bits")
        more["ack in a transaction"] += command.type == 10 and command.ack.HasField("txnid_most_bits")
    return kinds, more


def test_no_type_is_left_out() -> None:
    assert not CLIENT_COMMANDS - COMMAND_FIELDS.keys() - set(UNKNOWN)
    kinds, more = sent(1, 8_000)
    assert not set(UNKNOWN) - kinds.keys()
    assert min(kinds[kind] for kind in TRANSACTIONS) > 10
    assert more["unknown with a body"] > 30
    assert more["send in a transaction"] > 30
    assert more["ack in a transaction"] > 30
