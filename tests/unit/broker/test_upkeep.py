"""What retention has to leave."""

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
    failed = node.stores.popleft()
    assert failed.then is not None
    node.run(failed.then, "the metadata store failed")
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
