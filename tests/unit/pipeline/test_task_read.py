"""Reading ranges from a source at any distance, in simulated time: how much is under way, and that nothing is read twice."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.ids import NONE, Position
from magnetar.pipeline import messages as m
from magnetar.pipeline.tasks.task_read import READ_BYTES_MAX, RangeReading, SourceReader
from magnetar.wire import pulsar_pb2 as pb
from tests.unit.pipeline.far import FarChannel, Served

MIB = 1 << 20
WINDOW = 32 * MIB
ZEROS = memoryview(bytes(8 * MIB))
ROUTE = m.Route(0, "a", "b", "a:1", "b:1", "u", window_bytes=WINDOW)


class Source:
    """A source: topics with entries of one size, which it reads at a bandwidth, one request after the other."""

    def __init__(self, topics: dict[str, int], size: int, bandwidth: float, troubles: dict[str, int]) -> None:
        self.topics, self.size, self.bandwidth, self.troubles = topics, size, bandwidth, troubles
        self.reads = 0
        self.under_way_bytes = 0
        self._ends: dict[int, tuple[int, bool]] = {}

    def serve(self, command: pb.BaseCommand) -> Served:
        asked = command.geo_read
        self.reads += 1
        begin, over = self._ends[asked.follows] if asked.follows else (asked.after.entry + 1, False)
        last = self.topics[asked.topic]
        stop = min(last, begin + max(1, asked.bytes_max // self.size))
        trouble = self.troubles.get(asked.topic, last + 1)
        answer = pb.BaseCommand(type=pb.GEO_READ_RESPONSE)
        read = answer.geo_read_response
        read.request_id = asked.request_id
        if over:
            stop = begin
        elif trouble < stop:
            stop = trouble
            if begin == stop:
                read.blocked = "corrupt"
        rows = range(begin, stop)
        read.end.ledger, read.end.entry = 1, stop - 1
        for values, value in ((read.ledgers, 1), (read.counts, 1), (read.flags, 0), (read.publish_times, 1)):
            values.extend([value] * len(rows))
        read.entries.extend(rows)
        read.first_indexes.extend(rows)
        read.sizes.extend([self.size] * len(rows))
        self._ends[asked.request_id] = stop, over or begin == stop
        payload = ZEROS[: self.size * len(rows)]
        return Served(answer, payload, len(payload) / self.bandwidth)


class Run:
    """What a reader does with a source.

    Args:
        topics: number of entries of each, planned whole.
        troubles: entries that cannot be read, by topic.
    """

    def __init__(
        self, topics: dict[str, int], *, size: int, round_trip_s: float, bandwidth: float = 1e8,
        troubles: dict[str, int] | None = None, reads_follow: bool = True, bytes_max: int = 1 << 40,
    ) -> None:  # fmt: skip
        self.source = Source(topics, size, bandwidth, troubles or {})
        self.channel = FarChannel(round_trip_s, self.source.serve, reads_follow=reads_follow)
        self.read: dict[str, list[int]] = defaultdict(list)
        self.asked_bytes_most = 0
        ranges = [
            RangeReading(
                m.Range(number, 0, topic, 0, 1, m.pair(NONE), m.pair(NONE), (1, count - 1), min(bytes_max, count * size)),
                ROUTE, Position(1, -1), min(bytes_max, count * size),
            )
            for number, (topic, count) in enumerate(topics.items())
        ]  # fmt: skip
        reader = SourceReader("a:1", "token", ranges, lambda _address, _token: self.channel, self.channel.clock)
        self.over: list[RangeReading] = []
        while reader.busy:
            self.asked_bytes_most = max(self.asked_bytes_most, sum(sum(one.asked.values()) for one in ranges))
            for progress, read, payload in reader.pump(True, True):
                assert not progress.over or progress in reader.over
                assert len(payload) == sum(read.sizes)
                self.read[progress.part.topic].extend(read.entries)
            self.over += reader.over
            reader.over.clear()
        assert sorted(one.part.number for one in self.over) == list(range(len(topics))), "each range ends once"


@pytest.mark.parametrize("round_trip_s", [0.08, 0.2])
def test_one_topic_fills_a_long_way(round_trip_s: float) -> None:
    run = Run({"t": 2_560}, size=100 << 10, round_trip_s=round_trip_s)
    assert run.read["t"] == list(range(2_560))
    took = 2_560 * (100 << 10) / 1e8
    assert run.channel.now < took + 8 * round_trip_s, "a few round trips until the window is found, and no others"
    assert READ_BYTES_MAX < run.asked_bytes_most <= WINDOW + READ_BYTES_MAX


def test_the_next_task_begins_with_the_window_that_was_found() -> None:
    """The pace is kept with the connection."""
    run = Run({"t": 2_560}, size=100 << 10, round_trip_s=0.08)
    channel = run.channel
    assert channel.pace.window(0.08, channel.now, 0, WINDOW) > 3 * READ_BYTES_MAX


def test_a_source_of_the_last_version_gets_one_read_of_a_range_at_a_time() -> None:
    run = Run({"t": 300, "u": 300}, size=100 << 10, round_trip_s=0.08, reads_follow=False)
    assert run.read == {"t": list(range(300)), "u": list(range(300))}
    assert run.channel.most == 2


def test_a_near_source_gets_one_read_of_a_range_at_a_time() -> None:
    run = Run({"t": 600}, size=100 << 10, round_trip_s=0.0005)
    assert run.read["t"] == list(range(600))
    assert run.channel.most == 1


def test_many_small_topics_of_a_far_source_are_read_together() -> None:
    topics = {f"t{number}": 10 for number in range(1_000)}
    run = Run(topics, size=1 << 10, round_trip_s=0.08)
    assert all(run.read[topic] == list(range(10)) for topic in topics)
    assert run.channel.now < 1_000 / 8 * 0.08 / 4, "eight at a time would take ten seconds"


@given(
    topics=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    size=st.sampled_from([1 << 10, MIB, 3 * MIB, 5 * MIB]),
    round_trip_s=st.sampled_from([0.0, 0.02, 0.5]),
    bytes_max=st.sampled_from([1, 10 * MIB, 1 << 40]),
    trouble=st.integers(0, 40),
    reads_follow=st.booleans(),
)
def test_every_range_is_read_once_in_order_up_to_where_it_ends(
    topics: list[int], size: int, round_trip_s: float, bytes_max: int, trouble: int, reads_follow: bool
) -> None:
    counts = {f"t{number}": count for number, count in enumerate(topics)}
    run = Run(
        counts, size=size, round_trip_s=round_trip_s, troubles={"t0": trouble}, reads_follow=reads_follow, bytes_max=bytes_max
    )  # fmt: skip
    for progress in run.over:
        topic = progress.part.topic
        found = run.read[topic]
        assert found == list(range(len(found)))
        assert progress.after == Position(1, len(found) - 1)
        whole = trouble if topic == "t0" and trouble < counts[topic] else counts[topic]
        if bytes_max > MIB << 10 and len(found) < counts[topic]:
            assert (len(found), progress.trouble) == (whole, m.BLOCKED)
        else:
            assert len(found) * size >= min(bytes_max, whole * size)
