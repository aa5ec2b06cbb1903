"""Random worlds in which a cluster loses its disk and is restored, over whole brokers: once, in order, and with what was
acknowledged. Real are the brokers and the job's code (source and sink); the test's are time, disks, links and all accidents.

`MAGNETAR_SEEDS=1000` runs more.
"""

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from magnetar.broker.links.restores import Restores
from magnetar.core.ids import NONE, Identity
from magnetar.core.names import NamespaceName
from magnetar.jobs import restore as job
from magnetar.replication.restore import Restorer, _Topic
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.support.geosteps import wipe
from tests.support.geoworld import TOPIC, Node, World
from tests.support.restoring import plan, restore

SEEDS = int(os.environ.get("MAGNETAR_SEEDS", "60"))


class Killed(Exception):
    """The job was killed."""


def identities(node: Node, origin: str) -> list[tuple[int, int]]:
    """(incarnation, index) of each entry of an origin, in the order of the log."""
    log = node.topic.log
    found, position = [], log.next_after(NONE)
    while position is not None:
        identity = log.identity_of(position)
        if identity is not None and (identity.cluster or node.name) == origin:
            found.append(
                (identity.incarnation, identity.index) if identity.cluster else (log.incarnation, identity.index)
            )
        position = log.next_after(position)
    return found


class Story:
    """One world."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World("abc", limits={"ledger_entries_max": self.chance.choice([3, 50])})
        self.world["a"].create()
        self.world.settle()
        self.number = 0
        self.acked: set[bytes] = set()
        self.consumers: dict[str, tuple[Any, int]] = {}
        self.peers: set[str] = set()
        self.gone: set[tuple[int, int]] = set()

    def publish(self) -> None:
        node = self.world[self.chance.choice("aaabc")]
        if not node.up or TOPIC not in node.broker.topics:
            return
        to = ("c",) if self.chance.random() < 0.1 else ()
        for _ in range(self.chance.randrange(1, 4)):
            self.number += 1
            node.publish(b"m%d" % self.number, batch=1, replicate_to=to)

    def consume(self, name: str) -> None:
        node = self.world[name]
        if TOPIC not in node.broker.topics:
            return
        if name not in self.consumers:
            client = node.client()
            consumer = client.subscribe("s", kind=1)
            self.world.settle()
            client.flow(consumer)
            self.consumers[name] = client, consumer
        self.world.settle()
        client, consumer = self.consumers[name]
        for message in client.take(consumer):
            if self.chance.random() < 0.5:
                client.ack(consumer, message)
                self.acked.add(message.data)

    def accident(self, before: bool) -> None:
        dice = self.chance.random()
        if dice < 0.08:
            raise Killed
        if dice < 0.14:
            self.world["a"].restart()
        elif dice < 0.2 and not before:
            self.world["a"].publish(b"new%d" % self.number)
            self.number += 1

    def some_restore(self) -> None:
        peer = self.chance.choice(sorted(self.peers))
        with contextlib.suppress(Killed):
            restore(self.world, peer, self.accident, lambda: self.chance.random() < 0.2)

    def trim(self) -> None:
        """Retention deletes what nobody needs, however young."""
        self.world.advance(1_000)
        node = self.world["a"]
        before = set(identities(node, "a"))
        node.topic.log.roll(self.world.now_ms)
        node.run(lambda: node.broker.upkeep.trim(node.topic, everything=True))
        self.world.work()
        self.gone |= before - set(identities(node, "a"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "SEND_BYTES", 150)
    monkeypatch.setattr(job, "PAUSE_S", 0.0)


def tell(seed: int) -> None:
    """One world; AssertionError when something is wrong."""
    story = Story(seed)
    world, chance = story.world, story.chance
    consumed = chance.random() < 0.7  # a subscription holds data back
    for _ in range(chance.randrange(5, 15)):
        story.publish()
        if consumed and chance.random() < 0.4:
            story.consume(chance.choice("bc"))
    world.advance(3_000)
    state = world["a"].control.links.drain()
    assert state["safe"], state
    old = {peer: identities(world[peer], "a") for peer in "bc"}
    wipe(world, "a")
    world.advance(3_000)
    story.peers = set(chance.choice(["b", "c", "bc"]))
    for _ in range(chance.randrange(1, 5)):
        story.some_restore()
        if chance.random() < 0.3:
            story.publish()
        if consumed and chance.random() < 0.3:
            story.consume(chance.choice("bc"))
        if chance.random() < 0.3:
            world.advance(500)
        if chance.random() < 0.4:
            story.trim()
    for peer in sorted(story.peers):
        restore(world, peer)
        assert sum(one.missing for one in plan(world, peer)) == 0
    world.advance(3_000)
    back = identities(world["a"], "a")
    life = world["a"].topic.log.incarnation
    assert max(Counter(back).values(), default=1) == 1, "something is there twice"
    wanted = {one for peer in story.peers for one in old[peer]}
    assert {one for one in back if one[0] != life} == wanted - story.gone
    if len(story.peers) == 1:
        earlier = [one for one in back if one[0] != life]
        assert earlier == sorted(earlier)
    for peer in "bc":  # the links brought nothing of it again
        assert max(Counter(identities(world[peer], "a")).values(), default=1) == 1
        assert [one for one in identities(world[peer], "a") if one[0] != life] == old[peer]
    # A consumer in a is given what nobody acknowledged, once.
    client = world["a"].client()
    consumer = client.subscribe("s", kind=1)
    world.advance(1_000)
    client.flow(consumer, 10_000)
    world.settle()
    given = [message.data for message in client.take(consumer)]
    assert len(given) == len(set(given))
    assert not set(given) & story.acked, "acknowledged messages came again"
    held = sum(1 for origin in "abc" for _ in identities(world["a"], origin))
    assert len(given) >= held - len(story.acked), "a message that nobody acknowledged is not given"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_everything_is_back_once_and_means_the_same(seed: int) -> None:
    tell(seed)


def _without_map(_self: Restorer, topic: Any, state: Any, _gone: Any, key: tuple[int, int], _count: int) -> bool:
    return key in state.staged or key[0] == topic.log.incarnation


def _without_staged(self: Restorer, topic: Any, _state: Any, gone: Any, key: tuple[int, int], count: int) -> bool:
    return _known(self, topic, _Topic(), gone, key, count)


_known = Restorer._known

BUGS: dict[str, tuple[type, str, Any]] = {
    "identities that the log holds are not looked up": (Restorer, "_known", _without_map),
    "what is on its way to the disk is forgotten": (Restorer, "_known", _without_staged),
    "what retention deletes is not noted": (Restores, "trimming", lambda *_: None),
}


def noticed(seed: int) -> bool:
    """Whether one world goes wrong."""
    try:
        tell(seed)
    except (AssertionError, job.RestoreFailed):
        return True
    return False


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("bug", BUGS)
def test_a_rule_left_out_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, planted = BUGS[bug]
    monkeypatch.setattr(where, name, planted)
    assert any(noticed(seed) for seed in range(max(SEEDS, 60)))


@pytest.mark.usefixtures("quick")
def test_what_retention_deleted_after_a_restore_stays_deleted() -> None:
    world = World("ab", limits={"ledger_entries_max": 3})
    world["a"].create()
    world["a"].publish(*(b"m%d" % n for n in range(10)))
    world.advance(1_000)
    old = identities(world["b"], "a")
    wipe(world, "a")
    world.advance(1_000)
    restore(world, "b")
    assert identities(world["a"], "a") == old
    a = world["a"]
    a.topic.log.roll(world.now_ms)
    a.publish(b"new")
    world.advance(1_000)
    a.run(lambda: a.broker.upkeep.trim(a.topic, everything=True))
    world.work()
    left = [one for one in identities(a, "a") if one[0] != a.topic.log.incarnation]
    assert len(left) < len(old)
    for _ in range(2):
        restore(world, "b")
        assert [one for one in identities(a, "a") if one[0] != a.topic.log.incarnation] == left
        assert sum(one.missing for one in plan(world, "b")) == 0
        a.restart()
    assert a.topic.log.position_of(Identity("a", *old[0])) is None


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("live", [True, False])
def test_a_producer_that_began_anew_is_not_taken_for_one_that_repeats(live: bool) -> None:
    world = World("ab")
    world["a"].create()
    deduplicate(world["a"])
    send = producer(world["a"])
    assert [send(sequence) for sequence in range(10)] == [True] * 10
    world.advance(1_000)
    wipe(world, "a")
    world.advance(1_000)
    deduplicate(world["a"])
    if live:
        send = producer(world["a"])
        assert send(0) and send(1)
    restore(world, "b")
    assert len(identities(world["a"], "a")) == (12 if live else 10)
    send = send if live else producer(world["a"])
    # One that begins after the restore is told where its earlier data folder stopped, and goes on there.
    assert [send(sequence) for sequence in (2, 9, 10)] == ([True, True, True] if live else [False, False, True])


def deduplicate(node: Node) -> None:
    """Switch deduplication on in the namespace."""
    change = node.broker.resources.change_policies(NamespaceName.parse("public/default"), deduplication_enabled=True)
    assert node.control_call(lambda done: node.control.policies.apply(change, done)) is None


def producer(node: Node) -> Callable[[int], bool]:
    """Publish as `p`; tells whether a sequence id was stored."""
    client = node.client()
    command = pb.CommandProducer(
        topic=TOPIC, producer_id=1, request_id=1, producer_name="p", user_provided_producer_name=True
    )
    client.send(pb.BaseCommand(type=5, producer=command))
    node.world.settle()

    def send(sequence: int) -> bool:
        data = build(pb.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1), b"%d" % sequence)
        client.send(pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=sequence)), data)
        node.world.work()
        receipt = client.answers[-1]
        assert receipt.type == 7, receipt
        stored: bool = receipt.send_receipt.message_id.ledgerId < 1 << 63
        return stored

    return send
