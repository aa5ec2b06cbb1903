"""Which confirmations a long batch reports to its source soon, and which may wait for others."""

from magnetar.core.ids import Position
from magnetar.pipeline import messages as m
from magnetar.pipeline.long.fetched_topics import PROMPT_BYTES, FetchedTopic, LinkProgress
from magnetar.pipeline.tasks.append_request import AppendRequest
from magnetar.wire import pulsar_pb2 as pb

BEFORE = Position(1, 0)


def link() -> LinkProgress:
    totals = pb.GeoFetchTotals(task=1, messages=0, bytes=0, duplicates=0)
    return LinkProgress(m.Route(0, "a", "b", "a:1", "b:1", "uuid"), totals, lambda: 0)


def topic_of(progress: LinkProgress) -> FetchedTopic:
    found, _ = progress.topic("t", 1, 1, 0, 0, BEFORE, "uuid")
    return found


def sent(topic: FetchedTopic, entry: int, *, size: int = 10, timed: bool = False) -> AppendRequest:
    """One entry is sent, and was all of an answer."""
    append = topic.append([1], [entry], [entry], [1], [size], 0, memoryview(bytes(size)))
    topic.looked_to(Position(1, entry), timed=timed)
    return append


def test_a_small_confirmation_waits() -> None:
    progress = link()
    topic = topic_of(progress)
    topic.confirmed(sent(topic, 1), 0)
    assert (list(progress.dirty), progress.prompt) == (["t"], False)


def test_an_entry_that_the_source_times_is_reported_soon_and_no_entry_before_it() -> None:
    progress = link()
    topic = topic_of(progress)
    first, timed, last = sent(topic, 1), sent(topic, 2, timed=True), sent(topic, 3)
    topic.confirmed(first, 0)
    assert not progress.prompt
    topic.confirmed(timed, 0)
    assert progress.prompt
    assert [commit.cursor.c.entry for commit in progress.take_commits().values()] == [2]
    topic.confirmed(last, 0)
    assert not progress.prompt, "it was reported"


def test_later_entries_do_not_delay_the_report_of_the_one_that_is_timed() -> None:
    progress = link()
    topic = topic_of(progress)
    appends = [sent(topic, entry, timed=True) for entry in (1, 2, 3)]
    topic.confirmed(appends[0], 0)
    assert progress.prompt


def test_many_bytes_are_reported_soon() -> None:
    progress = link()
    topic = topic_of(progress)
    half = PROMPT_BYTES // 2
    topic.confirmed(sent(topic, 1, size=half), 0)
    assert not progress.prompt
    topic.confirmed(sent(topic, 2, size=half), 0)
    assert progress.prompt
    progress.take_commits()
    topic.confirmed(sent(topic, 3, size=half), 0)
    assert not progress.prompt, "what was reported counts no more"


def test_a_topic_that_is_given_back_is_reported_soon() -> None:
    progress = link()
    topic_of(progress).fail(m.RETRY, "a reason")
    assert progress.prompt
