"""Steps that many tests of whole brokers take: topics, consumers, policies, a disk that is lost."""

import random
from typing import Any

from magnetar.core.errors import ErrorCode
from magnetar.core.names import NamespaceName
from magnetar.storage.entries import EntryFlags
from magnetar.wire import pulsar_pb2 as pb
from magnetar_sim.host.memory_files import MemoryFiles
from tests.support.geoworld import TOPIC, Client, Node, World

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
NAMESPACE = NamespaceName.parse("public/default")
SYNC_ON = '[metadata]\nmetadata_sync_topic = "persistent://pulsar/system/metadata-sync"\n'
"""Lines of clusters.toml: metadata is synchronised."""


def consumer(node: Node, name: str = "s", kind: int = EXCLUSIVE, **more: Any) -> tuple[Client, int]:
    """A client with an open consumer that takes everything."""
    client = node.client()
    number = client.subscribe(name, kind, **more)
    node.world.settle()
    answer = client.answered(1000 + number)
    assert answer is not None and answer.type == 13, answer
    client.flow(number)
    node.world.settle()
    return client, number


def got(client: Client, number: int) -> list[bytes]:
    return [message.data for message in client.take(number)]


def two(names: str = "ab", **options: Any) -> World:
    """Clusters with the topic and replicated subscription `s` in the first."""
    world = World(names, **options)
    world["a"].create()
    world.settle()
    return world


def markers(node: Node, own: bool = True) -> int:
    """Markers in a node's log: its own ones, or those of others."""
    wanted = int(EntryFlags.MARKER) | (0 if own else int(EntryFlags.REPLICATED))
    both = int(EntryFlags.MARKER | EntryFlags.REPLICATED)
    return sum(flags & both == wanted for ledger in node.topic.log.ledger_infos() for flags in ledger.flags)


def set_mode(world: World, mode: str, names: str = "") -> None:
    """Change the mode of the namespace."""
    for name in names or world.nodes:
        node = world[name]
        change = node.broker.resources.change_policies(NAMESPACE, subscription_mode=mode)  # type: ignore[arg-type]
        node.apply(change)


def create_topic(node: Node, partitions: int | None = None, name: str = TOPIC) -> None:
    assert node.control_call(lambda done: node.control.topics.create(name, partitions, {}, done)) is None


def held(node: Node, topic: str = TOPIC) -> list[bytes]:
    """What a reader of a topic gets."""
    client = node.client()
    number = client.subscribe(
        "look",
        topic=topic,
        durable=False,
        replicated=False,
        start_message_id=pb.MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1),
    )
    client.flow(number)
    node.world.work()
    found = [message.data for message in client.take(number)]
    node.run(node.broker.disconnected, client.number)
    return found


class Person:
    """One client; its producer and its consumer have the id 1."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client: Client = node.client()

    def produce(self, request: int, topic: str = TOPIC, **more: object) -> None:
        """Open the producer, and do not wait."""
        command = pb.CommandProducer(topic=topic, producer_id=1, request_id=request, **more)  # type: ignore[arg-type]
        self.client.send(pb.BaseCommand(type=5, producer=command))

    def subscribe(self, request: int, topic: str = TOPIC, **more: object) -> None:
        """Open the consumer, and do not wait."""
        command = pb.CommandSubscribe(
            topic=topic, subscription="s", subType=0, consumer_id=1, request_id=request, **more
        )  # type: ignore[arg-type]
        self.client.send(pb.BaseCommand(type=4, subscribe=command))

    def close_producer(self, request: int) -> None:
        self.client.send(pb.BaseCommand(type=15, close_producer={"producer_id": 1, "request_id": request}))

    def close_consumer(self, request: int) -> None:
        self.client.send(pb.BaseCommand(type=16, close_consumer={"consumer_id": 1, "request_id": request}))

    def told(self, request: int) -> str | tuple[ErrorCode, str] | None:
        """What a request was answered with: the producer's name, "done", "waits", or the error; None: nothing yet."""
        answers = []
        for command in self.client.answers:
            if command.type == 17 and command.producer_success.request_id == request:
                success = command.producer_success
                answers.append(success.producer_name if success.producer_ready else "waits")
            elif command.type == 13 and command.success.request_id == request:
                answers.append("done")
            elif command.type == 14 and command.error.request_id == request:
                assert "\n" not in command.error.message
                answers.append((ErrorCode(command.error.error), command.error.message))
        assert len(answers) <= 1, answers
        return answers[0] if answers else None

    def refused(self, request: int, code: ErrorCode, why: str) -> bool:
        """Whether a request was refused, with these words among others."""
        answer = self.told(request)
        return isinstance(answer, tuple) and answer[0] is code and why in answer[1]


def partitions_asked(node: Node, topic: str, *, create: bool) -> int | ErrorCode:
    """What a client is told."""
    client = node.client()
    command = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=1, metadata_auto_creation_enabled=create)
    client.send(pb.BaseCommand(type=21, partitionMetadata=command))
    node.world.advance(100)
    answer = client.answers[-1].partitionMetadataResponse
    return ErrorCode(answer.error) if answer.response else answer.partitions


def set_replication_clusters(node: Node, *clusters: str) -> list[Any]:
    answers: list[Any] = []
    node.control.policies.apply(node.broker.resources.set_replication(NAMESPACE, list(clusters)), answers.append)
    return answers


def wipe(world: World, name: str) -> None:
    node = world[name]
    node.kill()
    node.files, node.meta = MemoryFiles(random.Random(7)), {}
    world.now_ms += 5_000
    node.start()
