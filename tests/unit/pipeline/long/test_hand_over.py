"""The reader of a long batch asks its first question when the writer's connections are open."""

from collections.abc import Iterable
from itertools import product
from typing import cast

import pytest

from magnetar.pipeline import messages as m
from magnetar.pipeline.columns import READY
from magnetar.pipeline.long import fetch_read
from magnetar.pipeline.long.fetch_read import FetchReader
from magnetar.pipeline.long.fetch_write import FetchSink
from magnetar.pipeline.long.hand_over import READY_S, ReadyPort, say_ready
from magnetar.pipeline.long.row_queue import RowQueue
from magnetar.pipeline.tasks.link_channel import LinkChannel
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb
from tests.unit.pipeline.far import FarChannel, Served


class Source:
    """A connection to a source. It accepts after a while, and answers no question."""

    wants_write = False
    connected = False
    round_trip_s = 0.0

    def __init__(self, clock: "Clock", accepts_after_s: float, asked_at: list[float]) -> None:
        self._clock = clock
        self.accepts_at = clock.now + accepts_after_s
        self._asked_at = asked_at

    @property
    def hello(self) -> pb.GeoHello | None:
        return pb.GeoHello() if self._clock.now >= self.accepts_at else None

    def request(self, _command: pb.BaseCommand) -> int:
        self._asked_at.append(self._clock.now)
        return len(self._asked_at)

    def pump(self, _readable: bool, _writable: bool) -> list[object]:
        return []

    def close(self) -> None:
        """There is nothing to close."""


class Clock:
    """The time of one test. It goes on when the reader waits; its events are the times at which something can have changed."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[float] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, _channels: Iterable[object], timeout: float) -> list[tuple[object, bool, bool]]:
        """Instead of a selector."""
        self.now = min([self.now + timeout, *(event for event in self.events if event > self.now)])
        return []

    def close(self) -> None:
        """There is nothing to close."""


class Word(ReadyPort):
    """The writer's word comes at a time of the clock; inf: never."""

    def __init__(self, clock: Clock, after_s: float) -> None:
        super().__init__()
        self._clock, self._at = clock, clock.now + after_s
        clock.events.append(self._at)

    def heard(self) -> bool:
        return self._clock.now >= self._at


class Scene:
    """A reader whose writer is ready after a time, and whose sources accept connections after theirs; None: they refuse."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ready_after_s: float, **accept_after_s: float | None) -> None:
        self.clock = Clock()
        monkeypatch.setattr(fetch_read, "ChannelPoll", lambda: self.clock)
        self._accept_after_s = accept_after_s
        self.asked_at: dict[str, list[float]] = {name: [] for name in accept_after_s}
        routes = tuple(m.Route(number, name, "z", name, "z:1", "u") for number, name in enumerate(accept_after_s))
        task = m.Task(routes, (), m.LongBatch(1, 5_000, "p", 1 << 20))
        self.began = self.clock.now
        self.word = Word(self.clock, ready_after_s)
        reader = FetchReader(task, "token", connect=self._connect, clock=self.clock, ready=self.word)
        self.rows = [row for batch in reader.batches() for row in batch.to_pylist()]

    def _connect(self, address: str, _token: str) -> LinkChannel:
        after_s = self._accept_after_s[address]
        if after_s is None:
            raise LinkDown("refused")
        source = Source(self.clock, after_s, self.asked_at[address])
        self.clock.events.append(source.accepts_at)
        return cast("LinkChannel", source)

    def first_s(self, source: str) -> float:
        """When a source had its first question, after the beginning."""
        return self.asked_at[source][0] - self.began


def test_the_first_question_waits_for_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, 0.4, a=0.0)
    assert scene.first_s("a") == pytest.approx(0.4)
    assert [int(row["data"]) > 0 for row in scene.rows if row["kind"] == READY] == [True], "the port, once"
    assert scene.word.fileno() == -1, "closed"


def test_sources_begin_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The former batch ends with the first question, for all of its sources."""
    scene = Scene(monkeypatch, 0.1, near=0.01, far=0.5)
    assert scene.first_s("near") == scene.first_s("far") == pytest.approx(0.5)


def test_a_source_that_refuses_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, 0.1, here=0.0, gone=None)
    assert scene.first_s("here") == pytest.approx(0.1)


@pytest.mark.parametrize(("ready_after_s", "accepts_after_s"), [(1e9, 0.0), (0.0, 2.5)])
def test_nothing_is_waited_for_long(
    monkeypatch: pytest.MonkeyPatch, ready_after_s: float, accepts_after_s: float
) -> None:
    """The writer, or another source, stands still."""
    scene = Scene(monkeypatch, ready_after_s, near=0.0, far=accepts_after_s)
    assert scene.first_s("near") == pytest.approx(READY_S)


# ---------------------------------------------------------------------------------------------------------------- the writer


class Destination(FarChannel):
    """It accepts the connection when the test says so."""

    def __init__(self) -> None:
        super().__init__(0.08, lambda _command: Served(pb.BaseCommand()))
        self.hello = None

    def accept(self) -> None:
        self.hello = pb.GeoHello()


class Writer:
    """A sink that got the rows with which a reader begins.

    Args:
        sources: clusters, each with a link to every destination.
        destinations: None: it refuses.
    """

    def __init__(self, sources: str = "a", **destinations: Destination | None) -> None:
        def connect(address: str, _token: str) -> LinkChannel:
            self.connected.append(address)
            if (found := destinations[address]) is None:
                raise LinkDown("refused")
            return found

        self.connected: list[str] = []
        self.port = ReadyPort()
        links = enumerate(product(sources, destinations))
        routes = tuple(m.Route(number, source, name, f"{source}:1", name, "u") for number, (source, name) in links)
        task = m.Task(routes, (), m.LongBatch(1, 1_000, "p", 1 << 20))
        self.sink = FetchSink("token", connect=connect)
        self.sink.feed(next(FetchReader(task, "token", ready=self.port).batches()))

    def pump(self) -> None:
        rows = RowQueue([])
        self.sink.pump(0.0, rows)
        rows.close()


def test_the_writer_connects_before_there_is_anything_to_send_and_says_when_it_can() -> None:
    near, far = Destination(), Destination()
    writer = Writer(near=near, far=far)
    assert writer.connected == ["near", "far"]
    near.accept()
    writer.pump()
    assert not writer.port.heard()
    far.accept()
    writer.pump()
    assert writer.port.heard()
    writer.pump()
    assert not writer.port.heard(), "once"


def test_links_to_one_cluster_share_the_connection_that_a_turn_opens() -> None:
    assert Writer("abc", near=Destination(), far=Destination()).connected == ["near", "far"]


def test_a_destination_that_refuses_delays_no_batch() -> None:
    here = Destination()
    here.accept()
    writer = Writer(gone=None, here=here)
    assert writer.port.heard()


def test_a_destination_that_closes_instead_of_accepting_delays_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_readable: bool, _writable: bool) -> list[object]:
        raise LinkDown("closed")

    still = Destination()
    writer = Writer(still=still)
    writer.pump()
    assert not writer.port.heard()
    monkeypatch.setattr(still, "pump", closed)
    writer.pump()
    assert writer.port.heard()


# --------------------------------------------------------------------------------------------------------------------- the port


def test_the_word_arrives_once() -> None:
    port = ReadyPort()
    assert not port.heard()
    say_ready(port.number)
    assert port.heard()
    assert not port.heard()
    port.close()
    assert port.fileno() == -1


def test_a_word_to_a_reader_that_is_gone_is_lost_without_an_error() -> None:
    gone, here = ReadyPort(), ReadyPort()
    number = gone.number
    gone.close()
    say_ready(number)
    say_ready(here.number)
    assert here.heard()
    here.close()
