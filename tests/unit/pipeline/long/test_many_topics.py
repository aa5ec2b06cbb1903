"""Topics that come and go while long batches run: a real source machine and a real pipeline state, which leave nothing behind."""

import random
from typing import Any

import pytest

from magnetar.core.errors import BrokerError
from magnetar.core.ids import NONE
from magnetar.pipeline.link_state import Link
from magnetar.pipeline.pipeline_state import PipelineState
from magnetar.replication.link import polling
from magnetar.replication.link.fetching import SPACING_MS_MAX
from magnetar.replication.link.source import LinkSource
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_to_proto
from tests.unit.replication.link.rig import TOPIC, Rig, message

ROUND = 100
"""Topics that are there at the same time."""

OURS = ("magnetar.pipeline", "magnetar.replication.link")


def held(*roots: object) -> dict[str, int]:
    """How much each collection holds that can be reached from these objects over classes of links, by class and attribute."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    left: list[tuple[str, Any]] = [("", root) for root in roots]
    while left:
        where, one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if type(one).__module__.startswith(OURS) and not isinstance(one, tuple):
            slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
            names = [*getattr(one, "__dict__", ()), *(name for name in slots if hasattr(one, name))]
            left += [(f"{type(one).__name__}.{name}", getattr(one, name)) for name in names]
        elif isinstance(one, dict | list | set) or type(one).__name__ in ("deque", "OrderedDict"):
            found[where] = found.get(where, 0) + len(one)
            left += [(where, inner) for inner in (one.values() if isinstance(one, dict) else one)]
    return found


class Pair:
    """The source of a link and the pipeline that works on it; the destination has whatever it is asked about."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.state = PipelineState([Link(0, "a", "b")], random.Random(1), 4, first_grant=1)
        self.counter = self.boot = self.reader = 0
        self.start()

    @property
    def now_ms(self) -> int:
        return self.rig.outbox.now_ms

    def start(self) -> None:
        """A broker that begins, with the topics that are there."""
        rig = self.rig
        rig.later(1_000)
        self.source = LinkSource(rig.outbox, cluster="a", uuid="a-1", to="b", boot=rig.outbox.now_ms, host=rig)
        for name, topic in rig.topics.items():
            self.source.added(name, topic.log, wanted=True, created=False)
        rig.on_confirmed = self.source.confirmed
        rig.store()

    def create(self, names: list[str]) -> None:
        """Create topics and publish one message to each."""
        for name in names:
            self.source.added(name, self.rig.topic(name).log, wanted=True, created=True)
        self.rig.store()
        for name in names:
            self.rig.topics[name].publish(message("x"))

    def delete(self, names: list[str]) -> None:
        for name in names:
            self.source.removed(name)
            del self.rig.topics[name]
        self.rig.store()

    def poll(self) -> None:
        """Ask for news, as `pipeline.poller` does."""
        got: list[pb.CommandGeoTopicsResponse] = []
        everything = not self.counter
        request = pb.CommandGeoTopics(request_id=1, to="b", counter=self.counter, boot=self.boot, pipeline="p1")
        self.source.poll(90, request, got.append)
        self.rig.pump()
        (answer,) = got
        self.counter, self.boot = answer.counter, answer.boot
        self.state.source_reported(0, answer, self.now_ms, everything=everything)

    def lost(self) -> None:
        """The connection of the polls breaks."""
        self.source.disconnected(90)
        self.state.source_lost("a")
        self.counter = 0

    def compare(self) -> list[str]:
        """Make the handshakes that are due; returns the topics of the questions."""
        asked = []
        for handshake in self.state.handshakes("b", self.now_ms):
            answer = pb.CommandGeoWatermarksResponse(request_id=1, counter=3, uuid="b-1")
            for query in handshake.topics:
                answer.topics.add(topic=query.topic, persisted=position_to_proto(NONE))
                asked.append(query.topic)
            self.state.handshake_answered(handshake, answer, self.now_ms)
        return asked

    def tell(self) -> int:
        """Send everything that is owed to the source, until nothing is; returns the number of commands."""
        commands = 0
        while every := self.state.owed("a", self.now_ms):
            commands += 1
            assert commands < 1_000, "the pipeline says the same again and again"
            (owed,) = every
            got: list[pb.CommandGeoCommitResponse] = []
            request = pb.CommandGeoCommit(
                request_id=1, to="b", pipeline="p1", commits=owed.commits, learned=owed.learned, grants=owed.grants,
                revoked=owed.revoked,
            )  # fmt: skip
            self.source.commit(request, got.append, connection=80, whole=True)
            self.rig.store()
            self.state.commit_answered(owed, got[0].ignored, got[0].counter, self.now_ms)
        return commands

    def fetch(self) -> list[pb.GeoFetched]:
        """Ask for entries, as the reader of a long batch does; the same one all the time."""
        got: list[pb.CommandGeoFetchResponse] = []
        request = pb.CommandGeoFetch(
            request_id=1, to="b", pipeline="p1", epoch=1, reader=7, wait_ms=0, bytes_max=1 << 20, window_bytes=1 << 20
        )
        self.source.fetch(1, request, lambda answer, _data: got.append(answer), refusal=lambda _name: "")
        self.rig.later(SPACING_MS_MAX)
        self.source.validate()
        return [part for answer in got for part in answer.parts]

    def confirm(self, parts: list[pb.GeoFetched]) -> None:
        """Confirm a third, give a third back, say nothing of the others: they are deleted with entries under way."""
        request = pb.CommandGeoCommit(request_id=1, to="b", pipeline="p1")
        for number, part in enumerate(parts):
            if number % 3 < 2:
                c = position_to_proto(NONE) if number % 3 else part.read.end
                commit = request.commits.add(topic=part.topic, incarnation=part.incarnation, grant=part.grant)
                commit.cursor.CopyFrom(pb.GeoCursor(c=c, s=c, gen=part.gen))
                if number % 3:
                    commit.ended, commit.ended_reason = "retry", "no room"
        self.source.commit(request, lambda _answer: None, connection=70, whole=True)
        self.rig.store()


def names(begin: int, count: int = ROUND) -> list[str]:
    return [f"{TOPIC}-{number}" for number in range(begin, begin + count)]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many deletions a source remembers."""
    monkeypatch.setattr(polling, "GONE_MAX", 250)
    return 250


def test_ten_thousand_topics_that_come_and_go_leave_nothing_behind_at_either_end(few: int) -> None:
    pair = Pair()
    pair.poll()
    handed_out = 0
    before: dict[str, int] = {}
    for begin in range(0, 10_000, ROUND):
        pair.create(names(begin))
        pair.poll()
        assert set(pair.compare()) == set(names(begin))
        assert pair.tell()
        parts = pair.fetch()
        handed_out += len(parts)
        pair.confirm(parts)
        pair.poll()
        pair.delete(names(begin))
        pair.poll()
        pair.tell()
        if begin == few:  # the source remembers as many deletions as it ever does
            before = held(pair.state, pair.source)
        elif begin == 0:
            assert held(pair.state)["LinkState.topics"] == 0
    assert handed_out >= 5_000
    assert pair.compare() == []
    after = held(pair.state, pair.source)
    grown = {name: (before.get(name, 0), size) for name, size in after.items() if size > before.get(name, 0) + few}
    assert not grown
    assert after["Changes._gone"] <= few


def test_topics_that_go_while_their_source_is_away_are_forgotten() -> None:
    """The source is asked for everything then, and cannot say what it does not have."""
    pair = Pair()
    pair.create(names(0, 4))
    pair.poll()
    pair.compare()
    pair.tell()
    pair.lost()
    pair.delete(names(0, 3))
    pair.start()
    pair.poll()
    link = pair.state.links[0]
    assert set(link.topics) == link.pending == set(names(3, 1))
    pair.compare()
    pair.tell()
    assert [part.topic for part in pair.fetch()] == names(3, 1)
    for _ in range(5):
        pair.rig.later(1_000)
        pair.poll()
        assert pair.tell() == 0, "a grant of a topic that is gone would be refused and made again for ever"


def test_a_pipeline_that_missed_forgotten_deletions_asks_for_everything(few: int) -> None:
    pair = Pair()
    pair.create(names(0, few + 10))
    pair.poll()
    pair.delete(names(0, few + 5))
    with pytest.raises(BrokerError, match="ask with counter 0"):
        pair.poll()
    pair.lost()
    pair.poll()
    assert set(pair.state.links[0].topics) == set(names(few + 5, 5))


def test_a_held_poll_reports_every_deletion(few: int) -> None:
    """However many there are before it is answered."""
    pair = Pair()
    pair.create(names(0, 2 * few))
    pair.poll()
    got: list[pb.CommandGeoTopicsResponse] = []
    request = pb.CommandGeoTopics(
        request_id=1, to="b", counter=pair.counter, boot=pair.boot, pipeline="p1", wait_ms=5_000
    )
    pair.source.poll(90, request, got.append)
    assert not got
    pair.delete(names(0, 2 * few))
    pair.rig.later(1_000)
    (answer,) = got
    assert {topic.topic for topic in answer.topics if topic.removed} == set(names(0, 2 * few))
    pair.create(names(5_000, 1))
    pair.delete(names(5_000, 1))
    assert held(pair.source)["Changes._gone"] == few, "no poll needs the older ones"


def test_a_topic_that_is_created_again_is_not_forgotten(few: int) -> None:
    pair = Pair()
    again = names(0, 1)
    pair.create(again)
    pair.delete(again)
    pair.create(again)
    pair.poll()
    counter = pair.counter
    pair.create(names(10, few))
    pair.delete(names(10, few))
    pair.rig.topics[again[0]].publish(message("y"))
    assert again[0] in set(pair.source.changes.since(counter))
    assert pair.source.changes.forgotten == 0, "the oldest deletion is outdated"
