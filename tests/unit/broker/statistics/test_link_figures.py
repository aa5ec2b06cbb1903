"""The figures of links for `/metrics`: the same as their states, in small steps, and with descriptions of few topics."""

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.broker.admin.replicated import TOPICS_A_STEP as REPLICATED_A_STEP
from magnetar.broker.links import reports
from magnetar.broker.links.reports import LinkReporter
from magnetar.broker.statistics.topic_stats import at_once
from magnetar.core.ids import LATEST
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Node, World


def held_up(count: int) -> tuple[Node, list[str]]:
    """A cluster with messages that cannot go to b: some were skipped, one blocks its topic."""
    world = World("ab")
    node = world["a"]
    names = [f"{TOPIC}-{number:03}" for number in range(count)]
    for name in names:
        node.create(name)
    world.settle()
    world.cut.add(("a", "b"))
    for name in names[:4]:
        node.publish(b"0", b"1", topic=name)
    world.advance(100)
    skipped = node.control_call(lambda done: node.control.links.skip("b", names[1], LATEST, done))
    assert skipped is None
    state = node.broker.links.source("b").topics[names[2]]
    commit = pb.CommandGeoCommit(request_id=1, to="b", pipeline="p")
    commit.commits.add(
        topic=names[2], incarnation=state.log.incarnation, blocked="size", reason="too large",
        cursor=pb.GeoCursor(c=pb.GeoPosition(ledger=-1, entry=-1), s=pb.GeoPosition(ledger=-1, entry=-1), gen=state.cursor.gen),
    )  # fmt: skip
    node.run(lambda: node.broker.links.commit(commit, lambda _response: None))
    assert state.blocked is not None
    return node, names


def test_figures_are_those_of_the_states() -> None:
    node, names = held_up(6)
    links = node.control.links
    (whole,) = links.states()
    assert (whole["lag_messages"], whole["skipped_messages"]) == (6, 2)
    assert at_once(links.figures(set(names))) == [whole]
    shown = {names[0], names[5]}
    (some,) = at_once(links.figures(shown))
    described = [topic for topic in whole["topics"] if topic["topic"] in shown or topic["blocked"]]
    assert [topic["topic"] for topic in described] == [names[0], names[2], names[5]]
    assert some == whole | {"topics": described}


def test_topics_that_go_during_the_steps_take_no_count_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was read is gone, one that was not read is gone: what they lost stays in the total."""
    monkeypatch.setattr(reports, "TOPICS_A_STEP", 2)
    node, names = held_up(4)
    control = node.control
    assert node.control_call(lambda done: control.links.skip("b", names[3], LATEST, done)) is None
    (before,) = control.links.states()
    assert before["skipped_messages_total"] == 4
    steps = control.links.figures(set())
    next(steps)
    for name in (names[1], names[3]):
        deleted: Callable[[Any], None] = lambda done, name=name: control.topics.delete(name, True, done)  # type: ignore[misc]  # noqa: E731
        assert node.control_call(deleted) is None
    node.world.settle()
    (after,) = at_once(steps)
    assert after["skipped_messages_total"] == 4
    assert control.links.states()[0]["skipped_messages_total"] == 4


def test_a_step_reads_few_topics_and_describes_those_with_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is counted, not time."""
    monkeypatch.setattr(reports, "TOPICS_A_STEP", 10)
    node, names = held_up(35)
    read: list[str] = []
    described: list[str] = []
    lag, describe = LinkReporter._lag, LinkReporter._topic_state
    monkeypatch.setattr(
        LinkReporter, "_lag", staticmethod(lambda state, now_ms: read.append(state.name) or lag(state, now_ms))
    )  # type: ignore[func-returns-value]
    monkeypatch.setattr(
        LinkReporter,
        "_topic_state",
        lambda self, state, *more: described.append(state.name) or describe(self, state, *more),
    )  # type: ignore[func-returns-value]
    steps, sizes = node.control.links.figures({names[7]}), []
    while next(steps, "ended") != "ended":
        sizes.append(len(read) - sum(sizes))
    sizes.append(len(read) - sum(sizes))
    assert sizes == [10, 10, 10, 5]
    assert described == [names[2], names[7]], "the one that is blocked, and the one with a row"


def test_topics_with_replicated_subscriptions_are_found_in_steps() -> None:
    node, _ = held_up(3)
    replicated = node.control.replicated
    assert sorted(at_once(replicated.topic_steps())) == replicated.topics()
    hosts = node.broker.replicated_subscriptions.topics
    host = next(iter(hosts.values()))
    node.broker.replicated_subscriptions.topics = {
        f"{TOPIC}-{number}": host for number in range(2 * REPLICATED_A_STEP + 1)
    }
    assert sum(1 for _ in replicated.topic_steps()) == 2


def test_an_idle_topic_has_no_dictionary_of_attributes() -> None:
    """Such a dictionary alone takes 1.2 KB for a topic, and as much for its log."""
    node, names = held_up(4)
    topic = node.broker.topics[names[0]]
    assert not hasattr(topic, "__dict__")
    assert not hasattr(topic.log, "__dict__")
