"""Opening a producer takes a while: what its client closes or asks for again meanwhile, and subscriptions that come with it."""

from collections.abc import Callable
from typing import Final

import pytest

from magnetar.broker.catalog import catalog
from magnetar.broker.security.authorization import Authorizer
from magnetar.broker.security.credentials import Identity
from magnetar.core.errors import ErrorCode
from magnetar.core.ids import EARLIEST
from magnetar.core.names import NamespaceName
from magnetar.core.security import AuthorizationConfig
from magnetar.metadata.permissions import Action, grant
from magnetar.metadata.policies.namespace import IdempotencyPolicy
from magnetar.storage.entries import NewEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.support.geosteps import Person
from tests.support.geoworld import TOPIC, Node, World

NAMESPACE: Final = NamespaceName("public", "default")
PASSING: Final = "non-persistent://public/default/t"
FRESH: Final = TOPIC + "-new"
STRING: Final = pb.Schema(name="s", schema_data=b"", type=1)
ENTRY: Final = build(pb.MessageMetadata(producer_name="w", sequence_id=0, publish_time=1), b"x")
EARLY: Final = (ErrorCode.SERVICE_NOT_READY, "was closed before it was open")


def test_attempts_that_are_closed_do_not_pile_up_while_the_store_hangs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "WAITING_MAX", 3)
    node.hold_stores = True
    person, other = Person(node), Person(node)
    for request in range(0, 8, 2):
        person.produce(request, FRESH)
        person.close_producer(request + 1)
    other.subscribe(1, FRESH)
    assert person.refused(4, *EARLY)
    assert person.refused(6, ErrorCode.SERVICE_NOT_READY, "is not stored yet, and 3 wait for that; try again")
    assert other.refused(1, ErrorCode.SERVICE_NOT_READY, f"topic {FRESH} is not stored yet")
    node.hold_stores = False
    node.world.advance(100)
    other.subscribe(2, FRESH)
    person.produce(9, FRESH)
    node.world.advance(100)
    assert other.told(2) == "done" and isinstance(person.told(9), str)


def test_attempts_that_wait_for_a_seek_do_not_pile_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "WAITING_MAX", 3)
    seeker, person = node.client(), Person(node)
    consumer = seeker.subscribe("s", 1, replicated=False)
    node.world.settle()
    node.hold_stores = True
    seeker.seek(consumer, EARLIEST)
    for request in range(0, 8, 2):
        person.subscribe(request)
        node.world.settle()
        person.close_consumer(request + 1)
    assert person.refused(4, *EARLY)
    assert person.refused(6, ErrorCode.SERVICE_NOT_READY, "a seek of subscription s is not stored yet, and 3 wait")
    node.hold_stores = False
    node.world.advance(1_000)
    person.subscribe(9)
    node.world.advance(100)
    assert person.told(9) == "done"


def producers(node: Node) -> list[str]:
    """Names of all that have a place, wherever."""
    topics = [*node.broker.topics.values(), *node.broker.nonpersistent.topics.values()]
    return [one.name for topic in topics for one in topic.producers.everybody()]


# ---------------------------------------------------------------------------------------------- closed while it is opened


def creating(node: Node) -> tuple[str, dict[str, object]]:
    """The topic is being stored."""
    node.hold_stores = True
    return FRESH, {}


def registering(node: Node) -> tuple[str, dict[str, object]]:
    """Its schema is being stored."""
    node.hold_stores = True
    return TOPIC, {"schema": STRING}


def registering_for_nothing_stored(node: Node) -> tuple[str, dict[str, object]]:
    """The same on a topic that stores nothing."""
    node.hold_stores = True
    return PASSING, {"schema": STRING}


def _on_the_way(node: Node) -> None:
    """What a message on its way to the disk means is not known yet."""
    writer = Person(node)
    writer.produce(1)
    node.hold_log = True
    node.run(lambda: node.topic.append([NewEntry(ENTRY, 0, 1, 1)], lambda _append, _error: None))


def judging_numbers(node: Node) -> tuple[str, dict[str, object]]:
    """Deduplication was switched on, and reads the log."""
    _on_the_way(node)
    node.apply(node.broker.resources.change_policies(NAMESPACE, deduplication_enabled=True))
    return TOPIC, {}


def judging_keys(node: Node) -> tuple[str, dict[str, object]]:
    """Idempotency keys were switched on, and are read."""
    _on_the_way(node)
    node.apply(
        node.broker.resources.change_policies(
            NAMESPACE, idempotency=IdempotencyPolicy(property="k", window_seconds=600)
        )
    )
    return TOPIC, {}


def probing(node: Node) -> tuple[str, dict[str, object]]:
    """Another has the name, and has some seconds to show that it lives; it does not."""
    Person(node).produce(1, producer_name="p")
    return TOPIC, {}


def subscribing(node: Node) -> tuple[str, dict[str, object]]:
    """The subscription that comes with it is being stored."""
    node.hold_stores = True
    return TOPIC, {"initial_subscription_name": "s"}


def storing_the_epoch(node: Node) -> tuple[str, dict[str, object]]:
    """It has exclusive access, and nobody may know before that is durable."""
    node.hold_stores = True
    return TOPIC, {"producer_access_mode": 1}


WAITS = [
    creating,
    registering,
    registering_for_nothing_stored,
    judging_numbers,
    judging_keys,
    probing,
    subscribing,
    storing_the_epoch,
]


def goes_on(node: Node) -> None:
    """Whatever was waited for comes."""
    node.hold_stores = node.hold_log = False
    node.world.advance(10_000)


@pytest.mark.parametrize("wait", WAITS)
def test_a_producer_that_is_closed_while_it_is_opened_is_refused_and_never_comes(
    node: Node, wait: Callable[[Node], tuple[str, dict[str, object]]]
) -> None:
    topic, more = wait(node)
    others = [name for name in producers(node) if name != "p"]
    one = Person(node)
    one.produce(1, topic, producer_name="p", **more)
    assert one.told(1) is None, "it has to wait, or this test shows nothing"
    one.close_producer(2)
    assert one.told(2) == "done"
    assert one.refused(1, *EARLY)
    goes_on(node)
    assert one.told(1) is not None and producers(node) == others
    # Nothing is left behind: the same id is opened at once, and whoever wants to be alone is.
    one.produce(3, topic, producer_name="p", producer_access_mode=3)
    goes_on(node)
    assert (one.told(3), producers(node)) == ("p", ["p"])


# Behind one that has its subscription made, another finds it made and does not wait.
@pytest.mark.parametrize("wait", [wait for wait in WAITS if wait is not subscribing])
def test_an_attempt_behind_a_closed_one_is_the_one_that_counts(
    node: Node, wait: Callable[[Node], tuple[str, dict[str, object]]]
) -> None:
    """As clients do whose request took too long: they close, and try again."""
    topic, more = wait(node)
    one = Person(node)
    one.produce(1, topic, producer_name="p", **more)
    one.close_producer(2)
    one.produce(3, topic, producer_name="p", **more)
    assert one.told(3) is None
    one.produce(4, topic, producer_name="p", **more)
    assert one.refused(4, ErrorCode.SERVICE_NOT_READY, "is already being opened")
    goes_on(node)
    assert one.told(3) == "p"
    assert producers(node).count("p") == 1
    one.close_producer(5)
    assert "p" not in producers(node)


def test_a_producer_that_waits_for_its_turn_is_answered_when_it_is_closed(node: Node) -> None:
    for topic in (TOPIC, PASSING):
        holder, waiting = Person(node), Person(node)
        holder.produce(1, topic, producer_access_mode=1)
        goes_on(node)
        waiting.produce(1, topic, producer_access_mode=2)
        assert waiting.told(1) == "waits"
        waiting.client.answers.clear()
        waiting.close_producer(2)
        assert waiting.refused(1, *EARLY) and waiting.told(2) == "done"


def test_a_consumer_of_a_topic_that_stores_nothing_is_closed_while_it_is_opened(node: Node) -> None:
    node.hold_stores = True
    one = Person(node)
    one.subscribe(1, PASSING, schema=STRING)
    one.close_consumer(2)
    assert one.told(2) == "done" and one.refused(1, *EARLY)
    one.subscribe(3, PASSING, schema=STRING)
    one.subscribe(4, PASSING, schema=STRING)
    assert one.refused(4, ErrorCode.SERVICE_NOT_READY, "is already being opened")
    goes_on(node)
    assert one.told(3) == "done"
    assert len(node.broker.nonpersistent.topics[PASSING].subscriptions["s"].consumers) == 1
    one.close_consumer(5)
    assert one.told(5) == "done" and PASSING not in node.broker.nonpersistent.topics


@pytest.mark.parametrize("what", ["produce", "subscribe"])
def test_a_topic_that_stores_nothing_may_go_and_have_no_room_while_it_is_opened(what: str) -> None:
    """Its first users go while another's schema is on its way to the store, and somebody else takes the last place."""
    node = World("a", limits={"topics_max": 1})["a"]
    node.hold_stores = True
    one, first, other = Person(node), Person(node), Person(node)
    getattr(one, what)(1, PASSING, schema=STRING)
    first.produce(1, PASSING)
    first.close_producer(2)
    other.produce(1, PASSING + "-other", producer_name="q")
    assert one.told(1) is None and other.told(1) == "q"
    goes_on(node)
    assert one.refused(1, ErrorCode.NOT_ALLOWED, "topics_max")
    other.close_producer(2)
    getattr(one, what)(3, PASSING, schema=STRING)
    goes_on(node)
    assert one.told(3) is not None and not one.refused(3, ErrorCode.NOT_ALLOWED, "")


# ------------------------------------------------------------------------------------- no longer allowed while it is opened


def allow(node: Node, *actions: Action) -> None:
    """What the role "one" may do in the namespace, from now on: the store has that already, whatever else it is to have."""
    resources = node.broker.resources
    change = grant(resources, NAMESPACE, "one", actions)

    def changed() -> None:
        resources.apply(change)
        node.broker.policies_changed(change)

    node.run(changed)


def guarded(node: Node, *actions: Action) -> Person:
    """Somebody whose role may do that; whoever was there before may do anything."""
    one = Person(node)
    for session in node.broker.sessions.values():
        session.connection.identity = Identity(
            "one" if session.connection.number == one.client.number else "root", "token"
        )
    access = node.broker.access
    access.enabled = True
    access.authorizer = Authorizer(AuthorizationConfig(superusers=["root"]), node.broker.resources)
    allow(node, *actions)
    return one


@pytest.mark.parametrize("wait", WAITS)
def test_a_producer_whose_permission_is_revoked_while_it_is_opened_does_not_come(
    node: Node, wait: Callable[[Node], tuple[str, dict[str, object]]]
) -> None:
    topic, more = wait(node)
    others = [name for name in producers(node) if name != "p"]
    one = guarded(node, Action.PRODUCE, Action.CONSUME)
    one.produce(1, topic, producer_name="p", **more)
    assert one.told(1) is None
    allow(node, Action.CONSUME)
    assert isinstance(one.told(1), tuple)
    goes_on(node)
    assert producers(node) == others
    one.produce(2, topic, producer_name="p", **more)
    assert one.refused(2, ErrorCode.AUTHORIZATION, "produce")


def test_a_producer_that_may_no_longer_bring_its_subscription_does_not_come(node: Node) -> None:
    one = guarded(node, Action.PRODUCE, Action.CONSUME)
    node.hold_stores = True
    one.produce(1, initial_subscription_name="s")
    allow(node, Action.PRODUCE)
    assert one.refused(1, ErrorCode.AUTHORIZATION, "consume")
    goes_on(node)
    assert not producers(node)


@pytest.mark.parametrize("topic", [TOPIC, FRESH, PASSING])
def test_a_consumer_whose_permission_is_revoked_while_it_is_opened_does_not_come(node: Node, topic: str) -> None:
    one = guarded(node, Action.PRODUCE, Action.CONSUME)
    node.hold_stores = True
    one.subscribe(1, topic, force_topic_creation=True, schema=STRING)
    assert one.told(1) is None
    allow(node, Action.PRODUCE)
    assert one.refused(1, ErrorCode.AUTHORIZATION, "consume")
    goes_on(node)
    assert PASSING not in node.broker.nonpersistent.topics
    subscriptions = [one for topic in node.broker.topics.values() for one in topic.subscriptions.values()]
    assert not any(subscription.consumers for subscription in subscriptions)
    allow(node, Action.CONSUME)
    one.subscribe(2, topic, schema=STRING)
    goes_on(node)
    assert one.told(2) == "done"


# --------------------------------------------------------------------------------------------------- too many in one go


@pytest.mark.parametrize("topics", [(TOPIC, FRESH), (PASSING, PASSING + "-new"), (FRESH, PASSING), (PASSING, TOPIC)])
def test_those_that_are_being_opened_count_too(topics: tuple[str, str]) -> None:
    node = World("a", limits={"handles_per_connection_max": 4})["a"]
    node.create()
    node.hold_stores = True
    one = Person(node)
    for number in range(6):
        topic = topics[number % 2]
        producer = pb.CommandProducer(
            topic=topic, producer_id=number, request_id=number, producer_name=f"p{number}", schema=STRING
        )
        one.client.send(pb.BaseCommand(type=5, producer=producer))
        consumer = pb.CommandSubscribe(
            topic=topic, consumer_id=number, request_id=10 + number, subscription=f"s{number}", subType=1, schema=STRING
        )
        one.client.send(pb.BaseCommand(type=4, subscribe=consumer))
    goes_on(node)
    assert [one.told(number) for number in range(4)] == ["p0", "p1", "p2", "p3"]
    assert [one.told(10 + number) for number in range(4)] == ["done"] * 4
    for number in (4, 5):
        assert one.refused(number, ErrorCode.PRODUCER_BUSY, "4 producers are the most on one connection")
        assert one.refused(10 + number, ErrorCode.CONSUMER_BUSY, "4 consumers are the most on one connection")
    # One that takes the place of another is none more, and one that was closed none any more.
    one.produce(20, topics[1], producer_name="again", epoch=1)
    one.close_consumer(21)
    one.subscribe(22, topics[0])
    goes_on(node)
    assert [one.told(request) for request in (20, 21, 22)] == ["again", "done", "done"]


# ------------------------------------------------------------------------------------------------------- asked for again


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_an_open_producer_that_is_asked_for_again_is_told_by_the_new_request(node: Node, topic: str) -> None:
    one = Person(node)
    one.produce(1, topic, producer_name="p", producer_access_mode=1)
    goes_on(node)
    one.produce(2, topic, producer_name="p", producer_access_mode=1)
    goes_on(node)
    assert (one.told(1), one.told(2), producers(node)) == ("p", "p", ["p"])


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_one_that_waits_for_its_turn_is_told_by_its_first_request(node: Node, topic: str) -> None:
    holder, waiting = Person(node), Person(node)
    holder.produce(1, topic, producer_access_mode=1)
    goes_on(node)
    waiting.produce(1, topic, producer_name="p", producer_access_mode=2)
    assert waiting.told(1) == "waits"
    waiting.client.answers.clear()
    waiting.produce(2, topic, producer_name="p", producer_access_mode=2)
    assert waiting.refused(2, ErrorCode.SERVICE_NOT_READY, "is already being opened")
    holder.close_producer(2)
    goes_on(node)
    assert (waiting.told(1), producers(node)) == ("p", ["p"])


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("then", [TOPIC, FRESH, PASSING, PASSING + "-new"])
@pytest.mark.parametrize("first", [TOPIC, PASSING])
def test_a_producer_that_is_opened_anew_with_a_higher_epoch_leaves_its_place_whatever_the_topic(
    node: Node, first: str, then: str, mode: int
) -> None:
    one = Person(node)
    one.produce(1, first, producer_name="p", producer_access_mode=mode)
    goes_on(node)
    one.produce(2, then, producer_name="p", producer_access_mode=mode, epoch=1)
    goes_on(node)
    assert (one.told(1), one.told(2), producers(node)) == ("p", "p", ["p"])
    assert not any(command.type == 15 for command in one.client.answers), "its client would take that for the new one"
    # Who waits for the first topic has it, if the one that was there went elsewhere.
    other = Person(node)
    other.produce(1, first, producer_name="q", producer_access_mode=2)
    goes_on(node)
    assert other.told(1) == ("q" if then != first else "waits")
    one.close_producer(3)
    assert producers(node) == ["q"]


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_one_that_waits_for_its_turn_and_is_opened_anew_elsewhere_is_answered_and_waits_no_longer(
    node: Node, topic: str
) -> None:
    holder, one = Person(node), Person(node)
    holder.produce(1, topic, producer_name="h", producer_access_mode=1)
    goes_on(node)
    one.produce(1, topic, producer_name="p", producer_access_mode=2)
    assert one.told(1) == "waits"
    one.client.answers.clear()
    one.produce(2, FRESH, producer_name="p", epoch=1)
    goes_on(node)
    assert one.refused(1, *EARLY) and one.told(2) == "p"
    holder.close_producer(2)
    assert producers(node) == ["p"]


@pytest.mark.parametrize(("first", "then"), [(TOPIC, PASSING), (PASSING, TOPIC)])
def test_an_id_is_one_producer_and_one_consumer_whatever_stores_their_topics(node: Node, first: str, then: str) -> None:
    """As on one topic: what is open answers, what is being opened makes others wait."""
    node.hold_stores = True
    one = Person(node)
    one.produce(1, first, producer_name="p", schema=STRING)
    one.subscribe(2, first, schema=STRING)
    one.produce(3, then, producer_name="q")
    one.subscribe(4, then)
    for request in (3, 4):
        assert one.refused(request, ErrorCode.SERVICE_NOT_READY, "is already being opened")
    goes_on(node)
    one.produce(5, then, producer_name="q")
    one.subscribe(6, then)
    goes_on(node)
    assert [one.told(request) for request in (1, 2, 5, 6)] == ["p", "done", "p", "done"]
    assert producers(node) == ["p"]
    one.close_producer(7)
    one.close_consumer(8)
    assert not producers(node) and PASSING not in node.broker.nonpersistent.topics


# -------------------------------------------------------------------------------------- the subscription that comes with it


@pytest.mark.parametrize(
    "name", ["pulsar.repl.b", "pulsar.dedup", "pulsar.metadata", "__compaction", ".", "a\0b", "s" * 5_000]
)
def test_a_reserved_or_malformed_initial_subscription_is_refused(name: str) -> None:
    """One named like a link's cursor would take its place in the store: the broker would not start again."""
    node = World("ab")["a"]
    node.create()
    before = dict(node.meta)
    assert any(key.endswith("pulsar.repl.b") for key in before), "no link's cursor: this test shows nothing"
    one = Person(node)
    one.produce(1, initial_subscription_name=name)
    node.world.work()
    assert one.refused(1, ErrorCode.PRODUCER_BUSY, "subscription name")
    assert not node.topic.subscriptions and not producers(node)
    assert node.meta == before
    node.restart()
    assert node.topic


def test_an_initial_subscription_is_there_before_its_producer(node: Node) -> None:
    node.hold_stores = True
    one = Person(node)
    one.produce(1, producer_name="p", initial_subscription_name="s")
    assert one.told(1) is None and not producers(node)
    node.hold_stores = False
    node.world.work()
    assert (one.told(1), producers(node), list(node.topic.subscriptions)) == ("p", ["p"], ["s"])
    node.restart()
    assert list(node.topic.subscriptions) == ["s"]


def test_a_producer_whose_initial_subscription_is_one_too_many_is_refused() -> None:
    node = World("a", limits={"subscriptions_per_topic_max": 1})["a"]
    node.create()
    one, two = Person(node), Person(node)
    one.produce(1, producer_name="p", initial_subscription_name="s")
    node.world.work()
    two.produce(1, producer_name="q", initial_subscription_name="more", producer_access_mode=3)
    node.world.work()
    assert two.refused(1, ErrorCode.NOT_ALLOWED, "failed to create the initial subscription: ")
    assert producers(node) == ["p"], "nobody is fenced by one that does not come"
    two.produce(2, producer_name="q", initial_subscription_name="s")
    assert two.told(2) == "q"


def test_a_producer_whose_initial_subscription_cannot_be_stored_is_refused(node: Node) -> None:
    node.hold_stores = True
    one = Person(node)
    one.produce(1, producer_name="p", initial_subscription_name="s")
    (store,) = node.stores
    assert node.store.answer("the disk is full", store)
    assert one.refused(1, ErrorCode.METADATA, "failed to create the initial subscription: ")
    assert not producers(node) and not node.topic.subscriptions
    node.hold_stores = False
    one.produce(2, producer_name="p", initial_subscription_name="s")
    node.world.work()
    assert (one.told(2), list(node.topic.subscriptions)) == ("p", ["s"])


def test_a_topic_that_is_being_made_is_waited_for() -> None:
    """Administrators that create subscriptions of a new topic at once."""
    world = World("a")
    node = world["a"]
    told: list[object] = []
    for _ in range(2):
        node.control.topics.open(FRESH, told.append)
    assert told == [], "not before it is stored"
    world.settle()
    assert told == [None, None]
    assert node.control.topics.partitions(FRESH) == 0
    node.control.topics.open(FRESH, told.append)
    assert told == [None] * 3
    node.control.topics.open("persistent://public/none/t", told.append)
    assert "none" in str(told[-1])
