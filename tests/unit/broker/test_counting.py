"""Counters of `/metrics` never fall, whatever goes away."""

from magnetar.admin.metrics import REPLICATED_LEVELS
from magnetar.broker.seats import LEVELS
from magnetar.core.ids import LATEST
from tests.support.geoworld import TOPIC, Node, World
from tests.unit.broker.test_replicated import consumer, two

OTHER = TOPIC + "-2"


def events(node: Node) -> dict[str, int]:
    told: dict[str, int] = node.control.replication_metrics()["counters"]
    return {name: value for name, value in told.items() if name not in LEVELS}


def levels(node: Node) -> set[int]:
    return {value for name, value in node.control.replication_metrics()["counters"].items() if name in LEVELS}


def fallen(before: dict[str, int], after: dict[str, int]) -> list[str]:
    return [name for name, value in before.items() if after.get(name, -1) < value]


def busy() -> World:
    """Acknowledgements went through markers from a to b."""
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(4)))
    world.advance(500)
    client.ack(number, *positions[:2])
    world.advance(2_000)
    client.unsubscribe(number)
    world.advance(1_000)
    assert events(world["a"])["markers_written"] > 0
    assert sum(events(world["b"]).values()) > 0
    return world


def test_the_page_knows_which_figures_are_levels() -> None:
    assert REPLICATED_LEVELS.keys() == LEVELS


def test_what_a_deleted_topic_counted_stays_counted() -> None:
    world = busy()
    for name in "ab":
        node = world[name]
        before = events(node)
        assert node.control_call(lambda done, n=node: n.control.delete_topic(TOPIC, True, done)) is None  # type: ignore[misc]
        world.advance(1_000)
        assert TOPIC not in node.broker.topics
        assert fallen(before, events(node)) == []
        assert levels(node) <= {0}
        node.create(OTHER)
        world.settle()
        assert fallen(before, events(node)) == []


def test_what_machines_counted_that_were_let_go_stays_counted() -> None:
    world = busy()
    before = events(world["a"])
    assert any(value for name, value in before.items() if name.startswith("exact_"))
    # Without subscriptions a topic has no machines; the next message finds that out.
    world["a"].broker.topics[TOPIC].replicated.known.clear()  # type: ignore[union-attr]
    world["a"].publish(b"x")
    world.settle()
    assert world["a"].broker.topics[TOPIC].replicated._made is None  # type: ignore[union-attr]
    assert fallen(before, events(world["a"])) == []


def test_what_a_link_gave_up_in_a_topic_that_is_gone_stays_counted() -> None:
    world = two()
    node = world["a"]
    world.cut.add(("a", "b"))
    node.publish(b"0", b"1", b"2")
    control = node.control
    assert node.control_call(lambda done: control.link_skip("b", TOPIC, LATEST, done)) is None

    def told() -> tuple[int, int]:
        (link,) = node.control.links()
        return link["skipped_messages"], link["skipped_messages_total"]

    assert told() == (3, 3)
    assert node.control_call(lambda done: control.delete_topic(TOPIC, True, done)) is None
    world.advance(1_000)
    assert told() == (0, 3)
    world.cut.clear()
    node.create(OTHER)
    world.settle()
    node.restart()
    assert told() == (0, 0), "since the start"
