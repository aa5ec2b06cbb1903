"""Replicated subscriptions through whole brokers: what one cluster's consumers acknowledge, the other's do not get."""

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.broker.replicated_subscriptions.ack_interval import INTERVAL_MS_MIN
from magnetar.core.ids import EARLIEST, NONE, Position
from magnetar.core.names import NamespaceName
from magnetar.metadata.topic_records import cursor_key, replicated_key
from magnetar.storage.cursor import words_of
from magnetar.storage.entries import EntryFlags
from tests.support.geosteps import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, consumer, got, markers, set_mode, two
from tests.support.geoworld import TOPIC, Client, Node, World


def apart(mode: str, names: str = "ab") -> tuple[World, Callable[[str], None]]:
    """Clusters of which each has its topics for itself, the first one topic; and what names the clusters of the namespace."""
    world = World(names, mode=mode)
    namespace = NamespaceName.parse("public/default")

    def clusters(together: str) -> None:
        for node in world.nodes.values():
            node.apply(node.broker.resources.set_replication(namespace, list(together or node.name)))

    clusters("")
    world["a"].create()
    world.settle()
    return world, clusters


def here(node: Node, position: Position) -> Position:
    """Where an entry of cluster a stands in this one's log."""
    log = node.topic.log
    for ledger in log.ledger_infos():
        for entry in range(ledger.entries):
            found = log.identity_of(Position(ledger.ledger, entry))
            origin = node.world["a"].topic.log.identity_of(position)
            if found is not None and origin is not None and found.index == origin.index:
                return Position(ledger.ledger, entry)
    raise AssertionError(f"{position} is not in {node.name}")


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
def test_the_other_clusters_consumer_gets_exactly_the_rest(kind: int) -> None:
    world = two()
    client, number = consumer(world["a"], kind=kind)
    positions = world["a"].publish(*(b"%d" % n for n in range(10)))
    world.settle()
    for n in (1, 2, 5, 9, 7):
        client.ack(number, positions[n])
    world.advance(500)
    other, there = consumer(world["b"], kind=kind)
    assert got(other, there) == [b"0", b"3", b"4", b"6", b"8"]
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 5


def test_messages_of_a_batch() -> None:
    world = two()
    client, number = consumer(world["a"], kind=SHARED)
    first, second = world["a"].publish(b"x", b"y", batch=8)
    world.settle()
    client.ack(number, first, ack_set=words_of(0b10110001))
    client.ack(number, second, ack_set=words_of(0b1))
    client.ack(number, second, ack_set=words_of(0b11111110))
    world.advance(500)
    other, there = consumer(world["b"], kind=SHARED)
    assert [message.ack_set for message in other.take(there)] == [(0b10110001,)]
    assert world["b"].topic.subscriptions["s"].cursor.backlog_messages() == 4


def test_cumulative_acknowledgements() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(6)))
    world.settle()
    client.ack(number, positions[3], cumulative=True)
    world.advance(500)
    assert got(*consumer(world["b"])) == [b"4", b"5"]
    assert world["b"].topic.subscriptions["s"].mark_delete >= here(world["b"], positions[3])


def test_an_acknowledged_message_that_arrives_later_is_never_sent() -> None:
    world = two("abc")
    client, number = consumer(world["a"])
    world.advance(300)
    world.cut.add(("c", "b"))
    world["c"].publish(b"from c")
    world.settle()
    (position,) = (message.position for message in client.take(number))
    client.ack(number, position)
    world.advance(500)
    other, there = consumer(world["b"])
    world.cut.clear()
    world.advance(500)
    assert got(other, there) == []
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 0


def test_a_dead_third_cluster_holds_up_nobody() -> None:
    world = two("abc")
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1")
    world.advance(300)
    world["c"].kill()
    client.ack(number, positions[0])
    world.advance(300)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 1
    world["c"].start()
    world.advance(2_000)
    assert world["c"].topic.subscriptions["s"].backlog_entries() == 1


def test_a_one_way_link_is_enough() -> None:
    world = two(routes=[("a", "b")])
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1", b"2")
    world.settle()
    client.ack(number, positions[1])
    world.advance(500)
    assert got(*consumer(world["b"])) == [b"0", b"2"]


def test_a_source_that_the_policy_here_does_not_name() -> None:
    world = two()
    namespace = NamespaceName.parse("public/default")
    node = world["b"]
    change = node.broker.resources.set_replication(namespace, ["b"])
    node.apply(change)
    change = node.broker.resources.set_allowed(namespace, ["a", "b"])
    node.apply(change)
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1", b"2")
    world.settle()
    client.ack(number, positions[1])
    world.advance(500)
    node.restart()
    world.advance(500)
    assert got(*consumer(node)) == [b"0", b"2"]


def test_a_source_that_the_policy_here_names_no_longer_but_that_goes_on() -> None:
    """Its link still leads here: what it brings is stored, so what it says counts. The next thing heard of it says so."""
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1", b"2")
    world.settle()
    client.ack(number, positions[0])
    world.advance(500)
    node = world["b"]
    namespace = NamespaceName.parse("public/default")
    node.apply(node.broker.resources.set_replication(namespace, ["b"]))
    node.apply(node.broker.resources.set_allowed(namespace, ["a", "b"]))
    assert node.topic.replicated_subscriptions is not None
    client.ack(number, positions[2])
    world.advance(500)
    assert ("a", "b") in node.topic.replicated_subscriptions.routes
    assert not any("ignored" in note.text for note in node.notes)
    assert got(*consumer(node)) == [b"1"]


def test_a_source_that_begins_anew_is_told_everything_by_its_destination() -> None:
    # All clusters collect for the same time, also over links of which nothing is measured yet: changes are told together.
    world = two("abc", ack_sync_interval_ms=INTERVAL_MS_MIN)
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1", b"2")
    world.settle()
    client.ack(number, positions[1])
    world.advance(500)
    node = world["b"]
    before = markers(node)
    node.run(node.broker.links.destination.incarnations.seen, TOPIC, "a", "uuid-a", node.topic.log.incarnation + 10_000)
    world.advance(500)
    told = markers(node) - before
    assert 1 <= told <= 2, "the handshake of the old life, which goes on, is another change"
    world.advance(60_000)
    assert markers(node) == before + told


def test_seek_is_seen_elsewhere_and_answered_when_it_is_durable() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(4)))
    world.settle()
    client.ack(number, positions[3], cumulative=True)
    world.advance(500)
    other, there = consumer(world["b"])
    assert got(other, there) == []
    world["a"].hold_log = True
    request = client.seek(number, positions[1])
    world.work()
    assert client.answered(request) is None
    world["a"].hold_log = False
    world.advance(500)
    answer = client.answered(request)
    assert answer is not None and answer.type == 13
    assert other.closed_consumers == [there]
    assert got(*consumer(world["b"])) == [b"1", b"2", b"3"]


def test_a_seek_through_administration() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(4)))
    world.settle()
    client.ack(number, positions[3], cumulative=True)
    world.advance(500)
    control = world["a"].control
    assert (
        world["a"].control_call(lambda done: control.subscriptions.reset_cursor(TOPIC, "s", EARLIEST, False, done))
        is None
    )
    world.advance(500)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 4


def test_skip_and_clear_are_acknowledgements_and_expiry_is_not() -> None:
    world = two()
    consumer(world["a"])
    world["a"].publish(b"0", b"1", b"2", b"3")
    world.advance(10_000)
    control = world["a"].control
    assert world["a"].control_call(lambda done: control.subscriptions.skip(TOPIC, "s", 1, done)) is None
    world.advance(500)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 3
    assert world["a"].control_call(lambda done: control.subscriptions.expire(TOPIC, "s", 5, done)) is None
    world.advance(1_000)
    assert world["a"].topic.subscriptions["s"].backlog_entries() == 0
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 3
    world["a"].publish(b"4")
    world.settle()
    assert world["a"].control_call(lambda done: control.subscriptions.skip_all(TOPIC, "s", done)) is None
    world.advance(500)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 3


def test_what_expired_here_stays_away_when_another_cluster_seeks() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1")
    world.advance(10_000)
    later = world["a"].publish(b"2")
    world.settle()
    node = world["b"]
    assert node.control_call(lambda done: node.control.subscriptions.expire(TOPIC, "s", 5, done)) is None
    assert node.topic.subscriptions["s"].backlog_entries() == 1
    client.ack(number, *later)
    world.advance(500)
    client.seek(number, positions[0])
    world.advance(500)
    assert world["a"].topic.subscriptions["s"].backlog_entries() == 3
    node.restart()
    world.advance(500)
    assert got(*consumer(node)) == [b"2"]


@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_every_cluster_may_die_at_any_moment(cache: int) -> None:
    world = two(cache_bytes=cache)
    client, number = consumer(world["a"], kind=SHARED)
    positions = world["a"].publish(*(b"%d" % n for n in range(8)))
    world.settle()
    client.ack(number, positions[1])
    world.advance(500)
    world["b"].hold_stores = True  # nothing of this reaches b's store
    client.ack(number, positions[3])
    world.advance(500)
    world["b"].restart()
    world["b"].hold_stores = False
    world.advance(1_000)
    client.ack(number, positions[5])
    world["a"].work()
    world.advance(50)  # its cursor is stored, no marker is written yet
    world["a"].restart()
    world.advance(1_000)
    assert got(*consumer(world["b"], kind=SHARED)) == [b"0", b"2", b"4", b"6", b"7"]
    assert got(*consumer(world["a"], kind=SHARED)) == [b"0", b"2", b"4", b"6", b"7"]


def test_a_subscription_that_was_never_stored_is_made_again_from_the_markers() -> None:
    world = two(cache_bytes=0)
    world["b"].hold_stores = True
    client, number = consumer(world["a"])
    (position,) = world["a"].publish(b"0")
    world.settle()
    client.ack(number, position)
    world.advance(500)
    assert "s" in world["b"].topic.subscriptions
    world["b"].restart()
    world["b"].hold_stores = False
    assert "s" not in world["b"].topic.subscriptions
    world.advance(500)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 0


def test_what_a_replay_took_in_is_known_after_the_next_restart_too() -> None:
    """Nothing else need come of a marker: the message that it speaks of is not there yet."""
    world = two("abc")
    client, number = consumer(world["a"], kind=SHARED)
    for node in world.nodes.values():
        node.publish(b"before")
        world.advance(500)
    client.ack(number, *client.take(number))
    world.advance(500)
    world.cut.add(("c", "b"))
    world["c"].publish(b"m")
    world.advance(500)
    node = world["b"]
    node.hold_stores = True
    client.ack(number, *client.take(number))
    world.advance(500)
    node.restart()
    node.hold_stores = False
    world.advance(66_000)  # a round of retention, which moves the checkpoint
    host, log = node.topic.replicated_subscriptions, node.topic.log
    assert host is not None and not log.markers_between(host.states.checkpoint, log.last), "no replay reads it again"
    node.restart()
    world.advance(1_000)
    world.cut.clear()
    world.advance(2_000)
    log = node.topic.log
    assert log.messages_between(NONE, log.last) == 4, "the message came"
    assert got(*consumer(node, kind=SHARED)) == []


def test_who_subscribes_during_the_replay_waits_but_only_there() -> None:
    world = two(cache_bytes=0)
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1")
    consumer(world["b"], "other", replicated=False)
    client.ack(number, positions[0])
    world.advance(500)
    node = world["b"]
    node.restart()
    host = node.topic.replicated_subscriptions
    assert host is not None and not host.ready
    client = node.client()
    waits = client.subscribe("s")
    goes = client.subscribe("other", replicated=False)
    asked: list[Any] = []
    node.control.subscriptions.skip_all(TOPIC, "s", asked.append)
    while node.store.answer():
        pass
    assert client.answered(1000 + goes) is not None
    assert client.answered(1000 + waits) is None
    assert not asked
    world.settle()
    assert host.ready
    assert client.answered(1000 + waits) is not None
    world.advance(100)
    assert asked == [None]


def test_who_deletes_during_the_replay_waits_so_that_no_crash_brings_it_back() -> None:
    world = two(cache_bytes=0)
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1")
    client.ack(number, positions[0])
    world.advance(500)
    node = world["b"]
    node.restart()
    assert node.topic.replicated_subscriptions is not None and not node.topic.replicated_subscriptions.ready
    asked: list[Any] = []
    node.control.subscriptions.delete(TOPIC, "s", False, asked.append)
    while node.store.answer():
        pass
    told = list(asked)
    node.restart()
    client.ack(number, positions[1])
    world.advance(500)
    assert not told or "s" not in node.topic.subscriptions, "answered, and brought back by another cluster"
    assert "s" in node.topic.subscriptions, "the crash came before the deletion"
    node.control.subscriptions.delete(TOPIC, "s", False, asked.append)
    world.advance(500)
    node.restart()
    world.advance(500)
    assert asked == [None]
    assert "s" not in node.topic.subscriptions


def test_who_truncates_during_the_replay_waits_as_every_operator_does() -> None:
    world = two(cache_bytes=0)
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1", b"2")
    client.ack(number, positions[0])
    world.advance(500)
    node = world["b"]
    node.restart()
    assert node.topic.replicated_subscriptions is not None and not node.topic.replicated_subscriptions.ready
    asked: list[Any] = []
    before = node.topic.subscriptions["s"].cursor.mark_delete
    node.control.topics.truncate(TOPIC, asked.append)
    assert node.topic.subscriptions["s"].cursor.mark_delete == before, "the replay may still move it"
    world.advance(3_000)
    assert asked == [None]
    for each in "ab":
        topic = world[each].topic
        assert topic.subscriptions["s"].cursor.is_acked(here(world[each], positions[2])), "the other cluster is told"


def test_a_clean_stop_leaves_nothing_to_replay() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1")
    world.settle()
    client.ack(number, positions[0])
    world.advance(500)
    node = world["b"]
    node.run(node.broker.shut_down)
    world.work()
    node.restart()
    host = node.topic.replicated_subscriptions
    assert host is not None and host.ready
    world.settle()
    assert got(*consumer(node)) == [b"1"]


def test_the_cover_follows_so_that_replays_stay_short() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(150)))
    world.settle()
    for position in positions:
        client.ack(number, position)
        world.advance(110)
    node = world["b"]
    assert markers(node, own=False) > 120
    host = node.topic.replicated_subscriptions
    assert host is not None
    assert node.topic.log.markers_between(host.states.checkpoint, node.topic.log.last) <= 101
    node.restart()
    world.advance(500)
    assert node.topic.subscriptions["s"].backlog_entries() == 0


def test_unsubscribing_is_local_and_stays() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1", b"2")
    world.advance(300)
    other, there = consumer(world["b"])
    other.unsubscribe(there)
    world.advance(300)
    assert "s" not in world["b"].topic.subscriptions
    client.ack(number, positions[0])
    world.advance(500)
    assert "s" not in world["b"].topic.subscriptions
    assert replicated_key(TOPIC, "s") in world["b"].meta
    assert cursor_key(TOPIC, "s") not in world["b"].meta
    world["b"].restart()
    client.ack(number, positions[1])
    world.advance(500)
    assert "s" not in world["b"].topic.subscriptions
    again, back = consumer(world["b"])
    world.advance(1_000)
    again.take(back)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 1


def test_a_deleted_topic_leaves_no_keys() -> None:
    world = two()
    consumer(world["a"])
    world.advance(500)
    node = world["a"]
    assert node.control_call(lambda done: node.control.topics.delete(TOPIC, True, done)) is None
    world.advance(500)
    assert not [key for key in node.meta if TOPIC in key and not key.startswith("deleted/")]


@pytest.mark.parametrize("more", [{"durable": False}, {"name": "__compaction"}])
def test_the_flag_means_nothing_where_nothing_is_kept(more: dict[str, Any]) -> None:
    world = two()
    client = world["a"].client()
    for _ in range(2):
        client.subscribe(**{"name": "reader", **more})
        world.advance(300)
    assert markers(world["a"]) == 0
    notes = [note.text for note in world["a"].notes if "is not replicated" in note.text]
    if "durable" in more:
        assert len(notes) == 1


def test_a_subscription_without_the_flag_is_its_clusters_own() -> None:
    world = two()
    client, number = consumer(world["a"], replicated=False)
    positions = world["a"].publish(b"0")
    world.settle()
    client.ack(number, positions[0])
    world.advance(1_000)
    assert markers(world["a"]) == 0
    assert "s" not in world["b"].topic.subscriptions


def test_an_administrator_switches_it_on_and_off() -> None:
    world = two()
    client, number = consumer(world["a"], replicated=False)
    positions = world["a"].publish(b"0", b"1", b"2")
    world.settle()
    client.ack(number, positions[0])
    control = world["a"].control
    assert world["a"].control_call(lambda done: control.replicated.set_replicated(TOPIC, "s", True, done)) is None
    world.advance(500)
    assert got(*consumer(world["b"])) == [b"1", b"2"]
    assert control.statistics.topic(TOPIC)["subscriptions"]["s"]["isReplicated"]
    assert world["a"].control_call(lambda done: control.replicated.set_replicated(TOPIC, "s", False, done)) is None
    client.ack(number, positions[1])
    world.advance(500)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 2
    world["a"].restart()
    world.advance(500)
    assert not world["a"].topic.subscriptions["s"].replicated
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 2


def gone(client: Client) -> None:
    client.node.run(client.node.broker.disconnected, client.number)
    client.node.world.settle()


def switch(node: Node, replicated: bool) -> None:
    assert node.control_call(lambda done: node.control.replicated.set_replicated(TOPIC, "s", replicated, done)) is None


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_what_is_acknowledged_while_it_is_not_replicated_does_not_come_again(mode: str, restarts: bool) -> None:
    """Neither here nor, in exact mode, elsewhere: also what was acknowledged in no order, and what was not told when it was
    switched off.
    """
    world = two(mode=mode)
    a, b = world["a"], world["b"]
    client, number = consumer(a, kind=SHARED)
    positions = a.publish(*(b"%d" % n for n in range(10)))
    world.advance(3_000)
    for index in (0, 1, 3):
        client.ack(number, positions[index])
    world.advance(5_000)
    client.ack(number, positions[5])
    switch(a, False)
    client.ack(number, positions[7])
    world.advance(2_000)
    if restarts:
        a.restart()
        world.advance(2_000)
        client, number = consumer(a, kind=SHARED, replicated=False)
    client.ack(number, positions[2])
    other, taken = consumer(b, kind=SHARED)
    other.ack(taken, here(b, positions[9]))
    world.advance(2_000)
    assert a.topic.subscriptions["s"].cursor.backlog_messages() == 4
    switch(a, True)
    world.advance(5_000)
    assert client.closed_consumers == [], "nobody is disconnected: nothing came back"
    gone(client)
    # A snapshot was taken behind all ten: it is passed when all of them are acknowledged.
    here_left, there_left = ([4, 6, 8],) * 2 if mode == "exact" else ([4, 6, 8, 9], [*range(9)])
    assert sorted(got(*consumer(a, kind=SHARED))) == [b"%d" % n for n in here_left]
    gone(other)
    assert sorted(got(*consumer(b, kind=SHARED))) == [b"%d" % n for n in there_left]
    a.restart()
    world.advance(5_000)
    client, number = consumer(a, kind=SHARED)
    assert sorted(got(client, number)) == [b"%d" % n for n in here_left]
    for index in here_left:
        client.ack(number, positions[index])
    world.advance(5_000)
    for node in (a, b):
        assert node.topic.subscriptions["s"].cursor.backlog_messages() == 0


def test_what_expires_while_it_is_not_replicated_is_nobodys_acknowledgement() -> None:
    world = two()
    a, b = world["a"], world["b"]
    client, number = consumer(a, kind=SHARED)
    positions = a.publish(*(b"%d" % n for n in range(5)))
    world.advance(1_000)
    switch(a, False)
    subscription = a.topic.subscriptions["s"]
    a.run(subscription.seek_to, EARLIEST)
    a.run(subscription.expire_to, positions[1])
    client, number = consumer(a, kind=SHARED, replicated=False)
    client.ack(number, positions[3])
    world.advance(1_000)
    switch(a, True)
    world.advance(1_000)
    assert sorted(got(*consumer(b))) == [b"0", b"1", b"2", b"4"]
    assert subscription.cursor.backlog_messages() == 2


def test_a_seek_elsewhere_while_it_is_not_replicated_is_followed_when_it_is_again() -> None:
    world = two()
    a, b = world["a"], world["b"]
    client, number = consumer(a, kind=SHARED)
    positions = a.publish(*(b"%d" % n for n in range(5)))
    world.advance(1_000)
    for index in (0, 1, 2):
        client.ack(number, positions[index])
    world.advance(1_000)
    switch(a, False)
    client.ack(number, positions[3])
    other, taken = consumer(b, kind=SHARED)
    other.seek(taken, here(b, positions[1]))
    world.advance(1_000)
    assert a.topic.subscriptions["s"].cursor.backlog_messages() == 1
    switch(a, True)
    world.advance(2_000)
    assert client.closed_consumers == [number]
    for node in (a, b):
        assert sorted(got(*consumer(node, kind=SHARED))) == [b"1", b"2", b"3", b"4"]


def test_what_compaction_leaves_out_is_not_told_by_who_is_replicated_again() -> None:
    """Nobody acknowledged it, and elsewhere it may be the newest of its key."""
    world = two()
    a = world["a"]
    client, number = consumer(a)
    positions = a.publish(*(b"%d" % n for n in range(3)))
    world.advance(1_000)
    client.ack(number, positions[0])
    world.advance(1_000)
    assert not a.topic.replicated_subscriptions.exact.pauses("s")  # type: ignore[union-attr]
    switch(a, False)
    world.advance(1_000)
    assert a.topic.replicated_subscriptions.exact.pauses("s")  # type: ignore[union-attr]
    gone(client)
    consumer(a, replicated=False, read_compacted=True)
    world.advance(1_000)
    assert not a.topic.replicated_subscriptions.exact.pauses("s")  # type: ignore[union-attr]
    a.restart()
    world.advance(1_000)
    assert not a.topic.replicated_subscriptions.exact.pauses("s")  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_a_terminated_topic_hears_what_is_acknowledged_elsewhere(mode: str) -> None:
    """Its link stopped at the first marker, without a reason; nothing could be failed over to it."""
    world = two(mode=mode)
    a, b = world["a"], world["b"]
    consumer(a)
    positions = a.publish(b"0", b"1")
    world.advance(2_000)
    answers: list[Any] = []
    a.control.topics.terminate(TOPIC, lambda _position, error: answers.append(error))
    world.advance(1_000)
    assert answers == [None]
    client, number = consumer(b)
    client.ack(number, *(here(b, position) for position in positions))
    world.advance(5_000)
    assert a.topic.subscriptions["s"].backlog_entries() == 0
    messages, (late,) = a.topic.log.next_index, b.publish(b"2")
    world.advance(5_000)
    [link] = b.control.links.states()
    [told] = link["topics"]
    assert told["blocked"] == "terminated" and told["blocked_at"] == str(late)
    assert f"{TOPIC} was terminated in a: message {late} cannot be stored there" in told["blocked_detail"]
    assert a.topic.log.next_index == messages and a.topic.subscriptions["s"].backlog_entries() == 0


def test_a_policy_replicates_all_without_the_clients() -> None:
    world = two()
    client, number = consumer(world["a"], replicated=False)
    positions = world["a"].publish(b"0", b"1")
    node = world["a"]
    namespace = NamespaceName.parse("public/default")
    change = node.broker.resources.change_policies(namespace, replicate_subscription_state=True)
    node.apply(change)
    client.ack(number, positions[0])
    _later, _more = consumer(node, "later", replicated=False)
    world.advance(500)
    assert sorted(world["b"].topic.subscriptions) == ["later", "s"]
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 1
    with pytest.raises(Exception, match="by policy"):
        node.control.replicated.set_replicated(TOPIC, "s", False, lambda _error: None)


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_markers_are_no_messages(mode: str) -> None:
    world = two(mode=mode)
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1")
    world.settle()
    client.ack(number, positions[1])
    world.advance(3_000)
    for node in world.nodes.values():
        assert markers(node) + markers(node, own=False) >= 2
        stats = node.control.statistics.topic(TOPIC)
        assert stats["msgInCounter"] == 2
        untold = mode == "snapshot" and node is world["b"]  # it lies behind a hole
        assert stats["subscriptions"]["s"]["msgBacklog"] == (2 if untold else 1)
        assert node.topic.log.flags_at(node.control.topics.last_message_id(TOPIC)) & EntryFlags.MARKER == 0
        for link in node.control.links.states():
            assert (link["lag_messages"], link["lag_bytes"], link["messages_sent"]) in [(0, 0, 2), (0, 0, 0)]
    client.ack(number, positions[0])
    world.advance(3_000)
    for node in world.nodes.values():
        subscription = node.topic.subscriptions["s"]
        assert subscription.mark_delete == node.topic.log.last
        assert subscription.cursor.in_order


def test_an_idle_topic_writes_nothing() -> None:
    world = two("abc")
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1")
    world.settle()
    client.ack(number, positions[1])
    world.advance(60_000)
    ends = [node.topic.log.last for node in world.nodes.values()]
    world.advance(3_600_000)
    assert [node.topic.log.last for node in world.nodes.values()] == ends


def test_markers_are_kept_until_a_stored_state_covers_them() -> None:
    world = two(limits={"ledger_entries_max": 2, "retention_interval_ms": 1000})
    client, number = consumer(world["a"])
    world["b"].hold_stores = True
    for n in range(8):
        (position,) = world["a"].publish(b"%d" % n)
        world.settle()
        client.ack(number, position)
        world.advance(200)
    held = markers(world["b"], own=False)
    world.advance(5_000)
    assert markers(world["b"], own=False) >= held
    world["b"].hold_stores = False
    world["b"].restart()
    world.advance(5_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 0
    assert len(world["b"].topic.log.ledger_ids()) < 6


def test_a_topic_learns_of_a_new_cluster_with_everything_that_was_acknowledged() -> None:
    world = World("ab")
    namespace = NamespaceName.parse("public/default")
    for node in world.nodes.values():
        change = node.broker.resources.set_replication(namespace, [node.name])
        node.apply(change)
    world["a"].create()
    world.settle()
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1", b"2")
    client.ack(number, positions[1])
    world.advance(500)
    assert TOPIC not in world["b"].broker.topics
    for node in world.nodes.values():
        change = node.broker.resources.set_replication(namespace, ["a", "b"])
        node.apply(change)
    world.advance(1_000)
    assert got(*consumer(world["b"])) == [b"0", b"2"]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_what_was_consumed_before_there_was_a_link_counts_in_a_cluster_that_joins(mode: str, restarts: bool) -> None:
    """Nothing was kept of the subscription until then: it begins where its cursor stands, and that is told with it."""
    world, clusters = apart(mode)
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(4)))
    client.ack(number, positions[2], cumulative=True)
    world.advance(500)
    clusters("ab")
    if restarts:
        world["a"].restart()
    world.advance(5_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 1
    assert got(*consumer(world["b"])) == [b"3"]


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_what_was_acknowledged_out_of_order_before_there_was_a_link_counts_in_both_clusters(mode: str) -> None:
    """Where both modes begin is the same: a base that missed some of the other's would take it back."""
    world, clusters = apart(mode)
    client, number = consumer(world["a"], kind=SHARED)
    positions = world["a"].publish(*(b"%d" % n for n in range(4)))
    client.ack(number, *positions[1:])
    world.advance(500)
    clusters("ab")
    world.advance(5_000)
    other, there = consumer(world["b"], kind=SHARED)
    assert got(other, there) == [b"0"]
    other.ack(there, here(world["b"], positions[0]))
    world.advance(60_000)
    assert world["a"].topic.subscriptions["s"].backlog_entries() == 0
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 0


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_what_was_consumed_before_there_was_a_link_is_wanted_by_who_created_it_too(mode: str) -> None:
    """That a cursor stands behind a message says not that somebody acknowledged it: nothing is skipped that one of them wants."""
    world, clusters = apart(mode)
    world["b"].create()
    world.settle()
    for name in "ab":
        client, number = consumer(world[name])
        positions = world[name].publish(*(f"{name}{n}".encode() for n in range(3)))
        client.ack(number, positions[1], cumulative=True)
        gone(client)
    world.advance(500)
    clusters("ab")
    world.advance(5_000)
    for name in "ab":
        assert sorted(got(*consumer(world[name]))) == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_what_expired_before_there_was_a_link_is_for_consumers_of_a_cluster_that_joins(mode: str) -> None:
    """Where a subscription begins is behind that; but nobody acknowledged it, and expiry is each cluster's own."""
    world, clusters = apart(mode)
    client, number = consumer(world["a"], kind=SHARED)
    positions = world["a"].publish(*(b"%d" % n for n in range(4)))
    node = world["a"]
    node.run(node.topic.subscriptions["s"].expire_to, positions[1])
    client.ack(number, positions[3])
    world.advance(500)
    clusters("ab")
    world.advance(5_000)
    assert got(*consumer(world["b"], kind=SHARED)) == [b"0", b"1", b"2"]
    assert node.topic.subscriptions["s"].backlog_entries() == 1


def test_acknowledgements_that_a_link_skipped_are_told_again() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1", b"2")
    world.advance(500)
    world.cut.add(("a", "b"))
    client.ack(number, positions[1])
    world.advance(500)
    from magnetar.core.ids import LATEST

    node = world["a"]
    assert node.control_call(lambda done: node.control.links.skip("b", TOPIC, LATEST, done)) is None
    world.cut.clear()
    world.advance(1_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 2


def test_a_failed_write_is_told_again() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1")
    world.advance(500)
    node = world["a"]
    client.ack(number, positions[0])
    node.hold_log = True
    world.advance(200)
    assert node.log._queue
    lost, node.log._queue = list(node.log._queue), []
    node.run(node.broker.append_failed, lost, "the disk failed")
    node.hold_log = False
    node.run(node.broker.healed)
    world.advance(1_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 1


def test_while_nobody_reads_markers_become_rare_and_then_fresh_again() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(400)))
    world.advance(500)
    world.cut.add(("a", "b"))
    before = markers(world["a"])
    for position in positions[:300]:
        client.ack(number, position)
        world.advance(200)
    assert markers(world["a"]) - before < 20
    world.cut.clear()
    world.advance(11_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 100
    client.ack(number, positions[300])
    world.advance(150)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 99


def test_state_for_people() -> None:
    world = two("abc")
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(5)))
    world.advance(500)
    world.cut.add(("a", "b"))
    client.ack(number, *positions[1:4])
    world.advance(500)
    control = world["a"].control
    (state,) = control.replicated.subscriptions(TOPIC)
    assert control.replicated.topics() == [TOPIC]
    assert (state["mode"], state["backlogMessages"], state["stalled"]) == ("exact", 2, "")
    assert state["towards"]["b"]["lagMessages"] == 3
    assert 0 < state["towards"]["b"]["lagMs"] <= 500
    assert "no pipeline" in state["towards"]["b"]["stalled"]
    assert state["towards"]["c"] == {"lagMessages": 0, "lagMs": 0, "stalled": ""}
    cursors = control.statistics.internal(TOPIC)["cursors"]
    assert cursors["s"]["replicatedState"]["acknowledged"] == 3
    assert control.replicated.metrics()["counters"]["markers_written"] > 0


def test_no_state_is_stored_that_the_replay_did_not_reach() -> None:
    world = two(cache_bytes=0)
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1", b"2")
    world["b"].hold_stores = True
    client.ack(number, positions[1])
    world.advance(500)
    node = world["b"]
    node.restart()
    node.run(node.broker.shut_down)
    while node.stores:
        store = node.stores.popleft()
        node.meta.update(store.puts)
    node.restart()
    node.hold_stores = False
    world.advance(500)
    assert got(*consumer(node)) == [b"0", b"2"]


def test_position_none_is_no_checkpoint() -> None:
    from magnetar.broker.replicated_subscriptions.state_store import decode_checkpoint, encode_checkpoint

    for position in (NONE, Position(5, 0), Position(1 << 60, 7)):
        assert decode_checkpoint(encode_checkpoint(position)) == position
    for damaged in (b"", b"x:y", b"1", b"\xff:3", b"9" * 40 + b":1"):
        assert decode_checkpoint(damaged) == NONE


# ------------------------------------------------------------------------------------------------------ snapshot mode


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_positions_follow_in_snapshot_mode(names: str) -> None:
    world = two(names, mode="snapshot")
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(6)))
    world.advance(3_000)
    client.ack(number, positions[5], cumulative=True)
    world.advance(5_000)
    for name in names[1:]:
        assert world[name].topic.subscriptions["s"].backlog_entries() == 0
        assert got(*consumer(world[name])) == []
    (state,) = world["a"].control.replicated.subscriptions(TOPIC)
    assert state["mode"] == "snapshot"


def test_snapshot_mode_survives_power_cuts() -> None:
    world = two(mode="snapshot", cache_bytes=0)
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(6)))
    world.advance(3_000)
    world["a"].restart()
    world.advance(100)
    client, number = consumer(world["a"])
    client.ack(number, positions[5], cumulative=True)
    world.advance(5_000)
    world["b"].restart()
    world.advance(5_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 0


def test_snapshot_mode_writes_nothing_when_idle() -> None:
    world = two("abc", mode="snapshot")
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1")
    world.settle()
    client.ack(number, positions[1], cumulative=True)
    world.advance(60_000)
    ends = [node.topic.log.last for node in world.nodes.values()]
    world.advance(3_600_000)
    assert [node.topic.log.last for node in world.nodes.values()] == ends


def test_snapshot_mode_says_why_it_does_not_work_one_way() -> None:
    world = two(routes=[("a", "b")], mode="snapshot")
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0")
    world.settle()
    client.ack(number, positions[0])
    world.advance(5_000)
    (state,) = world["a"].control.replicated.subscriptions(TOPIC)
    assert "links in both directions" in state["stalled"]
    assert "exact mode" in state["stalled"]
    reason = world["a"].control.replicated.refuses_mode("public/default", "snapshot")
    assert "exact mode" in reason
    assert world["a"].control.replicated.refuses_mode("public/default", "exact") == ""


@pytest.mark.parametrize(("first", "then"), [("exact", "snapshot"), ("snapshot", "exact")])
def test_the_mode_may_change_under_load(first: str, then: str) -> None:
    world = two("abc", mode=first)
    client, number = consumer(world["a"])
    for n in range(60):
        (position,) = world["a"].publish(b"%d" % n)
        if n == 30:
            set_mode(world, then)
        client.ack(number, position, cumulative=True)
        world.advance(150)
    world.advance(5_000)
    for node in world.nodes.values():
        assert node.topic.subscriptions["s"].backlog_entries() == 0
        assert node.control.statistics.topic(TOPIC)["subscriptions"]["s"]["replicatedMode"] == then


def test_exact_mode_tells_at_once_what_snapshot_mode_could_not() -> None:
    """Nothing is acknowledged after the change: the change itself has to tell."""
    world = two("abc", mode="snapshot")
    client, number = consumer(world["a"], kind=SHARED)
    world.advance(3_000)
    positions = world["a"].publish(*(b"%d" % n for n in range(6)))
    world.advance(3_000)
    client.ack(number, *positions[2:4], positions[5])
    world.advance(5_000)
    assert [world[name].topic.subscriptions["s"].backlog_entries() for name in "abc"] == [3, 6, 6]
    set_mode(world, "exact")
    world.advance(5_000)
    for name in "bc":
        other, there = consumer(world[name], kind=SHARED)
        assert sorted(got(other, there)) == [b"0", b"1", b"4"]


def test_snapshot_mode_keeps_what_exact_mode_told() -> None:
    world = two("abc")
    client, number = consumer(world["a"], kind=SHARED)
    positions = world["a"].publish(*(b"%d" % n for n in range(6)))
    world.advance(3_000)
    client.ack(number, *positions[2:4])
    world.advance(3_000)
    set_mode(world, "snapshot")
    world.advance(3_000)
    client.ack(number, *positions[:2])
    world.advance(10_000)
    left = {name: [world[name].topic.subscriptions["s"].backlog_entries()] for name in "bc"}
    client.ack(number, *positions[4:])
    world.advance(10_000)
    for name in "bc":
        left[name].append(world[name].topic.subscriptions["s"].backlog_entries())
    assert left == {"b": [4, 0], "c": [4, 0]}, "what was told stays, what comes now waits for a snapshot to be passed"


def test_modes_that_differ_understand_each_other() -> None:
    world = two("ab")
    set_mode(world, "snapshot", "b")
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(4)))
    world.settle()
    client.ack(number, positions[0], positions[2])
    world.advance(5_000)
    other, there = consumer(world["b"])
    assert got(other, there) == [b"1", b"3"]
    other.ack(there, here(world["b"], positions[3]), cumulative=True)
    world.advance(5_000)
    assert world["a"].topic.subscriptions["s"].backlog_entries() == 0


def test_acknowledgements_of_deliveries_before_a_foreign_seek_are_dropped() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(4)))
    world.settle()
    client.ack(number, positions[3], cumulative=True)
    world.advance(500)
    other, there = consumer(world["b"])
    client.seek(number, positions[0])
    world.advance(500)
    assert other.closed_consumers == [there]
    other.ack(there, here(world["b"], positions[3]), cumulative=True)  # it has not heard of its end
    again = other.subscribe("s")
    world.settle()
    other.ack(again, here(world["b"], positions[3]), cumulative=True)  # collected before, sent after
    world.advance(500)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 4
    other.flow(again)
    world.settle()
    assert len(other.take(again)) == 4
    other.ack(again, here(world["b"], positions[3]), cumulative=True)
    world.advance(500)
    assert world["a"].topic.subscriptions["s"].backlog_entries() == 0


def test_what_is_stored_of_topics_that_are_gone_is_deleted() -> None:
    world = two()
    node = world["a"]
    gone = replicated_key("persistent://public/default/gone", "s")
    node.meta[gone] = b"x"
    node.restart()
    world.settle()
    assert gone not in node.meta


def test_a_damaged_state_is_told_and_the_rest_goes_on() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1")
    world.settle()
    client.ack(number, positions[0])
    world.advance(500)
    node = world["b"]
    node.meta[replicated_key(TOPIC, "s")] = b"\xc1 no state"
    node.restart()
    world.advance(1_000)
    assert any("damaged" in note.text for note in node.notes)
    assert node.topic.subscriptions["s"].backlog_entries() == 1


def test_a_removed_cluster_is_forgotten_and_may_come_back() -> None:
    world = two("abc")
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(6)))
    world.advance(500)
    namespace = NamespaceName.parse("public/default")

    def clusters(names: str) -> None:
        for name in "ab":
            node = world[name]
            change = node.broker.resources.set_replication(namespace, list(names))
            node.apply(change)

    clusters("ab")
    assert ("a", "c") not in world["a"].topic.replicated_subscriptions.routes  # type: ignore[union-attr]
    client.ack(number, positions[1])
    world.advance(500)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 5
    assert world["c"].topic.subscriptions["s"].backlog_entries() == 6
    clusters("abc")
    world.advance(1_000)
    assert world["c"].topic.subscriptions["s"].backlog_entries() == 5


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_an_acknowledgement_of_another_clusters_entry_is_nothing_to_tell(mode: str, kind: int) -> None:
    """A consumer that was moved here may be late with one. It stood above all that could ever be told, and an idle topic wrote
    a marker every interval.
    """
    world = two(mode=mode)
    node = world["a"]
    client, number = consumer(node, "s", kind)
    world.advance(3_000)
    client.ack(number, *node.publish(b"0", b"1"))
    world.advance(10_000)
    for foreign in (Position(node.topic.log.last.ledger + 12_345, 3), Position(2**64 - 1, 2**64 - 1)):
        client.ack(number, foreign)
    world.advance(1_000)
    before = markers(node), markers(world["b"])
    world.advance(60_000)
    assert (markers(node), markers(world["b"])) == before
