"""Java's pattern consumers are told of topics (PIP-145): it is the one client that watches lists instead of asking again."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.others.conversation import BUILDS, Conversation, Missing
from tests.support.brokers import BrokerProcess, World, eventually

pytestmark = pytest.mark.timeout(1200)

NEVER_S = 24 * 3600
"""Between two of the client's own looks: no test lasts so long."""


@pytest.fixture(scope="module")
def command() -> list[str]:
    try:
        return BUILDS["java"]()
    except Missing as why:
        pytest.skip(f"the Java client cannot be built here: {why}")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    world = World(tmp_path_factory.mktemp("patterns"), ["a"])
    world["a"].start()
    yield world["a"]
    world["a"].kill()


@pytest.fixture
def java(command: list[str], broker: BrokerProcess, tmp_path: Path) -> Iterator[Conversation]:
    conversation = Conversation(command, broker.url, tmp_path / "client.log")
    yield conversation
    conversation.close()


@pytest.fixture
def prefix() -> str:
    return f"persistent://public/default/p{uuid.uuid4().hex[:8]}-"


def watchers(broker: BrokerProcess) -> float:
    return broker.figure("magnetar_topic_watchers")


def rest(broker: BrokerProcess, method: str, topic: str, more: str = "", body: Any = None) -> Any:
    return broker.rest(method, f"/admin/v2/{topic.replace('://', '/')}{more}", body)


def consumed(java: Conversation, count: int) -> list[int]:
    return sorted(one["number"] for one in java.ask("consume", count=count, acknowledge="individual")["messages"])


def begin(java: Conversation, broker: BrokerProcess, pattern: str) -> None:
    """A pattern consumer that never looks by itself; a topic that matches has to be there."""
    before = watchers(broker)
    java.ask("pattern", topic=pattern, subscription="s", period=NEVER_S)
    eventually(lambda: watchers(broker) == before + 1, what="the client watches")


@pytest.mark.parametrize("rest_of_it", [".*", "[0-9]+", "\\d+", "(?i:[A-Z0-9])+"])
def test_new_topics_are_consumed_at_once(
    java: Conversation, broker: BrokerProcess, prefix: str, rest_of_it: str
) -> None:
    java.ask("publish", topic=prefix + "1", count=3)
    begin(java, broker, prefix + rest_of_it)
    assert consumed(java, 3) == [0, 1, 2]
    for number in (2, 3):
        java.ask("publish", topic=f"{prefix}{number}", **{"from": 10 * number}, count=3)
        assert consumed(java, 3) == [10 * number + each for each in range(3)]


def test_partitions_that_are_added(java: Conversation, broker: BrokerProcess, prefix: str) -> None:
    begin(java, broker, prefix + ".*")
    rest(broker, "PUT", prefix + "p", "/partitions", 2)
    java.ask("publish", topic=prefix + "p", count=20)
    assert consumed(java, 20) == list(range(20))
    rest(broker, "POST", prefix + "p", "/partitions", 5)
    java.ask("publish", topic=prefix + "p-partition-4", **{"from": 20}, count=5)
    assert consumed(java, 5) == list(range(20, 25))


def test_a_topic_that_is_deleted_and_made_anew(java: Conversation, broker: BrokerProcess, prefix: str) -> None:
    java.ask("publish", topic=prefix + "a", count=2)
    begin(java, broker, prefix + ".*")
    assert consumed(java, 2) == [0, 1]
    rest(broker, "DELETE", prefix + "a", "?force=true")
    java.ask("publish", topic=prefix + "a", **{"from": 5}, count=2)
    assert consumed(java, 2) == [5, 6]


def test_a_broker_that_was_away(java: Conversation, broker: BrokerProcess, prefix: str) -> None:
    """The client watches anew, and finds what came meanwhile."""
    begin(java, broker, prefix + ".*")
    broker.kill()
    broker.start()
    java.ask("publish", topic=prefix + "a", count=2)
    assert consumed(java, 2) == [0, 1]
    eventually(lambda: watchers(broker) == 1, what="the client watches again")
    java.ask("publish", topic=prefix + "b", **{"from": 5}, count=2)
    assert consumed(java, 2) == [5, 6]


def test_a_client_that_goes_leaves_no_watcher(
    command: list[str], broker: BrokerProcess, prefix: str, tmp_path: Path
) -> None:
    before = watchers(broker)
    java = Conversation(command, broker.url, tmp_path / "client.log")
    begin(java, broker, prefix + ".*")
    java.ask("pattern", topic=prefix + "x.*", subscription="s", period=NEVER_S)  # it closes the first one
    eventually(lambda: watchers(broker) == before + 1, what="one is closed, the other one watches")
    java.close()
    eventually(lambda: watchers(broker) == before, what="nothing is left")


def test_a_pattern_that_is_not_watched_is_looked_for_again(
    java: Conversation, broker: BrokerProcess, prefix: str
) -> None:
    """What goes back and looks ahead no table can match: the client falls back to asking."""
    before = watchers(broker)
    java.ask("pattern", topic=prefix + "(?!no).*", subscription="s", period=1)
    java.ask("publish", topic=prefix + "no", count=2)
    java.ask("publish", topic=prefix + "yes", **{"from": 5}, count=2)
    assert consumed(java, 2) == [5, 6]
    java.ask("publish", topic=prefix + "also", **{"from": 8}, count=2)
    assert consumed(java, 2) == [8, 9]
    assert watchers(broker) == before
