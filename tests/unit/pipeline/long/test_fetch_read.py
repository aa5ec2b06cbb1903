"""How many questions the reader of a long batch has under way, over a way of any length in simulated time."""

import socket
from collections import deque
from collections.abc import Iterator, Sequence

import pytest

from magnetar.pipeline import messages as m
from magnetar.pipeline.long.fetch_read import FETCHES_AHEAD, FETCHES_AHEAD_MAX, FetchReader
from magnetar.pipeline.tasks.link_channel import LinkChannel
from magnetar.replication.link.fetching import HELD_MAX
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import Response

ROUTE = m.Route(0, "a", "b", "a:1", "b:1", "uuid-a")
TASK = m.Task((ROUTE,), (), m.LongBatch(epoch=1, length_ms=60_000, pipeline="p", window_bytes=1 << 25))


class FarSource(LinkChannel):
    """A source that has entries every `every_s` seconds, and answers the oldest question that has come to it."""

    def __init__(self, round_trip_s: float, every_s: float) -> None:
        self.ready, other = socket.socketpair()  # always writable: the reader never sleeps
        other.close()
        self.round_trip_s, self.every_s = round_trip_s, every_s
        self.now = 0.0
        self.questions: deque[tuple[int, float]] = deque()
        self.answers: deque[tuple[int, float]] = deque()
        self.answered = self.most = 0
        self._number = 0
        self._next_s = 0.0

    def clock(self) -> float:
        return self.now

    def fileno(self) -> int:
        return self.ready.fileno()

    @property
    def connected(self) -> bool:
        return False  # its answers come with the selector

    @property
    def wants_write(self) -> bool:
        return True

    def request(self, command: pb.BaseCommand, buffers: Sequence[bytes | memoryview] = ()) -> int:
        self._number += 1
        self.questions.append((self._number, self.now + self.round_trip_s / 2))
        self.most = max(self.most, len(self.questions) + len(self.answers))
        return self._number

    def pump(self, readable: bool, writable: bool) -> list[Response]:  # type: ignore[override]
        """Let the next answer come, or half a second pass."""
        end = self.now + 0.5
        while self.questions and not self.answers:
            number, at_s = self.questions[0]
            self._next_s = max(self._next_s, at_s)
            if self._next_s + self.round_trip_s / 2 > end:
                self.now = end
                return []
            self.questions.popleft()
            self.answers.append((number, self._next_s + self.round_trip_s / 2))
            self._next_s += self.every_s
        number, self.now = self.answers.popleft()
        self.answered += 1
        command = pb.BaseCommand(type=pb.GEO_FETCH_RESPONSE)
        command.geo_fetch_response.request_id = number
        return [Response(number, command, memoryview(b""))]

    def close(self) -> None:
        self.ready.close()


def run(source: FarSource, seconds: float) -> float:
    """Read for a while; returns the answers per second."""
    reader = FetchReader(TASK, "token", connect=lambda _address, _token: source, clock=source.clock)
    batches: Iterator[object] = reader.batches()
    before_s, before = source.now, source.answered
    original = source.pump

    def pump(readable: bool, writable: bool) -> list[Response]:
        reader.over = source.now - before_s >= seconds
        return original(readable, writable)

    source.pump = pump  # type: ignore[method-assign]
    for _ in batches:
        pass
    return (source.answered - before) / (source.now - before_s)


@pytest.mark.parametrize("round_trip_s", [0.08, 0.2])
def test_a_far_source_always_has_a_question(round_trip_s: float) -> None:
    source = FarSource(round_trip_s, every_s=0.004)
    assert run(source, 12) > 240, "250 answers a second are possible"
    assert FETCHES_AHEAD < source.most <= FETCHES_AHEAD_MAX


def test_a_near_source_gets_the_least() -> None:
    source = FarSource(0.001, every_s=0.0002)
    assert run(source, 3) > 4_000
    assert source.most == FETCHES_AHEAD


def test_a_source_that_holds_questions_gets_no_more_of_them() -> None:
    """The time for which a source holds a question is no distance."""
    source = FarSource(0.01, every_s=0.2)
    run(source, 12)
    assert source.most == FETCHES_AHEAD


def test_sources_hold_as_many_questions_as_are_asked() -> None:
    assert FETCHES_AHEAD_MAX <= HELD_MAX
