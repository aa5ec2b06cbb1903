"""Replicated subscriptions: which ones, how, and how far other clusters are behind."""

from typing import Any, Final

from msgspec.structs import replace

from magnetar.admin.http.applied import APPLIED, value_of_namespace, value_of_topic
from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.subscriptions import having
from magnetar.admin.routes.topics import partitions_of
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.numbers import whole_number
from magnetar.metadata.errors import BadRequest, PreconditionFailed
from magnetar.metadata.policies.namespace import SubscriptionMode
from magnetar.metadata.policies.topic import TopicPolicies

replicated = Routes("Replicated subscriptions", "/admin/v2")
replicated_geo = Routes("Replicated subscriptions, beyond Pulsar", "/geo/v1", own=True)

NAMESPACE = "/namespaces/{tenant}/{namespace}"
TOPIC = "/persistent/{tenant}/{namespace}/{topic}"
STATUS = TOPIC + "/subscription/{subscription}/replicatedSubscriptionStatus"

STATES_MAX: Final = 10_000
"""A ceiling on subscriptions in one answer; of more, ask by topic."""


@replicated.add(
    "GET", STATUS, "Whether a subscription is replicated.", errors=(404, 412), reply='{"persistent://...": true}'
)
async def get_status(call: Call) -> Any:
    """By topic or partition."""
    found, name = having(call, "replicatedSubscriptionStatus")
    states = {}
    for part in map(str, found):
        steps = call.control.topic_stats_steps(part, publishers=False, consumers=False)
        stats = await call.building.steps(steps)
        states[part] = bool(stats["subscriptions"][name]["isReplicated"])
    return states


@replicated.add(
    "POST",
    STATUS,
    "Let a subscription follow to other clusters, or no longer.",
    ok=204,
    errors=(404, 412),
    body=bool,
)
async def set_status(call: Call) -> None:
    """In every partition, in this cluster. 412 when a policy says that all are replicated."""
    found, name = having(call, "replicatedSubscriptionStatus")
    enabled: bool = await call.body()
    await call.each(found, lambda part, done: call.control.set_replicated(part, name, enabled, done))


# ------------------------------------------------------------------------------------------------ all of a namespace


@replicated.add(
    "GET",
    NAMESPACE + "/replicateSubscriptionState",
    "Whether every durable subscription is replicated (PIP-422).",
    errors=(404, 412),
    query=APPLIED,
    reply="true",
    may_be_unset=True,
)
async def get_of_namespace(call: Call) -> Any:
    """204 when not set: as clients ask, which is also what false means."""
    return value_of_namespace(call, "replicate-subscriptions", call.namespace())


@replicated.add(
    "POST",
    NAMESPACE + "/replicateSubscriptionState",
    "Replicate every durable subscription, whatever its client says; false or null: as clients ask.",
    ok=204,
    errors=(404, 412),
    body=bool | None,
    body_needed=False,
)
async def set_of_namespace(call: Call) -> None:
    """Subscriptions that are there follow from now on, too. Taking it back switches none off."""
    namespace = call.existing_namespace()
    every: bool | None = await call.body()
    await call.apply(lambda: call.resources.change_policies(namespace, replicate_subscription_state=every))


@replicated.add("DELETE", NAMESPACE + "/replicateSubscriptionState", "As clients ask.", ok=204, errors=(404, 412))
async def remove_of_namespace(call: Call) -> None:
    """As if never set; subscriptions that are replicated stay so."""
    namespace = call.existing_namespace()
    await call.apply(lambda: call.resources.change_policies(namespace, replicate_subscription_state=None))


# ---------------------------------------------------------------------------------------------------- all of a topic


def _existing(call: Call) -> TopicName:
    topic = call.topic()
    partitions_of(call, topic)
    return topic.base


async def _set_topic(call: Call, every: bool | None) -> None:
    topic = _existing(call)

    def change() -> Any:
        policies: TopicPolicies = replace(call.resources.topic_policies(topic), replicate_subscription_state=every)
        return call.resources.set_topic_policies(topic, policies)

    await call.apply(change)


@replicated.add(
    "GET",
    TOPIC + "/replicateSubscriptionState",
    "Whether every durable subscription of this topic is replicated.",
    errors=(404, 412),
    query=APPLIED,
    reply="true",
    may_be_unset=True,
)
async def get_of_topic(call: Call) -> Any:
    """204 when the topic has no setting of its own."""
    return value_of_topic(call, "replicate-subscriptions", _existing(call))


@replicated.add(
    "POST",
    TOPIC + "/replicateSubscriptionState",
    "Replicate every durable subscription of this topic; false overrides its namespace, null: as its namespace.",
    ok=204,
    errors=(404, 412),
    body=bool | None,
    body_needed=False,
)
async def set_of_topic(call: Call) -> None:
    """All partitions."""
    _existing(call)
    await _set_topic(call, await call.body())


@replicated.add("DELETE", TOPIC + "/replicateSubscriptionState", "As its namespace.", ok=204, errors=(404, 412))
async def remove_of_topic(call: Call) -> None:
    """As if never set."""
    await _set_topic(call, None)


# --------------------------------------------------------------------------------------------------------------- mode


@replicated_geo.add(
    "GET",
    NAMESPACE + "/subscriptionMode",
    "How replicated subscriptions follow: exact or snapshot; what holds, also by the broker's default.",
    errors=(404, 412),
    reply='"exact"',
)
async def get_mode(call: Call) -> Any:
    """Never unset."""
    mode = call.resources.policies(call.namespace()).subscription_mode
    return mode or call.control.replication_metrics()["mode"]


@replicated_geo.add(
    "POST",
    NAMESPACE + "/subscriptionMode",
    "Choose how replicated subscriptions follow: exact, snapshot, or null for the broker's default.",
    ok=204,
    errors=(404, 412),
    body=SubscriptionMode | None,
    body_needed=False,
)
async def set_mode(call: Call) -> None:
    """Say it in every cluster. 412 for snapshot mode where a link leads one way only."""
    namespace = call.existing_namespace()
    mode: SubscriptionMode | None = await call.body()
    reason = call.control.refuses_mode(str(namespace), mode) if mode else ""
    if reason:
        raise PreconditionFailed(f"namespace {namespace}: {reason}")
    await call.apply(lambda: call.resources.change_policies(namespace, subscription_mode=mode))


# -------------------------------------------------------------------------------------------------------------- state


def _chosen(call: Call) -> list[str]:
    topics = call.control.replicated_topics()
    topic, namespace = call.parameter("topic"), call.parameter("namespace")
    if topic is not None:
        name = TopicName.parse(topic)
        topics = [text for text in topics if text == str(name) or TopicName.parse(text).base == name]
    if namespace is not None:
        prefix = f"persistent://{NamespaceName.parse(namespace)}/"
        topics = [text for text in topics if text.startswith(prefix)]
    return topics


@replicated_geo.add(
    "GET",
    "/subscriptions",
    "Replicated subscriptions of this cluster: what is acknowledged, and how far every other cluster is behind.",
    errors=(400, 412),
    query={
        "topic": "one topic, or a partitioned one with all its partitions.",
        "namespace": "one namespace.",
        "limit": f"at most so many; {STATES_MAX} by default and at most.",
    },
    reply="[ReplicatedSubscription, ...]",
)
async def list_states(call: Call) -> Any:
    """By topic and name."""
    text = call.parameter("limit") or str(STATES_MAX)
    most = whole_number(text)
    if most is None or not 1 <= most <= STATES_MAX:
        raise BadRequest(f"parameter limit is a whole number from 1 to {STATES_MAX}, not {text[:40]!a}")
    return await collect(call, _chosen(call), most)


async def collect(call: Call, topics: list[str], most: int) -> list[dict[str, Any]]:
    """The replicated subscriptions of topics, at most so many; other tasks run in between."""
    found: list[dict[str, Any]] = []
    for topic in topics:
        if len(found) >= most:
            break
        if call.control.partitions(topic) is not None:  # it may have been deleted while others had their turn
            found += call.control.replicated_subscriptions(topic)
        await call.others()
    return found[:most]
