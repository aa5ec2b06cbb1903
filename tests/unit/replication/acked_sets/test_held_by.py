"""Who keeps a cluster from forgetting what is acknowledged."""

from magnetar.core.ids import Position
from magnetar.wire.acksets import LowWater, Mark
from tests.unit.replication.acked_sets.rig import INCARNATION, Rig, bits, marker, told


def low(cluster, version, index):
    return LowWater(cluster, 3, Position(3, version), (Mark("a", INCARNATION, index),))


def held_by(rig):
    return rig.machine.describe("s")["heldBy"]


def test_whoever_was_not_heard_of_and_then_whoever_is_furthest_behind():
    rig = Rig()
    rig.subscribe()
    rig.ack(*[rig.publish() for _ in range(9)])
    rig.pass_time()
    assert held_by(rig) == [], "all of it is still here"
    rig.trim()
    assert held_by(rig) == ["b", "c"]
    rig.hear(marker("b", low=[low("b", 1, 4)]))
    assert held_by(rig) == ["c"], "never heard of"
    rig.hear(marker("c", low=[low("c", 1, 3)]))
    assert held_by(rig) == ["c"], "it spoke once, and is furthest behind"
    rig.hear(marker("c", low=[low("c", 2, 9)]))
    assert held_by(rig) == ["b"]
    rig.hear(marker("b", low=[low("b", 2, 9)]))
    assert held_by(rig) == []
    assert rig.machine.topic.states["s"].acks == bits("a", 7, 8), "what is still here"


def test_an_origin_that_retains_what_is_not_here_any_more():
    rig = Rig()
    rig.subscribe()
    positions = [rig.arrive("b", index) for index in range(6)]
    rig.ack(*positions)
    rig.pass_time()
    rig.trim()
    marks = (Mark("a", INCARNATION, 99), Mark("b", 3, 6), Mark("c", 3, 0))
    rig.hear(marker("c", low=[LowWater("c", 3, Position(3, 1), marks)]))
    rig.hear(marker("b", low=[LowWater("b", 3, Position(3, 1), marks)], own=[Mark("b", 3, 2)]))
    assert held_by(rig) == ["b"]
    rig.hear(marker("b", own=[Mark("b", 3, 6)]))
    assert held_by(rig) == []


def test_a_subscription_without_anything_to_forget_is_held_by_nobody():
    rig = Rig()
    for _ in range(9):
        rig.publish()
    rig.trim()
    rig.subscribe("t", position=rig.log.last)
    rig.hear(marker("b", told(acks=bits("a", 100))))
    assert rig.machine.describe("t")["heldBy"] == []
