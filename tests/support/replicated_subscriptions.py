"""A replicated subscription `s` in a mesh of real brokers, over replicators or over Spark."""

from typing import Any, Protocol

import pulsar

from tests.support.brokers import BrokerProcess, eventually, path_of


class Mesh(Protocol):
    """Clusters, and an official client of each."""

    def __getitem__(self, cluster: str) -> BrokerProcess: ...

    def client(self, cluster: str) -> pulsar.Client: ...


TYPES = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "shared": pulsar.ConsumerType.Shared,
    "failover": pulsar.ConsumerType.Failover,
    "key_shared": pulsar.ConsumerType.KeyShared,
}


def consume(mesh: Mesh, cluster: str, topic: str, kind: str = "exclusive", **more: Any) -> pulsar.Consumer:
    """A consumer of the replicated subscription `s`."""
    options = {"replicate_subscription_state_enabled": True, "initial_position": pulsar.InitialPosition.Earliest} | more
    return mesh.client(cluster).subscribe(topic, "s", TYPES[kind], **options)


def take(consumer: pulsar.Consumer, count: int, timeout_ms: int = 30_000) -> list[pulsar.Message]:
    """So many messages."""
    return [consumer.receive(timeout_ms) for _ in range(count)]


def nothing(consumer: pulsar.Consumer) -> bool:
    """Whether nothing comes. The subscription's backlog was looked at before: nothing is on its way."""
    try:
        consumer.receive(200)
    except pulsar.Timeout:
        return True
    return False


def stats(mesh: Mesh, cluster: str, topic: str) -> dict[str, Any]:
    """Of the subscription, empty when it is not there."""
    found = mesh[cluster].rest("GET", f"{path_of(topic)}/stats")["subscriptions"]
    return dict(found.get("s", {}))


def backlog(mesh: Mesh, cluster: str, topic: str) -> int:
    """Messages not acknowledged; -1 while there is no such subscription or topic."""
    try:
        return int(stats(mesh, cluster, topic).get("msgBacklogMessages", -1))
    except OSError:
        return -1


def until(mesh: Mesh, cluster: str, topic: str, messages: int) -> None:
    """Wait until the subscription has so much left in a cluster."""
    eventually(lambda: backlog(mesh, cluster, topic) == messages, within_s=60, what=f"{messages} left in {cluster}")


def batch_indexes_and_cumulative_acknowledgements(mesh: Mesh, topic: str) -> None:
    here = consume(mesh, "a", topic, "shared", batch_index_ack_enabled=True)
    producer = mesh.client("a").create_producer(
        topic, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=1_000
    )
    for n in range(30):
        producer.send_async(b"%d" % n, lambda _result, _id: None)
    producer.flush()
    for message in take(here, 30):
        if int(message.data()) % 2:
            here.acknowledge(message)
    until(mesh, "c", topic, 15)
    here.close()
    there = consume(mesh, "c", topic, batch_index_ack_enabled=True)
    messages = take(there, 15)
    assert [int(m.data()) for m in messages] == list(range(0, 30, 2))
    there.acknowledge_cumulative(messages[9])
    until(mesh, "a", topic, 5)
    there.close()
