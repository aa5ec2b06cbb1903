"""Acknowledgements that are told to the machines later, as few."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.replicated_subscriptions.ack_collector import ENTRIES_MAX, AckCollector
from magnetar.core.ids import NONE, Position
from magnetar.metadata.topic_records import cursor_key, replicated_key
from magnetar.replication.acked_sets.machine import AckedSets
from magnetar.replication.marker_host import Acked
from magnetar.storage.cursor import words_of
from tests.support.geoworld import TOPIC, Client, Node, World

positions = st.builds(Position, st.just(1), st.integers(0, 30))


@st.composite
def acknowledgements(draw: st.DrawFn) -> Acked:
    after, up_to = sorted((draw(positions), draw(positions)))
    kind = draw(st.sampled_from(("entries", "range", "partial", "both")))
    entries = draw(st.lists(positions, max_size=4)) if kind in ("entries", "both") else ()
    partial = draw(st.dictionaries(positions, st.integers(1, 7), max_size=2)) if kind in ("partial", "both") else {}
    ranged = kind == "range" and after < up_to
    return Acked(after if ranged else NONE, up_to if ranged else NONE, entries, partial)


def meant(acks: list[Acked]) -> tuple[set[Position], dict[Position, int]]:
    """What acknowledgements cover, with no order."""
    whole: set[Position] = set()
    partial: dict[Position, int] = {}
    for acked in acks:
        whole.update(acked.entries)
        if acked.up_to != NONE:
            whole.update(Position(1, entry) for entry in range(acked.after.entry + 1, acked.up_to.entry + 1))
        for position, bits in acked.partial.items():
            partial[position] = partial.get(position, 0) | bits
    return whole, partial


@given(st.lists(st.tuples(st.sampled_from("st"), acknowledgements()), min_size=1))
def test_what_is_told_covers_what_was_noted(given: list[tuple[str, Acked]]) -> None:
    told: dict[str, list[Acked]] = {"s": [], "t": []}
    collector = AckCollector(lambda name, acked: told[name].append(acked))
    for name, acked in given:
        if not collector.add(name, acked):
            collector.begin(name, acked)
    collector.flush()
    assert not collector
    for name, acks in told.items():
        assert meant(acks) == meant([acked for one, acked in given if one == name])


def test_cumulative_ones_in_a_row_are_one() -> None:
    told = []
    collector = AckCollector(lambda _, acked: told.append(acked))
    collector.begin("s", Acked(Position(1, 0), Position(1, 3)))
    for entry in range(3, 9):
        assert collector.add("s", Acked(Position(1, entry), Position(1, entry + 1)))
    collector.flush()
    assert told == [Acked(Position(1, 0), Position(1, 9), [], {})]


def test_it_does_not_grow_for_ever() -> None:
    told = []
    collector = AckCollector(lambda _, acked: told.append(acked))
    collector.begin("s", Acked(entries=[Position(1, 0)]))
    for entry in range(1, ENTRIES_MAX):
        collector.add("s", Acked(entries=[Position(1, entry)]))
        if told:
            break
    assert told
    assert not collector


# ------------------------------------------------------------------------------------------------------- whole brokers


def machine(node: Node) -> AckedSets:
    """Exact mode's machine, without asking for it: that would tell it what is noted."""
    assert node.topic.replicated_subscriptions is not None
    assert node.topic.replicated_subscriptions._made is not None
    found = node.topic.replicated_subscriptions._made[0]
    assert isinstance(found, AckedSets)
    return found


def noting(**options: object) -> tuple[World, Client, int, list[Position]]:
    """A cluster whose broker has noted the acknowledgements of entries 1 to 3, and told the machine of entry 0 only."""
    world = World("ab", **options)
    node = world["a"]
    node.broker.validate = lambda: None  # type: ignore[method-assign]  # it asks the machines for everything
    node.create()
    world.settle()
    client = node.client()
    number = client.subscribe("s", 1)
    world.settle()
    client.flow(number)
    stored = node.publish(*(b"%d" % n for n in range(6)))
    world.advance(500)
    for position in stored[:4]:
        client.ack(number, position)
    return world, client, number, stored


def told(node: Node) -> int:
    return len(machine(node).topic.states["s"].acks)


def test_the_first_is_told_and_the_rest_noted() -> None:
    world, *_ = noting()
    assert told(world["a"]) == 1
    assert len(world["a"].topic.replicated_subscriptions.exact.topic.states["s"].acks) == 4  # type: ignore[union-attr,attr-defined]  # it is asked
    world.advance(500)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 2


def test_what_is_noted_is_written_when_the_timer_is_due() -> None:
    world, *_ = noting()
    assert told(world["a"]) == 1
    world.advance(500)
    assert told(world["a"]) == 4
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 2


def test_the_state_goes_with_its_cursor() -> None:
    """In the transaction in which the cursor says that they are acknowledged, the state does, too; or they are never told."""
    world, client, number, stored = noting(ack_sync_interval_ms=60_000)
    node = world["a"]
    client.ack(number, stored[4])
    before = dict(node.meta)
    node.broker.flusher.flush()
    node.run(lambda: None)
    world.work()
    assert node.meta[cursor_key(TOPIC, "s")] != before[cursor_key(TOPIC, "s")]
    assert node.meta[replicated_key(TOPIC, "s")] != before[replicated_key(TOPIC, "s")]
    assert not node.broker.flusher._dirty, "it is stored again for nothing"
    node.restart()
    world.advance(61_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 1


def test_parts_and_ranges_are_noted_too() -> None:
    world = World("ab")
    node = world["a"]
    node.broker.validate = lambda: None  # type: ignore[method-assign]
    node.create()
    world.settle()
    client = node.client()
    number = client.subscribe("s", 0)
    world.settle()
    client.flow(number)
    stored = node.publish(b"x", b"y", b"z", batch=4)
    world.advance(500)
    client.ack(number, stored[0], cumulative=True)
    client.ack(number, stored[2], ack_set=words_of(0b1011))
    client.ack(number, stored[2], ack_set=words_of(0b1110))
    assert told(node) == 4
    world.advance(500)
    assert world["b"].topic.subscriptions["s"].cursor.backlog_messages() == 4 + 2


def test_a_seek_comes_after_what_was_noted_before_it() -> None:
    world, client, number, stored = noting()
    client.seek(number, stored[2])
    assert told(world["a"]) == 0, "noted before the seek, told behind it"
    world.advance(500)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 4
