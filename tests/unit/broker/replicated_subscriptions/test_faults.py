"""What goes wrong with replicated subscriptions in whole brokers: a log line, a count, nothing else."""

import pytest

from magnetar.core.errors import BrokerError
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import NamespaceName
from magnetar.wire.markers import Update, build_marker
from tests.support.geosteps import consumer, set_mode, two
from tests.support.geoworld import TOPIC, Node, World


def clusters(world: World, names: str, of: str = "ab") -> None:
    """Which clusters the namespace is replicated to from now on."""
    for name in of:
        node = world[name]
        node.apply(node.broker.resources.set_replication(NamespaceName.parse("public/default"), list(names)))


def said(world: World, name: str, words: str) -> list[str]:
    """Lines of a broker's log with these words."""
    return [note.text for note in world[name].notes if words in note.text]


def counted(world: World, name: str) -> dict[str, int]:
    """What both machines of the topic counted."""
    replicated = world[name].topic.replicated_subscriptions
    assert replicated is not None
    return replicated.metrics()


def test_a_cluster_is_removed_from_the_policy_in_the_middle_of_a_snapshot() -> None:
    """The snapshot waited for its answer; it does no longer, and nobody waits for the timeout."""
    world = two("abc", mode="snapshot")
    client, number = consumer(world["a"])
    world.advance(3_000)
    world["c"].kill()
    positions = world["a"].publish(*(b"%d" % n for n in range(6)))
    world.advance(3_000)
    client.ack(number, positions[5], cumulative=True)
    world.advance(3_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 6, "the snapshot is pending, or this tests nothing"
    clusters(world, "ab")
    world.advance(3_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 0
    (state,) = world["a"].control.replicated.subscriptions(TOPIC)
    assert not state.get("stalled")
    assert said(world, "a", "the present snapshot continues without c: no links in both directions")
    assert counted(world, "a")["snapshot_went_on_without"] == 1


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_a_subscription_is_deleted_while_updates_of_it_arrive(mode: str) -> None:
    """It does not come back by itself, the others go on, and who subscribes again is told."""
    world = two("abc", mode=mode)
    client, number = consumer(world["a"])
    for n in range(40):
        (position,) = world["a"].publish(b"%d" % n)
        client.ack(number, position, cumulative=True)
        world.advance(200)
        if n == 20:
            there, consuming = consumer(world["b"])
            there.unsubscribe(consuming)
    world.advance(5_000)
    assert "s" not in world["b"].topic.subscriptions
    (line,) = said(world, "b", "s was deleted here: ")
    assert "ignored until a consumer subscribes again" in line, "one line, however many updates come"
    assert counted(world, "b")["exact_unknown_subscription" if mode == "exact" else "snapshot_deleted_here"] > 1
    assert world["c"].topic.subscriptions["s"].backlog_entries() == 0
    consumer(world["b"], replicated=True)
    (position,) = world["a"].publish(b"more")
    world.advance(5_000)
    # Exact mode asks for the whole state; snapshot mode hears of it with the next acknowledgement.
    assert world["b"].topic.subscriptions["s"].backlog_entries() == (1 if mode == "exact" else 41)
    client.ack(number, position, cumulative=True)
    world.advance(5_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 0


def test_a_change_of_the_mode_is_one_line_and_counted() -> None:
    world = two("ab")
    consumer(world["a"])
    set_mode(world, "snapshot")
    world.advance(1_000)
    assert len(said(world, "a", "replicated subscriptions of public/default are in snapshot mode now")) == 1
    assert counted(world, "a")["exact_mode_changes"] == 1


def test_what_is_older_than_a_seek_is_told() -> None:
    """Acknowledged in b while a seeks: it is of the epoch before."""
    world = two("ab")
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(4)))
    world.advance(1_000)
    world.cut = {("a", "b"), ("b", "a")}
    other, there = consumer(world["b"])
    messages = other.take(there)
    other.ack(there, messages[0])
    client.seek(number, positions[0])
    world.advance(1_000)
    world.cut = set()
    world.advance(3_000)
    (line,) = said(world, "a", "in epoch creation are ignored")
    assert "replaced it" in line
    assert counted(world, "a")["exact_older"] >= 1
    assert world["a"].topic.subscriptions["s"].backlog_entries() == 4, "nothing of it is acknowledged"


def test_an_update_before_a_seek_is_told_in_snapshot_mode() -> None:
    world = two("ab", mode="snapshot")
    client, number = consumer(world["a"])
    world.advance(3_000)
    positions = world["a"].publish(*(b"%d" % n for n in range(4)))
    world.advance(3_000)
    other, there = consumer(world["b"])
    messages = other.take(there)
    world.cut = {("a", "b")}
    client.seek(number, positions[0])
    other.ack(there, *messages)
    world.advance(3_000)
    world.cut = set()
    world.advance(3_000)
    assert said(world, "a", "it was written before the seek here was known there")
    assert counted(world, "a")["snapshot_before_a_seek"] >= 1


def test_a_position_of_another_log_is_told_in_snapshot_mode() -> None:
    """As Apache Pulsar's updates are: by positions only."""
    world = two("ab", mode="snapshot")
    consumer(world["a"])
    world["a"].publish(b"0")
    world.advance(3_000)
    marker = build_marker(Update("s", {"a": Position(1 << 40, 7)}), world.now_ms)
    replicated = world["b"].topic.replicated_subscriptions
    assert replicated is not None
    world["b"].run(lambda: replicated.append_marker(marker, ()))
    world.advance(3_000)
    assert said(world, "a", f"{Position(1 << 40, 7)} is not a position of this log")
    assert counted(world, "a")["snapshot_unknown_positions"] == 1
    assert world["a"].topic.subscriptions["s"].backlog_entries() == 1


def not_made(world: World, name: str) -> int:
    """Subscriptions of other clusters that could not be made in one, as `/metrics` counts them, gone topics included."""
    return world[name].broker.replicated_subscriptions.metrics()["subscriptions_not_made"]


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_a_subscription_too_many_is_told_and_counted_and_made_when_there_is_room(mode: str) -> None:
    world = two("ab", mode=mode, limits={"subscriptions_per_topic_max": 1})
    node = world["b"]
    consumer(node, "own", replicated=False)
    client, number = consumer(world["a"])
    for n in range(6):
        (position,) = world["a"].publish(b"%d" % n)
        client.ack(number, position, cumulative=True)
        world.advance(3_000)
    assert list(node.topic.subscriptions) == ["own"]
    (line,) = said(world, "b", "subscription s of another cluster is not made: 1 exist (subscriptions_per_topic_max)")
    assert line.startswith(TOPIC), "one line, however many updates come"
    assert not_made(world, "b") > 1
    assert node.topic.subscriptions["own"].backlog_entries() == 6, "what is here is not touched"
    assert world["a"].topic.subscriptions["s"].backlog_entries() == 0
    assert node.control_call(lambda done: node.control.subscriptions.delete(TOPIC, "own", True, done)) is None
    (position,) = world["a"].publish(b"more")
    client.ack(number, position, cumulative=True)
    world.advance(10_000)
    assert node.topic.subscriptions["s"].backlog_entries() == 0


def test_a_subscription_is_not_made_in_a_topic_that_is_being_deleted() -> None:
    """What tells of it was on its way to the disk when the deletion began."""
    world = two("ab")
    node = world["b"]
    world["a"].publish(b"0")
    world.settle()
    world.cut = {("a", "b")}
    consumer(world["a"])
    world.advance(1_000)
    node.hold_log = True
    world.cut = set()
    world.settle()
    answers: list[object] = []
    node.control.topics.delete(TOPIC, True, answers.append)
    world.cut = {("a", "b")}
    node.hold_log = False
    world.advance(1_000)
    assert answers == [None]
    assert TOPIC not in node.broker.topics
    assert said(world, "b", "subscription s is not made: the topic is being deleted")
    assert not_made(world, "b") == 1, "the topic is gone, what it counted is not"
    assert world["a"].topic.subscriptions["s"].backlog_entries() == 1


def refused(node: Node) -> None:
    """The store refuses the topic's deletion, which waits for it."""
    deletion = next(store for store in node.stores if f"topics/{TOPIC}" in store.deletes)
    assert node.store.answer("no space left", deletion)
    node.hold_stores = False


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_what_was_due_during_a_deletion_that_failed_is_told_then(mode: str) -> None:
    """Also of a topic to which nobody publishes any more."""
    world = two(mode=mode)
    node = world["a"]
    client, number = consumer(node)
    world.advance(3_000)
    positions = node.publish(b"0", b"1")
    world.advance(3_000)
    client.ack(number, *positions)
    node.hold_stores = True
    answers: list[object] = []
    node.control.topics.delete(TOPIC, True, answers.append)
    world.advance(1_000)
    refused(node)
    world.advance(5_000)
    assert isinstance(answers[0], BrokerError)
    assert node.topic.subscriptions["s"].backlog_entries() == 0
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 0


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
@pytest.mark.parametrize("fails", [True, False], ids=["that fails", "that is done"])
def test_who_seeks_during_a_deletion_is_answered(mode: str, fails: bool) -> None:
    world = two(mode=mode)
    node = world["a"]
    consumer(node)
    node.publish(b"0", b"1")
    world.advance(3_000)
    node.hold_stores = True
    deleted: list[object] = []
    sought: list[object] = []
    node.control.topics.delete(TOPIC, True, deleted.append)
    world.settle()
    node.control.subscriptions.reset_cursor(TOPIC, "s", EARLIEST, False, sought.append)
    world.settle()
    if fails:
        refused(node)
    node.hold_stores = False
    world.advance(5_000)
    assert len(deleted) == len(sought) == 1
    assert isinstance(sought[0], BrokerError)


def test_a_topic_is_deleted_before_a_failovers_final_state_is_written() -> None:
    """What was waited for then is not waited for when a topic of that name is there again."""
    world = World("ab")
    node = world["a"]
    node.create()
    node.client().subscribe("s", 1)
    world.advance(1_000)
    node.control.failovers.begin(TOPIC, "s", "b", "", 0, lambda _: None)
    assert node.store.answer()  # the next step is on its way to the store
    node.hold_stores = True
    deleted: list[object] = []
    node.control.topics.delete(TOPIC, True, deleted.append)
    node.hold_stores = False
    world.advance(3_000)
    assert deleted == [None]
    node.create()
    node.client().subscribe("s", 1)
    world.advance(3_000)
    assert node.control_call(lambda done: node.control.failovers.begin(TOPIC, "s", "b", "", 0, done)) is None
    world.advance(3_000)
    assert node.broker.fences.fence(TOPIC, "s").final is not None
