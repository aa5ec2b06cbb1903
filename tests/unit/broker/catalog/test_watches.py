"""Watchers of topic lists: what a client is told, when, in which order, and what is refused."""

import random
from collections.abc import Iterable
from typing import Final

import pytest

from magnetar.broker.catalog import watches as topicwatch
from magnetar.broker.catalog.watches import (
    INSTRUCTIONS_MAX,
    REFUSED_STEPS,
    REMAKING_STEPS_MAX,
    STEPS_PER_MS,
    TELL_MS,
    Changes,
    topics_hash,
)
from magnetar.broker.security.authorization import Authorizer
from magnetar.broker.security.credentials import Identity
from magnetar.core.errors import ErrorCode
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.patterns import TopicPattern
from magnetar.core.security import AuthorizationConfig
from magnetar.metadata.permissions import Action, grant, revoke
from magnetar.metadata.policies.types import InactiveTopics
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import Client, Node, World

NAMESPACE: Final = NamespaceName("public", "default")
PREFIX: Final = "persistent://public/default/"
ALL: Final = PREFIX + ".*"


def full(*names: str) -> list[str]:
    return [PREFIX + name for name in names]


def local(names: Iterable[str]) -> list[str]:
    assert all(name.startswith(PREFIX) for name in names)
    return [name.removeprefix(PREFIX) for name in names]


class Person:
    """A client, and what it makes of what it is told, in the order in which it comes."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client: Client = node.client()
        self._requests = 0
        self._heard = 0
        self._known: dict[int, str | None] = {}
        self._told: dict[int, list[tuple[list[str], list[str]]]] = {}
        self.lists: dict[int, set[str]] = {}

    def watch(
        self, pattern: str = ALL, number: int = 1, known: str | None = None, namespace: str = "public/default"
    ) -> object:
        """Begin; the names that come with the answer, or the error's code."""
        self._requests += 1
        self._known[self._requests] = known
        command = pb.CommandWatchTopicList(
            request_id=self._requests, watcher_id=number, namespace=namespace, topics_pattern=pattern, topics_hash=known
        )
        self.client.send(pb.BaseCommand(type=64, watchTopicList=command))
        for _ in range(100):  # the list before may have been much work
            if (answer := self.client.answered(self._requests)) is not None:
                break
            self.node.world.advance(1)
        assert answer is not None
        self._hear()
        if answer.type == 14:
            assert "\n" not in answer.error.message
            return ErrorCode(answer.error.error)
        assert answer.type == 65 and answer.watchTopicListSuccess.watcher_id == number
        return local(answer.watchTopicListSuccess.topic)

    def close(self, number: int = 1) -> bool:
        self._requests += 1
        command = pb.CommandWatchTopicListClose(request_id=self._requests, watcher_id=number)
        self.client.send(pb.BaseCommand(type=67, watchTopicListClose=command))
        answer = self.client.answered(self._requests)
        self._hear()
        self.lists.pop(number, None)
        return answer is not None and answer.type == 13

    def told(self, number: int = 1) -> list[tuple[list[str], list[str]]]:
        """(new, gone) of the updates since the last time."""
        self._hear()
        return self._told.pop(number, [])

    def _hear(self) -> None:
        """Take in what came; each update has to fit what was told before."""
        hashes: dict[int, str] = {}
        for command in self.client.answers[self._heard :]:
            if command.type == 65:
                answer = command.watchTopicListSuccess
                if answer.topics_hash != self._known[answer.request_id]:
                    self.lists[answer.watcher_id] = set(answer.topic)
                hashes[answer.watcher_id] = answer.topics_hash
            elif command.type == 66:
                update = command.watchTopicUpdate
                hashes[update.watcher_id] = update.topics_hash
                mine = self.lists[update.watcher_id]
                new, gone = set(update.new_topics), set(update.deleted_topics)
                assert gone <= mine, "what was never told is gone"
                mine -= gone
                assert not new & mine, "what was told is new"
                mine |= new
                told = self._told.setdefault(update.watcher_id, [])
                told.append((local(update.new_topics), local(update.deleted_topics)))
        self._heard = len(self.client.answers)
        for number, found in hashes.items():
            assert found == topics_hash(self.lists[number])


def create(node: Node, *names: str) -> None:
    for name in names:
        node.create(PREFIX + name)


def delete(node: Node, *names: str) -> None:
    for name in names:
        topic = node.broker.topics[PREFIX + name]
        node.run(lambda topic=topic: node.broker.catalog.delete(topic, force=True, done=lambda _error: None))
        node.world.work()
        assert PREFIX + name not in node.broker.topics


def wait(node: Node, ms: int = TELL_MS) -> None:
    node.world.advance(ms)


@pytest.fixture
def node() -> Node:
    return World("a")["a"]


@pytest.fixture
def one(node: Node) -> Person:
    return Person(node)


# ------------------------------------------------------------------------------------------------------------ the list


def test_hashes_are_those_of_java() -> None:
    """As Pulsar's `TopicList.calculateHash` gives them."""
    assert topics_hash([]) == "00000000"
    assert topics_hash(full("a")) == "e4a876e3"
    assert topics_hash(full("b", "a")) == "c7559e98"
    assert topics_hash(full("\uff5e", "\U0001f600")) == "94346884"


def test_it_is_announced(one: Person) -> None:
    flags = one.client.answers[0].connected.feature_flags
    assert flags.supports_topic_watchers and flags.supports_topic_watcher_reconcile


def test_the_answer_has_what_matches(node: Node, one: Person) -> None:
    create(node, "b1", "a2", "a1", "a3-partition-7", "a4-partition-x")
    node.create("persistent://public/other/a9")
    assert one.watch(PREFIX + "a[0-9]") == ["a1", "a2", "a3-partition-7"]
    assert one.watch("public/default/b.", 2) == ["b1"]
    assert one.watch(".*", 3) == ["a1", "a2", "a3-partition-7", "a4-partition-x", "b1"]
    assert one.watch(".*", 4, namespace="nobody/nowhere") == []


def test_a_client_that_has_the_list_is_not_sent_it(node: Node, one: Person) -> None:
    create(node, "a", "b")
    one.lists[1] = set(full("a", "b"))
    assert one.watch(known=topics_hash(full("a", "b"))) == []
    assert one.watch(known=topics_hash(full("a"))) == ["a", "b"]
    assert one.watch(PREFIX + "x", 2, known="") == []


def test_non_persistent_topics_are_not_watched(node: Node, one: Person) -> None:
    one.watch(".*")
    opened = pb.CommandProducer(topic="non-persistent://public/default/n", producer_id=1, request_id=99)
    one.client.send(pb.BaseCommand(type=5, producer=opened))
    assert "non-persistent://public/default/n" in node.broker.nonpersistent.topics
    wait(node)
    assert not one.told()


# ------------------------------------------------------------------------------------------------------------- updates


def test_topics_that_come_and_go_are_told(node: Node, one: Person) -> None:
    create(node, "a")
    assert one.watch() == ["a"]
    create(node, "b")
    assert not one.told(), "changes are gathered"
    wait(node)
    assert one.told() == [(["b"], [])]
    delete(node, "a")
    wait(node)
    assert one.told() == [([], ["a"])]
    wait(node, 10_000)
    assert not one.told()


def test_what_does_not_match_is_not_told(node: Node, one: Person) -> None:
    one.watch(PREFIX + "a.*")
    create(node, "b")
    node.create("persistent://public/other/a")
    wait(node)
    delete(node, "b")
    wait(node)
    assert not one.told()


def test_changes_of_a_moment_are_one_update(node: Node, one: Person) -> None:
    create(node, "a", "b")
    one.watch()
    create(node, "d", "c", "e")
    delete(node, "b", "d")
    wait(node)
    assert one.told() == [(["c", "e"], ["b"])]


def test_a_topic_made_anew_is_told_as_gone_and_new(node: Node, one: Person) -> None:
    """Its consumers have to be opened anew: the old ones may have been given up."""
    create(node, "a")
    one.watch()
    delete(node, "a")
    create(node, "a")
    wait(node)
    assert one.told() == [(["a"], ["a"])]
    delete(node, "a")
    create(node, "a")
    delete(node, "a")
    wait(node)
    assert one.told() == [([], ["a"])]


def test_partitions_come_all_at_once_and_match_by_their_topic(node: Node, one: Person) -> None:
    one.watch(PREFIX + "p")
    name = TopicName.parse(PREFIX + "p")
    node.run(lambda: node.control.topics.create(str(name), 3, {}, lambda _error: None))
    wait(node)
    assert one.told() == [([f"p-partition-{number}" for number in range(3)], [])]
    node.run(lambda: node.control.topics.update_partitions(str(name), 4, lambda _error: None))
    wait(node)
    assert one.told() == [(["p-partition-3"], [])]


def test_a_producer_or_consumer_makes_a_topic(node: Node, one: Person) -> None:
    one.watch()
    other = node.client()
    opened = pb.CommandProducer(topic=PREFIX + "made", producer_id=1, request_id=1)
    other.send(pb.BaseCommand(type=5, producer=opened))
    wait(node)
    other.subscribe("s", topic=PREFIX + "consumed")
    wait(node)
    assert one.told() == [(["made"], []), (["consumed"], [])]


def test_what_a_link_makes_is_told() -> None:
    world = World("ab")
    one = Person(world["b"])
    one.watch()
    world["a"].create(PREFIX + "t")
    world["a"].publish(b"x", topic=PREFIX + "t")
    world.advance(1_000)
    assert one.told() == [(["t"], [])]


def test_what_metadata_brings_is_told() -> None:
    """A partitioned topic that is made in one cluster is made in the others, without a message."""
    world = World("ab", extra='[metadata]\nmetadata_sync_topic = "persistent://pulsar/system/metadata-sync"\n')
    world.advance(3_000)
    one = Person(world["b"])
    one.watch()
    world["a"].run(lambda: world["a"].control.topics.create(PREFIX + "p", 2, {}, lambda _error: None))
    world.advance(3_000)
    assert one.told() == [(["p-partition-0", "p-partition-1"], [])]


def test_inactive_topics_that_are_deleted_are_told(node: Node, one: Person) -> None:
    create(node, "a", "b")
    one.watch()
    topic = node.broker.topics[PREFIX + "a"]
    topic.limits = topic.limits._replace(inactive=InactiveTopics(duration_s=1))
    wait(node, 2 * node.limits.retention_interval_ms)
    assert one.told() == [([], ["a"])]


def test_a_deletion_that_the_store_refuses_is_none(node: Node, one: Person) -> None:
    create(node, "a")
    one.watch()
    topic = node.broker.topics[PREFIX + "a"]
    node.hold_stores = True
    node.run(lambda: node.broker.catalog.delete(topic, force=True, done=lambda _error: None))
    node.world.work()
    assert node.store.answer("disk full", node.stores[-1])
    node.hold_stores = False
    wait(node)
    assert not one.told()


def test_everybody_is_told_and_a_list_is_made_once(node: Node) -> None:
    people = [Person(node) for _ in range(5)]
    for person in people:
        person.watch()
    assert (node.broker.watches.count, node.broker.watches.patterns) == (5, 1)
    create(node, "a")
    wait(node)
    assert [person.told() for person in people] == [[(["a"], [])]] * 5
    assert node.broker.watches.updates == 5


def test_a_newcomer_is_not_told_again_what_its_answer_has(node: Node) -> None:
    first, second = Person(node), Person(node)
    first.watch()
    create(node, "a")
    assert second.watch() == ["a"]
    create(node, "b")
    wait(node)
    assert first.told() == [(["a"], []), (["b"], [])]
    assert second.told() == [(["b"], [])]


def test_large_updates_are_told_in_parts(node: Node, one: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.broker.watches, "_update_bytes_max", 100)
    create(node, "a", "b", "c")
    one.watch()
    delete(node, "a", "b", "c")
    create(node, "c", "ä", "e")
    wait(node)
    assert one.told() == [([], ["a", "b", "c"]), (["c", "e", "ä"], [])]


def test_parts_hold_as_much_as_fits() -> None:
    changes = Changes({"aaaa", "bbbb"}, {"bbbb", "cc", "x" * 50})
    assert changes.parts(16) == [([], ["aaaa", "bbbb"]), (["bbbb", "cc"], []), (["x" * 50], [])]
    assert changes.parts(1_000) == [(["bbbb", "cc", "x" * 50], ["aaaa", "bbbb"])]
    assert Changes().parts(16) == [([], [])]


def test_many_are_told_in_turns(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topicwatch, "TURN_STEPS", 3 * topicwatch.TELLING_STEPS)
    people = [Person(node) for _ in range(20)]
    for person in people:
        person.watch()
    create(node, "a")
    wait(node)
    told = sum(bool(person.told()) for person in people)
    assert 0 < told < 20
    create(node, "b")
    wait(node, 1_000)
    assert all(person.lists[1] == set(full("a", "b")) for person in people if person.told() is not None)


# ----------------------------------------------------------------------------------------------------- slow clients


def test_a_client_that_takes_nothing_is_told_the_sum_later(node: Node) -> None:
    slow, quick = Person(node), Person(node)
    create(node, "a", "b")
    slow.watch()
    quick.watch()
    node.run(node.broker.writable, slow.client.number, False)
    create(node, "c", "d")
    wait(node)
    delete(node, "d", "a", "b")
    create(node, "b")
    wait(node)
    create(node, "e")
    delete(node, "e")
    wait(node)
    assert not slow.told()
    assert quick.told() == [(["c", "d"], []), (["b"], ["a", "b", "d"])]
    node.run(node.broker.writable, slow.client.number, True)
    wait(node, 1)
    assert slow.told() == [(["b", "c"], ["a", "b"])]
    assert slow.lists == quick.lists


def test_a_client_that_takes_more_only_for_a_moment(node: Node, one: Person) -> None:
    one.watch()
    for name in "ab":
        node.run(node.broker.writable, one.client.number, False)
        create(node, name)
        wait(node)
        node.run(node.broker.writable, one.client.number, True)
        node.run(node.broker.writable, one.client.number, False)
        wait(node)
    assert not one.told()
    node.run(node.broker.writable, one.client.number, True)
    create(node, "c")
    wait(node)
    one.told()
    assert one.lists[1] == set(full("a", "b", "c"))


# --------------------------------------------------------------------------------------- numbers, ends, what is refused


def test_the_same_number_again_is_answered_with_the_list_of_now(node: Node, one: Person) -> None:
    create(node, "a")
    one.watch()
    create(node, "b")
    assert one.watch() == ["a", "b"]
    assert one.watch(known=topics_hash(full("a", "b"))) == []
    wait(node)
    assert not one.told()
    assert (node.broker.watches.count, node.broker.watches.patterns) == (1, 1)


def test_the_same_number_for_another_pattern_replaces_the_first(node: Node, one: Person) -> None:
    create(node, "a", "b")
    one.watch(PREFIX + "a.*")
    assert one.watch(PREFIX + "b.*") == ["b"]
    create(node, "a2", "b2")
    wait(node)
    assert one.told() == [(["b2"], [])]
    assert (node.broker.watches.count, node.broker.watches.patterns) == (1, 1)
    assert one.watch("(", 1) is ErrorCode.NOT_ALLOWED
    create(node, "b3")
    wait(node)
    assert one.told() == [(["b3"], [])], "what is refused replaces nothing"


def test_numbers_are_each_connection_s_own(node: Node) -> None:
    first, second = Person(node), Person(node)
    first.watch(PREFIX + "a.*", 2**64 - 1)
    second.watch(PREFIX + "b.*", 2**64 - 1)
    create(node, "a", "b")
    wait(node)
    assert first.told(2**64 - 1) == [(["a"], [])] and second.told(2**64 - 1) == [(["b"], [])]


def test_a_closed_watcher_is_told_nothing(node: Node, one: Person) -> None:
    one.watch()
    one.watch(number=2)
    create(node, "a")
    assert one.close(1)
    wait(node)
    assert one.told(1) == [] and one.lists == {2: set(full("a"))}
    assert one.close(2) and one.close(2) and one.close(77), "as in Pulsar: what is not open is closed"
    create(node, "b")
    wait(node)
    assert not one.told()
    assert (node.broker.watches.count, node.broker.watches.patterns) == (0, 0)


def test_a_connection_that_ends_leaves_nothing(node: Node) -> None:
    for pending in (False, True):
        one, other = Person(node), Person(node)
        one.watch(PREFIX + "a.*")
        other.watch(PREFIX + "a.*")
        create(node, f"a{pending}")
        if pending:
            node.run(node.broker.writable, one.client.number, False)
            wait(node)
        node.run(node.broker.disconnected, one.client.number)
        wait(node)
        assert other.told()
        node.run(node.broker.disconnected, other.client.number)
        assert (node.broker.watches.count, node.broker.watches.patterns) == (0, 0)
        wait(node)


HARD: Final = ".*a.{1000}"
"""More than a pattern may be; to find that out is worth some time."""


def ask(client: Client, pattern: str, request: int, number: int) -> None:
    """Watch, and do not wait."""
    command = pb.CommandWatchTopicList(
        request_id=request, watcher_id=number, namespace="public/default", topics_pattern=pattern
    )
    client.send(pb.BaseCommand(type=64, watchTopicList=command))


def kinds(client: Client, requests: Iterable[int]) -> list[int]:
    """Types of the answers to requests; 0: none yet."""
    return [answer.type if (answer := client.answered(request)) is not None else 0 for request in requests]


def test_who_asks_for_ever_new_lists_waits_and_the_others_hardly(node: Node) -> None:
    greedy, modest = node.client(), node.client()
    for number in range(50):
        ask(greedy, f"{HARD}{number}", 100 + number, number)
    assert kinds(greedy, range(100, 150)).count(14) == 1, "no more than one is worked on at a time"
    ask(modest, ALL, 1, 1)
    assert kinds(modest, [1]) == [0]
    node.world.advance(2 * REFUSED_STEPS // STEPS_PER_MS)
    assert kinds(modest, [1]) == [65], "it is its turn behind one other"
    assert 0 in kinds(greedy, range(100, 150))
    ask(modest, ALL, 2, 2)
    assert kinds(modest, [2]) == [65], "a list that is there costs nothing"
    ask(greedy, ALL, 150, 50)
    assert kinds(greedy, [150]) == [0], "but nobody passes their own requests"
    node.world.advance(50 * REFUSED_STEPS // STEPS_PER_MS + 100)
    assert kinds(greedy, range(100, 151)) == [14] * 50 + [65]


def test_patterns_that_are_too_large_together_are_refused(node: Node) -> None:
    client = node.client()
    each = TopicPattern("(.*a){200}.*0").instructions
    number = INSTRUCTIONS_MAX // each + 1
    for request in range(number):
        ask(client, f"(.*a){{200}}.*{request % 10}" + "b" * (request // 10), request, request)
        node.world.advance(1_000)
    answers = kinds(client, range(number))
    refused = answers.count(14)
    assert answers == [65] * (number - refused) + [14] * refused and 0 < refused < 5
    answer = client.answered(number - 1)
    assert answer is not None and "instructions" in answer.error.message
    client.send(pb.BaseCommand(type=67, watchTopicListClose={"watcher_id": 0, "request_id": 1_000}))
    ask(client, "(.*a){200}.*", 1_001, 1_001)
    node.world.advance(1_000)
    assert kinds(client, [1_001]) == [65], "what is watched no more does not count"


def test_a_watcher_that_is_closed_while_it_waits_is_refused_and_never_comes(node: Node) -> None:
    one = node.client()
    ask(one, HARD, 1, 1)
    for request in (2, 3, 4):
        ask(one, ALL, request, request % 2)
    one.send(pb.BaseCommand(type=67, watchTopicListClose={"watcher_id": 0, "request_id": 9}))
    assert kinds(one, [1, 2, 3, 4, 9]) == [14, 14, 0, 14, 13]
    refused = one.answered(4)
    assert refused is not None and refused.error.error == ErrorCode.SERVICE_NOT_READY
    node.world.advance(1_000)
    assert kinds(one, [3]) == [65] and node.broker.watches.count == 1


def test_a_connection_that_ends_while_it_waits(node: Node) -> None:
    one, other = node.client(), node.client()
    for request in range(1, 5):
        ask(one, HARD + "x" * request, request, request)
    ask(other, ALL, 1, 1)
    node.run(node.broker.disconnected, one.number)
    node.world.advance(1_000)
    assert kinds(other, [1]) == [65] and kinds(one, range(1, 5)) == [14, 0, 0, 0]
    assert (node.broker.watches.count, node.broker.watches.patterns) == (1, 1)


@pytest.fixture
def slow(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A list is made of one topic at a time."""
    monkeypatch.setattr(topicwatch, "TURN_STEPS", 1)
    create(node, *(f"{number:02}" for number in range(20)))
    return node


def names_of(client: Client, request: int) -> list[str]:
    answer = client.answered(request)
    assert answer is not None and answer.type == 65, answer
    return local(answer.watchTopicListSuccess.topic)


def test_topics_that_come_and_go_while_the_list_is_made(slow: Node) -> None:
    one = slow.client()
    ask(one, ALL, 1, 1)
    slow.world.advance(9)
    assert kinds(one, [1]) == [0]
    create(slow, "new", "short")
    delete(slow, "01", "18", "short")
    create(slow, "18")
    slow.create("persistent://public/other/new")
    assert kinds(one, [1]) == [0], "else this test shows nothing"
    slow.world.advance(1_000)
    wanted = sorted({f"{number:02}" for number in range(20)} - {"01"} | {"new"})
    assert names_of(one, 1) == wanted
    assert 66 not in {command.type for command in one.answers}, "all of that is in the answer"


@pytest.mark.parametrize("gone", [False, True])
def test_a_list_that_nobody_wants_any_more_is_not_made_to_its_end(slow: Node, gone: bool) -> None:
    one, other = slow.client(), slow.client()
    ask(one, PREFIX + "0.", 1, 1)
    slow.world.advance(5)
    if gone:
        slow.run(slow.broker.disconnected, one.number)
    else:
        one.send(pb.BaseCommand(type=67, watchTopicListClose={"watcher_id": 1, "request_id": 9}))
        assert kinds(one, [1, 9]) == [14, 13]
    ask(other, PREFIX + "1.", 1, 1)
    slow.world.advance(1_000)
    assert names_of(other, 1) == [f"{number}" for number in range(10, 20)]
    assert (slow.broker.watches.count, slow.broker.watches.patterns) == (1, 1)


def test_permissions_that_change_while_the_list_is_made(slow: Node) -> None:
    one = Person(slow)
    guard(slow, one)
    allow(slow, Action.CONSUME)
    ask(one.client, ALL, 101, 1)
    slow.world.advance(9)
    allow(slow, Action.CONSUME, topic="03")
    allow(slow, Action.CONSUME, topic="17")
    allow(slow)
    assert kinds(one.client, [101]) == [0], "else this test shows nothing"
    slow.world.advance(1_000)
    assert names_of(one.client, 101) == ["03", "17"]
    ask(one.client, PREFIX + "1.", 102, 2)
    slow.world.advance(9)
    allow(slow, topic="17")
    assert kinds(one.client, [102]) == [0]
    slow.world.advance(1_000)
    assert names_of(one.client, 102) == []
    ask(one.client, PREFIX + "0.", 103, 3)
    slow.world.advance(9)
    allow(slow, topic="03")
    assert kinds(one.client, [103]) == [0]
    slow.world.advance(1_000)
    assert kinds(one.client, [103]) == [14]


def test_those_that_wait_count_too() -> None:
    node = World("a", limits={"topic_watchers_per_connection_max": 3})["a"]
    one = node.client()
    ask(one, HARD, 1, 1)
    for request in range(2, 7):
        ask(one, ALL, request, request)
    assert kinds(one, range(1, 7)) == [14, 0, 0, 0, 14, 14]
    node.world.advance(1_000)
    assert kinds(one, range(2, 5)) == [65] * 3 and node.broker.watches.count == 3


def test_the_same_number_twice_while_it_waits(node: Node) -> None:
    create(node, "a", "b")
    one = node.client()
    ask(one, HARD, 1, 1)
    ask(one, PREFIX + "a", 2, 5)
    ask(one, PREFIX + "b", 3, 5)
    node.world.advance(1_000)
    found = [answer.watchTopicListSuccess.topic for request in (2, 3) if (answer := one.answered(request)) is not None]
    assert found == [full("a"), full("b")]
    assert (node.broker.watches.count, node.broker.watches.patterns) == (1, 1)


@pytest.mark.parametrize(
    ("pattern", "namespace", "code"),
    [
        ("(", "public/default", ErrorCode.NOT_ALLOWED),
        ("(?=x)", "public/default", ErrorCode.NOT_ALLOWED),
        (HARD, "public/default", ErrorCode.NOT_ALLOWED),
        ("x" * 1001, "public/default", ErrorCode.NOT_ALLOWED),
        ("ä" * 501, "public/default", ErrorCode.NOT_ALLOWED),
        (".*", "public", ErrorCode.INVALID_TOPIC_NAME),
        (".*", "public/default/x", ErrorCode.INVALID_TOPIC_NAME),
        (".*", "", ErrorCode.INVALID_TOPIC_NAME),
    ],
)
def test_what_is_refused_leaves_nothing(node: Node, one: Person, pattern: str, namespace: str, code: ErrorCode) -> None:
    assert one.watch(pattern, namespace=namespace) is code
    assert (node.broker.watches.count, node.broker.watches.patterns) == (0, 0)
    create(node, "a")
    wait(node)
    assert not one.told()
    assert one.watch() == ["a"], "the connection goes on"


def test_watchers_of_a_connection_have_a_ceiling() -> None:
    node = World("a", limits={"topic_watchers_per_connection_max": 2})["a"]
    one, other = Person(node), Person(node)
    assert [one.watch(number=number) for number in (1, 2, 3)] == [[], [], ErrorCode.NOT_ALLOWED]
    assert one.watch(number=2) == [] and other.watch() == []
    one.close(1)
    assert one.watch(number=3) == []


def test_patterns_of_a_broker_have_a_ceiling() -> None:
    node = World("a", limits={"topic_patterns_max": 2})["a"]
    one, other = Person(node), Person(node)
    assert [one.watch(PREFIX + name, number) for number, name in enumerate("abc")] == [[], [], ErrorCode.NOT_ALLOWED]
    assert other.watch(PREFIX + "a") == [], "it is watched already"
    one.close(1)
    assert other.watch(PREFIX + "c", 2) == []


def test_names_of_a_broker_have_a_ceiling(node: Node, one: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topicwatch, "NAMES_MAX", 3)
    create(node, "a", "b")
    assert one.watch() == ["a", "b"]
    assert one.watch(PREFIX + "a.*", 2) == ["a"]
    assert one.watch(PREFIX + "b.*", 3) is ErrorCode.NOT_ALLOWED


def test_a_list_that_fits_in_no_frame_is_refused() -> None:
    node = World("a", limits={"message_bytes_max": 1024})["a"]
    one = Person(node)
    create(node, *(f"{number:02}" + "x" * 400 for number in range(40)))
    assert one.watch() is ErrorCode.NOT_ALLOWED
    assert (node.broker.watches.count, node.broker.watches.patterns) == (0, 0)
    assert len(one.watch(PREFIX + "0.*")) == 10  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------- permissions


def guard(node: Node, one: Person) -> None:
    """Whoever is there may do anything, but for one, who has the role of that name."""
    for session in node.broker.sessions.values():
        session.connection.identity = Identity(
            "one" if session.connection.number == one.client.number else "root", "token"
        )
    access = node.broker.access
    access.enabled = True
    access.authorizer = Authorizer(AuthorizationConfig(superusers=["root"]), node.broker.resources)


def allow(node: Node, *actions: Action, topic: str = "") -> None:
    """What the role "one" may do in the namespace, or with a topic, from now on; without actions nothing."""
    resources = node.broker.resources
    place = TopicName.parse(PREFIX + topic) if topic else NAMESPACE
    change = grant(resources, place, "one", actions) if actions else revoke(resources, place, "one")

    def changed() -> None:
        resources.apply(change)
        node.broker.policies_changed(change)

    node.run(changed)


def test_who_may_look_up_nothing_may_not_watch(node: Node, one: Person) -> None:
    create(node, "a")
    guard(node, one)
    assert one.watch() is ErrorCode.AUTHORIZATION
    allow(node, Action.CONSUME)
    assert one.watch() == ["a"]


def test_who_may_look_up_single_topics_sees_these(node: Node, one: Person) -> None:
    other = Person(node)
    create(node, "a", "b")
    guard(node, one)
    allow(node, Action.CONSUME, topic="a")
    allow(node, Action.CONSUME, topic="later")
    assert one.watch() == ["a"]
    assert other.watch() == ["a", "b"]
    create(node, "later", "never")
    delete(node, "b")
    wait(node)
    assert one.told() == [(["later"], [])]
    assert other.told() == [(["later", "never"], ["b"])]


def test_a_list_follows_permissions(node: Node, one: Person) -> None:
    other = Person(node)
    create(node, "a", "b", "c")
    guard(node, one)
    allow(node, Action.CONSUME)
    assert one.watch() == other.watch() == ["a", "b", "c"]
    assert node.broker.watches.patterns == 1
    allow(node, Action.CONSUME, topic="a")
    wait(node)
    assert not one.told()
    allow(node)  # the namespace's are taken back
    wait(node)
    assert one.told() == [([], ["b", "c"])]
    assert node.broker.watches.patterns == 2
    create(node, "d")
    wait(node)
    assert not one.told()
    allow(node, Action.PRODUCE, topic="d")
    wait(node)
    assert one.told() == [(["d"], [])]
    allow(node, topic="a")
    allow(node, topic="d")
    wait(node)
    assert one.told() == [([], ["a", "d"])]
    assert one.watch(number=1) is ErrorCode.AUTHORIZATION
    allow(node, Action.CONSUME)
    wait(node)
    assert one.told() == [(["a", "b", "c", "d"], [])]
    assert (node.broker.watches.count, node.broker.watches.patterns) == (2, 1)
    assert other.told() == [(["d"], [])]


def test_a_list_that_takes_long_is_made_anew_in_turns_by_who_comes_back(node: Node, one: Person) -> None:
    other = Person(node)
    text = "(.*a){200}.*|" + ALL
    create(node, *(f"t{number:03}" for number in range(REMAKING_STEPS_MAX // TopicPattern(text).matching_steps + 1)))
    guard(node, one)
    allow(node, Action.CONSUME)
    ask(one.client, text, 101, 1)
    node.world.advance(10_000)
    ask(other.client, text, 102, 1)
    node.world.advance(10_000)
    assert len(names_of(one.client, 101)) == len(names_of(other.client, 102)) > 200
    allow(node, Action.CONSUME, topic="t000")
    allow(node)  # the namespace's are taken back
    wait(node)
    assert [client.number in node.broker.sessions for client in (one.client, other.client)] == [False, True]


def test_permissions_and_topics_change_in_one_moment(node: Node, one: Person) -> None:
    """What is to be told when the permission goes is not, and nothing twice."""
    other = Person(node)
    create(node, "a", "b")
    guard(node, one)
    allow(node, Action.CONSUME)
    one.watch()
    other.watch()
    create(node, "c")
    delete(node, "a")
    allow(node, Action.CONSUME, topic="b")
    allow(node)
    create(node, "secret")
    wait(node)
    assert one.told() == [([], ["a"])]
    allow(node, Action.CONSUME)
    create(node, "d")
    wait(node)
    one.told()
    assert one.lists[1] == set(full("b", "c", "d", "secret"))
    other.told()
    assert other.lists[1] == one.lists[1]


def test_asked_once_more_just_after_permissions_changed(node: Node, one: Person) -> None:
    create(node, "a", "b")
    guard(node, one)
    allow(node, Action.CONSUME, topic="a")
    allow(node, Action.CONSUME, topic="b")
    assert one.watch() == ["a", "b"]
    wait(node)
    allow(node, topic="b")
    assert one.watch() == ["a"]
    wait(node)
    assert not one.told()


def test_who_goes_while_its_permissions_are_looked_up(node: Node, one: Person) -> None:
    guard(node, one)
    allow(node, Action.CONSUME)
    one.watch()
    allow(node)
    one.close()
    node.run(node.broker.disconnected, one.client.number)
    wait(node)
    assert (node.broker.watches.count, node.broker.watches.patterns) == (0, 0)


# ------------------------------------------------------------------------------------------------------------- stories


PATTERNS: Final = {ALL: "abcxyz", PREFIX + "[abc]": "abc", PREFIX + "[cx].*": "cx", PREFIX + "q": ""}
"""With the topics that match them."""


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_everybody_knows_the_list_at_last(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each update fits what was told before (`Person`), and at the end each list is what its client may see."""
    chance = random.Random(seed)
    monkeypatch.setattr(topicwatch, "TURN_STEPS", chance.choice([1, 30, 5_000]))
    node = World("a")["a"]
    monkeypatch.setattr(node.broker.watches, "_update_bytes_max", chance.choice([1, 100, 1 << 20]))
    people = [Person(node) for _ in range(4)]
    guard(node, people[0])
    allowed = {"": False} | dict.fromkeys("abcxyz", False)
    wanted: dict[tuple[int, int], str] = {}
    for _ in range(150):
        who, number, name = chance.randrange(4), chance.randrange(3), chance.choice("abcxyz")
        match chance.choice("ttttttwwwcpppsssaa"):
            case "t" if PREFIX + name in node.broker.topics:
                delete(node, name)
                allowed[name] = False  # permissions go with their topic
            case "t":
                create(node, name)
            case "w":
                pattern = chance.choice(list(PATTERNS))
                if isinstance(people[who].watch(pattern, number), list):
                    wanted[who, number] = pattern
            case "c":
                assert people[who].close(number)
                wanted.pop((who, number), None)
            case "p":
                place = chance.choice(list(allowed))
                if allowed[place]:
                    allow(node, topic=place)
                else:
                    allow(node, Action.CONSUME, topic=place)
                allowed[place] = not allowed[place]
            case "s":
                node.run(node.broker.writable, people[who].client.number, chance.random() < 0.5)
            case _:
                node.world.advance(chance.choice([1, 10, 100, 1_000]))
    for person in people:
        node.run(node.broker.writable, person.client.number, True)
    node.world.advance(10_000)
    there = {name for name in "abcxyz" if PREFIX + name in node.broker.topics}
    for (who, number), pattern in wanted.items():
        people[who].told(number)
        seen = {name for name in there if who or allowed[""] or allowed[name]}
        assert people[who].lists[number] == set(full(*(seen & set(PATTERNS[pattern])))), (who, number, pattern)
    assert node.broker.watches.count == len(wanted)


# ------------------------------------------------------------------------------------------------------------- lookups


def look_up(one: Person, name: str) -> bool | ErrorCode:
    lookup = pb.CommandLookupTopic(topic=name, request_id=500)
    one.client.send(pb.BaseCommand(type=23, lookupTopic=lookup))
    answer = one.client.answers.pop().lookupTopicResponse
    return answer.response == 1 or ErrorCode(answer.error)


def test_a_pattern_is_looked_up_as_if_it_were_a_name(one: Person) -> None:
    """So do Java's clients, to find the broker that keeps the list."""
    for pattern in (".*", ".", "orders-\\d+", "x" * 900):
        assert look_up(one, PREFIX + pattern) is True
    for name in (
        "no such://x/y/z",
        PREFIX + "a\nb\\",
        PREFIX + "x" * 70_000,
        PREFIX + "[^/]",
        "persistent://public//\\d",
        "persistent://pub lic/default/\\d",
        PREFIX,
        "non-persistent://public/default/\\d",
    ):
        assert look_up(one, name) is ErrorCode.INVALID_TOPIC_NAME, name
    assert look_up(one, "persistent://nobody/nowhere/\\d") is ErrorCode.TOPIC_NOT_FOUND
