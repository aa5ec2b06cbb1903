"""Reading one record back: local ones take a short way, which must judge like the long one."""

import os

import pytest

from magnetar.core.ids import NONE, Position
from magnetar.storage.entries import StoredEntry
from magnetar.storage.records import pack_entry_head, read_entry

LOCAL = StoredEntry(7, 3, 9, 2, 1_700_000_000_000, 1_700_000_000_001, "", 0, 41, NONE, os.urandom(50))
FOREIGN = LOCAL._replace(origin="jfk", incarnation=5, source=Position(11, 12))


@pytest.mark.parametrize("entry", [LOCAL, FOREIGN, LOCAL._replace(data=b""), FOREIGN._replace(data=b"")])
def test_a_record_comes_back_whole_or_not_at_all(entry: StoredEntry) -> None:
    record = pack_entry_head(entry) + entry.data
    block = bytearray(b"\xff" * 13 + record + b"\xff" * 13)
    assert read_entry(memoryview(block), 13, len(record)) == entry
    for wrong in (len(record) - 1, len(record) + 1):
        assert read_entry(memoryview(block), 13, wrong) is None
    assert read_entry(memoryview(block)[: 13 + len(record) - 1], 13, len(record)) is None
    for at in range(13, 13 + len(record)):
        for bit in (1, 128):
            block[at] ^= bit
            assert read_entry(memoryview(block), 13, len(record)) is None, at - 13
            block[at] ^= bit
