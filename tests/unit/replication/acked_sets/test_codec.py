"""The stored state: round trip, golden bytes, damage."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.errors import StorageError
from magnetar.core.ids import NONE, Position
from magnetar.replication.acked_sets.codec import Stored, decode, encode
from magnetar.replication.acked_sets.state import SubscriptionState
from magnetar.wire.acksets import CREATION, Epoch, FenceToken, LowWater, Mark
from tests.unit.replication.acked_sets.strategies import index_set, marks, message_sets

GOLDEN = Path(__file__).parents[3] / "golden" / "storage" / "acked-set-v1.bin"

STATE = Stored(
    SubscriptionState(
        Epoch(1, 1_700_000_000_000, "us-west", 42),
        index_set({("a", 1, 0), ("a", 1, 1)}),
        {"a": (1, 0), "b": (0, 0)},
        index_set({("a", 1, 5), ("b", 2, 0)}),
        forgot={"b": (1, 3)},
        fence=FenceToken(5, "a", "b", "final"),
    ),
    Position(7, 8),
    (LowWater("b", 2, Position(3, 4), (Mark("a", 1, 2),)),),
    {"b": (2, 1)},
    {"a": (1, 9)},
    1_700_000_000_001,
)


def same(left, right):
    """What was being written is not stored."""
    assert left == right


@given(message_sets, st.one_of(st.none(), message_sets), marks, marks, marks)
def test_round_trip(acks, base, floor, forgot, own):
    state = SubscriptionState(
        CREATION,
        None if base is None else index_set(base),
        {} if base is None else floor,
        index_set(acks),
        forgot=forgot,
    )
    stored = Stored(state, NONE, (), own, floor, 3)
    same(decode("s", encode("s", stored)), stored)


def test_everything_that_is_stored_comes_back():
    same(decode("s", encode("s", STATE)), STATE)


def test_unsubscribed_is_a_mark():
    data = encode("s", Stored(None, Position(1, 2)))
    assert len(data) < 40
    assert decode("s", data).state is None


def test_golden():
    """What version 1 wrote is read for ever, and written so still."""
    same(decode("s", GOLDEN.read_bytes()), STATE)
    assert encode("s", STATE) == GOLDEN.read_bytes()


@given(st.data())
def test_damage_is_told(data):
    stored = bytearray(encode("s", STATE))
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StorageError, match="stored acknowledged set of s"):
        decode("s", bytes(stored))


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02abcdefgh", b"\x01abcd"])
def test_what_is_no_state(data):
    with pytest.raises(StorageError):
        decode("s", data)


def test_a_checksum_over_nonsense():
    import struct

    from crc32c import crc32c

    body = b"\x01\xff\xff\xff"
    with pytest.raises(StorageError, match="damaged"):
        decode("s", body + struct.pack("<I", crc32c(body)))
