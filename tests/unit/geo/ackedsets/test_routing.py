"""Who hears whom, and the marks below which nobody needs a bit."""

from magnetar.core.ids import Position
from magnetar.replication.acked_sets.low_water import Routing, Waters
from magnetar.wire.acksets import LowWater, Mark

MESH = {(s, d) for s in "abc" for d in "abc" if s != d}
CHAIN = {("a", "b"), ("b", "c")}
BOTH_WAYS = CHAIN | {(d, s) for s, d in CHAIN}


def low(cluster, position, incarnation=1, **marks):
    told = tuple(Mark(name, 1, index) for name, index in marks.items())
    return LowWater(cluster, incarnation, Position(1, position), told)


def test_a_mesh():
    routing = Routing("a", MESH)
    assert routing.peers == {"a", "b", "c"}
    assert routing.told_by("b")


def test_a_chain_is_relayed_and_waits_for_nobody_behind_it():
    routing = Routing("b", CHAIN)
    assert routing.sources["c"] == {"a", "b", "c"}
    assert routing.peers == {"b"}
    assert not routing.told_by("a")
    assert Routing("c", CHAIN).told_by("b"), "the end of the chain has nobody to tell"
    assert Routing("b", BOTH_WAYS).peers == {"a", "b", "c"}
    assert not Routing("b", BOTH_WAYS).told_by("c")


def test_a_writer_that_no_link_names_tells_nobody_else():
    assert not Routing("a", MESH).told_by("x")


def test_the_floor_is_the_lowest_mark_of_all_peers_and_of_the_origins_own_log():
    routing, waters = Routing("a", MESH), Waters()
    here = {"a": (1, 9), "b": (1, 9), "c": (1, 9)}
    assert waters.floor(routing, here) == dict.fromkeys("abc", (0, 0)), "who was not heard of counts as 0"
    assert waters.learn_low(low("b", 1, a=5, b=6, c=7), 1)
    assert waters.learn_low(low("c", 1, a=4, b=8, c=8), 1)
    assert waters.floor(routing, here) == {"a": (1, 4), "b": (0, 0), "c": (0, 0)}
    assert waters.learn_own([Mark("b", 1, 3), Mark("c", 1, 9)])
    assert not waters.learn_own([Mark("b", 1, 2)])
    assert waters.floor(routing, here) == {"a": (1, 4), "b": (1, 3), "c": (1, 7)}


def test_later_marks_count_and_those_of_a_former_log_are_void():
    waters = Waters()
    assert waters.learn_low(low("b", 5, a=5), 1)
    assert not waters.learn_low(low("b", 4, a=9), 1)
    assert waters.low["b"].marks[0].index == 5
    waters.forget_peer("b")
    assert not waters.learn_low(low("b", 9, a=9), 2), "passed on by somebody who has not heard yet"
    assert waters.learn_low(low("b", 0, incarnation=2, a=0), 2)


def test_own_marks():
    routing, waters = Routing("a", MESH), Waters()
    waters.raise_next("a", (1, 10))
    waters.raise_next("b", (1, 4))
    waters.raise_next("b", (1, 3))
    here = waters.here(routing, {"a": (1, 2), "b": (1, 7)})
    assert here == {"a": (1, 2), "b": (1, 4), "c": (0, 0)}
    told = waters.told(routing, here, 1, Position(3, 4))
    assert told == (LowWater("a", 1, Position(3, 4), (Mark("a", 1, 2), Mark("b", 1, 4), Mark("c", 0, 0))),)
    assert waters.told_own(routing, here) == (Mark("a", 1, 2),)
