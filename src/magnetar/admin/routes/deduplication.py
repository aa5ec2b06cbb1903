"""Publisher deduplication: on or off for a namespace or a topic, and how often its numbers are stored (Pulsar's paths)."""

from typing import Any

from msgspec.structs import replace

from magnetar.admin.http.applied import APPLIED, value_of_namespace, value_of_topic
from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.topics import partitions_of
from magnetar.core.names import TopicName
from magnetar.metadata.policies.topic import Seconds, TopicPolicies

deduplication = Routes("Deduplication", "/admin/v2")

NAMESPACE = "/namespaces/{tenant}/{namespace}"
TOPIC = "/persistent/{tenant}/{namespace}/{topic}"


@deduplication.add(
    "GET",
    NAMESPACE + "/deduplication",
    "Whether what is published is deduplicated.",
    errors=(404, 412),
    query=APPLIED,
    reply="true",
    may_be_unset=True,
)
async def get_of_namespace(call: Call) -> Any:
    """204 when not set: the broker's default."""
    return value_of_namespace(call, "deduplication", call.namespace())


@deduplication.add(
    "POST",
    NAMESPACE + "/deduplication",
    "Deduplicate what is published, or not; producers reconnect once.",
    ok=204,
    errors=(404, 412),
    body=bool,
)
async def set_of_namespace(call: Call) -> None:
    """The body is `true` or `false`."""
    namespace = call.existing_namespace()
    enabled: bool = await call.body()
    await call.apply(lambda: call.resources.change_policies(namespace, deduplication_enabled=enabled))


@deduplication.add("DELETE", NAMESPACE + "/deduplication", "Back to the broker's default.", ok=204, errors=(404, 412))
async def remove_of_namespace(call: Call) -> None:
    """As if never set."""
    namespace = call.existing_namespace()
    await call.apply(lambda: call.resources.change_policies(namespace, deduplication_enabled=None))


@deduplication.add(
    "GET",
    NAMESPACE + "/deduplicationSnapshotInterval",
    "Seconds between two snapshots of deduplication numbers.",
    errors=(404, 412),
    query=APPLIED,
    reply="120",
    may_be_unset=True,
)
async def get_interval_of_namespace(call: Call) -> Any:
    """204 when not set: the broker's default."""
    return value_of_namespace(call, "deduplication-interval", call.namespace())


@deduplication.add(
    "POST",
    NAMESPACE + "/deduplicationSnapshotInterval",
    "Store deduplication numbers this often (0: by entries alone; null: the broker's default).",
    ok=204,
    errors=(404, 412),
    body=Seconds | None,
    body_needed=False,
)
async def set_interval_of_namespace(call: Call) -> None:
    """The body is a number or null."""
    namespace = call.existing_namespace()
    seconds: int | None = await call.body()
    await call.apply(lambda: call.resources.change_policies(namespace, deduplication_snapshot_interval_seconds=seconds))


def _existing(call: Call) -> TopicName:
    topic = call.topic()
    partitions_of(call, topic)
    return topic.base


async def _change(call: Call, **fields: Any) -> None:
    topic = _existing(call)

    def changed() -> Any:
        policies: TopicPolicies = replace(call.resources.topic_policies(topic), **fields)
        return call.resources.set_topic_policies(topic, policies)

    await call.apply(changed)


@deduplication.add(
    "GET",
    TOPIC + "/deduplicationEnabled",
    "Whether what is published to this topic is deduplicated.",
    errors=(404, 412),
    query=APPLIED,
    reply="true",
    may_be_unset=True,
)
async def get_of_topic(call: Call) -> Any:
    """204 when the topic has no setting of its own."""
    return value_of_topic(call, "deduplication", _existing(call))


@deduplication.add(
    "POST",
    TOPIC + "/deduplicationEnabled",
    "Deduplicate what is published to this topic (all its partitions), or not.",
    ok=204,
    errors=(404, 412),
    body=bool,
)
async def set_of_topic(call: Call) -> None:
    """The body is `true` or `false`; it overrides the namespace."""
    enabled: bool = await call.body()
    await _change(call, deduplication_enabled=enabled)


@deduplication.add(
    "DELETE", TOPIC + "/deduplicationEnabled", "Back to the namespace's setting.", ok=204, errors=(404, 412)
)
async def remove_of_topic(call: Call) -> None:
    """As if never set."""
    await _change(call, deduplication_enabled=None)


@deduplication.add(
    "GET",
    TOPIC + "/deduplicationSnapshotInterval",
    "Seconds between two snapshots of this topic's deduplication numbers.",
    errors=(404, 412),
    query=APPLIED,
    reply="120",
    may_be_unset=True,
)
async def get_interval_of_topic(call: Call) -> Any:
    """204 when the topic has no setting of its own."""
    return value_of_topic(call, "deduplication-interval", _existing(call))


@deduplication.add(
    "POST",
    TOPIC + "/deduplicationSnapshotInterval",
    "Store this topic's deduplication numbers this often (0: by entries alone).",
    ok=204,
    errors=(404, 412),
    body=Seconds,
)
async def set_interval_of_topic(call: Call) -> None:
    """The body is a number; it overrides the namespace."""
    seconds: int = await call.body()
    await _change(call, deduplication_snapshot_interval_seconds=seconds)


@deduplication.add(
    "DELETE",
    TOPIC + "/deduplicationSnapshotInterval",
    "Back to the namespace's setting.",
    ok=204,
    errors=(404, 412),
)
async def remove_interval_of_topic(call: Call) -> None:
    """As if never set."""
    await _change(call, deduplication_snapshot_interval_seconds=None)
