"""What retention has to leave."""

from tests.support.geoworld import TOPIC, World


def test_a_seek_back_that_is_not_stored_yet_keeps_what_it_came_back_for() -> None:
    """Simulator: exact, 96 steps, seed 1012937."""
    world = World("a")
    node = world["a"]
    node.create()
    world.settle()
    client = node.client()
    number = client.subscribe("s", 1, replicated=False)
    world.settle()
    client.flow(number)
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
