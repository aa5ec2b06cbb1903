"""The numbers of producer names: verdicts, chunks, fall-back, eviction, snapshots."""

from magnetar.broker.publish.sequence_numbers import (
    SEQUENCE_MAX,
    Chunk,
    Deduplication,
    Numbers,
    Verdict,
    chunk_of,
    is_gapless,
)
from magnetar.storage.entries import EntryFlags
from magnetar.wire.metadata import span
from magnetar.wire.pulsar_pb2 import MessageMetadata
from tests.support.geoworld import World

NEW, DUPLICATE, UNKNOWN = Verdict.NEW, Verdict.DUPLICATE, Verdict.UNKNOWN


def metadata(sequence: int, **fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1, **fields)


def test_the_three_verdicts() -> None:
    numbers = Numbers()
    assert numbers.judge(0, 0) is NEW
    assert numbers.judge(0, 0) is UNKNOWN
    numbers.persist(numbers.mark())
    assert numbers.judge(0, 0) is DUPLICATE
    assert numbers.judge(5, 5) is NEW  # gaps are allowed
    assert numbers.judge(3, 3) is UNKNOWN  # going back is not
    numbers.fail()
    assert (numbers.pushed, numbers.persisted) == (0, 0)
    assert numbers.judge(3, 3) is NEW


def test_a_batch_counts_from_its_first_to_its_last() -> None:
    assert span(metadata(10)) == (10, 10)
    assert span(metadata(10, highest_sequence_id=17, num_messages_in_batch=3)) == (10, 17)
    assert span(metadata(10, num_messages_in_batch=3)) == (10, 12)
    numbers = Numbers()
    assert numbers.judge(10, 12) is NEW
    assert numbers.judge(10, 12) is UNKNOWN
    numbers.persist(numbers.mark())
    assert numbers.last == 12
    assert numbers.judge(10, 12) is DUPLICATE
    assert numbers.judge(13, 13) is NEW


def test_a_batch_that_has_all_ids_counts_with_its_last() -> None:
    """What repeats a part of it, as a task that packs the same rows into other batches, is a duplicate."""
    assert is_gapless(metadata(10, highest_sequence_id=12, num_messages_in_batch=3))
    assert is_gapless(metadata(10, highest_sequence_id=10))
    assert not is_gapless(metadata(10, highest_sequence_id=17, num_messages_in_batch=3))
    assert not is_gapless(metadata(10, num_messages_in_batch=3))
    numbers = Numbers()
    assert numbers.judge(10, 12, gapless=True) is NEW
    assert numbers.judge(12, 12) is UNKNOWN
    numbers.persist(numbers.mark())
    assert numbers.judge(11, 12, gapless=True) is DUPLICATE
    again = Numbers()
    again.observe(10, 12, gapless=True)
    assert again.judge(12, 12) is DUPLICATE
    assert again.judge(13, 13) is NEW


def test_batches_by_key_lie_between_each_other() -> None:
    """With ids 1 to 6 and three keys: 1 and 4, 2 and 6, 3 and 5. None of them is a duplicate of one before it."""
    numbers = Numbers()
    flush = [(1, 4), (2, 6), (3, 5)]
    assert [numbers.judge(low, high) for low, high in flush] == [NEW] * 3
    assert numbers.last == -1
    numbers.persist(numbers.mark())
    assert numbers.last == 6
    assert [numbers.judge(low, high) for low, high in flush] == [DUPLICATE] * 3
    assert numbers.judge(7, 7) is NEW


def test_the_end_of_a_batch_that_failed_is_not_told() -> None:
    """A client that begins after it would leave out the messages of the batch."""
    numbers = Numbers()
    assert numbers.judge(1, 1) is NEW
    numbers.persist(before := numbers.mark())
    for undo in (numbers.fail, lambda: numbers.go_back(before)):
        assert numbers.judge(2, 9) is NEW
        undo()
        assert numbers.judge(2, 2) is NEW
        numbers.persist(numbers.mark())
        assert numbers.last == 2
        numbers.persisted = numbers.pushed = 1


def test_a_snapshot_knows_the_end_of_the_last_batch() -> None:
    names = Deduplication(producers_max=10, inactive_ms=100)
    one = names.attach("one", 0)
    one.judge(7, 9)
    one.persist(one.mark())
    ids, labels = names.snapshot()
    assert (ids, labels) == ({"one": 7}, {"one": "end 9"})
    again = Deduplication(producers_max=10, inactive_ms=100)
    again.load(ids, labels, 5)
    back = again.attach("one", 6)
    assert (back.persisted, back.last) == (7, 9)
    again.validate()


def test_only_large_messages_have_chunks() -> None:
    chunked = metadata(1, uuid="u", num_chunks_from_msg=3, total_chunk_msg_size=9, chunk_id=2)
    assert chunk_of(EntryFlags.CHUNK, chunked) == Chunk("u", 2, True)
    chunked.chunk_id = 0
    assert chunk_of(EntryFlags.CHUNK, chunked) == Chunk("u", 0, False)
    assert chunk_of(0, chunked) is None
    assert chunk_of(EntryFlags.CHUNK, metadata(1, uuid="u", num_chunks_from_msg=1)) is None


def test_a_large_message_cut_in_two_is_completed() -> None:
    numbers = Numbers()
    first, second, third = (Chunk("u", n, n == 2) for n in range(3))
    assert numbers.judge(4, 4, first) is NEW
    numbers.persist(numbers.mark())
    assert numbers.judge(4, 4, second) is NEW
    numbers.fail()
    # It comes again from its start: the first chunk is there, the second is not.
    assert [numbers.judge(4, 4, chunk) for chunk in (first, second, third)] == [DUPLICATE, NEW, NEW]
    numbers.persist(numbers.mark())
    assert numbers.parts is None
    assert [numbers.judge(4, 4, chunk) for chunk in (first, third)] == [DUPLICATE, DUPLICATE]


def test_another_attempt_at_a_large_message_begins_anew() -> None:
    numbers = Numbers()
    assert numbers.judge(4, 4, Chunk("u", 0, False)) is NEW
    numbers.persist(numbers.mark())
    assert numbers.judge(4, 4, Chunk("v", 0, False)) is NEW
    assert numbers.judge(4, 4, Chunk("v", 1, True)) is NEW
    numbers.persist(numbers.mark())
    assert numbers.parts is None
    assert numbers.judge(4, 4, Chunk("u", 1, True)) is DUPLICATE


def test_what_could_not_be_appended_goes_back() -> None:
    numbers = Numbers()
    numbers.judge(1, 1)
    before = numbers.mark()
    numbers.judge(2, 2)
    numbers.judge(3, 3, Chunk("u", 0, False))
    numbers.go_back(before)
    assert numbers.judge(2, 2) is NEW
    assert numbers.judge(3, 3, Chunk("u", 0, False)) is NEW


def test_names_are_evicted_oldest_first_and_never_while_in_use() -> None:
    told: list[tuple[int, str]] = []
    names = Deduplication(producers_max=3, inactive_ms=100, on_evicted=lambda count, why: told.append((count, why)))
    names.attach("live", 0)
    for number, name in enumerate("ab"):
        names.observe(name, number, number, None, number)
    names.of("a", 5)
    names.observe("c", 9, 9, None, 6)
    assert told == [(1, "limit")]
    assert [name for name, _ in names] == ["live", "a", "c"]
    assert names.expire(104) == 0
    assert names.expire(105) == 1
    assert names.expire(10_000) == 1
    assert [name for name, _ in names] == ["live"]
    names.detach("live", 10_000)
    assert names.expire(10_100) == 1
    assert told == [(1, "limit"), (1, "inactive"), (1, "inactive"), (1, "inactive")]


def test_a_snapshot_holds_what_the_log_has() -> None:
    names = Deduplication(producers_max=10, inactive_ms=100)
    one = names.attach("one", 0)
    one.judge(7, 9)
    one.persist(one.mark())
    one.judge(10, 10, Chunk("u u", 0, False))
    one.persist(one.mark())
    one.judge(10, 10, Chunk("u u", 1, False))
    names.attach("nothing yet", 0)
    ids, under_way = names.snapshot()
    assert (ids, under_way) == ({"one": 7}, {"one": "10 0 u u"})
    again = Deduplication(producers_max=10, inactive_ms=100)
    again.load(ids, under_way | {"broken": "x"}, 5)
    back = again.attach("one", 6)
    assert back.persisted == 7
    assert back.judge(7, 9) is DUPLICATE
    assert back.judge(10, 10, Chunk("u u", 0, False)) is DUPLICATE
    assert back.judge(10, 10, Chunk("u u", 1, False)) is NEW
    again.validate()
    again.clear()
    assert len(again) == 0
    assert again.get("one") is None


def test_the_largest_number_fits() -> None:
    numbers = Numbers()
    assert numbers.judge(SEQUENCE_MAX, SEQUENCE_MAX) is NEW


def test_what_the_broker_does_by_itself_is_told() -> None:
    assert World("a")["a"].control.policies.default("deduplication") is False
