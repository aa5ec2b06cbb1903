"""Processor time of the codecs of BookKeeper for each entry, without sockets.

    python -m bench.ledger_codecs

An add is the work of a client for one entry on three bookies: make the stored entry with its digest, encode one frame for all of
them, cut their three answers out of the streams and decode them. A read is one bookie's answer until the payload is verified. A
figure is the fastest of many rounds, because other processes only make a round slower.
"""

import os
import sys
import time
from collections.abc import Callable

from bench.results import Figure, store
from magnetar.bookkeeper.ledgers.metadata import DigestType
from magnetar.bookkeeper.protocol import v2, v3
from magnetar.bookkeeper.protocol.entries import EntryCodec
from magnetar.bookkeeper.protocol.frames import FrameReader
from magnetar.bookkeeper.protocol.messages import AddEntry, Code, EntryAdded, EntryRead

REPLICAS = 3
ROUNDS = 30
ROUND_S = 0.05
ANSWERS = 20
"""Answers of one bookie that arrive in one piece."""

SIZES = {"1 KB": 1024, "128 KB": 128 * 1024}


def fastest(once: Callable[[], object]) -> float:
    """Microseconds of processor time of one call, in the fastest round."""
    began = time.process_time()
    calls = 0
    while time.process_time() - began < ROUND_S:
        once()
        calls += 1
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(calls):
            once()
        best = min(best, (time.process_time() - began) / calls)
    return best * 1e6


def figures() -> list[Figure]:
    """All of them."""
    codec = EntryCodec(7, DigestType.CRC32C, b"password")
    key = codec.master_key
    answer_2 = b"".join(v2.encode_response(EntryAdded(7, 5, Code.OK))) * ANSWERS
    answer_3 = b"".join(v3.encode_response(EntryAdded(7, 5, Code.OK), 6)) * ANSWERS
    reader = FrameReader()

    def answered_2() -> None:
        for frame in reader.feed(answer_2):
            v2.decode_response(frame)

    def answered_3() -> None:
        for frame in reader.feed(answer_3):
            v3.decode_response(frame)

    answers = {"v2": fastest(answered_2) / ANSWERS, "v3": fastest(answered_3) / ANSWERS}
    made = []
    for name, size in SIZES.items():
        payload = os.urandom(size)
        body = codec.pack(5, 4, size, payload)
        read = b"".join(v2.encode_response(EntryRead(7, 5, Code.OK, body, None)))

        def add_2(payload: bytes = payload) -> object:
            return v2.encode_request(AddEntry(7, 5, key, codec.pack(5, 4, 9, payload)))

        def add_3(payload: bytes = payload) -> object:
            return v3.encode_request(AddEntry(7, 5, key, codec.pack(5, 4, 9, payload)), 6)

        def read_2(read: bytes = read) -> None:
            for frame in reader.feed(read):
                _, response = v2.decode_response(frame)
                assert isinstance(response, EntryRead)
                assert response.body is not None
                codec.unpack(5, response.body)

        for version, encode in (("v2", add_2), ("v3", add_3)):
            encoding = fastest(encode)
            aim = "about 5" if (version, size) == ("v2", 1024) else ""
            parts = {"encode": round(encoding, 2), "each answer": round(answers[version], 2)}
            total = encoding + REPLICAS * answers[version]
            made.append(Figure(f"add, {version}, {name}", total, "us", aim, parts))
        made.append(Figure(f"read, v2, {name}", fastest(read_2), "us"))
    return made


if __name__ == "__main__":
    store("ledger_codecs", figures(), sys.argv)
