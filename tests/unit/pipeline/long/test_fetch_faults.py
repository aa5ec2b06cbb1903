"""The reader of a long batch against sources that answer late, twice, or never. Time passes only when the reader waits."""

import random
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, cast

import pytest

from magnetar.pipeline import messages as m
from magnetar.pipeline.columns import ANSWER, FILLER
from magnetar.pipeline.long import fetch_read
from magnetar.pipeline.long.fetch_read import GREETING_S, PAUSE_S_MAX, WAIT_MS, FetchReader
from magnetar.pipeline.tasks.link_channel import LinkChannel
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import Push, Response

T = "persistent://public/default/t"
PROGRESS_MS = 500
LATEST_S = (WAIT_MS + PROGRESS_MS) / 1000
"""When an answer must have come."""


class Clock:
    """The time of one test."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Channel:
    """A connection to a source of the test: it has the reader's questions, and what the source says and when."""

    wants_write = False
    connected = False
    round_trip_s = 0.0

    def __init__(self, address: str, clock: Clock, *, greets: bool) -> None:
        self.address, self._clock = address, clock
        self.hello = pb.GeoHello() if greets else None
        self.opened_at = clock.now
        self.closed_at = 0.0
        self.asked: list[tuple[float, pb.CommandGeoFetch]] = []
        self.silent = not greets
        self._scripted: set[int] = set()
        self._said: list[tuple[float, Response | Push | None]] = []

    def request(self, command: pb.BaseCommand) -> int:
        assert not self.closed_at
        self.asked.append((self._clock.now, command.geo_fetch))
        number = len(self.asked)
        if not (self.silent or number in self._scripted):  # as a source without news does
            self.say(WAIT_MS / 1000, number, pb.CommandGeoFetchResponse(request_id=0))
        return number

    def say(self, after_s: float, request_id: int, response: pb.CommandGeoFetchResponse, data: bytes = b"") -> None:
        """Answer a question this much later."""
        command = pb.BaseCommand(type=pb.GEO_FETCH_RESPONSE)
        response.request_id = request_id
        self._scripted.add(request_id)
        command.geo_fetch_response.CopyFrom(response)
        self._said.append((self._clock.now + after_s, Response(request_id, command, memoryview(data))))

    def end(self, after_s: float) -> None:
        """Close the connection from the other side."""
        self._said.append((self._clock.now + after_s, None))

    def next_at(self) -> float:
        """When the source says its next word."""
        return min((at for at, _ in self._said), default=float("inf"))

    def pump(self, _readable: bool, _writable: bool) -> list[Response | Push]:
        due = [one for at, one in self._said if at <= self._clock.now]
        self._said = [(at, one) for at, one in self._said if at > self._clock.now]
        if None in due:
            raise LinkDown("closed")
        return [one for one in due if one is not None]

    def close(self) -> None:
        self.closed_at = self._clock.now


class Poll:
    """Instead of a selector: the time until the next word, or all of the waiting, passes at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wait(self, channels: Iterable[Channel], timeout: float) -> list[tuple[Channel, bool, bool]]:
        channels = list(channels)
        at = min((channel.next_at() for channel in channels), default=float("inf"))
        self._clock.now = max(self._clock.now, min(at, self._clock.now + timeout + 0.001))
        return [(channel, True, False) for channel in channels if channel.next_at() <= self._clock.now]

    def close(self) -> None:
        """There is nothing to close."""


class Sources:
    """What a test's sources do: `opened` is called with each connection, and says what happens on it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.channels: list[Channel] = []
        self.greets: Callable[[str], bool] = lambda _address: True
        self.opened: Callable[[Channel], None] = lambda _channel: None

    def connect(self, address: str, _token: str) -> LinkChannel:
        channel = Channel(address, self.clock, greets=self.greets(address))
        self.channels.append(channel)
        self.opened(channel)
        return cast("LinkChannel", channel)

    def to(self, address: str) -> list[Channel]:
        """The connections to one of them, in order."""
        return [channel for channel in self.channels if channel.address == address]


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Sources:
    clock = Clock()
    monkeypatch.setattr(fetch_read, "ChannelPoll", lambda: Poll(clock))
    return Sources(clock)


def part(number: int, topic: str = T, *, first: bool = True) -> pb.CommandGeoFetchResponse:
    """An answer with one entry of one byte."""
    at = pb.GeoPosition(ledger=1, entry=number)
    read = pb.CommandGeoReadResponse(
        request_id=0, ledgers=[1], entries=[number], first_indexes=[number], counts=[1], flags=[0], publish_times=[1],
        sizes=[1], end=at,
    )  # fmt: skip
    p = pb.GeoPosition(ledger=-1, entry=-1) if first else None
    found = pb.GeoFetched(topic=topic, incarnation=1, grant=1, gen=1, p=p, read=read)
    return pb.CommandGeoFetchResponse(request_id=0, parts=[found], uuid="u")


def reader(sources: Sources, *addresses: str, length_ms: int = 60_000) -> FetchReader:
    routes = tuple(
        m.Route(number, address, "z", address, "z:1", "u", PROGRESS_MS) for number, address in enumerate(addresses)
    )
    task = m.Task(routes, (), m.LongBatch(1, length_ms, "p", 1 << 20))
    return FetchReader(task, "token", connect=sources.connect, clock=sources.clock)


def run(one: FetchReader) -> list[bytes]:
    """The data of all answers that the reader passes on until its batch ends; a filler ends each of its Arrow batches."""
    found = []
    for batch in one.batches():
        rows: list[dict[str, Any]] = batch.to_pylist()
        assert rows[-1]["kind"] == FILLER
        found += [row["data"] for row in rows if row["kind"] == ANSWER]
    return found


def test_an_answer_that_comes_late_and_in_time_is_taken(sources: Sources) -> None:
    sources.opened = lambda channel: channel.say(LATEST_S - 0.1, 1, part(0), b"x")
    assert run(reader(sources, "a:1", length_ms=1_000)) == [b"x"]
    assert len(sources.channels) == 1, "the connection was kept"


def test_an_answer_that_comes_too_late_finds_its_connection_closed(sources: Sources) -> None:
    def opened(channel: Channel) -> None:
        # Later on the first connection; soon on the second one, where the same entry is handed out again.
        channel.silent = channel is sources.channels[0]
        channel.say(LATEST_S + 1 if channel.silent else 0.1, 1, part(0), b"x")

    sources.opened = opened
    assert run(reader(sources, "a:1", length_ms=10_000)) == [b"x"], "once"
    first, second = sources.channels
    assert LATEST_S <= first.closed_at - first.opened_at < LATEST_S + 0.1
    assert second.opened_at - first.closed_at < 0.1, "asked again at once"
    numbers = [{fetch.reader for _, fetch in channel.asked} for channel in (first, second)]
    assert [len(one) for one in numbers] == [1, 1]
    assert numbers[0] != numbers[1], "answers may have been lost with the first: the source has to begin at its cursors"


def test_an_answer_that_comes_twice_is_passed_on_once(sources: Sources) -> None:
    def opened(channel: Channel) -> None:
        for after_s in (0.1, 0.2, 5.0):
            channel.say(after_s, 1, part(0), b"x")
        channel.say(0.3, 2, part(1, first=False), b"y")

    sources.opened = opened
    one = reader(sources, "a:1", length_ms=5_000)
    assert run(one) == [b"x", b"y"]
    (channel,) = sources.channels
    assert len(channel.asked) > 2, "the answered ones are replaced"


def test_a_source_that_never_answers_delays_no_other(sources: Sources) -> None:
    def opened(channel: Channel) -> None:
        channel.silent = channel.address == "a:1"
        if not channel.silent:
            for number in range(10):
                channel.say(number * 1.5, number + 1, part(number, first=not number), b"%d" % number)

    sources.opened = opened
    began = sources.clock.now
    assert run(reader(sources, "a:1", "b:1")) == [b"%d" % number for number in range(10)]
    assert sources.clock.now - began < 80, "the batch ends by its time"
    silent = sources.to("a:1")
    assert len(silent) >= 4
    for before, after in pairwise(silent):
        assert LATEST_S <= before.closed_at - before.opened_at < LATEST_S + 0.1
        assert after.opened_at - before.closed_at < PAUSE_S_MAX + 0.1
    assert len({channel.asked[0][1].reader for channel in silent}) == len(silent)


def test_a_source_that_stands_still_is_connected_to_again(sources: Sources) -> None:
    """It accepts no connection for 30 s, as a stopped process or a host that is gone."""
    back = sources.clock.now + 30
    sources.greets = lambda _address: sources.clock.now >= back
    sources.opened = lambda channel: channel.say(0.1, 1, part(0), b"x") if channel.hello is not None else None
    assert run(reader(sources, "a:1", length_ms=40_000)) == [b"x"]
    *still, last = sources.channels
    assert all(GREETING_S <= one.closed_at - one.opened_at < GREETING_S + 0.1 for one in still)
    assert last.opened_at - back < GREETING_S + PAUSE_S_MAX + 0.1, "soon after its return"


def test_a_source_that_refuses_connections_is_tried_at_growing_and_short_pauses(sources: Sources) -> None:
    def connect(address: str, _token: str) -> LinkChannel:
        tried.append(sources.clock.now)
        if sources.clock.now < 115:
            raise LinkDown("refused")
        return sources.connect(address, "")

    tried: list[float] = []
    sources.opened = lambda channel: channel.say(0.1, 1, part(0), b"x")
    one = reader(sources, "a:1", length_ms=20_000)
    one._connect = connect
    assert run(one) == [b"x"]
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses[0] < 0.1
    assert max(pauses) < PAUSE_S_MAX + 0.1


def test_a_connection_that_ends_takes_its_unread_answers_along(sources: Sources) -> None:
    def opened(channel: Channel) -> None:
        if channel is sources.channels[0]:
            channel.say(0.2, 1, part(0), b"lost")
            channel.end(0.2)
        else:
            channel.say(0.1, 1, part(0), b"x")

    sources.opened = opened
    assert run(reader(sources, "a:1", length_ms=1_000)) == [b"x"]


def test_a_superseded_reader_ends_at_once(sources: Sources) -> None:
    sources.opened = lambda channel: channel.say(0.5, 3, pb.CommandGeoFetchResponse(request_id=0, superseded=True))
    began = sources.clock.now
    assert run(reader(sources, "a:1")) == []
    assert sources.clock.now - began < 1
    assert sources.channels[0].closed_at


def test_a_refused_link_is_asked_again_after_a_pause(sources: Sources) -> None:
    refused = pb.CommandGeoFetchResponse(request_id=0, refused="the lease is of another pipeline")
    sources.opened = lambda channel: channel.say(0.0, 1, refused)
    run(reader(sources, "a:1", length_ms=1_000))
    (channel,) = sources.channels
    times = sorted({at for at, _ in channel.asked})
    assert times[1] - times[0] >= fetch_read.REFUSED_S


def test_a_batch_of_very_many_topics_ends_early(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that come and go are not remembered for ever: the writer knows each of them until the batch ends."""
    monkeypatch.setattr(fetch_read, "PARTS_BEGUN_MAX", 100)
    rng = random.Random(1)

    def opened(channel: Channel) -> None:
        for number in range(1_000):
            channel.say(number / 100, number + 1, part(0, f"{T}-{rng.randrange(1_000_000)}"), b"x")

    sources.opened = opened
    one = reader(sources, "a:1")
    passed = run(one)
    assert 100 <= len(passed) < 100 + 64
    assert one.over
