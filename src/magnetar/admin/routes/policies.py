"""Policies of namespaces and topics: one set of routes for each row of `metadata.policies.table`, by Pulsar's
paths and codes.

GET answers what the level itself has (204: nothing), with `?applied=true` what holds: the most specific value, or the
broker's default. POST sets, DELETE takes back. A value that is not possible is refused as a whole (400, 412).
"""

from typing import Any, Final, get_args

from msgspec.structs import replace

from magnetar.admin.http.applied import APPLIED, NO_QUOTAS, value_of_namespace, value_of_topic
from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Handler, Routes
from magnetar.admin.routes.namespaces import QUOTA_QUERY
from magnetar.admin.routes.topics import partitions_of
from magnetar.core.names import TopicName
from magnetar.metadata.errors import BadRequest
from magnetar.metadata.policies.namespace import BacklogQuota, BacklogQuotaBody, BacklogQuotaType
from magnetar.metadata.policies.table import TABLE, Policy
from magnetar.metadata.policies.types import DispatchRate, SubscriptionPolicies

policies = Routes("Policies of namespaces", "/admin/v2")
topic_policies = Routes("Policies of topics", "/admin/v2")
non_persistent_policies = Routes("Policies of non-persistent topics", "/admin/v2")
own_policies = Routes("Policies of namespaces, beyond Pulsar", "/geo/v1", own=True)
own_topic_policies = Routes("Policies of topics, beyond Pulsar", "/geo/v1", own=True)

NAMESPACE: Final = "/namespaces/{tenant}/{namespace}/"
TOPIC: Final = "/persistent/{tenant}/{namespace}/{topic}/"
NON_PERSISTENT_TOPIC: Final = "/non-persistent/{tenant}/{namespace}/{topic}/"
QUOTA_KINDS: Final[tuple[str, ...]] = get_args(BacklogQuotaType)

GLOBAL: Final = {"isGlobal": "accepted; where policies travel is said by the synchronisation."}

ALWAYS_SOMETHING: Final[dict[str, Any]] = {
    "max-topics": 0,
    "encryption-required": False,
    "subscription-types": [],
    "subscription-auth-mode": "None",
}
"""Policies of namespaces that are answered with this where nothing is set: Java's tools fail on an empty answer."""

ALWAYS_SOMETHING_OF_TOPIC: Final[dict[str, Any]] = {"schema-validation": False}
"""The same of topics."""


def example(policy: Policy) -> str:
    """What an answer looks like, for the reference."""
    choices = get_args(policy.kind)
    if policy.kind is bool:
        return "true"
    if isinstance(policy.kind, type):
        return policy.kind.__name__
    if policy.name == "replication-clusters":
        return '["us-west", ...]'
    return f'"{choices[0]}"' if isinstance(choices[0], str) else "100"


# --------------------------------------------------------------------------------------------------------- namespaces


def _namespace_routes(policy: Policy) -> None:
    routes = own_policies if policy.own else policies
    path = NAMESPACE + policy.namespace_path

    async def get(call: Call) -> Any:
        found = value_of_namespace(call, policy, call.namespace())
        return ALWAYS_SOMETHING.get(policy.name) if found is None else found

    async def put(call: Call) -> None:
        namespace = call.existing_namespace()
        value = await call.body()
        policy.check_new(value)
        await call.apply(lambda: call.resources.change_policies(namespace, **{policy.namespace: value}))

    async def delete(call: Call) -> None:
        namespace = call.existing_namespace()
        await call.apply(lambda: call.resources.change_policies(namespace, **{policy.namespace: None}))

    _add(routes, policy, path, "of its topics", APPLIED, get, put, delete, policy.namespace_method)


# ------------------------------------------------------------------------------------------------------------- topics


def _existing(call: Call) -> TopicName:
    topic = call.topic()
    partitions_of(call, topic)
    return topic.base


async def _value_of(call: Call, policy: Policy) -> Any:
    text = call.parameter(policy.query) if policy.query else None
    if text is None:
        value = await call.body()
        if value is None:
            raise BadRequest("the request needs a JSON body")
        return value
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10 and int(digits) < 2**31):
        raise BadRequest(f"parameter {policy.query} is a whole number below 2^31, not {text[:40]!a}")
    return int(sign + digits)


def _topic_routes(policy: Policy, routes: Routes, root: str) -> None:
    path = root + policy.topic_path

    async def get(call: Call) -> Any:
        found = value_of_topic(call, policy, _existing(call))
        return ALWAYS_SOMETHING_OF_TOPIC.get(policy.name) if found is None else found

    async def put(call: Call) -> None:
        topic = _existing(call)
        value = await _value_of(call, policy)
        await call.apply(lambda: call.resources.change_topic_policies(topic, **{policy.topic: value}))

    async def delete(call: Call) -> None:
        topic = _existing(call)
        await call.apply(lambda: call.resources.change_topic_policies(topic, **{policy.topic: None}))

    _add(routes, policy, path, "of this topic", APPLIED | GLOBAL, get, put, delete, policy.topic_method)


def _add(
    routes: Routes,
    policy: Policy,
    path: str,
    whose: str,
    query: dict[str, str],
    get: Handler,
    put: Handler,
    delete: Handler,
    method: str,
) -> None:
    """The three routes of one policy on one level."""
    title = f"{policy.name} {whose}"
    on_topic = routes not in (policies, own_policies)
    several = policy.topic == "replication_clusters" and on_topic
    errors = (400, 403, 404, 409, 412) if several else (404, 412)
    values = {policy.query: "the value, instead of a body."} if policy.query and on_topic else {}
    rest = {key: text for key, text in query.items() if key != "applied"} | values
    routes.add(
        "GET",
        path,
        f"{title}: {policy.summary}",
        errors=(404, 412),
        query=query,
        reply=example(policy),
        may_be_unset=policy.name not in (ALWAYS_SOMETHING_OF_TOPIC if on_topic else ALWAYS_SOMETHING),
        returns=policy.kind,
    )(get)
    routes.add(
        method, path, f"Set {title}.", ok=204, errors=errors, query=rest, body=policy.kind, body_needed=not values
    )(put)
    routes.add("DELETE", path, f"Take {title} back.", ok=204, errors=(404, 412), query=rest)(delete)


for _policy in TABLE:
    if _policy.namespace and "namespace" not in _policy.by_hand:
        _namespace_routes(_policy)
    if _policy.topic and "topic" not in _policy.by_hand:
        _topic_routes(_policy, own_topic_policies if _policy.own_topic else topic_policies, TOPIC)
    if _policy.topic and not _policy.own_topic and not _policy.kind_query:
        _topic_routes(_policy, non_persistent_policies, NON_PERSISTENT_TOPIC)


# ------------------------------------------------------------------------------------------- backlog quotas of a topic


QUOTAS: Final[dict[str, Any]] = {
    "errors": (404, 412),
    "query": APPLIED | GLOBAL,
    "reply": '{"destination_storage": BacklogQuota}',
    "returns": dict[BacklogQuotaType, BacklogQuota],
}
QUOTAS_SUMMARY: Final = "How far consumers of this topic may fall behind, by kind."


@non_persistent_policies.add("GET", NON_PERSISTENT_TOPIC + "backlogQuotaMap", QUOTAS_SUMMARY, **QUOTAS)
@topic_policies.add("GET", TOPIC + "backlogQuotaMap", QUOTAS_SUMMARY, **QUOTAS)
async def get_quotas(call: Call) -> Any:
    """Empty: as its namespace says. `applied` has both kinds: -1 is no limit."""
    topic = _existing(call)
    if call.flag("applied"):
        return NO_QUOTAS | dict(call.resources.backlog_quotas(topic))
    return call.resources.topic_policies(topic).backlog_quota_map or {}


SET: Final[dict[str, Any]] = {
    "ok": 204,
    "errors": (400, 404, 412),
    "query": QUOTA_QUERY | GLOBAL,
    "body": BacklogQuotaBody,
}
SET_SUMMARY: Final = "Limit how far consumers of this topic may fall behind."


@non_persistent_policies.add("POST", NON_PERSISTENT_TOPIC + "backlogQuota", SET_SUMMARY, **SET)
@topic_policies.add("POST", TOPIC + "backlogQuota", SET_SUMMARY, **SET)
async def set_quota(call: Call) -> None:
    """One kind at a time."""
    body: BacklogQuotaBody = await call.body()
    await _change_quota(call, body.quota())


REMOVED: Final[dict[str, Any]] = {"ok": 204, "errors": (400, 404, 412), "query": QUOTA_QUERY | GLOBAL}
REMOVED_SUMMARY: Final = "Back to the namespace's limit of this kind."


@non_persistent_policies.add("DELETE", NON_PERSISTENT_TOPIC + "backlogQuota", REMOVED_SUMMARY, **REMOVED)
@topic_policies.add("DELETE", TOPIC + "backlogQuota", REMOVED_SUMMARY, **REMOVED)
async def remove_quota(call: Call) -> None:
    """One kind at a time."""
    await _change_quota(call, None)


async def _change_quota(call: Call, quota: BacklogQuota | None) -> None:
    topic = _existing(call)
    kind: Any = call.choice("backlogQuotaType", QUOTA_KINDS, QUOTA_KINDS[0])

    def changed() -> Any:
        quotas = dict(call.resources.topic_policies(topic).backlog_quota_map or {})
        quotas.pop(kind, None)
        if quota is not None:
            quotas[kind] = quota
        return call.resources.change_topic_policies(topic, backlog_quota_map=quotas or None)

    await call.apply(changed)


# ------------------------------------------------------------------------------------------ a subscription's own rate


RATE_OF_SUBSCRIPTION: Final = "subscription-dispatch-rate of one subscription"


async def get_rate(call: Call) -> Any:
    """`applied`: without one of its own it has the rate that holds for each subscription of the topic."""
    topic, name = _existing(call), call.subscription()
    own = (call.resources.topic_policies(topic).subscription_policies or {}).get(name)
    if own is not None and own.dispatch_rate is not None:
        return own.dispatch_rate
    return value_of_topic(call, "subscription-dispatch-rate", topic) if call.flag("applied") else None


async def set_rate(call: Call) -> None:
    """The subscription need not be there yet, as in Pulsar."""
    rate: DispatchRate = await call.body()
    await _change_rate(call, rate)


async def remove_rate(call: Call) -> None:
    """Back to the rate of each subscription of the topic."""
    await _change_rate(call, None)


async def _change_rate(call: Call, rate: DispatchRate | None) -> None:
    topic, name = _existing(call), call.subscription()

    def changed() -> Any:
        every = dict(call.resources.topic_policies(topic).subscription_policies or {})
        own = replace(every.pop(name, SubscriptionPolicies()), dispatch_rate=rate)
        if own != SubscriptionPolicies():
            every[name] = own
        return call.resources.change_topic_policies(topic, subscription_policies=every or None)

    await call.apply(changed)


for _part in ("{subscription}/dispatchRate", "subscription/{subscription}/dispatchRate"):
    for _group, _root in ((topic_policies, TOPIC), (non_persistent_policies, NON_PERSISTENT_TOPIC)):
        _group.add(
            "GET",
            _root + _part,
            f"{RATE_OF_SUBSCRIPTION}: what its consumers are sent per period, instead of the topic's.",
            errors=(404, 412),
            query=APPLIED | GLOBAL,
            reply="DispatchRate",
            may_be_unset=True,
            returns=DispatchRate,
        )(get_rate)
        _group.add(
            "POST",
            _root + _part,
            f"Set {RATE_OF_SUBSCRIPTION}.",
            ok=204,
            errors=(404, 412),
            query=GLOBAL,
            body=DispatchRate,
        )(set_rate)
        _group.add(
            "DELETE", _root + _part, f"Take {RATE_OF_SUBSCRIPTION} back.", ok=204, errors=(404, 412), query=GLOBAL
        )(remove_rate)


# -------------------------------------------------------------------------------------------------- all of a topic's


ALL_REMOVED: Final = "Take back every policy that the topic has of its own."


@non_persistent_policies.add(
    "DELETE", NON_PERSISTENT_TOPIC + "policies", ALL_REMOVED, ok=204, errors=(404, 412), query=GLOBAL
)
@topic_policies.add("DELETE", TOPIC + "policies", ALL_REMOVED, ok=204, errors=(404, 412), query=GLOBAL)
async def remove_policies(call: Call) -> None:
    """Its namespace's hold again."""
    topic = _existing(call)
    own = call.resources.topic_policies(topic)
    await call.apply(lambda: call.resources.change_topic_policies(topic, **dict.fromkeys(own.__struct_fields__)))
