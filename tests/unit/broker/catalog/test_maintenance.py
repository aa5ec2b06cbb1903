"""What retention has to leave."""

from magnetar.core.ids import EARLIEST
from magnetar.core.names import NamespaceName
from magnetar.storage.entries import NewEntry
from magnetar.wire.metadata import build
from magnetar.wire.pulsar_pb2 import MessageMetadata
from tests.support.geoworld import TOPIC, Client, Node, World


def subscribed() -> tuple[World, Node, Client, int]:
    """A topic with a consumer."""
    world = World("a")
    node = world["a"]
    node.create()
    world.settle()
    client = node.client()
    number = client.subscribe("s", 1, replicated=False)
    world.settle()
    client.flow(number)
    return world, node, client, number


def test_a_seek_back_that_is_not_stored_yet_keeps_what_it_came_back_for() -> None:
    """Simulator: exact, 96 steps, seed 1012937."""
    world, node, client, number = subscribed()
    stored = node.publish(b"0", b"1", b"2")
    node.run(lambda: node.topic.log.roll(world.now_ms))
    stored += node.publish(b"3")  # the last ledger stays in any case
    world.advance(500)
    client.ack(number, *stored)
    world.advance(5_000)
    subscription = node.topic.subscriptions["s"]
    assert subscription.durable_mark_delete == stored[3]
    node.hold_stores = True
    client.seek(number, stored[1])
    assert subscription.mark_delete < stored[1]
    node.run(lambda: node.broker.upkeep.trim(node.topic, everything=True))
    node.hold_stores = False
    world.advance(5_000)
    assert node.broker.topics[TOPIC].log.valid(stored[1])
    assert subscription.backlog_entries() == 3


def test_what_is_to_be_deleted_is_deleted_although_the_store_failed() -> None:
    """Simulator: snapshot, 96 steps, seed 790 more seeks: the next store of the record said that it is, and it was served."""
    world, node, client, number = subscribed()
    stored = node.publish(b"0", b"1")
    node.run(lambda: node.topic.log.roll(world.now_ms))
    stored += node.publish(b"2")
    world.advance(500)
    client.ack(number, *stored)
    world.advance(5_000)
    node.hold_stores = True
    node.run(lambda: node.broker.upkeep.trim(node.topic, everything=True))
    assert node.store.answer("the metadata store failed")
    node.hold_stores = False
    assert node.topic.log.valid(stored[0])
    world.advance(5_000)
    assert not node.topic.log.valid(stored[0])


def test_a_reader_that_does_not_come_back_leaves_nothing() -> None:
    """Its subscription was woken by every publish, and kept the topic from being deleted."""
    world = World("a")
    node = world["a"]
    node.create()
    world.settle()
    stored = node.publish(b"0", b"1", b"2")
    gone, back = node.client(), node.client()
    numbers = [
        client.subscribe("reader-" + name, durable=False, replicated=False)
        for client, name in ((gone, "x"), (back, "y"))
    ]
    world.settle()
    for client, number in zip((gone, back), numbers, strict=True):
        client.flow(number)
        client.seek(number, stored[1])
    world.settle()
    node.run(node.broker.disconnected, gone.number)
    again = back.subscribe("reader-y", durable=False, replicated=False)
    world.settle()
    assert sorted(node.topic.subscriptions) == ["reader-x", "reader-y"]
    world.advance(10 * 60_000)
    assert list(node.topic.subscriptions) == ["reader-y"]
    back.flow(again)
    world.settle()
    assert [message.data for message in back.take(again)] == [b"1", b"2"]


def filled(acknowledged: int) -> tuple[World, Node, Client, int]:
    """A topic of three messages in one ledger, some of them acknowledged, of a broker that cannot store any more."""
    world, node, client, number = subscribed()
    stored = node.publish(b"0", b"1", b"2")
    world.advance(500)
    client.ack(number, *stored[:acknowledged])
    world.advance(500)
    node.run(node.broker.append_failed, [], "no space left on the device")
    return world, node, client, number


def test_the_last_ledger_goes_where_nothing_can_be_stored() -> None:
    """A disk may be full of last ledgers: no new entry closes them, as long as they are there."""
    world, node, client, _number = filled(3)
    log, last = node.topic.log, node.topic.log.last
    node.run(lambda: node.broker.upkeep.trim(node.topic))
    world.advance(1_000)
    assert (log.ledger_ids(), log.last, log.bytes_retained) == ([], last, 0)
    node.restart()
    log = node.topic.log
    assert (log.ledger_ids(), log.last, log.next_index) == ([], last, 3)
    assert node.topic.subscriptions["s"].mark_delete == last
    assert node.topic.subscriptions["s"].backlog_entries() == 0
    after = node.publish(b"3")[0]
    assert after > last
    assert log.origin_index_of(after) == 3
    client = node.client()
    client.flow(client.subscribe("s", 1, replicated=False))
    world.advance(100)
    assert [each.data for messages in client.received.values() for each in messages] == [b"3"]
    node.restart()
    assert node.topic.log.last == after


def test_the_last_ledger_stays_while_somebody_needs_it_or_something_is_on_its_way_to_it() -> None:
    world, node, client, number = filled(2)
    node.run(lambda: node.broker.upkeep.trim(node.topic))
    world.advance(1_000)
    assert len(node.topic.log.ledger_ids()) == 1
    client.ack(number, node.topic.log.last)
    world.advance(1_000)
    node.hold_log = True
    entry = NewEntry(build(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"x"), 0, 1, 1)
    node.run(lambda: node.topic.append([entry], lambda append, error: None))
    node.run(lambda: node.broker.upkeep.trim(node.topic))
    world.advance(1_000)
    assert len(node.topic.log.ledger_ids()) == 1
    node.hold_log = False
    world.advance(1_000)
    assert node.topic.log.last.entry == 3


def test_links_go_on_behind_a_last_ledger_that_went() -> None:
    world = World("ab", limits={"retention_unsubscribed_ms": 0})
    a, b = world["a"], world["b"]
    a.create()
    a.publish(b"0", b"1")
    world.advance(2_000)
    assert b.topic.log.next_after(EARLIEST) is not None
    a.run(a.broker.append_failed, [], "no space left on the device")
    a.run(lambda: a.broker.upkeep.trim(a.topic))
    world.advance(2_000)
    assert not a.topic.log.ledger_ids()
    a.restart()
    world.advance(2_000)
    a.publish(b"2")
    world.advance(2_000)
    assert b.topic.log.messages_between(EARLIEST, b.topic.log.last) == 3
    assert a.broker.links.sources["b"].topics[TOPIC].gap == 0


# ----------------------------------------------------------------------------------- subscriptions that nobody uses

MINUTE = 60_000


def expiring(minutes: int, *, replicated: bool = False) -> tuple[World, Node, Client, int]:
    """A subscription with a consumer, where subscriptions expire."""
    world = World("a")
    node = world["a"]
    node.create()
    namespace = NamespaceName("public", "default")
    node.apply(node.broker.resources.change_policies(namespace, subscription_expiration_time_minutes=minutes))
    client = node.client()
    number = client.subscribe("s", 1, replicated=replicated)
    world.settle()
    return world, node, client, number


def leave(client: Client) -> None:
    client.node.run(client.node.broker.disconnected, client.number)


def test_a_subscription_expires_when_it_had_no_consumer_for_so_long() -> None:
    world, node, client, _ = expiring(60)
    world.advance(300 * MINUTE)
    assert "s" in node.topic.subscriptions, "it has a consumer"
    leave(client)
    world.advance(58 * MINUTE)
    assert "s" in node.topic.subscriptions
    world.advance(4 * MINUTE)
    assert "s" not in node.topic.subscriptions
    assert any("subscription-expiration-time" in note.text for note in node.notes)
    node.restart()
    assert "s" not in node.topic.subscriptions


def test_a_restart_does_not_make_it_young_again() -> None:
    world, node, client, _ = expiring(60)
    leave(client)
    for _ in range(3):
        world.advance(15 * MINUTE)
        node.restart()
    world.advance(13 * MINUTE)
    assert "s" in node.topic.subscriptions
    world.advance(10 * MINUTE)
    assert "s" not in node.topic.subscriptions


def test_after_a_start_consumers_have_time_to_come_back() -> None:
    """The broker was down for longer than the policy says: that is nobody's disuse."""
    world, node, _, _ = expiring(60)
    world.advance(5 * MINUTE)
    node.kill()
    world.now_ms += 300 * MINUTE
    node.start()
    world.advance(8 * MINUTE)
    client = node.client()
    client.subscribe("s", 1, replicated=False)
    world.settle()
    leave(client)
    world.advance(50 * MINUTE)
    assert "s" in node.topic.subscriptions
    world.advance(15 * MINUTE)
    assert "s" not in node.topic.subscriptions


def test_a_replicated_subscription_does_not_expire() -> None:
    """Its consumers may be in another cluster."""
    world, node, client, _ = expiring(60, replicated=True)
    leave(client)
    world.advance(200 * MINUTE)
    assert "s" in node.topic.subscriptions


def test_what_was_replicated_until_now_counts_as_used_until_now() -> None:
    """Its consumers in another cluster may have been at work a minute ago."""
    world, node, client, _ = expiring(60, replicated=True)
    leave(client)
    world.advance(200 * MINUTE)
    node.topic.subscriptions["s"].set_replicated(False)
    world.advance(50 * MINUTE)
    assert "s" in node.topic.subscriptions
    world.advance(15 * MINUTE)
    assert "s" not in node.topic.subscriptions


def test_without_the_policy_subscriptions_stay_and_nothing_more_is_stored() -> None:
    world, node, client, _ = expiring(0)
    leave(client)
    world.advance(10_000 * MINUTE)
    assert "s" in node.topic.subscriptions
    assert not node.topic.subscriptions["s"].cursor.properties
