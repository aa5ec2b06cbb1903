"""Limits of `[subscriptions]` arrive at the machines: how many markers a broker writes, and when a set is warned of."""

import pytest

from magnetar.storage.entries import EntryFlags
from tests.support.geoworld import World

TOPICS = [f"persistent://public/default/t{number}" for number in range(5)]


def busy(world: World) -> None:
    """A replicated subscription in each of five topics, with an acknowledgement out of order that is to be told."""
    node = world["a"]
    acknowledging = []
    for topic in TOPICS:
        node.create(topic)
        client = node.client()
        number = client.subscribe("s", topic=topic)
        world.settle()
        client.flow(number)
        acknowledging.append((client, number, node.publish(b"0", b"1", topic=topic)[1]))
    world.advance(10_000)  # what creating them left to tell is told
    for client, number, position in acknowledging:
        client.ack(number, position)
    world.work()


def markers(world: World) -> int:
    """Markers that a wrote, in all topics."""
    logs = [world["a"].broker.topics[topic].log for topic in TOPICS]
    both = EntryFlags.MARKER | EntryFlags.REPLICATED
    return sum(
        flags & both == EntryFlags.MARKER for log in logs for ledger in log.ledger_infos() for flags in ledger.flags
    )


@pytest.mark.parametrize(("most", "at_once"), [(0, 5), (500, 5), (1, 1)])
def test_markers_of_a_second(most: int, at_once: int) -> None:
    world = World(markers_per_s_max=most)
    busy(world)
    before = markers(world)
    world.advance(1_100)
    assert markers(world) - before == at_once, "one pacer for all topics"
    world.advance(5_000)
    assert markers(world) - before == 5, "later, not never"


@pytest.mark.parametrize(("most", "warned"), [(1, 5), (16 << 20, 0)])
def test_a_set_above_the_limit_is_warned_of(most: int, warned: int) -> None:
    world = World(set_bytes_max=most)
    busy(world)
    world.advance(1_000)
    notes = [note.text for note in world["a"].notes if "the acknowledged set of s has" in note.text]
    assert len(notes) == warned, "once for each topic"
    assert all(f"more than {most}" in text for text in notes)
