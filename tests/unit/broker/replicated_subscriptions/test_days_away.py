"""A cluster that is away for days: the others go on and stay small; when it is back all agree, and nobody writes another word."""

from collections import deque

from magnetar.core.ids import Position
from magnetar.metadata.topic_records import replicated_key
from tests.support.geosteps import SHARED, consumer, got, markers, two
from tests.support.geoworld import TOPIC, Node, World

HOUR_MS = 3_600_000
DAYS = 3
LATE = 24
"""Hours after which the slow one of each hour's messages is acknowledged."""

LEDGER = 50


def state_bytes(node: Node) -> int:
    """What is stored of the subscription's set."""
    return len(node.meta[replicated_key(TOPIC, "s")])


def retained(node: Node) -> int:
    """Entries in a cluster's log."""
    return sum(ledger.entries for ledger in node.topic.log.ledger_infos())


def backlogs(world: World) -> list[int]:
    """By cluster, those that are up."""
    return [node.topic.subscriptions["s"].backlog_entries() for node in world.nodes.values() if node.up]


def test_a_cluster_that_was_away_for_days() -> None:
    world = two("abc", limits={"ledger_entries_max": LEDGER, "retention_interval_ms": 600_000})
    client, number = consumer(world["a"], kind=SHARED)
    world.advance(1_000)
    world["c"].kill()
    waiting: deque[tuple[bytes, Position]] = deque()
    sizes = []
    for hour in range(24 * DAYS):
        payloads = [b"%d-%d" % (hour, n) for n in range(6)]
        positions = world["a"].publish(*payloads)
        world.settle()
        waiting.append((payloads[2], positions.pop(2)))
        if len(waiting) > LATE:
            positions.append(waiting.popleft()[1])
        client.ack(number, *positions)
        world.advance(HOUR_MS)
        assert backlogs(world) == [len(waiting)] * 2, "the dead one holds up nobody"
        sizes.append([state_bytes(world[name]) for name in "ab"])
    assert len(waiting) == LATE
    assert max(map(max, sizes[LATE:])) < 2 * max(sizes[LATE]), "a state grows with its holes, not with the time"
    assert markers(world["a"]) < 3 * 24 * DAYS
    # b keeps a day's holes and the ledgers around them; a keeps everything for c, which is what the link's lag tells.
    assert retained(world["b"]) < (6 + 2) * LATE + 2 * LEDGER < retained(world["a"])
    (link,) = [link for link in world["a"].control.links.states() if link["target"] == "c"]
    assert link["lag_messages"] == 6 * 24 * DAYS

    world["c"].start()
    world.advance(HOUR_MS)
    assert backlogs(world) == [LATE] * 3
    assert got(*consumer(world["c"], kind=SHARED)) == [payload for payload, _ in waiting]
    for node in world.nodes.values():
        (told,) = node.control.replicated.subscriptions(TOPIC)
        # One run is what was acknowledged before, the others lie between the holes.
        assert (told["pending"], told["unsent"], told["runs"]) == (0, 0, LATE + 1)
        assert state_bytes(node) < 2 * max(sizes[LATE])
        assert {target: lag["lagMessages"] for target, lag in told["towards"].items()} == dict.fromkeys(
            {"a", "b", "c"} - {node.name}, 0
        )

    assert retained(world["a"]) == retained(world["b"]), "nothing is kept for c any more"

    ends = [node.topic.log.last for node in world.nodes.values()]
    world.advance(24 * DAYS * HOUR_MS)
    assert [node.topic.log.last for node in world.nodes.values()] == ends, "all is told"
    client.ack(number, *(position for _, position in waiting))
    world.advance(HOUR_MS)
    assert backlogs(world) == [0] * 3
