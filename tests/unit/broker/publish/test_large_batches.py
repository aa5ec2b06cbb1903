"""Large batches in topics with idempotency keys: opened off the event loop, one at a time, and each producer's order stays."""

import zlib
from typing import Any

import pytest

from magnetar.core.names import NamespaceName
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.batches import encode_batch
from magnetar.wire.idempotency_keys import OPEN_BYTES_MAX, OPEN_MESSAGES_MAX
from magnetar.wire.metadata import build, parse_metadata, split
from tests.support.geoworld import TOPIC, Client, World

LARGE = OPEN_BYTES_MAX // 2


def single(key: str) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.properties.add(key="k", value=key)
    return build(metadata, b"")


def batch(*keys: str, size: int = LARGE, says: int = -1, compression: int = 2, sequence: int = 0) -> bytes:
    """`size` is of each message, `says` what the producer says of all; -1: the truth."""
    messages = []
    for key in keys:
        one = pb.SingleMessageMetadata(payload_size=size)
        one.properties.add(key="k", value=key)
        messages.append((one, bytes(size)))
    plain = encode_batch(messages)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1)
    metadata.num_messages_in_batch, metadata.compression = len(keys), compression
    metadata.uncompressed_size = len(plain) if says < 0 else says
    return build(metadata, zlib.compress(plain) if compression else plain)


class Cluster:
    """One cluster, a topic with keys; what is to be opened off the event loop waits for `open`."""

    def __init__(self, **limits: Any) -> None:
        self.world = World("a", limits=limits)
        self.node = self.world["a"]
        policy = IdempotencyPolicy(property="k", window_seconds=3600)
        self.node.apply(
            self.node.broker.resources.change_policies(NamespaceName("public", "default"), idempotency=policy)
        )
        self.node.create()
        self.world.work()
        self.node.hold_computes = True
        self._requests = 100

    def client(self, producers: int = 1) -> Client:
        client = self.node.client()
        for number in range(producers):
            self._requests += 1
            client.send(
                pb.BaseCommand(
                    type=5,
                    producer=pb.CommandProducer(topic=TOPIC, producer_id=number, request_id=self._requests),
                )
            )
            self.world.work()
            assert client.answers[-1].type == 17, client.answers[-1]
        client.answers.clear()
        return client

    def send(self, client: Client, sequence: int, data: bytes, producer: int = 0) -> None:
        client.send(pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=producer, sequence_id=sequence)), data)
        self.world.work()

    def open(self) -> bool:
        """Let one batch be opened; whether there was one."""
        if not self.node.computes:
            return False
        assert len(self.node.computes) == 1, "one at a time"
        effect = self.node.computes.popleft()
        self.node.run(effect.then, effect.work())
        self.world.work()
        return True

    @property
    def stored(self) -> int:
        """Messages in the log."""
        return self.node.topic.log.next_index

    @property
    def waiting(self) -> int:
        """Bytes that wait in all connections."""
        return sum(one.producers._throttled_bytes for one in self.node.broker.sessions.values())


def receipts(client: Client) -> list[int]:
    """Sequence ids with receipts, in order; negative: refused."""
    told = [
        one.send_receipt.sequence_id if one.type == 7 else -one.send_error.sequence_id
        for one in client.answers
        if one.type in {7, 8}
    ]
    client.answers = [one for one in client.answers if one.type not in {7, 8}]
    return told


def test_a_large_batch_waits_and_nobody_else_does() -> None:
    it = Cluster()
    client, other = it.client(), it.client()
    it.send(client, 1, single("before"))
    it.send(client, 2, batch("a", "b", "c"))
    it.send(client, 3, single("behind"))
    it.send(other, 1, single("others"))
    assert (receipts(client), receipts(other)) == ([1], [1])
    assert it.open()
    assert receipts(client) == [2, 3]
    assert not it.open()
    it.send(client, 4, batch("a", "b", "c"))
    it.send(client, 5, batch("c", "d", "e"))
    assert receipts(client) == []
    stored = it.stored
    assert it.open() and it.open()
    assert receipts(client) == [4, 5]
    assert it.stored == stored + 2, "three of the first batch and one of the second are stored already"
    assert it.waiting == 0


@pytest.mark.parametrize("data", [batch("a", size=9), batch("a", size=LARGE), batch("a", "b", size=9, compression=0)])
def test_what_is_small_waits_for_nothing(data: bytes) -> None:
    it = Cluster()
    client = it.client()
    it.send(client, 1, data)
    assert receipts(client) == [1]
    assert not it.node.computes


@pytest.mark.parametrize(
    "data",
    [
        batch("a", size=OPEN_BYTES_MAX),
        batch("a", size=9, says=0),
        batch(*map(str, range(OPEN_MESSAGES_MAX + 1)), size=0),
        batch(*map(str, range(OPEN_MESSAGES_MAX + 1)), size=0, compression=0),
    ],
    ids=["bytes", "says nothing", "messages", "messages, not compressed"],
)
def test_what_takes_long_is_done_elsewhere(data: bytes) -> None:
    it = Cluster()
    client = it.client()
    it.send(client, 1, data)
    assert receipts(client) == [] and it.stored == 0
    assert it.open()
    assert receipts(client) == [1]


def test_who_lies_about_the_size_is_refused_and_nothing_large_is_inflated_here() -> None:
    it = Cluster()
    client = it.client()
    it.send(client, 1, batch("a", size=OPEN_BYTES_MAX, says=9))
    assert not it.node.computes
    (error,) = (one.send_error for one in client.answers if one.type == 8)
    assert "has over 262144 bytes uncompressed although it says 9" in error.message
    assert it.stored == 0


def test_what_cannot_be_opened_is_refused_in_its_turn() -> None:
    it = Cluster()
    client = it.client()
    broken = bytearray(batch("a", "b", "c"))
    broken = broken[: split(bytes(broken)) + 10]
    it.send(client, 1, build(parse_metadata(batch("a", "b", "c")), bytes(broken[split(bytes(broken)) :])))
    it.send(client, 2, single("behind"))
    assert it.open()
    assert receipts(client) == [-1, 2]


def test_connections_take_turns() -> None:
    it = Cluster()
    many, one = it.client(producers=3), it.client()
    for producer in range(3):
        it.send(many, 1, batch(f"{producer}a", f"{producer}b", f"{producer}c"), producer)
    it.send(one, 1, batch("a", "b", "c"))
    told = []
    while it.open():
        told.append((len(receipts(many)), len(receipts(one))))
    assert told == [(1, 0), (1, 0), (0, 1), (1, 0)], "whose turn it is was found out when the first one began"


def test_what_waits_of_who_goes_is_forgotten() -> None:
    it = Cluster()
    client, other = it.client(), it.client()
    it.send(client, 1, batch("a", "b", "c"))
    it.send(other, 1, batch("d", "e", "f"))
    it.node.run(it.node.broker.disconnected, client.number)
    assert it.open() and it.open()
    assert receipts(other) == [1]
    assert it.stored == 3, "nothing of who is gone"
    assert it.waiting == 0
    it.send(other, 2, batch("a", "b", "c"))
    it.send(other, 3, batch("g", "h", "i"))
    it.node.run(it.node.broker.clients.close_producer, next(iter(it.node.topic.producers.everybody())))
    assert it.waiting == 0
    while it.open():
        pass
    assert it.stored == 3


def test_a_producer_is_closed_behind_what_waits_of_it() -> None:
    it = Cluster()
    client = it.client()
    it.send(client, 1, batch("a", "b", "c"))
    it.send(client, 2, batch("d", "e", "f"))
    client.send(pb.BaseCommand(type=15, close_producer=pb.CommandCloseProducer(producer_id=0, request_id=7)))
    it.world.work()
    assert client.answers == []
    assert it.open()
    assert [one.type for one in client.answers] == [7]
    assert it.open()
    assert [one.type for one in client.answers] == [7, 7, 13]


def test_a_socket_is_not_read_while_much_waits() -> None:
    it = Cluster()
    client = it.client()
    session = it.node.broker.sessions[client.number].connection
    many = batch(*map(str, range(OPEN_MESSAGES_MAX + 1)), size=200, compression=0)
    assert len(many) > 256 * 1024
    it.send(client, 1, many)
    assert session.held
    assert it.open()
    assert not session.held
    assert receipts(client) == [1]


def test_keys_that_were_switched_off_meanwhile() -> None:
    it = Cluster()
    client = it.client()
    it.send(client, 1, batch("a", "b", "c"))
    namespace = NamespaceName("public", "default")
    it.node.apply(it.node.broker.resources.change_policies(namespace, idempotency=None))
    it.send(client, 2, single("behind"))
    assert receipts(client) == []
    assert it.open()
    assert receipts(client) == [1, 2]
    assert it.stored == 4


def test_a_start_opens_large_batches_elsewhere_too() -> None:
    it = Cluster()
    client = it.client()
    it.send(client, 1, single("before"))
    it.send(client, 2, batch("a", "b", "c"))
    it.send(client, 3, single("behind"))
    assert it.open()
    assert receipts(client) == [1, 2, 3]
    it.node.restart()
    it.node.hold_computes = True
    it.world.work()
    keys = it.node.topic.idempotency
    assert keys is not None and str(keys.status) == "Recovering"
    assert it.open()
    stored = it.stored
    client = it.client()
    for sequence, data in enumerate((single("before"), batch("a", "b", "c"), single("behind"))):
        it.send(client, sequence, data)
    assert it.open()
    assert receipts(client) == [0, 1, 2]
    assert it.stored == stored, "all of them are known"


class Pair(Cluster):
    """Clusters a and b; what is to be opened in b waits."""

    def __init__(self) -> None:
        self.world = World("ab")
        self._requests = 100
        policy = IdempotencyPolicy(property="k", window_seconds=3600)
        for node in self.world.nodes.values():
            namespace = NamespaceName("public", "default")
            node.apply(node.broker.resources.change_policies(namespace, replication_clusters=["a", "b"]))
            node.apply(node.broker.resources.change_policies(namespace, idempotency=policy))
            node.create()
        self.world.settle()
        self.node = self.world["a"]
        client = self.client()
        self.send(client, 1, single("before"))
        self.send(client, 2, batch("a", "b", "c"))
        self.send(client, 3, single("behind"))
        self.send(client, 4, batch("d", "e", "f"))
        assert receipts(client) == [1, 2, 3, 4]
        self.node = self.world["b"]
        self.node.hold_computes = True
        self.world.settle()


def test_what_a_link_brings_is_opened_elsewhere_too() -> None:
    it = Pair()
    assert it.node.topic.messages_in == 1, "what is before the large batch"
    assert it.open()
    it.world.settle()
    assert it.node.topic.messages_in == 5, "the batch, and what is before the next one"
    assert it.open()
    it.world.settle()
    assert it.node.topic.messages_in == 8
    assert not it.node.computes
    client = it.client()
    it.send(client, 1, single("b"))
    it.send(client, 2, single("f"))
    assert receipts(client) == [1, 2]
    assert it.node.topic.messages_in == 8, "what the link brought is known here"


def test_a_link_that_breaks_while_its_batch_is_opened() -> None:
    it = Pair()
    it.node.run(it.node.broker.links.destination.disconnected, 1)
    assert it.node.broker.links.destination.schemas.parked_bytes == 0
    assert it.open()
    assert it.node.topic.messages_in == 1
    it.world.settle()
    for _ in range(3):
        it.open()
        it.world.settle()
    assert it.node.topic.messages_in == 8


def restored(keys: str, *, sequence: int) -> bytes:
    """A large batch that a had before it lost its disk, as a peer has it."""
    data = batch(*keys, sequence=sequence)
    metadata = parse_metadata(data)
    metadata.replicated_from = "a"
    return build(metadata, data[split(data) :])


def restore(it: Cluster, peer: str, batches: list[bytes]) -> list[pb.CommandGeoRestoreResponse]:
    """Bring batches of three messages; the answers that come."""
    count = len(batches)
    request = pb.CommandGeoRestore(
        request_id=1, topic=TOPIC, cluster="a", peer=peer, incarnation=3, ledgers=[3] * count, entries=range(count),
        first_indexes=range(0, 3 * count, 3), counts=[3] * count, sizes=map(len, batches),
    )  # fmt: skip
    answers: list[pb.CommandGeoRestoreResponse] = []
    machine = it.node.broker.links.restores.machine
    it.node.run(lambda: machine.restore(1, request, b"".join(batches), answers.append, lambda _wanted: None))
    it.world.work()
    return answers


def test_what_a_restore_brings_is_opened_elsewhere_too() -> None:
    it = Cluster()
    answers = restore(it, "b", [restored("abc", sequence=0)])
    assert answers == []
    assert it.open()
    assert [(one.stored, one.duplicates, one.reason) for one in answers] == [(3, 0, "")]
    client = it.client()
    it.send(client, 1, single("c"))
    assert receipts(client) == [1]
    assert it.node.topic.messages_in == 3


def test_what_was_found_in_a_batch_counts_for_no_other() -> None:
    """Of two peers that restore at once, one brings what the other one was about to store."""
    it = Cluster()
    first, second = restored("abc", sequence=0), restored("def", sequence=3)
    c = restore(it, "c", [first])
    b = restore(it, "b", [first, second])
    while it.open():
        pass
    assert [one.stored for one in (*c, *b)] == [3, 3]
    client = it.client()
    for sequence, key in enumerate("abcdef"):
        it.send(client, sequence, single(key))
    assert receipts(client) == list(range(6))
    assert it.node.topic.messages_in == 6
