import time

import pytest

from magnetar.core.errors import StorageError
from magnetar.core.ids import EARLIEST, LATEST, NONE, Position
from magnetar.storage.cursor import Cursor, before, bits_of, words_of
from magnetar.storage.positions import PositionSet
from magnetar.storage.topiclog import Retention, TopicLog
from tests.support.subscriptions import FIRST_LEDGER, add_entries, entry, new_log


def at(number: int, ledger: int = FIRST_LEDGER) -> Position:
    return Position(ledger, number)


def log_of(*shape: str) -> TopicLog:
    """A log with one ledger per text: `.` a message, `m` a marker, a digit a batch of so many."""
    log = new_log()
    for ledger in shape:
        add_entries(log, [entry(marker=True) if c == "m" else entry(count=int(c) if c != "." else 1) for c in ledger])
        log.roll(0)
    return log


def test_acknowledging_in_order_moves_mark_delete() -> None:
    cursor = Cursor.at(log_of("..."), EARLIEST)
    assert cursor.ack([at(0)]) == 1
    assert cursor.mark_delete == at(0)
    assert cursor.in_order
    assert cursor.dirty
    assert cursor.backlog_entries() == 2


def test_holes_are_remembered_and_closed() -> None:
    cursor = Cursor.at(log_of("......"), EARLIEST)
    assert cursor.ack([at(1), at(2), at(4)]) == 3
    assert cursor.mark_delete == NONE
    assert list(cursor.acked.runs()) == [(at(1), at(2)), (at(4), at(4))]
    assert cursor.backlog_entries() == 3
    cursor.ack([at(0)])
    assert cursor.mark_delete == at(2)
    cursor.ack([at(3)])
    assert cursor.mark_delete == at(4)
    cursor.validate()


def test_runs_merge_across_ledgers() -> None:
    cursor = Cursor.at(log_of("..", "..", ".."), EARLIEST)
    cursor.ack([at(0, 102), at(0, 101), at(1, 101), at(1)])
    assert cursor.mark_delete == NONE
    cursor.ack([at(0)])
    assert cursor.mark_delete == at(0, 102)
    assert cursor.in_order


def test_what_is_acknowledged_twice_or_is_no_entry_changes_nothing() -> None:
    cursor = Cursor.at(log_of("..."), EARLIEST)
    cursor.ack([at(0), at(2)])
    cursor.encode()
    strange = [at(0), at(2), at(3), at(7), at(-1), at(0, 5), Position(2**64 - 1, 2**64 - 1), Position(-1, -1)]
    assert cursor.ack(strange) == 0
    assert not cursor.dirty


@pytest.mark.parametrize("shape", [("m..",), (".mm.", "m."), ("..m",), ("m", "m", ".")])
def test_markers_are_no_backlog_and_make_no_holes(shape: tuple[str, ...]) -> None:
    log = log_of(*shape)
    cursor = Cursor.at(log, EARLIEST)
    assert cursor.backlog_entries() == cursor.backlog_messages() == "".join(shape).count(".")
    position = log.next_after(NONE)
    while position is not None:
        cursor.ack([position])
        assert not cursor.acked
        cursor.validate()
        position = log.next_after(position)
    assert cursor.mark_delete == log.last


def test_a_marker_that_arrives_next_to_mark_delete_is_stepped_over_without_being_dirty() -> None:
    log = log_of(".")
    cursor = Cursor.at(log, LATEST)
    add_entries(log, [entry(marker=True), entry(marker=True)])
    assert cursor.step_over_markers()
    assert cursor.mark_delete == log.last
    assert not cursor.dirty
    assert not cursor.step_over_markers()


def test_a_marker_behind_an_unacknowledged_entry_waits_for_it() -> None:
    log = log_of(".m.")
    cursor = Cursor.at(log, EARLIEST)
    assert cursor.ack([at(1)]) == 0
    cursor.ack([at(2)])
    assert cursor.mark_delete == NONE
    cursor.ack([at(0)])
    assert cursor.mark_delete == at(2)


def test_acknowledging_in_order_over_a_marker_touches_no_bitmap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker that stands between messages is stepped over by mark-delete itself: the messages behind it are in order."""
    log = log_of("..m...m.", "mm..")
    cursor = Cursor.at(log, EARLIEST)
    cursor.ack([at(0)])  # the first of a ledger
    added: list[tuple[int, int]] = []
    monkeypatch.setattr(PositionSet, "add", lambda _self, ledger, entry: added.append((ledger, entry)))
    assert cursor.ack([at(1), at(3), at(4), at(5), at(7)]) == 5
    assert not added
    assert cursor.mark_delete == at(1, FIRST_LEDGER + 1)
    cursor.validate()


def test_cumulative() -> None:
    cursor = Cursor.at(log_of("....", "...."), EARLIEST)
    cursor.ack([at(1), at(1, 101), at(2, 101)])
    assert cursor.ack_up_to(at(0, 101))
    assert cursor.mark_delete == at(2, 101)
    assert cursor.backlog_entries() == 1
    assert not cursor.ack_up_to(at(1))
    cursor.validate()


def test_cumulative_behind_the_newest_entry_is_refused() -> None:
    cursor = Cursor.at(log_of(".."), EARLIEST)
    assert not cursor.ack_up_to(at(2))
    assert not cursor.ack_up_to(Position(2**63 - 1, 2**63 - 1))
    assert cursor.mark_delete == NONE


def test_cumulative_to_a_number_that_a_ledger_does_not_have_means_all_of_it() -> None:
    cursor = Cursor.at(log_of("..", ".."), EARLIEST)
    assert cursor.ack_up_to(at(77))
    assert cursor.backlog_entries() == 2
    cursor.ack([at(0, 101)])
    assert cursor.mark_delete == at(0, 101)


def test_messages_of_a_batch_are_acknowledged_by_and() -> None:
    cursor = Cursor.at(log_of("4."), EARLIEST)
    assert cursor.ack_indexes(at(0), 0b0111) == 1
    assert cursor.ack_indexes(at(0), 0b1110) == 1
    assert cursor.ack_indexes(at(0), 0b1110) == 0
    assert cursor.partial[at(0)].bits == 0b0110
    assert cursor.backlog_messages() == 3
    assert cursor.backlog_entries() == 2
    assert cursor.ack_indexes(at(0), 0b1001) == 2
    assert cursor.mark_delete == at(0)
    assert not cursor.partial
    assert cursor.backlog_messages() == 1


def test_bits_beyond_the_batch_mean_nothing() -> None:
    cursor = Cursor.at(log_of("3"), EARLIEST)
    assert cursor.ack_indexes(at(0), (1 << 64) - 1) == 0
    assert cursor.ack_indexes(at(0), 0b11000) == 3
    assert cursor.mark_delete == at(0)


def test_a_whole_acknowledgement_ends_a_partial_one() -> None:
    cursor = Cursor.at(log_of("3.3"), EARLIEST)
    cursor.ack_indexes(at(0), 0b100)
    cursor.ack_indexes(at(2), 0b100)
    cursor.ack([at(0)])
    cursor.ack([at(2)])
    assert not cursor.partial
    assert cursor.backlog_messages() == 1
    cursor.validate()


def test_cumulative_within_a_batch() -> None:
    cursor = Cursor.at(log_of("3.5"), EARLIEST)
    cursor.ack_indexes(at(0), 0b100)
    assert cursor.ack_up_to(at(2), 0b11100)
    assert cursor.mark_delete == at(1)
    assert cursor.partial[at(2)].bits == 0b11100
    assert cursor.backlog_messages() == 3
    assert cursor.ack_up_to(at(2))
    assert cursor.mark_delete == at(2)
    cursor.validate()


def test_cumulative_with_nothing_of_its_own_batch_acknowledged() -> None:
    cursor = Cursor.at(log_of(".3."), EARLIEST)
    assert cursor.ack_up_to(at(1), 0b111)
    assert cursor.mark_delete == at(0)
    assert not cursor.ack_up_to(at(1), 0b111)
    assert cursor.backlog_messages() == 4


def test_a_marker_in_a_list_of_ids_does_not_count() -> None:
    cursor = Cursor.at(log_of(".m."), EARLIEST)
    assert cursor.ack([at(0), at(1)]) == 1
    assert cursor.mark_delete == at(1)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (EARLIEST, NONE),
        (LATEST, at(1, 101)),
        (at(1), at(0)),
        (at(0, 101), at(-1, 101)),
        (at(9), at(-1, 101)),
        (at(0, 50), at(-1)),
        (at(7, 101), at(1, 101)),
        (at(0, 200), at(1, 101)),
    ],
)
def test_reset_follows_pulsars_rules(position: Position, expected: Position) -> None:
    log = log_of("...", "..")
    assert before(log, position) == expected
    cursor = Cursor.at(log, LATEST)
    cursor.reset(position)
    assert cursor.mark_delete == expected
    assert cursor.dirty


def test_reset_forgets_holes_and_can_mark_messages_of_its_batch() -> None:
    cursor = Cursor.at(log_of(".4.."), EARLIEST)
    cursor.ack([at(3)])
    cursor.reset(at(1), 0b1100)
    assert cursor.mark_delete == at(0)
    assert not cursor.acked
    assert cursor.partial[at(1)].bits == 0b1100
    assert cursor.backlog_messages() == 4
    cursor.validate()


def test_on_an_empty_log() -> None:
    log = new_log()
    for start in (EARLIEST, LATEST, at(5)):
        cursor = Cursor.at(log, start)
        assert cursor.mark_delete == NONE
        assert cursor.backlog_entries() == cursor.backlog_messages() == 0
        assert not cursor.ack_up_to(at(0))


def test_encode_and_decode() -> None:
    log = log_of("......", "m8..")
    cursor = Cursor(log, at(0), {"pulsar.replicated.subscription": 1, "ünï": -5}, {"team": "blue"})
    cursor.ack([at(2), at(3), at(5), at(3, 101)])
    cursor.ack_indexes(at(1, 101), 0b10000001)
    data = cursor.encode()
    assert not cursor.dirty
    again = Cursor.decode(log, data)
    assert again.mark_delete == at(0)
    assert list(again.acked) == list(cursor.acked)
    assert again.partial == cursor.partial
    assert again.properties == cursor.properties
    assert again.labels == cursor.labels
    assert again.backlog_messages() == cursor.backlog_messages()
    assert not again.dirty
    again.validate()
    assert again.encode() == data


def test_decoding_steps_over_markers_that_came_meanwhile() -> None:
    log = log_of(".")
    cursor = Cursor.at(log, LATEST)
    data = cursor.encode()
    add_entries(log, [entry(marker=True)])
    assert Cursor.decode(log, data).mark_delete == log.last


def test_decoding_when_ledgers_are_gone() -> None:
    log = log_of("...", "3..", "...")
    cursor = Cursor.at(log, EARLIEST)
    cursor.ack([at(1), at(1, 101), at(1, 102)])
    cursor.ack_indexes(at(0, 101), 0b1)
    data = cursor.encode()
    trim = log.trim(None, 0, Retention(0, 0))
    assert trim is not None
    assert trim.ledgers == [100, 101]
    log.forget(trim)
    again = Cursor.decode(log, data)
    again.validate()
    assert not again.partial
    assert list(again.acked) == [at(1, 102)]
    assert again.backlog_messages() == 2


@pytest.mark.parametrize("cut", [0, 1, 4, 20, -1])
def test_a_damaged_record_is_refused_in_one_line(cut: int) -> None:
    log = log_of("....")
    cursor = Cursor.at(log, EARLIEST)
    cursor.ack([at(2)])
    with pytest.raises(StorageError, match="stored cursor") as refused:
        Cursor.decode(log, cursor.encode()[:cut])
    assert "\n" not in str(refused.value)


def test_a_flipped_bit_is_found() -> None:
    log = log_of("....")
    data = bytearray(Cursor.at(log, EARLIEST).encode())
    data[5] ^= 1
    with pytest.raises(StorageError, match="checksum"):
        Cursor.decode(log, bytes(data))


def test_another_version_is_refused() -> None:
    with pytest.raises(StorageError, match="version 9"):
        Cursor.decode(new_log(), b"\x09abcdefgh")


def test_of_too_many_holes_the_lowest_are_stored_and_the_rest_is_counted() -> None:
    log = new_log()
    add_entries(log, [entry() for _ in range(40)])
    cursor = Cursor.at(log, EARLIEST)
    cursor.ack([at(number) for number in range(1, 40, 2)])
    again = Cursor.decode(log, cursor.encode(runs_max=5))
    assert cursor.runs_left_out == 15
    assert list(again.acked) == [at(number) for number in (1, 3, 5, 7, 9)]
    assert len(cursor.acked) == 20
    cursor.encode()
    assert cursor.runs_left_out == 0


def test_of_too_many_partial_batches_the_lowest_are_stored() -> None:
    cursor = Cursor.at(log_of("2222"), EARLIEST)
    for number in (3, 1, 2):
        cursor.ack_indexes(at(number), 1)
    data = cursor.encode(partials_max=2)
    assert cursor.partials_left_out == 1
    assert sorted(Cursor.decode(cursor._log, data).partial) == [at(1), at(2)]


@pytest.mark.parametrize("bytes_max", [0, 40, 80, 200, 100_000])
def test_of_too_many_bytes_the_lowest_are_stored(bytes_max: int) -> None:
    """A store may take no more; its refusal would make no acknowledgement durable at all."""
    log = log_of(*["2." * 20] * 3)
    cursor = Cursor.at(log, EARLIEST)
    ids = log.ledger_ids()
    cursor.ack([Position(ledger, number) for ledger in ids for number in range(1, 40, 4)])
    for number in range(2, 40, 4):
        cursor.ack_indexes(Position(ids[-1], number), 1)
    whole = len(cursor.encode(bytes_max=0))
    data = cursor.encode(bytes_max=bytes_max)
    left_out = cursor.runs_left_out, cursor.partials_left_out
    assert len(data) <= whole + bytes_max
    again = Cursor.decode(log, data)
    assert again.acked.count_runs() + left_out[0] == cursor.acked.count_runs()
    assert list(again.acked) == list(cursor.acked)[: len(again.acked)]
    assert sorted(again.partial) == sorted(cursor.partial)[: len(cursor.partial) - left_out[1]]
    assert len(again.partial) + left_out[1] == len(cursor.partial)
    if bytes_max == 100_000:
        assert left_out == (0, 0)


def test_ack_sets_are_signed_little_endian_words() -> None:
    assert bits_of([-1]) == 2**64 - 1
    assert bits_of([0, 1]) == 2**64
    assert words_of(2**64 - 1) == [-1]
    assert words_of(1 << 63) == [-(2**63)]
    assert words_of(0) == []
    assert bits_of(words_of(0xF0F0 << 60)) == 0xF0F0 << 60
    assert bits_of([]) == 0


def test_a_long_ack_set_takes_as_much_time_as_it_has_words() -> None:
    """As many as an ACK of 160 KB has: adding up numbers took more than five seconds of the event loop."""
    began = time.thread_time()
    assert bits_of([1] * 80_000) == int.from_bytes(bytes([1, *[0] * 7]) * 80_000, "little")
    assert time.thread_time() - began < 2


@pytest.mark.parametrize("entry_id", [-1, 1 << 32, (1 << 64) - 1])
def test_ids_that_no_entry_can_have_are_no_members(entry_id: int) -> None:
    held = PositionSet()
    held.add(100, 5)
    assert Position(100, entry_id) not in held
    assert not held.discard(100, entry_id)
    cursor = Cursor.at(log_of(".........."), EARLIEST)
    cursor.ack([at(5)])
    assert cursor.ack([at(entry_id)]) == 0
    assert cursor.ack_indexes(at(entry_id), 1) == 0
    assert entry_id < 0 or not cursor.ack_up_to(at(entry_id))
