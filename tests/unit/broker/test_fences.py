"""The fences of a broker whose store refuses at the wrong moment."""

from magnetar.geo.failover import Phase
from tests.support.geoworld import TOPIC, World


def test_a_store_that_refuses_the_end_of_the_wait_is_asked_again() -> None:
    """Also while messages are in consumers' hands, so that no acknowledgement does it."""
    world = World("ab")
    node = world["a"]
    node.create()
    client = node.client()
    number = client.subscribe("s", 1)
    world.settle()
    client.flow(number)
    node.publish(b"0", b"1")
    world.advance(1_000)
    assert len(client.take(number)) == 2
    node.control.failover_begin(TOPIC, "s", "b", "", 100, lambda _: None)
    begun = node.stores.popleft()
    node.meta.update(begun.puts)
    assert begun.then is not None
    node.run(begun.then, "")
    node.hold_stores = True
    world.advance(10_500)  # the wait is over, and stored is nothing
    held, node.stores = list(node.stores), type(node.stores)()
    refused = [store for store in held if f"fences/{TOPIC}/s" in store.puts]
    assert len(refused) == 1
    for store in held:
        if store.then is not None:
            node.run(store.then, "disk full" if store in refused else "")
    assert node.broker.fences.fence(TOPIC, "s").phase is Phase.FENCING
    node.hold_stores = False
    world.advance(2_000)
    fence = node.broker.fences.fence(TOPIC, "s")
    assert (fence.phase, fence.left) == (Phase.FENCED, 2) and fence.final is not None
