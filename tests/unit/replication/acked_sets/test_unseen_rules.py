"""Rules that chance alone hardly shows the lack of: what they are for, and what comes without them
(`magnetar_sim.actions.stories`).

Each is tried with the machine as it is and with the rule left out (`magnetar_sim.planted.exact`): a test that is no test of the
rule fails.
"""

from magnetar.core.ids import Position
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.wire.acksets import LowWater, Mark
from magnetar_sim.host.patches import patched
from magnetar_sim.planted.exact import EXACT, patches_of
from tests.unit.replication.acked_sets.rig import INCARNATION, Rig, bits, marker, told


def lives_of_b_and_c(position, index, incarnation):
    """The marks of b and c for messages of a: b is in its only life, c in the one that is said."""
    marks = (Mark("a", INCARNATION, index),)
    return (LowWater("b", 3, Position(3, position), marks), LowWater("c", incarnation, Position(3, position), marks))


def planted(rule):
    """The real code without a rule."""
    return patched(patches_of(EXACT[rule]))


def left_after_marks_of_a_former_life():
    """c's topic was made anew; b has not heard of it yet, and passes on what c retained before."""
    rig = Rig()
    rig.subscribe()
    rig.ack(*[rig.publish() for _ in range(4)])
    rig.pass_time()
    rig.trim()
    rig.hear(marker("b", low=lives_of_b_and_c(1, 0, 3)))
    rig.incarnations["c"] = 4
    rig.machine.rebased("c")
    rig.pass_time()
    rig.hear(marker("b", low=lives_of_b_and_c(2, 3, 3)))
    before = rig.machine.topic.states["s"].acks.copy()
    rig.hear(marker("c", low=lives_of_b_and_c(3, 3, 4)[1:]))
    assert rig.machine.topic.states["s"].acks == bits("a", 3), "the new life speaks for itself"
    return before


def test_marks_of_a_peers_former_life_are_void():
    """The new log may still take in a's messages, from a task that read them before a deleted them: c has to be told then."""
    assert left_after_marks_of_a_former_life() == bits("a", 0, 1, 2, 3)
    with planted("stale_low"):
        assert left_after_marks_of_a_former_life() == bits("a", 3)


class OfB(Rig):
    """The same in cluster b."""

    cluster = "b"


FROM_THE_FIRST = (Mark("b", 0, 0),)


def consumed_after_two_seeks_at_one_time():
    """b goes back, acknowledges, loses its disk and its clock, and goes back once more; a hears of all of it."""
    listener = Rig()
    listener.subscribe()
    listener.arrive("b", 0, 4)
    times = set()
    for incarnation, acks in ((INCARNATION, bits("b", 0, 1, 2, 3)), (INCARNATION + 1, MessageSet())):
        rig = OfB(incarnation=incarnation)
        rig.subscribe()
        rig.machine.sought("s", lambda _: None)
        epoch = rig.machine.topic.states["s"].epoch
        times.add(epoch.time_ms)
        listener.hear(marker("b", told(full=True, epoch=epoch, acks=acks, base=MessageSet(), floor=FROM_THE_FIRST)))
    assert len(times) == 1, "the clock of the second life repeats the first one's time"
    return listener.machine.topic.states["s"].consumed()


def test_a_seek_of_a_new_life_is_not_taken_for_one_of_the_former():
    """What the user went back to comes again, although the former life's seek had the same time."""
    assert not consumed_after_two_seeks_at_one_time()
    with planted("epoch_no_incarnation"):
        assert consumed_after_two_seeks_at_one_time() == bits("b", 0, 1, 2, 3)
