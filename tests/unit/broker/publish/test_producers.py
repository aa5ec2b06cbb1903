"""Who may publish to a topic: every access mode beside whoever is there, and epochs that outlive connections and brokers."""

from collections.abc import Callable
from itertools import count
from typing import Final

import pytest

from magnetar.broker.publish.producers import PRODUCERS_WAITING_MAX, TOPIC_EPOCH_MAX, AccessMode, Producer, Producers
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.names import NamespaceName
from magnetar.metadata.topic_records import TOPIC_PREFIX, TopicRecord
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.support.geoworld import TOPIC, Client, Node

SHARED, EXCLUSIVE, WAIT, FENCING = AccessMode
BUSY, FENCED = ErrorCode.PRODUCER_BUSY, ErrorCode.PRODUCER_FENCED
NAMESPACE: Final = NamespaceName("public", "default")
PASSING: Final = "non-persistent://public/default/t"
CLOSE = pb.BaseCommand(type=15, close_producer=pb.CommandCloseProducer(producer_id=1, request_id=50))

connections = count(1)


def producer(mode: AccessMode, name: str = "", *, topic_epoch: int | None = None, **more: int) -> Producer:
    number = next(connections)
    place = {"connection": number, "producer_id": 1, "epoch": 0} | more
    return Producer(
        request_id=1, name=name or f"p{number}", mode=mode, user_named=True, topic_epoch=topic_epoch, **place
    )


# What is there -> who is live, who waits.
SCENES: dict[str, tuple[list[AccessMode], list[AccessMode]]] = {
    "nobody": ([], []),
    "shared": ([SHARED, SHARED], []),
    "exclusive": ([EXCLUSIVE], []),
    "holder that waited": ([WAIT], []),
    "fencing": ([FENCING], []),
    "shared, and one waits": ([SHARED], [WAIT]),
    "exclusive, and two wait": ([EXCLUSIVE], [WAIT, WAIT]),
}
TAKEN = ("exclusive", "holder that waited", "fencing")
WAITED = ("shared, and one waits", "exclusive, and two wait")
TABLE: list[tuple[AccessMode, str, str | ErrorCode]] = [
    *((mode, "nobody", "accepted") for mode in AccessMode),
    (SHARED, "shared", "accepted"),
    (EXCLUSIVE, "shared", FENCED),
    (WAIT, "shared", "queued"),
    (FENCING, "shared", "alone"),
    *((SHARED, scene, BUSY) for scene in TAKEN + WAITED),
    *((EXCLUSIVE, scene, FENCED) for scene in TAKEN + WAITED),
    *((WAIT, scene, "queued") for scene in TAKEN + WAITED),
    *((FENCING, scene, "alone") for scene in TAKEN + WAITED),
]


def scene(name: str) -> Producers:
    made = Producers(10)
    live, waiting = SCENES[name]
    for mode in live + waiting:
        made.add(producer(mode))
    assert ([one.mode for one in made.live.values()], [one.mode for one in made.waiting]) == (live, waiting)
    return made


def test_the_table_is_whole() -> None:
    assert {(mode, name) for mode, name, _ in TABLE} == {(mode, name) for mode in AccessMode for name in SCENES}
    assert len(TABLE) == len(AccessMode) * len(SCENES)


@pytest.mark.parametrize(("mode", "there", "outcome"), TABLE)
def test_every_mode_beside_whoever_is_there(mode: AccessMode, there: str, outcome: str | ErrorCode) -> None:
    producers = scene(there)
    live, waiting, epoch = list(producers.live.values()), list(producers.waiting), producers.topic_epoch
    comer = producer(mode)
    if isinstance(outcome, ErrorCode):
        with pytest.raises(BrokerError) as refused:
            producers.add(comer)
        assert refused.value.code is outcome
        assert (list(producers.live.values()), list(producers.waiting)) == (live, waiting)
        assert not comer.ready
    else:
        evicted = producers.add(comer)
        assert set(map(id, evicted)) == (set(map(id, live + waiting)) if outcome == "alone" else set())
        assert all(one.closed and one.fenced for one in evicted)
        assert comer.ready == (outcome != "queued")
        assert list(producers.waiting) == ([*waiting, comer] if outcome == "queued" else [])
        expected = {"accepted": [*live, comer], "queued": live, "alone": [comer]}[outcome]
        assert list(producers.live.values()) == expected
    moved = not isinstance(outcome, ErrorCode) and outcome != "queued" and mode is not SHARED
    assert producers.topic_epoch == epoch + moved
    producers.validate()


def test_who_waits_comes_in_turn_and_alone() -> None:
    producers = Producers(10)
    first, second = producer(SHARED), producer(SHARED)
    waiting = [producer(WAIT) for _ in range(2)]
    for one in (first, second, *waiting):
        producers.add(one)
    assert producers.remove(first) == []
    assert producers.remove(second) == [waiting[0]]
    assert (waiting[0].topic_epoch, waiting[1].ready) == (1, False)
    assert producers.remove(waiting[0]) == [waiting[1]]
    assert waiting[1].topic_epoch == 2
    assert producers.remove(waiting[1]) == []
    producers.validate()


def test_all_are_closed_without_anybody_taking_over() -> None:
    producers = scene("exclusive, and two wait")
    assert [producers.remove(one) for one in producers.everybody()] == [[], [], []]
    assert producers.topic_epoch == 1


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT, FENCING])
def test_an_epoch_that_is_over_is_fenced_and_its_own_is_kept(mode: AccessMode) -> None:
    producers = Producers(10, topic_epoch=5)
    with pytest.raises(BrokerError) as refused:
        producers.add(producer(mode, topic_epoch=4))
    assert refused.value.code is FENCED
    back = producer(mode, topic_epoch=5)
    producers.add(back)
    assert (back.topic_epoch, producers.topic_epoch) == (5, 5)
    producers.remove(back)
    # The broker lost its memory and the client did not: nobody may get what that one has.
    ahead = producer(mode, topic_epoch=9)
    producers.add(ahead)
    producers.remove(ahead)
    fresh = producer(mode)
    producers.add(fresh)
    assert (ahead.topic_epoch, fresh.topic_epoch) == (9, 10)


def test_a_shared_producer_has_no_epoch_and_a_fenced_one_closes_nobody() -> None:
    producers = Producers(10, topic_epoch=5)
    holder = producer(SHARED, topic_epoch=1)
    producers.add(holder)
    with pytest.raises(BrokerError) as refused:
        producers.add(producer(FENCING, topic_epoch=4))
    assert refused.value.code is FENCED
    assert list(producers.live.values()) == [holder]
    assert producers.topic_epoch == 5


def test_an_epoch_out_of_the_world_leaves_room_for_others() -> None:
    producers = Producers(10)
    for brought in (TOPIC_EPOCH_MAX + 1, (1 << 64) - 1):
        with pytest.raises(BrokerError) as refused:
            producers.add(producer(EXCLUSIVE, topic_epoch=brought))
        assert refused.value.code is ErrorCode.NOT_ALLOWED
    for brought, given in ((TOPIC_EPOCH_MAX, TOPIC_EPOCH_MAX), (None, TOPIC_EPOCH_MAX + 1)):
        one = producer(EXCLUSIVE, topic_epoch=brought)
        producers.add(one)
        producers.remove(one)
        assert one.topic_epoch == given
    producers.add(producer(EXCLUSIVE, topic_epoch=TOPIC_EPOCH_MAX + 1))


def test_a_turn_that_comes_after_its_epoch_is_over_is_passed_on() -> None:
    producers = Producers(10, topic_epoch=1)
    holder, fresh = producer(SHARED), producer(WAIT)
    late = [producer(WAIT, topic_epoch=1) for _ in range(2)]
    last = producer(WAIT)
    for one in (holder, fresh, *late, last):
        producers.add(one)
    assert producers.remove(holder) == [fresh]
    assert producers.remove(fresh) == [*late, last]
    assert [(one.ready, one.fenced) for one in late] == [(False, True)] * 2
    assert (last.ready, last.topic_epoch) == (True, 3)
    producers.validate()


def test_the_same_connection_comes_back_before_it_noticed_whoever_waits() -> None:
    producers = Producers(1)
    before = producer(SHARED, "p", connection=7)
    waiting = producer(WAIT, connection=8)
    producers.add(before)
    producers.add(waiting)
    for epoch, connection in ((0, 7), (1, 9)):
        with pytest.raises(BrokerError) as refused:
            producers.add(producer(SHARED, "p", connection=connection, epoch=epoch))
        assert refused.value.code is BUSY
    again = producer(SHARED, "p", connection=7, epoch=1)
    assert producers.add(again) == [before]
    assert not before.fenced
    turn = producer(WAIT, waiting.name, connection=8, epoch=1)
    assert producers.add(turn) == [waiting]
    assert producers.remove(again) == [turn]
    producers.validate()


def test_fencing_has_room_on_a_full_topic_and_too_many_do_not_wait() -> None:
    producers = Producers(1)
    producers.add(producer(SHARED))
    with pytest.raises(BrokerError) as refused:
        producers.add(producer(SHARED))
    assert refused.value.code is BUSY
    for _ in range(PRODUCERS_WAITING_MAX):
        producers.add(producer(WAIT))
    with pytest.raises(BrokerError) as refused:
        producers.add(producer(WAIT))
    assert refused.value.code is BUSY
    assert len(producers.add(producer(FENCING))) == 1 + PRODUCERS_WAITING_MAX
    producers.validate()


NAMESAKES: list[tuple[AccessMode, AccessMode, str | ErrorCode]] = [
    (SHARED, SHARED, BUSY),
    (SHARED, EXCLUSIVE, FENCED),
    (SHARED, WAIT, "queued"),
    (EXCLUSIVE, SHARED, BUSY),
    (EXCLUSIVE, EXCLUSIVE, FENCED),
    (EXCLUSIVE, WAIT, "queued"),
    (WAIT, WAIT, "queued"),
]


@pytest.mark.parametrize(("there", "mode", "outcome"), NAMESAKES)
def test_one_of_the_same_name_is_told_of_the_access_and_not_of_the_name(
    there: AccessMode, mode: AccessMode, outcome: str | ErrorCode
) -> None:
    """Standbys have the name of whom they stand by for, so that its numbers are theirs: as in Pulsar, they wait."""
    producers = Producers(10)
    holder, comer = producer(there, "p"), producer(mode, "p")
    producers.add(holder)
    with pytest.raises(BrokerError) as refused:
        producers.add(comer)
    assert refused.value.code is BUSY, "whether the holder lives is found out first"
    if isinstance(outcome, ErrorCode):
        with pytest.raises(BrokerError) as refused:
            producers.add(comer, probed=True)
        assert refused.value.code is outcome
        assert (list(producers.live.values()), list(producers.waiting)) == ([holder], [])
    else:
        assert producers.add(comer, probed=True) == []
        assert (list(producers.live.values()), list(producers.waiting)) == ([holder], [comer])
        producers.validate()
        assert producers.remove(holder) == [comer]
        assert list(producers.live.values()) == [comer] and comer.ready
    producers.validate()


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT])
def test_who_comes_back_to_its_own_place_tries_again(mode: AccessMode) -> None:
    """It brings the epoch that holds: whoever has its name there is what is left of itself, and goes."""
    producers = Producers(10)
    before = producer(mode, "p")
    producers.add(before)
    with pytest.raises(BrokerError) as refused:
        producers.add(producer(mode, "p", topic_epoch=1), probed=True)
    assert refused.value.code is BUSY
    again = producer(mode, "p", connection=before.connection)
    with pytest.raises(BrokerError) as refused:
        producers.add(again, probed=True)
    assert refused.value.code is BUSY
    assert list(producers.live.values()) == [before] and not producers.waiting


# ------------------------------------------------------------------------------------------------------- in a broker


class Person:
    """One client with one producer."""

    def __init__(self, node: Node, topic: str = TOPIC) -> None:
        self.node, self.topic = node, topic
        self.client: Client = node.client()
        self.asked = 0

    def ask(self, mode: AccessMode, name: str = "", **more: int) -> None:
        """Open the producer, and do not wait."""
        self.asked += 1
        command = pb.CommandProducer(
            topic=self.topic, producer_id=1, request_id=self.asked, producer_access_mode=mode, **more
        )
        if name:
            command.producer_name = name
        self.client.answers.clear()
        self.client.send(pb.BaseCommand(type=5, producer=command))

    def told(self) -> list[int | str | ErrorCode]:
        """What came since: the epoch, "waits", "shared", "closed", or the error."""
        found: list[int | str | ErrorCode] = []
        for command in self.client.answers:
            if command.type == 17:
                answer = command.producer_success
                epoch = answer.topic_epoch if answer.HasField("topic_epoch") else "shared"
                found.append(epoch if answer.producer_ready else "waits")
            elif command.type == 14:
                assert command.error.request_id == self.asked
                assert "\n" not in command.error.message
                found.append(ErrorCode(command.error.error))
            elif command.type == 15:
                found.append("closed")
        self.client.answers.clear()
        return found

    def opens(self, mode: AccessMode, name: str = "", **more: int) -> list[int | str | ErrorCode]:
        """Open the producer, and wait."""
        self.ask(mode, name, **more)
        self.node.world.work()
        return self.told()

    def send(self, *sequence_ids: int) -> None:
        """Publish a message each."""
        for sequence in sequence_ids:
            seen = pb.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1)
            command = pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=sequence))
            self.client.send(command, build(seen, b"x"))

    def lives(self) -> None:
        """It answers a ping."""
        assert any(command.type == 18 for command in self.client.answers)
        self.client.answers.clear()
        self.client.send(pb.BaseCommand(type=19, pong=pb.CommandPong()))
        self.node.world.work()

    def drops(self) -> None:
        """The connection is gone."""
        del self.node.clients[self.client.number]
        self.node.run(self.node.broker.disconnected, self.client.number)
        self.node.world.work()


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT, FENCING])
@pytest.mark.parametrize("restarted", [False, True])
def test_another_was_there_in_between(node: Node, mode: AccessMode, restarted: bool) -> None:
    a, b = Person(node), Person(node)
    assert a.opens(mode, "a") == [1]
    a.drops()
    a = Person(node)
    assert a.opens(mode, "a", topic_epoch=1) == [1]
    a.drops()
    assert b.opens(mode, "b") == [2]
    b.drops()
    if restarted:
        node.restart()
    a, b = Person(node), Person(node)
    assert a.opens(mode, "a", topic_epoch=1) == [FENCED]
    assert b.opens(mode, "b", topic_epoch=2) == [2]
    b.drops()
    assert Person(node).opens(SHARED, topic_epoch=1) == ["shared"]


def test_unloaded_and_back_with_the_same_epoch(node: Node) -> None:
    a = Person(node)
    assert a.opens(EXCLUSIVE, "a") == [1]
    node.control_call(lambda done: node.control.topics.unload(TOPIC, done))
    assert a.told() == ["closed"]
    assert a.opens(EXCLUSIVE, "a", topic_epoch=1, epoch=1) == [1]


def test_who_waits_takes_nothing_over_while_all_are_closed(node: Node) -> None:
    a, b = Person(node), Person(node)
    assert a.opens(EXCLUSIVE, "a") == [1]
    assert b.opens(WAIT) == ["waits"]
    node.control_call(lambda done: node.control.topics.unload(TOPIC, done))
    assert a.told() == ["closed"]
    assert b.told() == [ErrorCode.SERVICE_NOT_READY]
    assert a.opens(EXCLUSIVE, "a", topic_epoch=1, epoch=1) == [1]


def test_the_answer_waits_until_the_epoch_is_durable(node: Node) -> None:
    a = Person(node)
    node.hold_stores = True
    assert a.opens(EXCLUSIVE, "a") == []
    assert a.opens(EXCLUSIVE, "a") == [ErrorCode.SERVICE_NOT_READY]  # asked again meanwhile
    assert Person(node).opens(SHARED) == [BUSY]
    a.asked = 1
    node.hold_stores = False
    node.world.work()
    assert a.told() == [1]
    assert TopicRecord.decode(TOPIC, node.meta[TOPIC_PREFIX + TOPIC]).topic_epoch == 1
    # One that was never told of its epoch has it no more after a power cut, and the next one may have it.
    a.drops()
    node.hold_stores = True
    assert Person(node).opens(EXCLUSIVE) == []
    node.restart()
    node.hold_stores = False
    assert Person(node).opens(EXCLUSIVE) == [2]


def test_an_epoch_that_cannot_be_stored_is_nobodys(node: Node) -> None:
    a, b = Person(node), Person(node)
    node.hold_stores = True
    assert a.opens(EXCLUSIVE) == []
    assert b.opens(WAIT) == ["waits"]
    (store,) = node.stores
    assert node.store.answer("the disk is full", store)
    assert a.told() == [ErrorCode.METADATA]
    assert b.told() == []
    node.hold_stores = False
    node.world.work()
    assert b.told() == [2]
    assert [one.connection for one in node.topic.producers.live.values()] == [b.client.number]


def test_who_closes_before_the_epoch_is_durable_never_has_it(node: Node) -> None:
    a, b = Person(node), Person(node)
    node.hold_stores = True
    a.ask(EXCLUSIVE)
    a.client.send(pb.BaseCommand(type=15, close_producer=pb.CommandCloseProducer(producer_id=1, request_id=50)))
    b.ask(EXCLUSIVE)
    node.hold_stores = False
    node.world.work()
    assert a.told() == [ErrorCode.SERVICE_NOT_READY]
    assert b.told() == [2]


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_who_waits_is_told_that_it_is_fenced(node: Node, topic: str) -> None:
    holder, waiting, fencing = (Person(node, topic) for _ in range(3))
    assert holder.opens(EXCLUSIVE) == [1]
    assert waiting.opens(WAIT) == ["waits"]
    assert fencing.opens(FENCING) == [2]
    assert holder.told() == ["closed"]
    assert waiting.told() == [FENCED]
    fencing.drops()
    assert (holder.told(), waiting.told()) == ([], [])
    # A topic that stores nothing ended with its last producer.
    assert waiting.opens(WAIT) == [3 if topic == TOPIC else 1]


def test_one_is_fenced_whose_epoch_is_not_yet_durable(node: Node) -> None:
    a, b = Person(node), Person(node)
    node.hold_stores = True
    a.ask(EXCLUSIVE)
    b.ask(FENCING)
    assert a.told() == [FENCED]
    node.hold_stores = False
    node.world.work()
    assert (a.told(), b.told()) == ([], [2])


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
@pytest.mark.parametrize("leave", [Person.drops, lambda person: person.client.send(CLOSE)])
def test_nobody_passes_who_waits(node: Node, topic: str, leave: Callable[[Person], None]) -> None:
    first, waiting = Person(node, topic), Person(node, topic)
    assert first.opens(SHARED) == ["shared"]
    assert waiting.opens(WAIT) == ["waits"]
    assert Person(node, topic).opens(SHARED) == [BUSY]
    assert Person(node, topic).opens(EXCLUSIVE) == [FENCED]
    leave(first)
    node.world.work()
    assert waiting.told() == [1]


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_a_turn_that_is_over_is_told_and_the_next_one_comes(node: Node, topic: str) -> None:
    one = Person(node, topic)
    assert one.opens(EXCLUSIVE, "late") == [1]
    # A topic that stores nothing lives while somebody is there.
    guard = pb.CommandSubscribe(topic=topic, subscription="s", subType=0, consumer_id=1, request_id=90)
    Person(node, topic).client.send(pb.BaseCommand(type=4, subscribe=guard))
    one.drops()
    holder, fresh, late, last = (Person(node, topic) for _ in range(4))
    assert holder.opens(SHARED) == ["shared"]
    assert fresh.opens(WAIT) == ["waits"]
    assert late.opens(WAIT, "late", topic_epoch=1) == ["waits"]
    assert last.opens(WAIT) == ["waits"]
    holder.drops()
    assert fresh.told() == [2]
    fresh.drops()
    assert late.told() == [FENCED]
    assert last.told() == [3]


# -------------------------------------------------------------------------------------------------- of the same name


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
@pytest.mark.parametrize("leave", [Person.drops, lambda person: person.client.send(CLOSE)])
def test_a_standby_of_the_same_name_waits_for_its_turn(node: Node, topic: str, leave: Callable[[Person], None]) -> None:
    holder, standby = Person(node, topic), Person(node, topic)
    assert holder.opens(EXCLUSIVE, "p") == [1]
    assert standby.opens(WAIT, "p") == []
    holder.lives()
    assert standby.told() == ["waits"]
    leave(holder)
    node.world.work()
    assert standby.told() == [2]


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_a_standby_takes_the_place_of_one_that_is_gone_without_a_word(node: Node, topic: str) -> None:
    gone, standby = Person(node, topic), Person(node, topic)
    assert gone.opens(EXCLUSIVE, "p") == [1]
    assert standby.opens(WAIT, "p") == []
    node.world.advance(3_000)
    # A topic that stores nothing ended with its last producer.
    assert standby.told() == [2 if topic == TOPIC else 1]


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_a_rival_of_the_same_name_is_told_that_it_is_fenced(node: Node, topic: str) -> None:
    holder, rival = Person(node, topic), Person(node, topic)
    assert holder.opens(EXCLUSIVE, "p") == [1]
    assert rival.opens(EXCLUSIVE, "p") == []
    holder.lives()
    assert rival.told() == [FENCED]


def test_a_standby_begins_behind_what_the_holder_of_its_name_had_on_the_way(node: Node) -> None:
    """Else it would use numbers again that turn out to be taken, and its messages would pass for repeated ones."""
    node.apply(node.broker.resources.change_policies(NAMESPACE, deduplication_enabled=True))
    holder, standby = Person(node), Person(node)
    assert holder.opens(EXCLUSIVE, "p") == [1]
    standby.ask(WAIT, "p")
    holder.lives()
    assert standby.told() == ["waits"]
    node.hold_log = True
    holder.send(0, 1, 2)
    holder.drops()
    assert standby.told() == []
    node.hold_log = False
    node.world.work()
    (success,) = [command.producer_success for command in standby.client.answers if command.type == 17]
    assert (success.topic_epoch, success.last_sequence_id) == (2, 2)
    standby.client.answers.clear()
    standby.send(3)
    node.world.work()
    assert [command.send_receipt.message_id.ledgerId < 1 << 63 for command in standby.client.answers] == [True]


def test_a_standby_is_told_that_it_waits_whatever_the_holder_has_on_the_way(node: Node) -> None:
    """Of a holder that publishes all the time there is always something."""
    node.apply(node.broker.resources.change_policies(NAMESPACE, deduplication_enabled=True))
    holder, standby = Person(node), Person(node)
    assert holder.opens(EXCLUSIVE, "p") == [1]
    node.hold_log = True
    holder.send(0)
    standby.ask(WAIT, "p")
    holder.lives()
    assert standby.told() == ["waits"]


def test_a_standby_that_goes_leaves_the_holder_its_numbers(node: Node) -> None:
    node.apply(node.broker.resources.change_policies(NAMESPACE, deduplication_enabled=True))
    holder, standby = Person(node), Person(node)
    assert holder.opens(EXCLUSIVE, "p") == [1]
    standby.ask(WAIT, "p")
    holder.lives()
    assert standby.told() == ["waits"]
    standby.drops()
    deduplication = node.topic.deduplication
    assert deduplication is not None
    assert [(name, numbers.live) for name, numbers in deduplication.numbers] == [("p", True)]
    holder.drops()
    assert [(name, numbers.live) for name, numbers in deduplication.numbers] == [("p", False)]
