"""A segment that this process wrote is indexed from its records' heads: the same index as from all of its bytes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.core.ids import NONE, Position
from magnetar.storage.entries import StoredEntry
from magnetar.storage.records import SEGMENT_MAGIC, pack_check, pack_entry_head, pack_ledger, pack_start
from magnetar.storage.segments.index import encode_index
from magnetar.storage.segments.scanning import HEAD_BYTES, Scanner

STEP = 16 * 1024

sizes = st.one_of(
    st.integers(0, 200),
    st.integers(HEAD_BYTES - 100, HEAD_BYTES + 100),
    st.integers(STEP - 200, STEP + 200),
    st.integers(0, 4 * STEP),
)
cycles = st.lists(
    st.tuples(
        st.booleans(),  # a check in front
        st.booleans(),  # a ledger is opened
        st.lists(st.tuples(st.sampled_from(["", "", "west", "e" * 255]), sizes), min_size=1, max_size=4),
    ),
    max_size=12,
)


def segment(drawn: list[tuple[bool, bool, list[tuple[str, int]]]]) -> bytes:
    data = bytearray(SEGMENT_MAGIC + pack_start(3, b"saltsalt", 99))
    ledger, entry, index = 100, 0, 0
    for checked, opened, entries in drawn:
        if checked:
            data += pack_check(b"saltsalt", len(data))
        if opened or not entry:
            ledger, entry = ledger + 1, 0
            data += pack_ledger(ledger, 7, 5, "persistent://public/default/" + "t" * (ledger % 200))
        for origin, size in entries:
            head = (ledger, entry, 0, 2, 1_000 + index, 2_000 + index)
            if origin:
                stored = StoredEntry(*head, origin, 9, index, Position(4, index), bytes(size))
            else:
                stored = StoredEntry(*head, "", 0, index, NONE, bytes(size))
            data += pack_entry_head(stored) + stored.data
            entry, index = entry + 1, index + 2
    return bytes(data)


@settings(max_examples=200, deadline=None)
@given(drawn=cycles, step=st.integers(HEAD_BYTES, 2 * STEP))
def test_heads_alone_give_the_same_index(drawn: list[tuple[bool, bool, list[tuple[str, int]]]], step: int) -> None:
    data = segment(drawn)

    def pread(offset: int, size: int) -> bytes:
        return data[offset : offset + size]

    whole = Scanner(3, pread, len(data)).run()
    assert not whole.problems
    trusted = Scanner(3, pread, len(data), verify=False)
    while not trusted.done:
        before = trusted.offset
        trusted.step(step)
        assert trusted.offset > before
    assert encode_index(trusted.index) == encode_index(whole)


def test_what_large_records_hold_is_not_read() -> None:
    """It was: a megabyte and a quarter for each message of a megabyte, on the thread that has publishes to store."""
    data = segment([(True, False, [("", 1_000_000)]) for _ in range(20)])
    read = 0

    def pread(offset: int, size: int) -> bytes:
        nonlocal read
        read += size
        return data[offset : offset + size]

    scanner = Scanner(3, pread, len(data), verify=False)
    while not scanner.done:
        scanner.step(256 * 1024)
    assert len(scanner.index.pieces[0].offsets) == 20
    assert read <= 256 * 1024 + 20 * HEAD_BYTES
