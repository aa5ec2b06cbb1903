"""Policies of namespaces and topics: the groups of routes that `policy_rows` makes from `metadata.policies.table`, and
routes that set a part of a field: one kind of a backlog quota, one subscription's rate.
"""

from collections.abc import Iterable
from typing import Any, Final, get_args

from msgspec.structs import replace

from magnetar.admin.http.applied import APPLIED, NO_QUOTAS, value_of_topic
from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.namespaces import QUOTA_QUERY
from magnetar.admin.routes.policy_rows import GLOBAL, TOPIC, add_policies, add_to_namespaces, add_to_topics, existing
from magnetar.metadata.policies.namespace import BacklogQuota, BacklogQuotaBody, BacklogQuotaType
from magnetar.metadata.policies.table import TABLE, Policy
from magnetar.metadata.policies.types import DispatchRate, SubscriptionPolicies

policies = Routes("Policies of namespaces", "/admin/v2")
topic_policies = Routes("Policies of topics", "/admin/v2")
non_persistent_policies = Routes("Policies of non-persistent topics", "/admin/v2")
own_policies = Routes("Policies of namespaces, beyond Pulsar", "/geo/v1", own=True)
own_topic_policies = Routes("Policies of topics, beyond Pulsar", "/geo/v1", own=True)
deduplication = Routes("Deduplication", "/admin/v2")
idempotency = Routes("Idempotency keys", "/geo/v1", own=True)

NON_PERSISTENT_TOPIC: Final = "/non-persistent/{tenant}/{namespace}/{topic}/"
QUOTA_KINDS: Final[tuple[str, ...]] = get_args(BacklogQuotaType)


def add_rows(rows: Iterable[Policy]) -> None:
    """Add the routes of rows, except those whose words put them into a group of their own (`add_policies`)."""
    for policy in rows:
        if policy.namespace and not policy.by_hand and policy.namespace_words is None:
            add_to_namespaces(policy, own_policies if policy.own else policies)
        if policy.topic and not policy.by_hand:
            if policy.topic_words is None:
                add_to_topics(policy, own_topic_policies if policy.own_topic else topic_policies, TOPIC)
            if not policy.own_topic:
                add_to_topics(policy, non_persistent_policies, NON_PERSISTENT_TOPIC)


add_rows(TABLE)
add_policies(deduplication, "deduplication", "deduplication-interval")
add_policies(idempotency, "idempotency")


# ------------------------------------------------------------------------------------------- backlog quotas of a topic


QUOTAS: Final[dict[str, Any]] = {
    "errors": (404, 412),
    "query": APPLIED | GLOBAL,
    "reply": '{"destination_storage": BacklogQuota}',
    "returns": dict[BacklogQuotaType, BacklogQuota],
}
QUOTAS_SUMMARY: Final = "Backlog quotas of this topic, by kind."


@non_persistent_policies.add("GET", NON_PERSISTENT_TOPIC + "backlogQuotaMap", QUOTAS_SUMMARY, **QUOTAS)
@topic_policies.add("GET", TOPIC + "backlogQuotaMap", QUOTAS_SUMMARY, **QUOTAS)
async def get_quotas(call: Call) -> Any:
    """Empty: as its namespace says. `applied` has both kinds: -1 is no limit."""
    topic = existing(call)
    if call.flag("applied"):
        return NO_QUOTAS | dict(call.resources.backlog_quotas(topic))
    return call.resources.topic_policies(topic).backlog_quota_map or {}


SET: Final[dict[str, Any]] = {
    "ok": 204,
    "errors": (400, 404, 412),
    "query": QUOTA_QUERY | GLOBAL,
    "body": BacklogQuotaBody,
}
SET_SUMMARY: Final = "Set a backlog quota of this topic."


@non_persistent_policies.add("POST", NON_PERSISTENT_TOPIC + "backlogQuota", SET_SUMMARY, **SET)
@topic_policies.add("POST", TOPIC + "backlogQuota", SET_SUMMARY, **SET)
async def set_quota(call: Call) -> None:
    """One kind at a time."""
    body: BacklogQuotaBody = await call.body()
    await _change_quota(call, body.quota())


REMOVED: Final[dict[str, Any]] = {"ok": 204, "errors": (400, 404, 412), "query": QUOTA_QUERY | GLOBAL}
REMOVED_SUMMARY: Final = "Remove this topic's quota of this kind; its namespace's applies."


@non_persistent_policies.add("DELETE", NON_PERSISTENT_TOPIC + "backlogQuota", REMOVED_SUMMARY, **REMOVED)
@topic_policies.add("DELETE", TOPIC + "backlogQuota", REMOVED_SUMMARY, **REMOVED)
async def remove_quota(call: Call) -> None:
    """One kind at a time."""
    await _change_quota(call, None)


async def _change_quota(call: Call, quota: BacklogQuota | None) -> None:
    topic = existing(call)
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
    topic, name = existing(call), call.subscription()
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
    topic, name = existing(call), call.subscription()

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
        _group.add("DELETE", _root + _part, f"Remove {RATE_OF_SUBSCRIPTION}.", ok=204, errors=(404, 412), query=GLOBAL)(
            remove_rate
        )


# -------------------------------------------------------------------------------------------------- all of a topic's


ALL_REMOVED: Final = "Remove all policies of the topic's own."


@non_persistent_policies.add(
    "DELETE", NON_PERSISTENT_TOPIC + "policies", ALL_REMOVED, ok=204, errors=(404, 412), query=GLOBAL
)
@topic_policies.add("DELETE", TOPIC + "policies", ALL_REMOVED, ok=204, errors=(404, 412), query=GLOBAL)
async def remove_policies(call: Call) -> None:
    """Its namespace's hold again."""
    topic = existing(call)
    own = call.resources.topic_policies(topic)
    await call.apply(lambda: call.resources.change_topic_policies(topic, **dict.fromkeys(own.__struct_fields__)))
