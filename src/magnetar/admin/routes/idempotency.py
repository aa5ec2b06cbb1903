"""Idempotency keys: which property of a message of a namespace or a topic is its key, and how long keys are remembered."""

from typing import Any

from msgspec.structs import replace

from magnetar.admin.http.applied import APPLIED, value_of_namespace, value_of_topic
from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.topics import partitions_of
from magnetar.core.names import TopicName
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.metadata.policies.topic import TopicPolicies

idempotency = Routes("Idempotency keys", "/geo/v1", own=True)

NAMESPACE = "/namespaces/{tenant}/{namespace}/idempotency"
TOPIC = "/persistent/{tenant}/{namespace}/{topic}/idempotency"
REPLY = '{"property": "idempotency-key", "windowSeconds": 3600, "keysMax": 1000000, "enabled": true}'


@idempotency.add(
    "GET",
    NAMESPACE,
    "Which property of its messages is an idempotency key, and for how long.",
    errors=(404, 412),
    query=APPLIED,
    reply=REPLY,
    may_be_unset=True,
)
async def get_of_namespace(call: Call) -> Any:
    """204 when not set: messages of its topics have no keys."""
    return value_of_namespace(call, "idempotency", call.namespace())


@idempotency.add(
    "POST",
    NAMESPACE,
    "Store one message per idempotency key within a window; producers reconnect once.",
    ok=204,
    errors=(404, 412),
    body=IdempotencyPolicy,
)
async def set_of_namespace(call: Call) -> None:
    """What is left out of the body has its default."""
    namespace = call.existing_namespace()
    policy: IdempotencyPolicy = await call.body()
    await call.apply(lambda: call.resources.change_policies(namespace, idempotency=policy))


@idempotency.add("DELETE", NAMESPACE, "No idempotency keys.", ok=204, errors=(404, 412))
async def remove_of_namespace(call: Call) -> None:
    """As if never set."""
    namespace = call.existing_namespace()
    await call.apply(lambda: call.resources.change_policies(namespace, idempotency=None))


def _existing(call: Call) -> TopicName:
    topic = call.topic()
    partitions_of(call, topic)
    return topic.base


async def _change(call: Call, policy: IdempotencyPolicy | None) -> None:
    topic = _existing(call)

    def changed() -> Any:
        policies: TopicPolicies = replace(call.resources.topic_policies(topic), idempotency=policy)
        return call.resources.set_topic_policies(topic, policies)

    await call.apply(changed)


@idempotency.add(
    "GET",
    TOPIC,
    "Which property of this topic's messages is an idempotency key, and for how long.",
    errors=(404, 412),
    query=APPLIED,
    reply=REPLY,
    may_be_unset=True,
)
async def get_of_topic(call: Call) -> Any:
    """204 when the topic has no setting of its own."""
    return value_of_topic(call, "idempotency", _existing(call))


@idempotency.add(
    "POST",
    TOPIC,
    "Store one message per idempotency key in this topic (in each partition by itself); `enabled: false`: not here.",
    ok=204,
    errors=(404, 412),
    body=IdempotencyPolicy,
)
async def set_of_topic(call: Call) -> None:
    """What is left out of the body has its default; it overrides the namespace."""
    policy: IdempotencyPolicy = await call.body()
    await _change(call, policy)


@idempotency.add("DELETE", TOPIC, "Back to the namespace's setting.", ok=204, errors=(404, 412))
async def remove_of_topic(call: Call) -> None:
    """As if never set."""
    await _change(call, None)
