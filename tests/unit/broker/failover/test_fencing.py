"""The fences of a broker whose store refuses at the wrong moment."""

import pytest

from magnetar.broker.failover.fencing import CHANGES_MAX
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import LATEST
from magnetar.metadata.errors import BadRequest, NotFound, PreconditionFailed
from magnetar.replication.failover import Phase
from tests.support.geoworld import TOPIC, Node, World


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
    node.control.failovers.begin(TOPIC, "s", "b", "", 100, lambda _: None)
    assert node.store.answer()
    node.hold_stores = True
    world.advance(10_500)  # the wait is over, and stored is nothing
    held = list(node.stores)
    node.stores.clear()
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


def subscribed() -> Node:
    node = World("ab")["a"]
    node.create()
    node.client().subscribe("s", 1)
    node.world.advance(1_000)
    return node


def refused(answers: list[MagnetarError | None]) -> list[str]:
    return [str(answer) if answer is not None else "" for answer in answers]


@pytest.mark.parametrize("first", ["fence", "call-off"])
def test_a_failover_that_is_called_off_is_none_whichever_comes_first(first: str) -> None:
    """The store hangs: whoever asked for the fence waits for an answer no more, and never heard what became of it."""
    node = subscribed()
    named = node.control.failovers.state(TOPIC, "s")["next"]
    begun: list[MagnetarError | None] = []
    outcomes: list[MagnetarError | None] = []
    node.hold_stores = True
    if first == "fence":
        node.control.failovers.begin(TOPIC, "s", "b", "", 0, begun.append, named=named)
    node.control.failovers.step("call-off", TOPIC, "s", named, outcomes.append)
    if first != "fence":
        node.control.failovers.begin(TOPIC, "s", "b", "", 0, begun.append, named=named)
    assert not begun and not outcomes
    node.hold_stores = False
    node.world.advance(5_000)
    assert refused(outcomes) == [""]
    assert refused(begun) == ["" if first == "fence" else f"failover {named} is not later than {named}"]
    assert node.broker.fences.fence(TOPIC, "s").phase is Phase.ACTIVE
    assert not node.topic.subscriptions["s"].held
    node.restart()
    node.world.advance(1_000)
    assert node.control_call(lambda done: node.control.failovers.begin(TOPIC, "s", "b", "", 0, done, named=named))
    later = node.control.failovers.state(TOPIC, "s")["next"]
    assert (
        node.control_call(lambda done: node.control.failovers.begin(TOPIC, "s", "b", "", 0, done, named=later)) is None
    )
    assert node.control.failovers.state(TOPIC, "s")["token"] == later


def test_a_failover_is_named_later_than_all_that_is_known_and_by_its_source() -> None:
    node = subscribed()
    named = node.control.failovers.state(TOPIC, "s")["next"]
    time_ms = int(named.partition("@")[0])
    with pytest.raises(BadRequest, match="its token names another cluster"):
        node.control.failovers.begin(TOPIC, "s", "b", "", 0, lambda _: None, named=f"{time_ms}@b")
    above = f"{time_ms + 5}@b"
    answers: list[MagnetarError | None] = []
    node.control.failovers.begin(TOPIC, "s", "b", above, 0, answers.append, named=named)
    assert refused(answers) == [f"failover {named} is not later than {above}"]
    assert node.broker.fences.fence(TOPIC, "s").phase is Phase.ACTIVE


def test_changes_that_the_store_does_not_answer_do_not_pile_up() -> None:
    node = subscribed()
    node.hold_stores = True
    answers: list[MagnetarError | None] = []
    for _ in range(CHANGES_MAX + 3):
        node.control.failovers.begin(TOPIC, "s", "b", "", 0, answers.append)
    assert refused(answers) == [f"{CHANGES_MAX} changes of this fence wait for the metadata store"] * 3
    node.hold_stores = False
    node.world.advance(1_000)
    assert refused(answers)[3:] == [""] * CHANGES_MAX


def test_a_subscription_that_is_being_moved_stays_replicated() -> None:
    """Its final state could not be written: that was tried twice a second, with a line each time, until somebody ended it."""
    node = subscribed()
    node.hold_log = True
    assert node.control_call(lambda done: node.control.failovers.begin(TOPIC, "s", "b", "", 0, done)) is None
    off = node.control_call(lambda done: node.control.replicated.set_replicated(TOPIC, "s", False, done))
    assert "is fenced (to b, failover" in str(off) and str(off).endswith("; end that first")
    assert node.control_call(lambda done: node.control.replicated.set_replicated(TOPIC, "s", True, done)) is None
    node.hold_log = False
    node.world.advance(5_000)
    assert node.broker.fences.fence(TOPIC, "s").final is not None
    assert not [text for _, text in node.notes if "trying again" in text]
    assert node.control_call(lambda done: node.control.failovers.unfence(TOPIC, "s", done)) is None
    assert node.control_call(lambda done: node.control.replicated.set_replicated(TOPIC, "s", False, done)) is None


def test_a_subscription_that_was_deleted_at_the_target_is_told_beforehand() -> None:
    """Nothing of it is taken in there: it was fenced, waited for, and put back, with no word about why."""
    a = subscribed()
    world, b = a.world, a.world["b"]
    with pytest.raises(NotFound):
        b.control.failovers.state(TOPIC, "never")
    assert b.control_call(lambda done: b.control.subscriptions.delete(TOPIC, "s", True, done)) is None
    with pytest.raises(
        PreconditionFailed, match=f"was deleted in b, .*: magnetar subscriptions create {TOPIC} s --repl"
    ):
        b.control.failovers.state(TOPIC, "s")
    assert b.control_call(lambda done: b.control.subscriptions.create(TOPIC, "s", LATEST, True, {}, done)) is None
    world.advance(1_000)
    assert b.control.failovers.state(TOPIC, "s")["backlog"] == 0
