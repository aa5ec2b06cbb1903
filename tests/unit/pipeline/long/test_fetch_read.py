"""How many questions the reader of a long batch has under way, over a way of any length in simulated time."""

import pytest

from magnetar.pipeline import messages as m
from magnetar.pipeline.long.fetch_read import FETCHES_AHEAD, FETCHES_AHEAD_MAX, FetchReader
from magnetar.replication.link.fetching import HELD_MAX
from magnetar.wire import pulsar_pb2 as pb
from tests.unit.pipeline.far import FarChannel, Served

ROUTE = m.Route(0, "a", "b", "a:1", "b:1", "uuid-a")
TASK = m.Task((ROUTE,), (), m.LongBatch(epoch=1, length_ms=60_000, pipeline="p", window_bytes=1 << 25))


class FarSource(FarChannel):
    """A source that has entries every `every_s` seconds, until a time."""

    def __init__(self, round_trip_s: float, every_s: float) -> None:
        super().__init__(round_trip_s, self._question)
        self._every_s = every_s
        self._end_s = 0.0

    def _question(self, command: pb.BaseCommand) -> Served:
        answer = pb.BaseCommand(type=pb.GEO_FETCH_RESPONSE)
        answer.geo_fetch_response.request_id = command.geo_fetch.request_id
        answer.geo_fetch_response.superseded = self.now > self._end_s
        return Served(answer, took_s=self._every_s)

    def run(self, seconds: float) -> float:
        """Read for a while; returns the answers per second."""
        self._end_s = seconds
        for _ in FetchReader(TASK, "token", connect=lambda _address, _token: self, clock=self.clock).batches():
            pass
        return self.answered / self.now


@pytest.mark.parametrize("round_trip_s", [0.08, 0.2])
def test_a_far_source_always_has_a_question(round_trip_s: float) -> None:
    source = FarSource(round_trip_s, every_s=0.004)
    assert source.run(12) > 235, "250 answers a second are possible"
    assert FETCHES_AHEAD < source.most <= FETCHES_AHEAD_MAX


def test_a_near_source_gets_the_least() -> None:
    source = FarSource(0.001, every_s=0.0002)
    assert source.run(3) > 4_000
    assert source.most == FETCHES_AHEAD


def test_a_source_that_holds_questions_gets_no_more_of_them() -> None:
    """The time for which a source holds a question is no distance."""
    source = FarSource(0.01, every_s=0.2)
    source.run(12)
    assert source.most == FETCHES_AHEAD


def test_sources_hold_as_many_questions_as_are_asked() -> None:
    assert FETCHES_AHEAD_MAX <= HELD_MAX
