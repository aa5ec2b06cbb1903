"""The routes of one row of `metadata.policies.table`: GET, POST or PUT, and DELETE, for namespaces and for topics.

GET answers with the value of the level itself (204: none), with `?applied=true` with the effective value: the most
specific one, or the broker's default. POST sets it, DELETE removes it. An impossible value is refused as a whole (400,
412).

Special cases of policies, beyond their row, are in `CHANGES` and `UNSET`, by the policy's name.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, get_args

from magnetar.admin.http.applied import APPLIED, value_of_namespace, value_of_topic
from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Handler, Routes
from magnetar.admin.routes.topics import partitions_of
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.change import Change
from magnetar.metadata.errors import BadRequest, PreconditionFailed
from magnetar.metadata.policies.table import BY_NAME, Policy, RouteWords

NAMESPACE: Final = "/namespaces/{tenant}/{namespace}/"
TOPIC: Final = "/persistent/{tenant}/{namespace}/{topic}/"

GLOBAL: Final = {"isGlobal": "accepted without effect; synchronisation decides which clusters get a policy."}

REFUSALS: Final = (404, 412)
"""Statuses that every policy's routes may answer."""

CLUSTER_REFUSALS: Final = (400, 403, 404, 409, 412)
"""The same where a policy names clusters."""


def add_policies(routes: Routes, *names: str, root: str = NAMESPACE) -> None:
    """Add the routes of policies whose rows have words of their own to a group, those of namespaces before those of topics.

    Args:
        routes: the group.
        names: of the policies.
        root: of a namespace's paths below the group's prefix.
    """
    rows = [BY_NAME[name] for name in names]
    for policy in rows:
        if policy.namespace and policy.namespace_words is not None:
            add_to_namespaces(policy, routes, root)
    for policy in rows:
        if policy.topic and policy.topic_words is not None:
            add_to_topics(policy, routes, TOPIC, policy.topic_words)


# --------------------------------------------------------------------------------------------------------- namespaces


def _set_clusters(call: Call, policy: Policy, namespace: NamespaceName, value: Any) -> Callable[[], Change]:
    setter = {"replication-clusters": call.resources.set_replication, "allowed-clusters": call.resources.set_allowed}
    return partial(setter[policy.name], namespace, value)


def _set_mode(call: Call, policy: Policy, namespace: NamespaceName, value: Any) -> Callable[[], Change]:
    reason = call.control.replicated.refuses_mode(str(namespace), value) if value else ""
    if reason:
        raise PreconditionFailed(f"namespace {namespace}: {reason}")
    return _set_field(call, policy, namespace, value)


OVER_LINKS: Final = "allowAutoUpdateSchemaWithReplicator"
"""Parameter by which Pulsar's tools set `schema-auto-update-over-links` in the same request (PIP-433)."""


def _set_auto_update(call: Call, policy: Policy, namespace: NamespaceName, value: Any) -> Callable[[], Change]:
    fields = {policy.namespace: value}
    if call.parameter(OVER_LINKS) is not None:
        fields[BY_NAME["schema-auto-update-over-links"].namespace] = call.flag(OVER_LINKS)
    return lambda: call.resources.change_policies(namespace, **fields)


def _set_field(call: Call, policy: Policy, namespace: NamespaceName, value: Any) -> Callable[[], Change]:
    return lambda: call.resources.change_policies(namespace, **{policy.namespace: value})


CHANGES: Final[Mapping[str, Callable[[Call, Policy, NamespaceName, Any], Callable[[], Change]]]] = {
    "replication-clusters": _set_clusters,
    "allowed-clusters": _set_clusters,
    "subscription-mode": _set_mode,
    "schema-auto-update": _set_auto_update,
}
"""Functions that make the change, for policies of namespaces whose change is more than a field."""

UNSET: Final[Mapping[str, Callable[[Call], Any]]] = {
    "subscription-mode": lambda call: call.control.replicated.metrics()["mode"],
}
"""Functions that give the answer for an unset policy of a namespace, if the broker has to be asked for it."""


def add_to_namespaces(policy: Policy, routes: Routes, root: str = NAMESPACE) -> None:
    """Add a policy's routes for namespaces."""
    change = CHANGES.get(policy.name, _set_field)

    async def get(call: Call) -> Any:
        if policy.always_applied:
            found = policy.of_namespace(call.resources.policies(call.namespace()))
        else:
            found = value_of_namespace(call, policy, call.namespace())
        if found is None and policy.name in UNSET:
            return UNSET[policy.name](call)
        return policy.namespace_unset if found is None else found

    async def put(call: Call) -> None:
        namespace = call.existing_namespace()
        value = await call.body()
        if value is not None:
            policy.check_new(value)
        await call.apply(change(call, policy, namespace, value))

    async def delete(call: Call) -> None:
        namespace = call.existing_namespace()
        await call.apply(_set_field(call, policy, namespace, None))

    path, words = root + policy.namespace_path, policy.namespace_words or RouteWords()
    title = f"{policy.name} of its topics"
    unset = policy.namespace_unset is not None or policy.always_applied
    _add_get(
        routes, policy, path, title, words, get, query={} if policy.always_applied else APPLIED, may_be_unset=not unset
    )
    routes.add(
        policy.namespace_method,
        path,
        words.set or f"Set {title}.",
        ok=204,
        errors=words.errors or REFUSALS,
        query=words.query,
        body=policy.kind | None if policy.namespace_nullable else policy.kind,
        body_needed=not policy.namespace_nullable,
    )(put)
    if policy.removable:
        routes.add("DELETE", path, words.remove or f"Remove {title}.", ok=204, errors=REFUSALS)(delete)


# ------------------------------------------------------------------------------------------------------------- topics


def existing(call: Call) -> TopicName:
    """The topic of a request, without the number of a partition. Raises NotFound."""
    topic = call.topic()
    partitions_of(call, topic)
    return topic.base


async def _value_of(call: Call, policy: Policy) -> Any:
    text = call.parameter(policy.query) if policy.query else None
    if text is None:
        value = await call.body()
        if value is None and not policy.topic_nullable:
            raise BadRequest("the request needs a JSON body")
        return value
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10 and int(digits) < 2**31):
        raise BadRequest(f"parameter {policy.query} is a whole number below 2^31, not {text[:40]!a}")
    return int(sign + digits)


def add_to_topics(policy: Policy, routes: Routes, root: str, words: RouteWords | None = None) -> None:
    """Add a policy's routes for topics; without words they are named after the row, and take `isGlobal` as Pulsar's do."""

    async def get(call: Call) -> Any:
        found = value_of_topic(call, policy, existing(call))
        return policy.topic_unset if found is None else found

    async def put(call: Call) -> None:
        topic = existing(call)
        value = await _value_of(call, policy)
        await call.apply(lambda: call.resources.change_topic_policies(topic, **{policy.topic: value}))

    async def delete(call: Call) -> None:
        topic = existing(call)
        await call.apply(lambda: call.resources.change_topic_policies(topic, **{policy.topic: None}))

    path, title = root + policy.topic_path, f"{policy.name} of this topic"
    values = {policy.query: "the value, in place of a body."} if policy.query else {}
    common = GLOBAL if words is None else {}
    nullable = policy.topic_nullable and words is not None
    words = words or RouteWords()
    clusters = policy.topic == "replication_clusters"
    _add_get(
        routes,
        policy,
        path,
        title,
        words,
        get,
        query=APPLIED | common,
        may_be_unset=policy.topic_unset is None,
    )
    routes.add(
        policy.topic_method,
        path,
        words.set or f"Set {title}.",
        ok=204,
        errors=CLUSTER_REFUSALS if clusters else words.errors or REFUSALS,
        query={**common, **values, **words.query},
        body=policy.kind | None if nullable else policy.kind,
        body_needed=not (values or nullable),
    )(put)
    routes.add("DELETE", path, words.remove or f"Remove {title}.", ok=204, errors=REFUSALS, query=common | values)(
        delete
    )


# --------------------------------------------------------------------------------------------------------------- both


def _example(policy: Policy) -> str:
    """An example of an answer, for the reference."""
    choices = get_args(policy.kind)
    if policy.kind is bool:
        return "true"
    if isinstance(policy.kind, type):
        return policy.kind.__name__
    if policy.name == "replication-clusters":
        return '["us-west", ...]'
    return f'"{choices[0]}"' if isinstance(choices[0], str) else "100"


def _add_get(
    routes: Routes,
    policy: Policy,
    path: str,
    title: str,
    words: RouteWords,
    get: Handler,
    *,
    query: Mapping[str, str],
    may_be_unset: bool,
) -> None:
    routes.add(
        "GET",
        path,
        words.get or f"{title}: {policy.summary}",
        errors=REFUSALS,
        query=query,
        reply=words.reply or _example(policy),
        may_be_unset=may_be_unset,
        returns=policy.kind,
    )(get)
