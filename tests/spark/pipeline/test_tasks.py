"""Both halves of a task against clusters in memory, over real sockets, without Spark: the filter between them is ours.

What is checked is control-row arithmetic and the chain of p: whatever is filtered out, in whatever pieces, however often
a task runs, the destination holds the wanted entries once and in order, and the cursor ends behind what was looked at.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.core.ids import NONE, Position
from magnetar.jobs.verify_listing import ENTRY as LISTED
from magnetar.jobs.verify_listing import Part, list_parts
from magnetar.pipeline import messages as m
from magnetar.pipeline.columns import ENTRY, decoded_columns, keep
from magnetar.pipeline.rows import arrow_schema
from magnetar.pipeline.tasks import task_read
from magnetar.pipeline.tasks.direct import task_rows
from magnetar.pipeline.tasks.link_channel import LinkChannel, call
from magnetar.pipeline.tasks.pace import Pace
from magnetar.pipeline.tasks.task_read import read_task
from magnetar.pipeline.tasks.task_write import SENT_COLUMNS, LinkSink
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb
from tests.spark.fakes import TOKEN, FakeCluster, entry_bytes

TOPIC = "persistent://public/default/t"


@pytest.fixture(params=["near", "far"])
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeCluster, FakeCluster]]:
    """Two clusters. If they are far, a range takes many reads that follow each other, eight at a time."""
    a, b = FakeCluster("a").start(), FakeCluster("b").start()
    if request.param == "far":
        monkeypatch.setattr(Pace, "window", lambda _self, _round_trip_s, _now_s, _least, most: min(4_000, most))
        monkeypatch.setattr(task_read, "READ_BYTES_MAX", 500)
    yield a, b
    a.stop()
    b.stop()


def fresh(address: str, token: str) -> LinkChannel:
    return LinkChannel(address, token)


def task(a: FakeCluster, b: FakeCluster, *, topics: tuple[str, ...] = (TOPIC,), bytes_max: int = 1 << 30) -> m.Task:
    """One task for what is behind the cursors."""
    route = m.Route(0, "a", "b", a.address, b.address, a.uuid)
    ranges = []
    for number, name in enumerate(topics):
        topic = a.topics[name]
        c, s, gen = topic.cursors["b"].c, topic.cursors["b"].s, topic.cursors["b"].gen
        ranges.append(
            m.Range(number, 0, name, topic.incarnation, gen, m.pair(c), m.pair(s), m.pair(topic.last), bytes_max)
        )
    return m.Task((route,), tuple(ranges))


def carry(
    work: m.Task,
    wanted: Callable[[dict[str, object]], bool] | None = None,
    *,
    rows_max: int = 10_000,
    append_bytes_max: int = 1 << 20,
    progress_ms: int = 5000,
) -> dict[str, m.RangeReport]:
    """Run one task as Spark would: read, filter, cut into batches of another size, write.

    Without a filter the writer reads the task itself.
    """
    sink = LinkSink(TOKEN, connect=fresh, append_bytes_max=append_bytes_max, progress_ms=progress_ms)
    filtered = frozenset[int]() if wanted is None else frozenset(route.link for route in work.routes)

    def read(part: m.Task) -> Iterator[pa.RecordBatch]:
        return read_task(part, TOKEN, connect=fresh, progress_ms=progress_ms)

    for whole in task_rows(work, (), filtered, read):
        batch = whole
        assert batch.schema.equals(arrow_schema())
        if wanted is not None:
            rows = batch.drop_columns(["data"]).to_pylist()
            batch = batch.filter(pa.array([row["kind"] != ENTRY or wanted(row) for row in rows]))
        for start in range(0, batch.num_rows, rows_max):
            sink.feed(batch.slice(start, rows_max).select(list(SENT_COLUMNS)))
    return {report.topic: report for report in sink.finish().ranges}


def settle(a: FakeCluster, reports: dict[str, m.RangeReport]) -> None:
    """What the coordinator does with a report: move the cursor."""
    for report in reports.values():
        cursor = a.topics[report.topic].cursors["b"]
        if report.c is not None and report.gen == cursor.gen and m.position(report.c) > cursor.c:
            cursor.c, cursor.s = m.position(report.c), max(cursor.s, m.position(report.s))


def filled(pair: tuple[FakeCluster, FakeCluster], count: int, size: int = 100) -> tuple[FakeCluster, FakeCluster]:
    a, b = pair
    a.create(TOPIC, links=("b",))
    b.create(TOPIC)
    for number in range(count):
        a.publish(TOPIC, entry_bytes(size, sequence=number))
    return a, b


def test_everything_arrives_once_and_in_order(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, b = filled(pair, 50)
    reports = carry(task(a, b))
    report = reports[TOPIC]
    assert b.identities(TOPIC, "a") == list(range(50))
    assert not b.violations
    assert report.done
    assert report.entries == report.messages == 50
    assert report.duplicates == 0
    assert report.c == report.s == m.pair(a.topics[TOPIC].last)
    assert [e.data for e in a.topics[TOPIC].log] != [], "the source keeps its log"


def test_the_bytes_are_the_clients_own(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, b = filled(pair, 3, size=70_000)
    carry(task(a, b), append_bytes_max=100_000)
    sums = {}
    for number, cluster in enumerate((a, b)):
        part = Part(0, number, 0, cluster.address, TOPIC, NONE, None, 0)
        (packed,) = list_parts([part], TOKEN, lambda *_: None)([0])
        sums[cluster.name] = np.frombuffer(packed.entries, LISTED)["sum"].tolist()
    assert sums["a"] == sums["b"]
    assert len(set(sums["a"])) == 3


def test_all_filtered_out_moves_c_and_never_s(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, b = filled(pair, 20)
    reports = carry(task(a, b), lambda row: False)
    assert reports[TOPIC].done
    assert reports[TOPIC].c == m.pair(a.topics[TOPIC].last)
    assert reports[TOPIC].s == (-1, -1)
    assert b.appends == 0
    settle(a, reports)
    a.publish(TOPIC, entry_bytes(10))
    reports = carry(task(a, b))  # with p = C it would be refused for ever (docs/design/links.md#sent-position)
    assert reports[TOPIC].done
    assert b.identities(TOPIC, "a") == [20]


def test_a_task_run_twice_stores_nothing_twice(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, b = filled(pair, 30)
    work = task(a, b)
    first, again = carry(work), carry(work)
    assert b.identities(TOPIC, "a") == list(range(30))
    assert not b.violations
    assert again[TOPIC].duplicates == 30, "and says as much"
    assert again[TOPIC].c == first[TOPIC].c


def test_a_late_task_behind_the_cursor_is_harmless(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, b = filled(pair, 10)
    late = task(a, b, bytes_max=1)
    settle(a, carry(task(a, b)))
    a.publish(TOPIC, entry_bytes(10))
    settle(a, carry(task(a, b)))
    carry(late)
    assert b.identities(TOPIC, "a") == list(range(11))
    assert not b.violations


def test_a_task_ahead_of_the_watermark_is_refused(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, b = filled(pair, 10)
    settle(a, carry(task(a, b, bytes_max=300)))
    b.lose_everything()
    b.create(TOPIC)
    reports = carry(task(a, b), append_bytes_max=200)
    assert reports[TOPIC].trouble == m.REFUSED
    assert reports[TOPIC].c is None
    assert b.identities(TOPIC, "a") == []


@settings(max_examples=40, deadline=None)
@given(
    kinds=st.lists(st.tuples(st.booleans(), st.integers(1, 400), st.sampled_from([(), ("b",), ("c",)])), max_size=30),
    rows_max=st.integers(1, 12),
    piece=st.integers(1, 900),
    range_bytes=st.integers(1, 3000),
    twice=st.lists(st.booleans(), min_size=1, max_size=5),
)
def test_any_filter_in_any_pieces_delivers_like_its_dumb_twin(
    kinds: list[tuple[bool, int, tuple[str, ...]]], rows_max: int, piece: int, range_bytes: int, twice: list[bool]
) -> None:
    a, b = FakeCluster("a").start(), FakeCluster("b").start()
    try:
        a.create(TOPIC, links=("b",))
        b.create(TOPIC)
        for number, (_, size, only_for) in enumerate(kinds):
            a.publish(TOPIC, entry_bytes(size, sequence=number), only_for=only_for)
        wanted = [n for n, (keeps, _, only_for) in enumerate(kinds) if keeps and only_for in {(), ("b",)}]
        last, step = a.topics[TOPIC].last, 0
        while a.topics[TOPIC].cursors["b"].c < last:
            before = a.topics[TOPIC].cursors["b"].c
            work = task(a, b, bytes_max=range_bytes)
            for _ in range(1 + twice[step % len(twice)]):
                reports = carry(
                    work, lambda row: kinds[row["first_index"]][0], rows_max=rows_max, append_bytes_max=piece
                )
                assert not reports[TOPIC].trouble
            settle(a, reports)
            assert a.topics[TOPIC].cursors["b"].c > before
            step += 1
        assert b.identities(TOPIC, "a") == wanted
        assert not b.violations
        sent = [entry.position for entry in a.topics[TOPIC].log if entry.first_index in wanted]
        assert a.topics[TOPIC].cursors["b"].s == (sent[-1] if sent else Position(-1, -1))
    finally:
        a.stop()
        b.stop()


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 400), max_size=40),
    rows_max=st.integers(1, 6),
    piece=st.integers(1, 1500),
    range_bytes=st.integers(1, 4000),
)
def test_the_writer_delivers_what_it_reads_itself_as_it_delivers_rows(
    sizes: list[int], rows_max: int, piece: int, range_bytes: int
) -> None:
    a, b = FakeCluster("a").start(), FakeCluster("b").start()
    try:
        a.create(TOPIC, links=("b",))
        b.create(TOPIC)
        for number, size in enumerate(sizes):
            a.publish(TOPIC, entry_bytes(size, sequence=number), only_for=("c",) if size % 7 == 0 else ())
        last = a.topics[TOPIC].last
        sent = 0
        while a.topics[TOPIC].cursors["b"].c < last:
            work = task(a, b, bytes_max=range_bytes)
            rows = carry(work, lambda row: True, rows_max=rows_max, append_bytes_max=piece)[TOPIC]
            itself = carry(work, rows_max=rows_max, append_bytes_max=piece)[TOPIC]
            assert (itself.c, itself.s, itself.messages, itself.bytes) == (rows.c, rows.s, rows.messages, rows.bytes)
            assert itself.oldest_publish_ms == rows.oldest_publish_ms
            assert (rows.duplicates, itself.duplicates) == (0, itself.entries)
            sent += itself.entries
            settle(a, {TOPIC: itself})
        assert b.identities(TOPIC, "a") == [number for number, size in enumerate(sizes) if size % 7]
        assert sent == len(b.identities(TOPIC, "a"))
        assert not b.violations
    finally:
        a.stop()
        b.stop()


def test_many_topics_in_one_task_and_one_of_them_blocked(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, b = pair
    names = tuple(f"{TOPIC}-{number}" for number in range(40))
    for name in names:
        a.create(name, links=("b",))
        b.create(name)
        for number in range(3):
            a.publish(name, entry_bytes(10, sequence=number))
    b.block[names[7]] = ("size", "too large")
    reports = carry(task(a, b, topics=names))
    assert {name for name, report in reports.items() if not report.done} == {names[7]}
    assert (reports[names[7]].trouble, reports[names[7]].kind, reports[names[7]].c) == (m.BLOCKED, "size", None)
    assert all(b.identities(name, "a") == [0, 1, 2] for name in names if name != names[7])


def test_a_failed_append_is_tried_again_from_what_was_confirmed(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, b = filled(pair, 10)
    b.append_hook = lambda asked: setattr(b, "fail_appends", int(b.appends == 2))
    reports = carry(task(a, b), lambda row: True, append_bytes_max=250)
    assert reports[TOPIC].trouble == m.RETRY
    held = b.identities(TOPIC, "a")
    assert reports[TOPIC].c == reports[TOPIC].s == m.pair(a.topics[TOPIC].log[len(held) - 1].position)
    b.append_hook = None
    settle(a, reports)
    carry(task(a, b))
    assert b.identities(TOPIC, "a") == list(range(10))
    assert not b.violations


def test_an_answer_that_is_not_persisted_confirms_nothing(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, b = filled(pair, 5)
    b.hasty = True
    reports = carry(task(a, b))
    assert reports[TOPIC].trouble == m.RETRY
    assert reports[TOPIC].c is None


def test_a_dead_destination_is_reported_and_does_not_stop_the_others() -> None:
    a, b, c = FakeCluster("a").start(), FakeCluster("b").start(), FakeCluster("c").start()
    try:
        a.create(TOPIC, links=("b", "c"))
        b.create(TOPIC)
        c.create(TOPIC)
        for number in range(5):
            a.publish(TOPIC, entry_bytes(100, sequence=number))
        c.silent = True
        toward_b = task(a, b)
        routes = (*toward_b.routes, m.Route(1, "a", "c", a.address, c.address, a.uuid))
        [part] = toward_b.ranges
        other = m.Range(1, 1, part.topic, part.incarnation, part.gen, part.after, part.s, part.up_to, part.bytes_max)
        sink = LinkSink(TOKEN, connect=fresh, progress_ms=300)
        for batch in read_task(m.Task(routes, (part, other)), TOKEN, connect=fresh):
            sink.feed(batch)
        reports = {report.link: report for report in sink.finish().ranges}
        assert reports[0].done
        assert b.identities(TOPIC, "a") == list(range(5))
        assert reports[1].trouble == m.TARGET_DOWN
        assert reports[1].c is None
        assert "no progress" in reports[1].reason
    finally:
        for cluster in (a, b, c):
            cluster.silent = False
            cluster.stop()


def test_a_dead_source_closes_its_ranges_where_they_are(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, b = filled(pair, 5)
    work = task(a, b)
    a.stop()
    reports = carry(work)
    assert reports[TOPIC].trouble == m.SOURCE_DOWN
    assert reports[TOPIC].c == (-1, -1)
    a.start()
    a.silent = True
    reports = carry(work, progress_ms=200)
    a.silent = False
    assert reports[TOPIC].trouble == m.SOURCE_DOWN
    assert not reports[TOPIC].done


def test_a_topic_made_anew_after_the_plan_sends_nothing_under_its_old_identity(
    pair: tuple[FakeCluster, FakeCluster],
) -> None:
    """A wiped source whose clock is behind uses positions below the planned end again."""
    a, b = filled(pair, 5)
    planned = task(a, b)
    for entry in a.topics[TOPIC].log:
        entry.incarnation -= 7
    reports = carry(planned)
    assert reports[TOPIC].trouble == m.RETRY
    assert "created again" in reports[TOPIC].reason
    assert reports[TOPIC].c == (-1, -1)
    assert not b.identities(TOPIC, "a")


def test_a_wrong_token_is_one_line(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, _ = pair
    channel = LinkChannel(a.address, "guessed")
    with pytest.raises(LinkDown, match="does not accept this link token"):
        call(
            channel,
            pb.BaseCommand(type=pb.GEO_TOPICS, geo_topics=pb.CommandGeoTopics(request_id=1, to="b", counter=0)),
            5,
        )


def test_a_kept_connection_that_died_is_replaced_unseen(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, b = filled(pair, 4)
    for round_ in range(3):
        sink = LinkSink(TOKEN)
        for batch in read_task(task(a, b), TOKEN):
            sink.feed(batch)
        [report] = sink.finish().ranges
        assert report.done, report.reason
        settle(a, {TOPIC: report})
        for cluster in pair:
            cluster.stop()
            cluster.start()
        a.publish(TOPIC, entry_bytes(10, sequence=10 + round_))


def test_a_dropped_control_row_is_our_own_mistake(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, b = filled(pair, 3)
    batches = list(read_task(task(a, b), TOKEN, connect=fresh))
    with pytest.raises(ValueError, match="without their opening row"):
        LinkSink(TOKEN, connect=fresh).feed(batches[0].filter(pc.equal(batches[0].column("kind"), ENTRY)))


def test_filters_of_several_links_become_one_condition() -> None:
    assert keep({0: ""}) == ""
    assert keep({1: "message_count = 1", 0: ""}) == (
        "kind <> 0 or first_index < 0 or coalesce(case when link = 1 then (message_count = 1) else true end, false)"
    )
    assert decoded_columns(["message_count = 1 and KEY is not null", "topic like '%x'"]) == ("topic", "key")


def test_named_columns_are_decoded(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, b = pair
    a.create(TOPIC, links=("b",))
    a.publish(TOPIC, entry_bytes(5, key="k1", sequence=4))
    a.publish(TOPIC, entry_bytes(5, sequence=5))
    names = ("topic", "key", "producer_name", "sequence_id", "event_time", "properties")
    rows = pa.Table.from_batches(read_task(task(a, b), TOKEN, names, connect=fresh)).to_pylist()
    assert [row["key"] for row in rows if row["kind"] == ENTRY] == ["k1", None]
    assert [(row["topic"], row["sequence_id"]) for row in rows if row["kind"] == ENTRY] == [(TOPIC, 4), (TOPIC, 5)]


def test_the_frame_decoder_takes_any_split(pair: tuple[FakeCluster, FakeCluster]) -> None:
    a, b = filled(pair, 6, size=300_000)  # larger than the scratch buffer, and several in one answer
    for number in range(200):
        a.publish(TOPIC, entry_bytes(number, sequence=100 + number))
    reports = carry(task(a, b), append_bytes_max=1 << 19)
    assert reports[TOPIC].done
    assert b.identities(TOPIC, "a") == list(range(206))
    assert not b.violations
