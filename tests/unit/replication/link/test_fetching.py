"""GEO_FETCH: what a long batch is handed out, and when; what its commits count; how a grant ends."""

from collections.abc import Sequence, Sized
from itertools import pairwise
from typing import Any

import pytest

from magnetar.core.ids import NONE, LinkCursor, Position
from magnetar.core.rates import Rate
from magnetar.effects.outbox import Read
from magnetar.replication.link.fetching import (
    FORMER_MAX,
    HELD_MAX,
    PART_BYTES,
    PARTS_MAX,
    SPACING_MS_MAX,
    SPACING_MS_MIN,
    TASKS_MAX,
    FetchSession,
)
from magnetar.replication.link.polling import LEASE_MS, QUIET_MS, SETTLE_MS
from magnetar.replication.link.source import READ_BYTES_MAX, LinkSource
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_from_proto, position_to_proto
from tests.unit.replication.link.rig import TOPIC, Rig, RigTopic, message

OTHER = "persistent://public/default/other"
SIZE = len(message("x" * 100).data)


class SlowRig(Rig):
    """A rig whose disk can be made to wait: then reads are answered when asked."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.reads: list[Read] = []

    def read(self, effect: Read) -> None:
        if self.slow:
            self.reads.append(effect)
        else:
            super().read(effect)

    def disk(self) -> None:
        """The disk answers the reads that wait, and is fast from now on."""
        self.slow = False
        reads, self.reads = self.reads, []
        for effect in reads:
            super().read(effect)
        self.pump()


class Question:
    """One GEO_FETCH, and what it was answered."""

    def __init__(self, request: pb.CommandGeoFetch) -> None:
        self.request = request
        self.answers: list[pb.CommandGeoFetchResponse] = []
        self.data: list[bytes] = []

    def answered(self, response: pb.CommandGeoFetchResponse, buffers: Sequence[bytes]) -> None:
        self.answers.append(response)
        self.data = list(buffers)

    @property
    def held(self) -> bool:
        return not self.answers

    @property
    def response(self) -> pb.CommandGeoFetchResponse:
        (response,) = self.answers
        assert response.request_id == self.request.request_id
        return response

    @property
    def parts(self) -> list[pb.GeoFetched]:
        return list(self.response.parts)

    @property
    def positions(self) -> list[Position]:
        """Of the entries of all parts."""
        reads = [part.read for part in self.parts]
        assert [size for read in reads for size in read.sizes] == [len(data) for data in self.data]
        return [position for read in reads for position in map(Position, read.ledgers, read.entries)]

    @property
    def empty(self) -> bool:
        response = self.response
        return not (response.parts or response.superseded or response.refused)


class Looked(dict[str, str]):
    """Refuses nothing, and says what it was asked for."""

    def __init__(self, looked: list[str]) -> None:
        super().__init__()
        self.looked = looked

    def get(self, name: str, default: Any = "") -> Any:
        self.looked.append(name)
        return default


class Fetching:
    """The link a -> b, its pipeline p1 with the lease, and one topic that is granted unless a test says otherwise."""

    def __init__(self, *, granted: bool = True, ledger_entries: int = 100) -> None:
        self.rig = SlowRig()
        self.machine = self.make()
        self.topics: dict[str, RigTopic] = {}
        self.topic = self.add(TOPIC, ledger_entries)
        self.numbers = 0
        self.requests = 0
        self.refused: dict[str, str] = {}
        self.poll()
        if granted:
            assert self.grant()

    def make(self) -> LinkSource:
        rig = self.rig
        made = LinkSource(rig.outbox, cluster="a", uuid="a-1", to="b", boot=rig.outbox.now_ms, host=rig)
        rig.on_confirmed = made.confirmed
        return made

    def add(self, name: str, ledger_entries: int = 100) -> RigTopic:
        made = self.topics[name] = self.rig.topic(name, ledger_entries=ledger_entries)
        self.machine.added(name, made.log, wanted=True, created=True)
        self.rig.store()
        return made

    def state(self, name: str = TOPIC) -> Any:
        return self.machine.topics[name]

    def validate(self) -> None:
        self.rig.pump()
        self.machine.validate()

    def poll(self, counter: int = 0, **fields: Any) -> list[pb.CommandGeoTopicsResponse]:
        got: list[pb.CommandGeoTopicsResponse] = []
        connection, narrow = fields.pop("connection", 90), fields.pop("narrow", "")
        request = pb.CommandGeoTopics(request_id=1, to="b", counter=counter, **({"pipeline": "p1"} | fields))
        self.machine.poll(connection, request, got.append, narrow=narrow)
        self.validate()
        return got

    def told(self, name: str = TOPIC, **fields: Any) -> pb.GeoTopicState:
        """What the pipeline is told of a topic."""
        (found,) = [state for state in self.poll(**fields)[0].topics if state.topic == name]
        return found

    def tell(
        self, *, narrow: str = "", pipeline: str = "p1", connection: int = 80, **fields: Any
    ) -> pb.CommandGeoCommitResponse:
        got: list[pb.CommandGeoCommitResponse] = []
        request = pb.CommandGeoCommit(request_id=1, to="b", pipeline=pipeline, **fields)
        self.machine.commit(request, got.append, connection=connection, whole=not narrow, narrow=narrow)
        self.rig.store()
        self.validate()
        return got[0]

    def grant(
        self, name: str = TOPIC, *, pipeline: str = "p1", narrow: str = "", connection: int = 80, **fields: Any
    ) -> bool:
        """Grant a topic as it is; whether that counted."""
        self.numbers += 1
        state = self.machine.topics.get(name)
        about = {} if state is None else {"incarnation": state.log.incarnation, "gen": state.cursor.gen}
        grant = pb.GeoGrant(topic=name, **({"number": self.numbers} | about | fields))
        told = self.tell(grants=[grant], pipeline=pipeline, narrow=narrow, connection=connection)
        return name not in told.ignored

    def revoke(self, name: str = TOPIC, *, pipeline: str = "p1", connection: int = 80) -> None:
        self.tell(revoked=[name], pipeline=pipeline, connection=connection)

    def fetch(self, *, reader: int = 7, epoch: int = 1, connection: int = 1, **fields: Any) -> Question:
        self.requests += 1
        narrow = fields.pop("narrow", "")
        defaults: dict[str, Any] = {"pipeline": "p1", "wait_ms": 5_000, "bytes_max": 1 << 20}
        question = Question(
            pb.CommandGeoFetch(request_id=self.requests, to="b", epoch=epoch, reader=reader, **(defaults | fields))
        )
        self.machine.fetch(
            connection,
            question.request,
            question.answered,
            refusal=lambda name: self.refused.get(name, ""),
            narrow=narrow,
        )
        self.validate()
        return question

    def later(self, ms: int) -> None:
        self.rig.later(ms)
        self.validate()

    def publish(self, *texts: str, name: str = TOPIC) -> list[Position]:
        positions = self.topics[name].publish(*[message(text) for text in texts])
        self.validate()
        return positions

    def commit(self, c: Position, s: Position | None = None, *, grant: int | None = None, **fields: Any) -> bool:
        """A task's confirmation; whether it counted."""
        name, narrow = fields.pop("name", TOPIC), fields.pop("narrow", "")
        state = self.machine.topics[name]
        cursor = pb.GeoCursor(c=position_to_proto(c), s=position_to_proto(c if s is None else s), gen=state.cursor.gen)
        commit = pb.GeoCommitTopic(
            topic=name, cursor=cursor, grant=self.numbers if grant is None else grant,
            **({"incarnation": state.log.incarnation} | fields),
        )  # fmt: skip
        return name not in self.tell(commits=[commit], narrow=narrow).ignored

    def learn(self, watermark: Position, **fields: Any) -> None:
        incarnation = self.topic.log.incarnation
        learned = pb.GeoLearnTopic(
            topic=TOPIC,
            incarnation=incarnation,
            watermark=position_to_proto(watermark),
            gen=self.state().cursor.gen,
            **fields,
        )
        self.tell(learned=[learned])


# ------------------------------------------------------------------------------------------------------------------ grants


def test_a_granted_topic_is_handed_out_and_no_other() -> None:
    link = Fetching(granted=False)
    positions = link.publish("a", "b")
    question = link.fetch()
    assert question.held
    assert link.grant()
    (part,) = question.parts
    assert question.positions == positions
    assert (part.topic, part.grant, part.gen, part.incarnation) == (TOPIC, 1, 1, link.topic.log.incarnation)
    assert (position_from_proto(part.p), position_from_proto(part.read.end)) == (NONE, positions[-1])
    assert question.response.uuid == "a-1"
    assert (part.read.HasField("request_id"), part.read.request_id) == (True, 0)
    assert link.told().grant == 1


@pytest.mark.parametrize(
    "fields", [{"gen": 2}, {"gen": 0}, {"incarnation": 5}, {"number": 0}, {"pipeline": "p2"}, {"pipeline": ""}]
)
def test_a_grant_about_something_else_is_ignored(fields: dict[str, Any]) -> None:
    link = Fetching(granted=False)
    link.publish("a")
    question = link.fetch()
    assert not link.grant(**fields)
    assert question.held
    assert link.told().grant == 0
    assert not link.grant("persistent://public/default/none", incarnation=1, gen=1)


def test_a_pause_stops_handing_out_and_confirmations_still_count() -> None:
    link = Fetching()
    first = link.publish("a")
    assert link.fetch().positions == first
    link.machine.operations.pause(TOPIC, True, lambda _error: None)
    link.rig.store()
    second = link.publish("b")
    question = link.fetch()
    link.later(SPACING_MS_MAX)
    assert question.held
    assert link.commit(first[0], grant=1)
    assert link.state().cursor.c == first[0]
    link.machine.operations.pause(TOPIC, False, lambda _error: None)
    link.rig.store()
    link.later(SPACING_MS_MAX)
    assert question.positions == second


def test_a_grant_of_a_blocked_topic_is_a_probe_that_ends_with_the_next_block() -> None:
    link = Fetching(granted=False)
    positions = link.publish("a")
    link.commit(NONE, grant=0, blocked="schema", reason="not compatible")
    assert link.state().blocked is not None
    assert link.grant(number=1)
    assert link.fetch().positions == positions
    link.commit(
        NONE, grant=1, blocked="schema", reason="not compatible", ended="blocked", ended_reason="not compatible"
    )
    assert ended(link) == (0, "blocked", "not compatible")
    assert link.grant(number=2)
    again = link.fetch(reader=9)
    link.later(SPACING_MS_MAX)
    assert again.positions == positions
    assert link.commit(positions[0], grant=2)
    assert link.state().blocked is None
    assert ended(link) == (2, "", "")


def test_a_topic_that_waits_for_its_own_disk_is_not_granted_before_its_pause_is_over() -> None:
    link = Fetching(granted=False)
    link.publish("a")
    link.state().block("corrupt", "cannot be read", link.rig.outbox.now_ms, here=True)
    assert not link.grant(number=1)
    link.rig.outbox.now_ms = link.state().blocked.retry_at_ms
    assert link.grant(number=2)


def test_a_grant_said_twice_goes_on_and_an_old_one_brings_nothing_back() -> None:
    """A pipeline says a grant again until it is answered; what was stuck in an old connection may come after all."""
    link = Fetching()
    positions = link.publish("a")
    assert link.fetch().positions == positions
    assert link.grant(number=1)
    again = link.fetch()
    link.later(100)
    assert again.held, "nothing is handed out twice"
    link.revoke()
    assert not link.grant(number=1)
    assert link.grant(number=2)
    assert again.positions == positions


# --------------------------------------------------------------------------------------------------------------- questions


def test_a_question_is_held_until_there_is_news() -> None:
    link = Fetching()
    question = link.fetch()
    assert question.held
    (position,) = link.publish("a")
    assert question.positions == [position]
    next_question = link.fetch()
    link.later(1_000)
    assert next_question.held
    (second,) = link.publish("b")
    assert next_question.positions == [second]
    assert not next_question.parts[0].HasField("p"), "the reader knows what it got before"


def test_a_question_that_finds_nothing_is_answered_empty_in_time() -> None:
    link = Fetching()
    short, long = link.fetch(wait_ms=100), link.fetch(wait_ms=10**6)
    link.later(99)
    assert short.held
    link.later(1)
    assert short.empty
    link.later(19_899)
    assert long.held
    link.later(1)
    assert long.empty, "no question is held for longer than poll_ms_max"
    at_once = link.fetch(wait_ms=0)
    link.later(0)
    assert at_once.empty


def test_two_questions_of_one_reader_get_one_answer_each_in_order() -> None:
    link = Fetching()
    first, second = link.fetch(), link.fetch()
    (one,) = link.publish("a")
    assert (first.positions, second.held) == ([one], True)
    link.later(SPACING_MS_MIN)
    (two,) = link.publish("b")
    assert second.positions == [two]


def test_questions_have_a_ceiling() -> None:
    link = Fetching()
    questions = [link.fetch() for _ in range(HELD_MAX + 1)]
    assert questions[0].empty
    assert all(question.held for question in questions[1:])


def test_answers_under_load_are_spaced_and_a_single_message_is_not() -> None:
    link = Fetching()
    question, times = link.fetch(), []
    for _ in range(60):
        link.publish("a", "b", "c", "d", "e", "f")
        if not question.held:
            times.append(link.rig.outbox.now_ms)
            question = link.fetch()
        link.later(1)
    gaps = [after - before for before, after in pairwise(times)]
    assert (gaps[0], gaps[-1]) == (SPACING_MS_MIN + 1, SPACING_MS_MAX)
    assert gaps == sorted(gaps)
    link.later(1_000)
    question = question if question.held else link.fetch()
    link.later(SPACING_MS_MAX)
    assert link.publish("a") == question.positions, "at once"


@pytest.mark.parametrize(("every_ms", "gap_ms"), [(1, SPACING_MS_MAX), (2, max(2, SPACING_MS_MIN))])
def test_the_spacing_follows_the_rate_wherever_it_was_before(every_ms: int, gap_ms: int) -> None:
    link = Fetching()
    question = link.fetch()
    for before in (SPACING_MS_MIN, SPACING_MS_MAX):
        for _ in range(30):  # a rate far below the limit, or far above
            link.publish(*["x"] * (before == SPACING_MS_MAX) * 9, "x")
            link.later(1 if before == SPACING_MS_MAX else 20)
            question = question if question.held else link.fetch()
        times = []
        for now in range(200):
            if now % every_ms == 0:
                link.publish("a")
            if not question.held:
                times.append(now)
                question = link.fetch()
            link.later(1)
        assert {after - before for before, after in pairwise(times[-10:])} == {gap_ms}


# ------------------------------------------------------------------------------------------------------- what bounds answers


def test_the_window_is_full_until_commits_make_room() -> None:
    link = Fetching()
    positions = link.publish(*["x" * 100] * 6)
    window = {"window_bytes": 2 * (SIZE + PART_BYTES), "bytes_max": SIZE}
    questions = [link.fetch(**window) for _ in range(4)]
    link.later(100)
    assert [question.held for question in questions] == [False, False, True, True]
    assert link.commit(positions[0])
    link.later(100)
    assert questions[2].positions == [positions[2]]
    assert questions[3].held
    link.revoke()
    assert link.grant()
    link.later(100)
    assert questions[3].positions == [positions[1]], "another grant begins at the cursor, and the old one takes no room"


def test_what_the_source_itself_settles_takes_no_room_either() -> None:
    """A part may end with entries of other clusters: the task confirms what it sent, and the source passes over the rest."""
    link = Fetching()
    positions = link.topic.publish(message("x" * 100), message(origin="c"))
    window = {"window_bytes": SIZE + PART_BYTES}
    first, second = link.fetch(**window), link.fetch(**window)
    assert first.positions == positions[:1]
    assert link.commit(positions[0])
    link.topic.publish(message(origin="c"))
    assert link.state().cursor.c > positions[1]
    link.validate()
    last = link.topic.publish(message("x" * 100))
    link.later(10)
    assert second.positions == last


def test_an_entry_larger_than_bytes_max_goes_alone() -> None:
    link = Fetching()
    positions = link.publish("x" * 5_000, "y" * 5_000, "z")
    questions = [link.fetch(bytes_max=bytes_max) for bytes_max in (1_000, 0, 1_000)]
    link.later(10)
    assert [question.positions for question in questions] == [[position] for position in positions]


def test_a_reader_cannot_ask_for_more_than_the_source_reads_at_once() -> None:
    link = Fetching()
    link.add(OTHER)
    assert link.grant(OTHER)
    for name in (TOPIC, OTHER):
        link.publish(*["x" * (READ_BYTES_MAX // 8)] * 6, name=name)
    question = link.fetch(bytes_max=1 << 30)
    assert len(question.parts) == 2
    size = sum(map(len, question.data))
    assert 6 * (READ_BYTES_MAX // 8) < size <= READ_BYTES_MAX, "not as much of each topic"


def test_many_topics_share_an_answer_and_it_has_a_ceiling() -> None:
    link = Fetching(granted=False)
    names = [f"persistent://public/default/t{number}" for number in range(300)]
    for name in names:
        link.add(name)
        link.publish("a", name=name)
        assert link.grant(name)
    first, second = link.fetch(), link.fetch()
    link.later(0)
    assert [len(first.parts), len(second.parts)] == [PARTS_MAX, 300 - PARTS_MAX], "at once: there was more"
    assert [part.topic for part in [*first.parts, *second.parts]] == names


def test_a_new_reader_of_many_idle_topics_does_not_hold_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.replication.link.fetching.TOPICS_LOOKED_MAX", 3)
    link = Fetching(granted=False)
    names = [f"persistent://public/default/t{number}" for number in range(8)]
    for name in names:
        link.add(name)
        assert link.grant(name)
    looked: list[str] = []
    link.refused = Looked(looked)
    positions = link.publish("a", name=names[-1])
    question = link.fetch()
    assert (question.held, looked) == (True, names[:3])
    link.later(0)
    assert (question.held, looked) == (True, names[:6])
    link.later(0)
    assert (question.positions, looked) == (positions, names)


def test_a_topic_is_one_part_of_an_answer() -> None:
    """The next entry does not fit: the answer is full, although a smaller one would."""
    link = Fetching()
    positions = link.publish("x" * 100, "y" * 100)
    first = link.fetch(bytes_max=SIZE + SIZE // 2)
    assert (first.positions, len(first.parts)) == (positions[:1], 1)


def test_topics_take_turns() -> None:
    link = Fetching()
    link.add(OTHER)
    assert link.grant(OTHER)
    mine, others = link.publish(*["x" * 100] * 6), link.publish(*["x" * 100] * 2, name=OTHER)
    got = []
    for _ in range(4):
        question = link.fetch(bytes_max=2 * SIZE)
        link.later(10)
        got.append((question.parts[0].topic, question.positions))
    assert got == [(TOPIC, mine[:2]), (OTHER, others), (TOPIC, mine[2:4]), (TOPIC, mine[4:])]


def test_a_throttled_link_hands_out_at_its_rate() -> None:
    link = Fetching()
    link.machine.operations.throttle(10 * SIZE, lambda _error: None)
    link.rig.store()
    positions = link.publish(*["x" * 100] * 30)
    got = []
    for _ in range(20):
        question = link.fetch(wait_ms=200)
        link.later(200)
        got.append([] if question.empty else question.positions)
    assert got[0] == positions[:10], "what may go in a second"
    assert [position for some in got for position in some] == positions
    assert max(map(len, got[1:])) <= 2, "then one in 100 ms"
    link.publish(*["x" * 100] * 30)
    link.machine.operations.throttle(None, lambda _error: None)
    link.rig.store()
    question = link.fetch()
    assert len(question.positions) == 30


def test_a_topic_goes_at_its_own_rate() -> None:
    link = Fetching()
    link.machine.set_rate(TOPIC, Rate(2, 0, 1_000, link.rig.outbox.now_ms))
    positions = link.publish(*"abcdef")
    first, second = link.fetch(), link.fetch()
    assert (first.positions, second.held) == (positions[:2], True)
    link.later(1_000)
    assert 0 < len(second.positions) <= 2
    assert second.positions[0] == positions[2]


def test_a_paused_link_hands_out_nothing_until_it_goes_on() -> None:
    link = Fetching()
    link.machine.operations.pause(None, True, lambda _error: None)
    link.rig.store()
    positions = link.publish("a")
    question = link.fetch()
    link.later(100)
    assert question.held
    link.machine.operations.pause(None, False, lambda _error: None)
    link.rig.store()
    assert question.positions == positions
    assert link.told().grant == 1


# ----------------------------------------------------------------------------------------------------------------- readers


def test_another_reader_begins_at_the_cursors_and_the_former_one_ends() -> None:
    link = Fetching()
    positions = link.publish("a", "b", "c")
    assert link.fetch(reader=7).positions == positions
    link.commit(positions[0])
    waiting = link.fetch(reader=7)
    link.later(100)
    second = link.fetch(reader=8)
    assert waiting.response.superseded
    assert second.positions == positions[1:]
    assert position_from_proto(second.parts[0].p) == positions[0]
    assert link.fetch(reader=7).response.superseded
    assert not link.fetch(reader=8).answers


def test_a_later_epoch_supersedes_and_an_earlier_one_gets_nothing() -> None:
    link = Fetching()
    positions = link.publish("a")
    first = link.fetch(epoch=5)
    assert first.positions == positions
    waiting = link.fetch(epoch=5)
    link.later(10)
    assert link.fetch(epoch=6).positions == positions, "the same task number in a later epoch is another reader"
    assert waiting.response.superseded
    assert link.fetch(epoch=5, reader=9).response.superseded
    assert link.fetch(epoch=5).response.superseded
    assert link.fetch(epoch=6).held


def test_an_earlier_readers_confirmation_still_counts() -> None:
    """It was stored there, whoever asks now. What the present reader gets next says what it comes after."""
    link = Fetching()
    positions = link.publish("a", "b", "c", "d")
    assert link.fetch(reader=7).positions == positions
    link.later(10)
    assert link.fetch(reader=8, bytes_max=1).positions == positions[:1]
    assert link.commit(positions[2], positions[1])
    link.later(10)
    question = link.fetch(reader=8)
    assert question.positions == positions[3:]
    assert position_from_proto(question.parts[0].p) == positions[1]


def test_readers_that_were_superseded_are_remembered_up_to_a_ceiling() -> None:
    link = Fetching()
    for reader in range(100, 100 + FORMER_MAX + 2):
        link.fetch(reader=reader)
    assert link.fetch(reader=101).response.superseded
    assert link.fetch(reader=100).held


def test_a_reader_that_comes_over_another_connection_begins_at_the_cursors() -> None:
    """An answer may have been lost with the connection: to go on behind it would leave a hole that nothing notices."""
    link = Fetching()
    positions = link.publish("a")
    assert link.fetch(connection=1).positions == positions
    link.later(10)
    link.machine.disconnected(1)
    link.validate()
    again = link.fetch(connection=2)
    assert again.positions == positions
    assert again.parts[0].HasField("p")
    waiting = link.fetch(connection=2)
    link.later(10)
    assert link.fetch(connection=3).positions == positions, "also before the broker notices that the first one is gone"
    assert waiting.response.superseded


def test_what_a_connection_asked_is_forgotten_with_it() -> None:
    link = Fetching()
    question = link.fetch(connection=1)
    link.machine.disconnected(2)
    link.validate()
    link.machine.disconnected(1)
    positions = link.publish("a")
    link.later(10_000)
    assert question.held, "nothing is sent to a connection that is gone"
    assert link.fetch(connection=2).positions == positions


# -------------------------------------------------------------------------------------------------- while the disk is slow


def test_a_slow_read_is_answered_when_the_disk_has_it() -> None:
    link = Fetching()
    positions = link.publish("a")
    link.rig.slow = True
    first, second = link.fetch(wait_ms=10), link.fetch(wait_ms=10)
    link.later(10)
    assert (first.held, second.empty) == (True, True), "what is being read for is not given up"
    link.rig.disk()
    assert first.positions == positions


def test_the_connection_goes_while_a_read_is_under_way() -> None:
    link = Fetching()
    positions = link.publish("a")
    link.rig.slow = True
    lost = link.fetch(connection=1)
    link.machine.disconnected(1)
    link.rig.disk()
    assert lost.held
    link.validate()
    assert link.fetch(connection=2).positions == positions


def test_another_reader_comes_while_a_read_is_under_way() -> None:
    link = Fetching()
    positions = link.publish("a")
    link.rig.slow = True
    former, present = link.fetch(reader=7), link.fetch(reader=8)
    assert former.response.superseded
    link.rig.disk()
    assert present.positions == positions
    assert len(former.answers) == 1


def test_a_grant_stuck_in_an_old_connection_while_it_was_revoked_is_not_installed_after_the_comparison() -> None:
    link = Fetching(granted=False)
    stuck = {"number": 7, "connection": 81}  # sent over 81, which stalls: the pipeline revokes over 82
    link.revoke(connection=82)
    assert not link.grant(**stuck), "it was compared before the revocation"
    (position,) = link.publish("a")
    assert link.fetch().held
    assert link.grant(number=8, connection=82)
    assert link.told().grant == 8
    assert link.commit(position, grant=8)


def test_a_revocation_stuck_in_an_old_connection_does_not_end_the_next_grant() -> None:
    link = Fetching()
    link.revoke(connection=82)
    assert link.grant(connection=82)
    link.revoke(connection=81)
    assert link.told().grant == link.numbers


def test_a_pipeline_that_takes_the_lease_may_have_an_older_connection() -> None:
    link = Fetching(granted=False)
    assert link.grant(connection=90)
    link.later(LEASE_MS + 1)
    link.poll(pipeline="p2")
    assert link.grant(pipeline="p2", connection=70)


def test_a_grant_ends_while_its_read_is_under_way() -> None:
    link = Fetching()
    positions = link.publish("a")
    link.add(OTHER)
    assert link.grant(OTHER)
    others = link.publish("b", name=OTHER)
    link.rig.slow = True
    question = link.fetch(wait_ms=50)
    link.revoke(TOPIC)
    link.rig.disk()
    assert [part.topic for part in question.parts] == [OTHER]
    assert question.positions == others
    link.revoke(OTHER)
    assert link.grant(OTHER)
    link.rig.slow = True
    alone = link.fetch(wait_ms=50)
    link.later(10)
    link.later(60)
    link.revoke(OTHER)
    link.rig.disk()
    link.later(0)
    assert alone.empty, "nothing is left of it, and its time is over"
    assert link.grant(TOPIC)
    link.later(10)
    assert link.fetch().positions == positions


# -------------------------------------------------------------------------------------------------------- how grants end


def ended(link: Fetching, name: str = TOPIC) -> tuple[int, str, str]:
    told = link.told(name)
    return told.grant, told.ended, told.ended_reason


def test_a_revoked_grant_is_over_and_its_commits_count_no_more() -> None:
    link = Fetching()
    positions = link.publish("a", "b")
    assert link.fetch().positions == positions
    assert link.commit(positions[0], grant=1)
    link.revoke()
    assert ended(link) == (0, "", ""), "the pipeline knows why"
    assert not link.commit(positions[1], grant=1)
    assert link.state().cursor == LinkCursor(positions[0], positions[0], 1)
    assert link.grant()
    assert not link.commit(positions[1], grant=1), "nor under the next grant"
    assert link.commit(positions[1], grant=2)
    assert link.commit(positions[1], grant=0), "a short batch has none"


def test_a_commit_of_an_old_grant_says_nothing_of_blocks_either() -> None:
    link = Fetching()
    (position,) = link.publish("a")
    link.revoke()
    assert not link.commit(NONE, grant=1, blocked="schema", reason="x", position=position_to_proto(position))
    assert link.told().blocked == ""


def test_a_task_gives_a_grant_back_and_the_pipeline_hears_why_at_once() -> None:
    link = Fetching()
    positions = link.publish("a", "b")
    link.fetch()
    held = link.poll(link.poll()[0].counter, wait_ms=20_000)
    assert link.commit(positions[0], ended="refused", ended_reason="W is none")
    link.later(SETTLE_MS)
    (told,) = held[0].topics
    assert (told.grant, told.ended, told.ended_reason) == (0, "refused", "W is none")
    assert position_from_proto(told.cursor.c) == positions[0], "what was confirmed before counts"
    assert link.grant()
    assert ended(link) == (2, "", "")
    assert not link.commit(positions[0], grant=1, ended="retry"), "an old one cannot be given back"
    assert ended(link) == (2, "", "")


def test_a_grant_given_back_without_progress() -> None:
    link = Fetching()
    held = link.poll(link.poll()[0].counter, wait_ms=20_000)
    assert link.commit(NONE, ended="retry", ended_reason="no room")
    link.later(SETTLE_MS)
    assert [told.ended for told in held[0].topics] == ["retry"]
    assert ended(link) == (0, "retry", "no room")
    assert not link.rig.stores.waiting, "nothing moved"


def test_a_block_ends_the_grant() -> None:
    link = Fetching()
    positions = link.publish("a", "b")
    question = link.fetch()
    assert question.positions == positions
    assert link.commit(
        positions[0],
        blocked="schema",
        reason="not compatible",
        position=position_to_proto(positions[1]),
        ended="blocked",
    )
    assert ended(link) == (0, "blocked", "not compatible")
    told = link.told()
    assert (told.blocked, told.reason) == ("schema", "not compatible")
    assert position_from_proto(told.cursor.c) == positions[0]


def test_an_entry_that_cannot_be_read_ends_the_grant() -> None:
    link = Fetching()
    positions = link.publish("a", "b")
    link.rig.spoilt = {positions[1]}
    first, second = link.fetch(), link.fetch()
    link.later(10)
    assert first.positions == positions[:1]
    assert second.held
    grant, kind, reason = ended(link)
    assert (grant, kind) == (0, "blocked")
    assert str(positions[1]) in reason
    assert link.told().blocked == "corrupt"


def test_a_rewind_ends_the_grant() -> None:
    link = Fetching()
    positions = link.publish("a", "b", "c")
    link.fetch()
    link.commit(positions[2])
    link.learn(positions[0])
    assert link.state().cursor == LinkCursor(positions[0], positions[0], 2)
    assert ended(link) == (0, "gone", "")
    assert not link.grant(gen=1)
    assert link.grant()
    question = link.fetch()
    link.later(10)
    assert question.positions == positions[1:]
    assert question.parts[0].gen == 2


def test_no_grant_counts_while_a_rewind_is_being_stored() -> None:
    link = Fetching()
    positions = link.publish("a")
    link.fetch()
    link.commit(positions[0])
    state = link.state()
    learned = pb.GeoLearnTopic(
        topic=TOPIC, incarnation=link.topic.log.incarnation, watermark=position_to_proto(NONE), gen=1
    )
    grant = pb.GeoGrant(topic=TOPIC, incarnation=link.topic.log.incarnation, gen=1, number=50)
    got: list[pb.CommandGeoCommitResponse] = []
    request = pb.CommandGeoCommit(request_id=1, to="b", pipeline="p1", learned=[learned], grants=[grant])
    link.machine.commit(request, got.append)
    link.validate()
    assert state.rewinding is not None
    link.rig.store()
    link.validate()
    assert list(got[0].ignored) == [TOPIC]
    assert ended(link)[:2] == (0, "gone")


def test_a_topic_that_is_created_again_is_another_one() -> None:
    link = Fetching()
    link.publish("a")
    question, second = link.fetch(), link.fetch()
    assert question.parts
    link.machine.removed(TOPIC)
    link.validate()
    incarnation = link.topic.log.incarnation
    link.topic = link.add(TOPIC)
    assert link.told().grant == 0
    positions = link.publish("b")
    assert not link.grant(incarnation=incarnation)
    assert not link.commit(positions[0], grant=1)
    assert link.grant()
    link.later(10)
    assert second.positions == positions
    assert second.parts[0].incarnation != incarnation


def test_a_topic_that_leaves_the_link_ends_its_grant() -> None:
    link = Fetching()
    link.machine.late(TOPIC, link.topic.log, wanted=False, latest=False)
    link.validate()
    question = link.fetch()
    link.publish("a")
    link.later(100)
    assert question.held
    assert not link.grant()


def test_a_topic_that_the_role_may_not_replicate_any_more() -> None:
    link = Fetching()
    link.add(OTHER)
    assert link.grant(OTHER)
    mine, _ = link.publish("a"), link.publish("b", name=OTHER)
    link.refused[OTHER] = "role r may not"
    question = link.fetch()
    first, second = question.parts
    assert (first.topic, second.topic) == (TOPIC, OTHER)
    assert question.positions == mine
    assert (second.read.blocked, second.read.message, list(second.read.sizes)) == ("policy", "role r may not", [])
    assert position_from_proto(second.read.end) == NONE
    assert ended(link, OTHER) == (0, "gone", "role r may not")


def test_another_pipeline_takes_the_lease() -> None:
    """It compares next: nothing may count any more that the former one's tasks confirm."""
    link = Fetching()
    positions = link.publish("a", "b")
    assert link.fetch().positions == positions
    assert "p1" in link.fetch(pipeline="p2", connection=2).response.refused
    assert not link.grant(pipeline="p2")
    link.later(LEASE_MS)
    held = link.fetch()
    assert link.told(pipeline="p2", connection=91).grant == 0, "the lease is its own from now on"
    assert "p2" in held.response.refused
    assert not link.commit(positions[0], grant=1)
    assert not link.grant(), "what the former pipeline says late counts no more"
    assert link.grant(pipeline="p2", number=1), "numbers are each pipeline's own"
    link.revoke(pipeline="p1")
    assert "p2" in link.fetch().response.refused
    assert link.fetch(pipeline="p2", connection=2, epoch=0).positions == positions


def test_after_a_restart_of_the_source_a_task_may_come_before_its_pipeline() -> None:
    link = Fetching()
    positions = link.publish("a")
    assert link.fetch().positions == positions
    link.rig.outbox.now_ms += 1_000
    link.rig.host.timers.waiting.clear()
    link.machine = link.make()
    link.machine.load(link.rig.meta)
    link.machine.added(TOPIC, link.topic.log, wanted=True)
    question = link.fetch()
    assert question.held
    assert not link.commit(positions[0], grant=1), "no confirmation counts before the pipeline has compared again"
    assert link.told().grant == 0
    assert link.grant()
    assert question.positions == positions


def test_a_role_that_may_replicate_some_topics_has_a_session_of_its_own() -> None:
    link = Fetching()
    positions = link.publish("a")
    link.poll(pipeline="p9", connection=95, narrow="r")
    assert link.fetch(pipeline="p9", connection=5, narrow="r").held
    assert link.grant(pipeline="p9", narrow="r")
    assert link.told().grant == 1
    assert link.fetch().positions == positions
    assert not link.commit(positions[0], grant=1, narrow="r")
    assert link.commit(positions[0], grant=2, narrow="r")


def test_idle_sessions_of_roles_are_forgotten_and_no_others() -> None:
    link = Fetching(granted=False)
    positions = link.publish("a")
    link.poll(pipeline="p9", narrow="r", connection=95)
    waiting = link.fetch(pipeline="p9", narrow="r", connection=5)
    link.poll(pipeline="p8", narrow="s", connection=96)
    assert link.grant(pipeline="p9", narrow="r")
    assert waiting.positions == positions
    assert link.grant(pipeline="p8", narrow="s"), "its lease says whose the session is"


# -------------------------------------------------------------------------------------------------------------------- news


def test_news_of_granted_topics_are_collected_for_longer() -> None:
    link = Fetching()
    counter = link.poll()[0].counter
    held = link.poll(counter, wait_ms=20_000)
    positions = link.publish("a")
    link.later(QUIET_MS - 1)
    assert held == []
    link.later(1)
    assert [position_from_proto(told.last) for told in held[0].topics] == positions
    quiet = link.poll(held[0].counter - 1, wait_ms=20_000)
    assert quiet == [], "an asker that missed quiet news waits as well"
    link.later(QUIET_MS)
    assert len(quiet) == 1


def test_other_news_are_told_at_once_and_take_the_quiet_ones_along() -> None:
    link = Fetching()
    link.add(OTHER)
    counter = link.poll()[0].counter
    held = link.poll(counter, wait_ms=20_000)
    link.publish("a")
    link.later(100)
    link.publish("b", name=OTHER)
    link.later(SETTLE_MS)
    assert {told.topic for told in held[0].topics} == {TOPIC, OTHER}
    nothing = link.poll(held[0].counter, wait_ms=20_000)
    link.later(QUIET_MS)
    assert nothing == []
    link.machine.touched(TOPIC)
    link.later(SETTLE_MS)
    assert len(nothing) == 1, "the number of partitions, for example, is nothing that a session knows"
    link.publish("c")
    link.machine.touched(TOPIC)
    assert link.poll(nothing[0].counter, wait_ms=20_000) != [], "what is urgent is answered at once"


def test_a_roles_grant_keeps_no_news_from_the_pipeline_of_the_whole_link() -> None:
    link = Fetching(granted=False)
    link.poll(pipeline="p9", narrow="r", connection=95)
    assert link.grant(pipeline="p9", narrow="r")
    held = link.poll(link.poll()[0].counter, wait_ms=20_000)
    link.publish("a")
    link.later(SETTLE_MS)
    assert len(held) == 1


def totals(task: int = 7, **fields: Any) -> pb.GeoFetchTotals:
    return pb.GeoFetchTotals(**({"task": task, "messages": 3, "bytes": 300, "duplicates": 1} | fields))


def test_totals_of_all_tasks_are_added_up() -> None:
    link = Fetching()
    link.fetch()
    link.tell(totals=totals())
    link.tell(totals=totals(messages=5, bytes=500, lag_ms=4))
    link.tell(totals=totals(8, messages=2, bytes=20, duplicates=0, lag_ms=9))
    link.tell(totals=totals(messages=6, bytes=600, lag_ms=5))
    assert link.poll()[0].totals == totals(0, messages=8, bytes=620, lag_ms=5)


def test_totals_of_many_tasks_take_no_more_room() -> None:
    link = Fetching()
    link.fetch()
    for task in range(1, 100):
        link.tell(totals=totals(task))
    assert link.poll()[0].totals.messages == 297
    assert len(link.machine._sessions.whole._tasks) == TASKS_MAX


def test_that_the_destination_was_lost_is_news() -> None:
    link = Fetching()
    link.fetch()
    held = link.poll(link.poll()[0].counter, wait_ms=20_000)
    link.tell(totals=totals())
    link.later(SETTLE_MS)
    assert held == []
    link.tell(totals=totals(down="connection refused", downs=1))
    link.later(SETTLE_MS)
    assert (held[0].totals.down, held[0].totals.downs) == ("connection refused", 1)
    held = link.poll(held[0].counter, wait_ms=20_000)
    link.tell(totals=totals(down="connection refused", downs=1, messages=4))
    link.later(SETTLE_MS)
    assert held == []
    link.tell(totals=totals(8, down="connection refused", downs=1))
    link.later(SETTLE_MS)
    assert held[0].totals.downs == 2


# ------------------------------------------------------------------------------------------------------- what is left out


def test_what_is_not_for_the_link_is_stepped_over() -> None:
    link = Fetching()
    entries = [
        message(origin="c"),
        message("a"),
        message(origin="c"),
        message("for x", to=("x",)),
        message("b", to=("b",)),
    ]
    positions = link.topic.publish(*entries)
    question = link.fetch()
    assert question.positions == [positions[1], positions[4]]
    link.commit(positions[4])
    last = link.topic.publish(message("for x", to=("x",)))[0]
    link.later(10)
    nothing = link.fetch()
    (part,) = nothing.parts
    assert (nothing.positions, position_from_proto(part.read.end)) == ([], last), "the end moves over it"
    assert link.commit(last, positions[4])
    assert link.state().cursor == LinkCursor(last, positions[4], 1)
    foreign = link.topic.publish(message(origin="c"), message("c"))
    link.later(10)
    question = link.fetch()
    assert question.positions == foreign[1:]
    assert position_from_proto(question.parts[0].p) == positions[4], "the source passed over an entry itself"


def test_what_is_skipped_by_command_is_not_handed_out() -> None:
    link = Fetching()
    positions = link.publish(*"abcd")
    assert link.fetch(bytes_max=1).positions == positions[:1]
    link.machine.operations.skip(TOPIC, positions[2], lambda _error: None)
    link.rig.store()
    link.later(10)
    question = link.fetch()
    assert question.positions == positions[3:]
    assert position_from_proto(question.parts[0].p) == NONE, "what was skipped is no gap in the chain"


def test_a_session_that_was_never_used_is_idle() -> None:
    session = FetchSession(
        Rig().outbox,
        {},
        uuid="a-1",
        start=lambda *_: None,
        stopped=lambda: False,
        rate=lambda: 0,
        wait_ms_max=1,
        bytes_max=1,
    )
    assert session.idle
    session.validate()


def sizes(one: object) -> dict[str, int]:
    """How much each collection of a machine holds."""
    return {name: len(value) for name, value in vars(one).items() if isinstance(value, Sized)}


def test_ten_thousand_topics_that_come_and_go_during_a_batch_leave_nothing_behind() -> None:
    """Some are confirmed, some are given back, some are deleted with entries under way; the reader is the same all the time."""
    link = Fetching(granted=False)
    session = link.machine._session("")
    window = 50 * (SIZE + PART_BYTES)
    before = sizes(session) | sizes(link.machine) | sizes(link.machine._topics)
    handed_out = 0
    for begin in range(0, 10_000, 100):
        names = [f"{TOPIC}-{number}" for number in range(begin, begin + 100)]
        for name in names:
            added = link.topics[name] = link.rig.topic(name)
            link.machine.added(name, added.log, wanted=True, created=True)
        link.rig.store()
        numbers = {name: begin + at + 1 for at, name in enumerate(names)}
        grants = []
        for name in names:
            about = link.state(name)
            grants.append(
                pb.GeoGrant(topic=name, number=numbers[name], gen=about.cursor.gen, incarnation=about.log.incarnation)
            )
        assert not link.tell(grants=grants).ignored
        for name in names:
            link.topics[name].publish(message("x" * 100))
        link.validate()
        question = link.fetch(window_bytes=window)
        link.later(SPACING_MS_MAX)
        commits = []
        for part in question.parts:
            handed_out += 1
            commit = pb.GeoCommitTopic(topic=part.topic, incarnation=part.incarnation, grant=part.grant)
            c = part.read.end if part.grant % 3 == 0 else position_to_proto(NONE)
            commit.cursor.CopyFrom(pb.GeoCursor(c=c, s=c, gen=part.gen))
            if part.grant % 3 == 1:
                commit.ended, commit.ended_reason = "retry", "no room"
            if part.grant % 3 < 2:
                commits.append(commit)
        assert not link.tell(commits=commits).ignored
        assert session._under_way_bytes <= window + READ_BYTES_MAX
        for name in names:
            link.machine.removed(name)
            del link.topics[name]
        link.poll()
        link.validate()
    after = sizes(session) | sizes(link.machine) | sizes(link.machine._topics)
    assert handed_out >= 5_000
    assert {name: size for name, size in after.items() if size > before[name] + PARTS_MAX} == {}
    assert session._under_way_bytes == 0
