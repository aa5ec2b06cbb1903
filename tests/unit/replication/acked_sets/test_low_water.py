"""Who hears whom, and the marks below which nobody needs a bit."""

from magnetar.core.ids import Position
from magnetar.replication.acked_sets.low_water import LowWaterMarks, Routing
from magnetar.wire.acksets import LowWater, Mark

MESH = {(s, d) for s in "abc" for d in "abc" if s != d}
CHAIN = {("a", "b"), ("b", "c")}
BOTH_WAYS = CHAIN | {(d, s) for s, d in CHAIN}


def low(cluster, position, incarnation=1, **marks):
    reported = tuple(Mark(name, 1, index) for name, index in marks.items())
    return LowWater(cluster, incarnation, Position(1, position), reported)


def test_a_mesh():
    routing = Routing("a", MESH)
    assert routing.peers == {"a", "b", "c"}
    assert not routing.must_relay("b")


def test_a_chain_is_relayed_and_waits_for_nobody_behind_it():
    routing = Routing("b", CHAIN)
    assert routing.sources["c"] == {"a", "b", "c"}
    assert routing.peers == {"b"}
    assert routing.must_relay("a")
    assert not Routing("c", CHAIN).must_relay("b"), "no link leads from the end of the chain"
    assert Routing("b", BOTH_WAYS).peers == {"a", "b", "c"}
    assert Routing("b", BOTH_WAYS).must_relay("c")


def test_a_writer_that_no_link_names_tells_nobody_else():
    assert Routing("a", MESH).must_relay("x")


def test_the_floor_is_the_lowest_mark_of_all_peers_and_of_the_origins_own_log():
    routing, marks = Routing("a", MESH), LowWaterMarks()
    here = {"a": (1, 9), "b": (1, 9), "c": (1, 9)}
    assert marks.floor(routing, here) == dict.fromkeys("abc", (0, 0)), "who was not heard of counts as 0"
    assert marks.learn_low(low("b", 1, a=5, b=6, c=7), 1)
    assert marks.learn_low(low("c", 1, a=4, b=8, c=8), 1)
    assert marks.floor(routing, here) == {"a": (1, 4), "b": (0, 0), "c": (0, 0)}
    assert marks.learn_retained([Mark("b", 1, 3), Mark("c", 1, 9)])
    assert not marks.learn_retained([Mark("b", 1, 2)])
    assert marks.floor(routing, here) == {"a": (1, 4), "b": (1, 3), "c": (1, 7)}


def test_later_marks_count_and_those_of_a_former_log_are_void():
    marks = LowWaterMarks()
    assert marks.learn_low(low("b", 5, a=5), 1)
    assert not marks.learn_low(low("b", 4, a=9), 1)
    assert marks.low["b"].marks[0].index == 5
    marks.forget_peer("b")
    assert not marks.learn_low(low("b", 9, a=9), 2), "passed on by somebody who has not heard yet"
    assert marks.learn_low(low("b", 0, incarnation=2, a=0), 2)


def test_own_marks():
    routing, marks = Routing("a", MESH), LowWaterMarks()
    marks.raise_next("a", (1, 10))
    marks.raise_next("b", (1, 4))
    marks.raise_next("b", (1, 3))
    here = marks.here(routing, {"a": (1, 2), "b": (1, 7)})
    assert here == {"a": (1, 2), "b": (1, 4), "c": (0, 0)}
    reported = marks.all_marks(routing, here, 1, Position(3, 4))
    assert reported == (LowWater("a", 1, Position(3, 4), (Mark("a", 1, 2), Mark("b", 1, 4), Mark("c", 0, 0))),)
    assert marks.retained_marks(routing, here) == (Mark("a", 1, 2),)
