"""Compression of entries, by the names and numbers of Pulsar's protocol."""

import zlib
from typing import Final

import pyarrow as pa

_CODECS: Final = {1: "lz4_raw", 3: "zstd", 4: "snappy"}


def compress(kind: int, plain: bytes) -> bytes:
    """The payload of an entry; kind 0 leaves it as it is."""
    if kind == 0:
        return plain
    if kind == 2:
        return zlib.compress(plain)
    return bytes(pa.Codec(_CODECS[kind]).compress(plain, asbytes=True))
