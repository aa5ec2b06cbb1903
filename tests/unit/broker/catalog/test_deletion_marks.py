"""What a deletion keeps out: the lives of a topic that were there before it, and no other; and the way to have these, too."""

import shlex
from collections.abc import Callable
from typing import Final

import pytest

from magnetar.broker.catalog.deletion_marks import Deletions
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.topic_records import DELETED_PREFIX, DeletedMark
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geosteps import SYNC_ON, create_topic, held
from tests.support.geoworld import TOPIC, Node, World

PARTS: Final = "persistent://public/default/p"
WITH: Final = pytest.mark.parametrize("partitions", [None, 2])


def topics(partitions: int | None, name: str = TOPIC) -> list[str]:
    return [f"{name}-partition-{number}" for number in range(partitions)] if partitions else [name]


def delete(node: Node, name: str = TOPIC) -> None:
    assert node.control_call(lambda done: node.control.topics.delete(name, True, done)) is None


def publish(node: Node, data: bytes, partitions: int | None = None) -> None:
    for topic in topics(partitions):
        node.publish(data, topic=topic)
    node.world.advance(100)


def blocked(node: Node, to: str, topic: str = TOPIC) -> str:
    state = node.broker.links.sources[to].topics[topic].blocked
    return "" if state is None else state.reason


def way_out(node: Node, to: str, topic: str = TOPIC) -> list[str]:
    """The command that is printed, as the words of a shell."""
    reason = blocked(node, to, topic)
    assert "; to have it again: " in reason, reason
    return shlex.split(reason.partition("; to have it again: ")[2])


def follow(world: World, words: list[str]) -> None:
    """Do what such a command does."""
    assert words[:3] == ["magnetar", "topics", "create"] and words[-2] == "--admin-url"
    (node,) = [node for node in world.nodes.values() if node.broker.admin_url == words[-1]]
    partitions = int(words[words.index("--partitions") + 1]) if "--partitions" in words else None
    create_topic(node, partitions, words[3])
    world.advance(1_000)


@WITH
@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("synchronised", ["", SYNC_ON])
def test_a_topic_that_was_deleted_everywhere_is_replicated_when_it_is_used_again(
    order: str, partitions: int | None, restarted: bool, synchronised: str
) -> None:
    world = World("ab", extra=synchronised)
    world.advance(3_000)
    a, b = world["a"], world["b"]
    create_topic(a, partitions)
    publish(a, b"old", partitions)
    assert [held(b, topic) for topic in topics(partitions)] == [[b"old"]] * len(topics(partitions))
    for name in order:
        delete(world[name])
    for node in (a, b):
        assert not [topic for topic in node.broker.topics if topic.startswith(TOPIC)]
    if restarted:
        a.restart(), b.restart()
    world.advance(5_000)
    create_topic(a, partitions)
    publish(a, b"new", partitions)
    for topic in topics(partitions):
        assert blocked(a, "b", topic) == ""
        assert held(b, topic) == [b"new"]
    publish(b, b"back", partitions)
    for topic in topics(partitions):
        assert held(a, topic) == [b"new", b"back"]


@WITH
@pytest.mark.parametrize("restarted", [False, True])
def test_one_that_was_there_before_does_not_come_back_until_somebody_says_so(
    partitions: int | None, restarted: bool
) -> None:
    world = World("ab")
    a, b = world["a"], world["b"]
    create_topic(a, partitions)
    publish(a, b"old", partitions)
    delete(b)
    if restarted:
        b.restart()
    publish(a, b"more", partitions)
    world.advance(60_000)
    assert not b.broker.topics
    words = way_out(a, "b", topics(partitions)[-1])
    assert words == [
        "magnetar", "topics", "create", TOPIC, *(["--partitions", "2"] if partitions else []), "--admin-url", b.broker.admin_url,
    ]  # fmt: skip
    follow(world, words)
    for topic in topics(partitions):
        assert held(b, topic) == [b"old", b"more"] and blocked(a, "b", topic) == ""
    assert not [key for key in b.meta if key.startswith(DELETED_PREFIX)]


def test_one_that_was_there_before_and_was_not_known_here_does_not_come_either() -> None:
    """It was made there, and deleted here, while the link was cut."""
    world = World("ab")
    a, b = world["a"], world["b"]
    world.cut = {("a", "b"), ("b", "a")}
    create_topic(b)
    create_topic(a)
    publish(a, b"old")
    world.advance(1_000)
    delete(b)
    world.cut.clear()
    world.advance(1_000)
    assert not b.broker.topics and blocked(a, "b")


def test_one_that_was_made_anew_there_before_the_deletion_here_does_not_come_either() -> None:
    world = World("ab")
    a, b = world["a"], world["b"]
    create_topic(a)
    publish(a, b"old")
    world.cut.add(("a", "b"))
    delete(a)
    world.advance(1_000)
    create_topic(a)
    publish(a, b"between")
    world.advance(1_000)
    delete(b)
    world.cut.clear()
    world.advance(1_000)
    assert not b.broker.topics and blocked(a, "b")
    follow(world, way_out(a, "b"))
    assert held(b) == [b"between"]


def test_partitions_that_were_never_here_are_no_new_topic() -> None:
    """Their topic grew while the link was cut, and was deleted here: the old partitions would have come back with the new."""
    world = World("ab")
    a, b = world["a"], world["b"]
    create_topic(a, 2)
    world.advance(1_000)
    world.cut.add(("a", "b"))
    assert a.control_call(lambda done: a.control.topics.update_partitions(TOPIC, 3, done)) is None
    a.publish(b"x", topic=f"{TOPIC}-partition-2")
    world.advance(1_000)
    delete(b)
    world.cut.clear()
    world.advance(1_000)
    assert not b.broker.topics
    words = way_out(a, "b", f"{TOPIC}-partition-2")
    assert words[words.index("--partitions") + 1] == "3"
    follow(world, words)
    assert held(b, f"{TOPIC}-partition-2") == [b"x"]


def test_what_one_cluster_makes_anew_lets_in_no_old_one_of_another() -> None:
    world = World("abc")
    a, b, c = world["a"], world["b"], world["c"]
    create_topic(a)
    publish(a, b"old a")
    publish(c, b"old c")
    world.cut.add(("c", "b"))
    delete(a)
    delete(b)
    world.advance(1_000)
    create_topic(a)
    publish(a, b"new a")
    assert held(b) == [b"new a"]
    world.cut.clear()
    publish(c, b"more of old c")
    world.advance(60_000)
    assert b"old c" not in held(b) and b"more of old c" not in held(b)
    b.restart()
    publish(c, b"and more")
    world.advance(1_000)
    assert held(b) == [b"new a"]
    follow(world, way_out(c, "b"))  # it exists there, and yet the way out works
    assert sorted(held(b)) == [b"and more", b"more of old c", b"new a", b"old c"]


def test_what_is_still_on_its_way_from_the_old_life_is_not_stored_in_the_new_one() -> None:
    world = World("ab")
    a, b = world["a"], world["b"]
    create_topic(a)
    publish(a, b"old")
    old = a.topic.log.incarnation
    delete(b)
    delete(a)
    world.advance(1_000)
    create_topic(a)
    publish(a, b"new")
    answers: list[pb.CommandGeoAppendResponse] = []
    late = pb.CommandGeoAppend(request_id=9, topic=TOPIC, source="a", uuid="uuid-a", incarnation=old, gen=1)
    late.p.ledger = late.p.entry = -1
    for field, value in (("ledgers", old), ("entries", 0), ("first_indexes", 0), ("counts", 1), ("sizes", 1)):
        getattr(late, field).append(value)
    b.run(lambda: b.broker.links.destination.append(1, late, b"x", answers.append, lambda _wanted: None))
    assert [answer.blocked for answer in answers] == ["policy"]
    assert held(b) == [b"new"]


def test_a_topic_deleted_again_is_kept_out_again() -> None:
    world = World("ab")
    a, b = world["a"], world["b"]
    for number in range(3):
        create_topic(a)
        publish(a, b"%d" % number)
        assert held(b) == [b"%d" % number]
        delete(b)
        publish(a, b"late")
        world.advance(1_000)
        assert not b.broker.topics and blocked(a, "b")
        delete(a)
        world.advance(1_000)


def test_marks_of_earlier_versions_know_the_time_alone() -> None:
    mark = DeletedMark.decode("t", b'{"deleted_ms":1000}')
    assert mark == DeletedMark(1000) and mark.encode() == b'{"deleted_ms":1000}'
    marks = Deletions({DELETED_PREFIX + TOPIC: b'{"deleted_ms":1000}', DELETED_PREFIX + "t://": b'{"deleted_ms":1}'})
    name = TopicName.parse(TOPIC)
    assert (
        marks.mark_against(name, "a", 1000)
        and not marks.mark_against(name, "a", 1001)
        and marks.mark_against(name, "a", None)
    )
    assert list(marks) == [TOPIC]


def test_a_slow_clock_brings_back_nothing_that_was_known() -> None:
    """Ids of one cluster grow whatever its clock says: what was deleted here is told by its id, not by the time."""
    marks = Deletions({DELETED_PREFIX + TOPIC: DeletedMark(1000, {"a": 5000}).encode()})
    name = TopicName.parse(TOPIC)
    assert marks.mark_against(name, "a", 5000) and not marks.mark_against(name, "a", 5001)
    assert not marks.mark_against(name, "b", 5000)


@pytest.mark.parametrize("name", ["with space", "it's", 'a"b', "$HOME", "`id`", "a;b", "*"])
def test_the_way_out_is_quoted_for_a_shell(name: str) -> None:
    world = World("ab")
    a, b = world["a"], world["b"]
    topic = f"persistent://public/default/{name}"
    create_topic(a, None, topic)
    world.advance(1_000)
    delete(b, topic)
    a.publish(b"x", topic=topic)
    world.advance(1_000)
    follow(world, way_out(a, "b", topic))
    assert held(b, topic) == [b"x"]


class Waiting:
    """A pipeline that waits for news of what b refuses."""

    def __init__(self, world: World, connection: int = 1) -> None:
        self.world, self.connection = world, connection
        self.answers: list[pb.CommandGeoWatermarksResponse] = []
        self.ask(0)

    def ask(self, known: int) -> None:
        self.answers.clear()
        request = pb.CommandGeoWatermarks(
            request_id=1, source="a", uuid="uuid-a", counter=0, wait_ms=10_000, news=known
        )
        b = self.world["b"]
        watermarks = b.broker.links.destination.watermarks
        b.run(lambda: watermarks(request, self.answers.append, connection=self.connection))

    def hears(self, ms: int = 30) -> bool:
        """Whether it is answered with something new within so long, or has been."""
        known = self.answers[0].news if self.answers else 0
        if known:
            self.ask(known)
        self.world.advance(ms, links=False)
        return bool(self.answers) and self.answers[0].news != known


def by_a_client(world: World) -> None:
    world["b"].client().subscribe("s", replicated=False, force_topic_creation=True)


@pytest.mark.parametrize("how", [lambda world: create_topic(world["b"]), by_a_client])
def test_the_end_of_a_refusal_is_heard_at_once_by_who_waits_for_it(how: Callable[[World], None]) -> None:
    world = World("ab")
    a, b = world["a"], world["b"]
    create_topic(a)
    publish(a, b"old")
    delete(b)
    publish(a, b"more")
    assert blocked(a, "b")
    waiting = Waiting(world)
    assert waiting.answers and not waiting.hears()
    b.create("persistent://public/default/other")
    assert not waiting.hears()
    before = waiting.answers
    assert not before
    how(world)
    world.advance(30, links=False)
    assert waiting.answers
    world.advance(100)
    assert held(b) == [b"old", b"more"]


def test_who_waits_in_vain_is_answered_all_the_same_and_who_is_gone_is_forgotten() -> None:
    world = World("ab")
    create_topic(world["a"])
    publish(world["a"], b"x")
    waiting, gone = Waiting(world), Waiting(world, 2)
    known = waiting.answers[0].news
    waiting.ask(known), gone.ask(known)
    destination = world["b"].broker.links.destination
    world["b"].run(destination.disconnected, 2)
    world.advance(9_000, links=False)
    assert not waiting.answers
    world.advance(2_000, links=False)
    assert [answer.news for answer in waiting.answers] == [known] and not gone.answers


def test_a_policy_ends_a_refusal_too() -> None:
    world = World("ab")
    a, b = world["a"], world["b"]
    space = NamespaceName.parse("public/default")
    b.apply(b.broker.resources.change_policies(space, replication_clusters=["a"]))
    create_topic(a)
    publish(a, b"x")
    assert blocked(a, "b")
    waiting = Waiting(world)
    waiting.ask(waiting.answers[0].news)
    assert not waiting.answers
    b.apply(b.broker.resources.change_policies(space, replication_clusters=["a", "b"]))
    world.advance(30, links=False)
    assert waiting.answers
