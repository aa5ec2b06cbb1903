"""Whole brokers that take the same keys while apart: one winner a key, the same everywhere, and nobody is given two.

The world: three clusters with all links, whose links are cut and mended at random; clients with clocks that differ, whose
outboxes are sent to any cluster, alone and in batches; consumers that read at their own pace, on subscriptions of one cluster or
replicated in either mode; power cuts before and after what was decided is stored; seeks; subscriptions that come late. What must
be withdrawn is computed from all messages at once, by the plainest reading of the rule.
"""

import os
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from magnetar.broker.publish.idempotency import saving as idempotency_saving
from magnetar.broker.publish.idempotency import snapshot as idempotency_snapshot
from magnetar.broker.publish.idempotency import table as idempotency_table
from magnetar.broker.publish.idempotency.conflicts import Conflicts
from magnetar.broker.publish.idempotency.saving import Saving
from magnetar.broker.publish.idempotency.topic import TopicIdempotency
from magnetar.broker.publish.idempotency.withdrawals import Loser, Withdrawals
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import NamespaceName
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.storage.entries import EntryFlags
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.batches import decode_batch, encode_batch
from magnetar.wire.metadata import build, parse_metadata, split
from tests.support.geoworld import TOPIC, Client, Message, Node, World

SEEDS = int(os.environ.get("MAGNETAR_SEEDS", "12"))
WINDOW_MS = 600_000
NAMES = "abc"


class Copy(NamedTuple):
    """One message, as it is the same in every cluster."""

    origin: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    published_ms: int
    key: str


def expected(copies: set[Copy]) -> set[Copy]:
    """Those that must be withdrawn."""
    return {
        one
        for one in copies
        for other in copies
        if one.key == other.key
        and one.origin != other.origin
        and abs(one.published_ms - other.published_ms) < WINDOW_MS
        and (other.published_ms, other.origin) < (one.published_ms, one.origin)
    }


def copies_of(node: Node) -> dict[tuple[Position, int], Copy]:
    """All messages of a cluster's log, by position and place in the batch."""
    found = {}
    log = node.topic.log
    position = log.next_after(EARLIEST)
    while position is not None:
        if log.flags_at(position) & EntryFlags.MARKER:
            position = log.next_after(position)
            continue
        count = log.count_at(position)
        data = entry_at(node, position)
        seen = parse_metadata(data)
        identity = log.identity_of(position)
        assert identity is not None
        keys = [pair.value for pair in seen.properties]
        if seen.HasField("num_messages_in_batch"):
            keys = [one.properties[0].value for one, _ in decode_batch(data[split(data) :], count)]
        for at, key in enumerate(keys):
            found[position, at] = Copy(identity.cluster or node.name, identity.index + at, seen.publish_time, key)
        position = log.next_after(position)
    return found


def keys_at(node: Node, message: Message) -> list[str]:
    """The keys of what a consumer was given."""
    data = entry_at(node, message.position)
    seen = parse_metadata(data)
    if not seen.HasField("num_messages_in_batch"):
        return [pair.value for pair in seen.properties]
    bits = sum(word % (1 << 64) << 64 * n for n, word in enumerate(message.ack_set)) or -1
    batch = decode_batch(data[split(data) :], seen.num_messages_in_batch)
    return [one.properties[0].value for at, (one, _) in enumerate(batch) if bits >> at & 1]


def entry_at(node: Node, position: Position) -> bytes:
    log = node.topic.log
    found = log.cached(position, 1, 1 << 20) or node.log.read(log.locations(position, 1, 1 << 20))
    return bytes(found[0].data)


class Keyed:
    """The world and its clients."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.mode = self.rng.choice(("", "exact", "snapshot"))
        self.world = World(NAMES, mode=self.mode or "exact")
        self.given: dict[tuple[str, str], set[str]] = {}
        self.nodes = [self.world[name] for name in NAMES]
        self.skews = {node.name: self.rng.choice((0, 0, 5, -3_000, 20_000)) for node in self.nodes}
        self.keys = 0
        self.sequence = 0
        self.boot = 0
        self.consumers: dict[str, tuple[Client, int, int]] = {}
        policy = IdempotencyPolicy(property="k", window_seconds=WINDOW_MS // 1000)
        for node in self.nodes:
            node.apply(node.broker.resources.change_policies(NamespaceName.parse("public/default"), idempotency=policy))
        self.nodes[0].create()
        self.world.advance(1000)
        for node in self.nodes:
            self.open(node)

    def keys_of(self, node: Node) -> TopicIdempotency:
        assert node.topic.idempotency is not None
        return node.topic.idempotency

    def open(self, node: Node) -> None:
        """Somebody publishes and two consume, in each cluster."""
        client = node.client()
        self.boot += 1
        command = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name=f"p{self.boot}")
        client.send(pb.BaseCommand(type=5, producer=command))
        if node.name in self.consumers:
            self.take(node.name)
            old = self.consumers[node.name][0]
            if node.clients.get(old.number) is old:  # it is not of a life before
                node.run(node.broker.disconnected, old.number)
        shared = client.subscribe("shared", 1, replicated=bool(self.mode))
        alone = client.subscribe("alone", 0, replicated=bool(self.mode))
        self.world.work()
        for consumer in (shared, alone):
            client.flow(consumer, self.rng.choice((3, 1000)))
        self.consumers[node.name] = client, shared, alone

    # ----------------------------------------------------------------------------------------------------------- steps

    def key(self) -> str:
        if self.rng.random() < 0.5:
            self.keys += 1
        return f"k{max(0, self.keys - self.rng.randint(0, 3))}"

    def publish(self) -> None:
        node = self.rng.choice(self.nodes)
        client = self.consumers[node.name][0]
        self.sequence += 10
        published = self.world.now_ms + self.skews[node.name]
        seen = pb.MessageMetadata(producer_name="p", sequence_id=self.sequence, publish_time=published)
        payload = b""
        if self.rng.random() < 0.3:
            messages = []
            for key in dict.fromkeys(self.key() for _ in range(self.rng.randint(1, 4))):
                one = pb.SingleMessageMetadata()
                one.properties.add(key="k", value=key)
                messages.append((one, b""))
            payload, seen.num_messages_in_batch = encode_batch(messages), len(messages)
        else:
            seen.properties.add(key="k", value=self.key())
        command = pb.BaseCommand(type=6)
        command.send.producer_id, command.send.sequence_id = 1, self.sequence
        client.send(command, build(seen, payload))
        if self.rng.random() < 0.7:
            self.world.work()

    def link(self) -> None:
        """Cut or mend one direction."""
        pair = tuple(self.rng.sample(NAMES, 2))
        self.world.cut ^= {(pair[0], pair[1])}

    def carry(self) -> None:
        self.world.work()
        self.world.pump()

    def take(self, name: str, acked: float = 0.0) -> int:
        """What the consumers of a cluster have got; how many messages."""
        client, *consumers = self.consumers[name]
        taken = 0
        for subscription, consumer in zip(("shared", "alone"), consumers, strict=True):
            for message in client.take(consumer):
                taken += 1
                keys = keys_at(client.node, message)
                self.given.setdefault((name, subscription), set()).update(keys)
                if self.rng.random() < acked:
                    client.ack(consumer, message)
        return taken

    def consume(self) -> None:
        name = self.rng.choice(NAMES)
        client, *consumers = self.consumers[name]
        self.take(name, 0.8)
        client.flow(self.rng.choice(consumers), self.rng.randint(1, 4))

    def stall(self) -> None:
        """The disk of a cluster stands still, or goes on."""
        node = self.rng.choice(self.nodes)
        node.hold_log = not node.hold_log

    def restart(self) -> None:
        """A power cut; sometimes nothing of the metadata store's queue was written."""
        node = self.rng.choice(self.nodes)
        if self.rng.random() < 0.5:
            self.world.work()
        node.hold_stores = node.hold_log = False
        node.restart()
        self.world.work()
        self.open(node)

    def save(self) -> None:
        node = self.rng.choice(self.nodes)
        node.run(self.keys_of(node).save)
        if self.rng.random() < 0.3:
            node.hold_stores = not node.hold_stores

    def seek(self) -> None:
        client, shared, alone = self.consumers[self.rng.choice(NAMES)]
        client.seek(self.rng.choice((shared, alone)), EARLIEST)
        self.world.work()
        self.open(client.node)

    def later(self) -> None:
        self.world.advance(self.rng.choice((1, 50, 1000)), links=self.rng.random() < 0.5)

    # ----------------------------------------------------------------------------------------------------------- checks

    def run(self, steps: int) -> None:
        actions: list[tuple[float, Callable[[], None]]] = [
            (8, self.publish),
            (2, self.link),
            (3, self.carry),
            (4, self.consume),
            (0.5, self.restart),
            (0.7, self.save),
            (0.5, self.stall),
            (0.3, self.seek),
            (2, self.later),
        ]
        for _ in range(steps):
            self.rng.choices([one for _, one in actions], [weight for weight, _ in actions])[0]()
            self.never_two_at_once()
        self.heal()
        self.check()

    def never_two_at_once(self) -> None:
        for node in self.nodes:
            node.topic.withdrawals.validate()
            self.keys_of(node).validate()

    def heal(self) -> None:
        self.world.cut.clear()
        for node in self.nodes:
            node.hold_stores = node.hold_log = False
        self.world.advance(5_000)
        # Everything is read to its end.
        for node in self.nodes:
            self.open(node)
        self.world.advance(1_000)
        for _ in range(100):
            taken = 0
            for name in NAMES:
                taken += self.take(name, 1.0)
                client, *consumers = self.consumers[name]
                for consumer in consumers:
                    client.flow(consumer, 100)
            self.world.advance(500)
            if not taken:
                break

    def check(self) -> None:
        logs = {node.name: copies_of(node) for node in self.nodes}
        everything = set(logs["a"].values())
        assert all(set(log.values()) == everything for log in logs.values()), (
            "the clusters do not hold the same messages"
        )
        losers = expected(everything)
        for node in self.nodes:
            gone = {
                copy
                for (position, at), copy in logs[node.name].items()
                if node.topic.withdrawals.has(Loser(position, at))
            }
            assert gone == losers, f"{node.name} withdrew {gone - losers} too much and {losers - gone} not"
        assert {one.key for one in everything - losers} == {one.key for one in everything}, "a key has no message left"
        self.nothing_lost({one.key for one in everything})
        for node in self.nodes:
            self.read_late(node, logs[node.name], everything - losers)

    def nothing_lost(self, keys: set[str]) -> None:
        """Every subscription was given a message of each key: in every cluster, or a replicated one in some cluster."""
        for subscription in ("shared", "alone"):
            given = [self.given.get((name, subscription), set()) for name in NAMES]
            for one in [set().union(*given)] if self.mode else given:
                assert one == keys, f"{subscription} ({self.mode or 'local'}) never got {keys - one}"
            for node in self.nodes:
                backlog = node.topic.subscriptions[subscription].cursor.backlog_messages()
                assert not backlog, f"{subscription} of {node.name} has a backlog of {backlog} with all consumed"

    def read_late(self, node: Node, log: dict[tuple[Position, int], Copy], left: set[Copy]) -> None:
        """Who comes now is given exactly what is left; nothing is counted as backlog that nobody will get."""
        client = node.client()
        start = pb.MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)
        names: dict[str, dict[str, Any]] = {"late": {}, "reader": {"durable": False, "start_message_id": start}}
        for name, more in names.items():
            consumer = client.subscribe(name, 0, replicated=False, **more)
            self.world.advance(100)
            client.flow(consumer, 10_000)
            self.world.advance(100)
            got = []
            for message in client.take(consumer):
                count = node.topic.log.count_at(message.position)
                bits = sum(word % (1 << 64) << 64 * n for n, word in enumerate(message.ack_set)) or (1 << count) - 1
                got += [log[message.position, at] for at in range(count) if bits >> at & 1]
            assert len(got) == len(set(got)) and set(got) == left, f"{name} in {node.name}: {set(got) ^ left}"
            assert node.topic.last_message_position() == max(
                (p for (p, _), c in log.items() if c in left), default=(-1, -1)
            )
            backlog = node.topic.subscriptions[name].cursor.backlog_messages()
            assert backlog == len(left), f"{name} in {node.name}: a backlog of {backlog} for {len(left)}"


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (idempotency_table, idempotency_snapshot, idempotency_saving):
        monkeypatch.setattr(module, "BLOCK_SHIFT", 3)
    monkeypatch.setattr(idempotency_saving, "SAVE_BLOCKS_MAX", 1)


def run(seed: int, steps: int = 80) -> None:
    try:
        Keyed(seed).run(steps)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def test_one_winner_a_key_everywhere() -> None:
    for seed in range(SEEDS):
        run(seed)


# ------------------------------------------------------------------------------------------------------- planted bugs


def own_stays(patch: pytest.MonkeyPatch) -> None:
    """Each cluster prefers what it took itself."""
    patch.setattr(
        Conflicts, "_smaller", lambda _self, one, other: one.origin == 0 if one.origin != other.origin else None
    )


def first_come(patch: pytest.MonkeyPatch) -> None:
    """What is in the log stays, whatever comes."""
    patch.setattr(Conflicts, "_smaller", lambda _self, one, other: True if one.origin != other.origin else None)


def without_names(patch: pytest.MonkeyPatch) -> None:
    """Equal times are not told apart by the clusters' names."""
    right = Conflicts._smaller

    def wrong(self: Conflicts, one: Any, other: Any) -> bool | None:
        return None if one.published_ms == other.published_ms else right(self, one, other)

    patch.setattr(Conflicts, "_smaller", wrong)


def forgotten(patch: pytest.MonkeyPatch) -> None:
    """A start knows nothing of what was withdrawn."""
    patch.setattr(Withdrawals, "load", lambda _self, _data: None)


def not_stored(patch: pytest.MonkeyPatch) -> None:
    """Keys are stored without what was withdrawn because of them."""
    patch.setattr(Saving, "withdrawn", lambda _self: {})


def not_decided_again(patch: pytest.MonkeyPatch) -> None:
    """A start reads the keys behind the stored ones and judges none."""
    right = TopicIdempotency.start

    def wrong(self: TopicIdempotency, stored: Any = None) -> None:
        self._resolves = False
        right(self, stored)

    patch.setattr(TopicIdempotency, "start", wrong)


def only_now(patch: pytest.MonkeyPatch) -> None:
    """Who subscribes or seeks later is given what was withdrawn."""
    patch.setattr(Withdrawals, "acknowledge_in", lambda _self, _cursor: None)


def whole_batches(patch: pytest.MonkeyPatch) -> None:
    """A message that loses takes its batch along."""
    right = Withdrawals.add
    patch.setattr(Withdrawals, "add", lambda self, losers: right(self, [Loser(one.position, -1) for one in losers]))


BUGS = (own_stays, first_come, without_names, forgotten, not_stored, not_decided_again, only_now, whole_batches)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_check_can_fail(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    for seed in range(60):
        try:
            Keyed(seed).run(80)
        except AssertionError:
            return
    raise AssertionError(f"{bug.__name__}: not seen")
