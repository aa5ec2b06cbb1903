"""Decompression of single payloads: every kind, and sizes that lie."""

import random
import zlib
from collections.abc import Callable

import pyarrow as pa
import pytest

from magnetar.admin.routes.decompression import PLAIN_BYTES_MAX, Undecompressible, decompress


def by_arrow(name: str) -> Callable[[bytes], bytes]:
    return lambda plain: bytes(pa.Codec(name).compress(plain, asbytes=True))


COMPRESS = {1: by_arrow("lz4_raw"), 2: zlib.compress, 3: by_arrow("zstd"), 4: by_arrow("snappy")}

CHANCE = random.Random(7)
PLAIN = {
    "empty": b"",
    "one": b"x",
    "run": b"a" * 100_000,
    "short": b"abcabcabcabcabcabcabcabc.",
    "noise": CHANCE.randbytes(70_000),
    "far": (block := CHANCE.randbytes(60_000)) + block,
    "text": b" ".join(b"word%d" % CHANCE.randrange(50) for _ in range(20_000)),
}


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("name", PLAIN)
def test_every_kind_comes_back(kind: int, name: str) -> None:
    plain = PLAIN[name]
    assert decompress(kind, len(plain), COMPRESS[kind](plain)) == plain


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("name", ["run", "short", "noise"])
@pytest.mark.parametrize("wrong", [-1, 1, 1_000])
def test_a_size_that_lies_is_no_way_to_other_bytes(kind: int, name: str, wrong: int) -> None:
    """A decompressor that trusts the size gives what was in its buffer before."""
    plain = PLAIN[name]
    with pytest.raises(Undecompressible):
        decompress(kind, len(plain) + wrong, COMPRESS[kind](plain))


@pytest.mark.parametrize("kind", COMPRESS)
def test_what_is_cut_off_or_changed_is_refused_or_of_the_right_size(kind: int) -> None:
    plain = PLAIN["text"][:3_000]
    packed = COMPRESS[kind](plain)
    refused = 0
    for _ in range(300):
        damaged = bytearray(packed[: CHANCE.randrange(len(packed))] if CHANCE.random() < 0.5 else packed)
        for _ in range(3):
            if damaged:
                damaged[CHANCE.randrange(len(damaged))] = CHANCE.randrange(256)
        try:
            assert len(decompress(kind, len(plain), bytes(damaged))) == len(plain)
        except Undecompressible as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 100


def test_a_forged_size_takes_no_memory() -> None:
    bomb = zlib.compress(b"\0" * (1 << 20))
    with pytest.raises(Undecompressible, match="at most"):
        decompress(2, PLAIN_BYTES_MAX + 1, bomb)
    with pytest.raises(Undecompressible, match="does not hold"):
        decompress(2, 10, bomb)
    for kind in (3, 4):
        with pytest.raises(Undecompressible, match="cannot hold"):
            decompress(kind, PLAIN_BYTES_MAX, COMPRESS[kind](b"x"))


def test_a_zlib_stream_without_its_end_is_refused() -> None:
    with pytest.raises(Undecompressible, match="cut off"):
        decompress(2, 600, zlib.compress(b"little" * 100)[:-4])


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(Undecompressible, match="number 9"):
        decompress(9, 1, b"x")
