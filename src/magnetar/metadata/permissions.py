"""Permissions of roles in namespaces, for topics and for subscriptions: part of `Resources`, one key for each role and
scope.

    permissions/namespaces/<tenant>/<namespace>/<role>
    permissions/topics/<domain>/<tenant>/<namespace>/<topic>/<role>
    permissions/subscriptions/<tenant>/<namespace>/<subscription>/<role>

There is a key for each role, not a document for each namespace: two administrators who grant to different roles at the
same time, in any clusters, both succeed. The role and the topic's own name are percent-encoded.

Permissions of a partitioned topic belong to its name without a number and hold for all its partitions. They add up: a
role may do what its namespace's permissions or the topic's own say. Tenants' administrators need none.

Permissions of a subscription restrict instead: if a subscription of a namespace's topics has any, only those roles may
use it, and they still need `consume`. Without any, every role that may consume may use it, as in Pulsar.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote, unquote

import msgspec

from magnetar.core.errors import StorageError
from magnetar.core.names import NamespaceName, TopicName, check_subscription
from magnetar.core.security import check_role
from magnetar.metadata.change import Change
from magnetar.metadata.errors import NotFound, PreconditionFailed
from magnetar.metadata.keys import namespace_key

PERMISSION_PREFIX: Final = "permissions/"
_NAMESPACES: Final = PERMISSION_PREFIX + "namespaces/"
_TOPICS: Final = PERMISSION_PREFIX + "topics/"
_SUBSCRIPTIONS: Final = PERMISSION_PREFIX + "subscriptions/"

ROLES_PER_SCOPE_MAX: Final = 1_000
"""A ceiling on the roles of one namespace or topic: all are in one answer, and more people share roles."""

SUBSCRIPTIONS_PER_NAMESPACE_MAX: Final = 1_000
"""A ceiling on the subscriptions of a namespace that only some roles may use: all are in one answer."""


class Action(StrEnum):
    """The actions that a permission allows.

    `replicate` and `admin` are Magnetar's own: acting as a link (geo-replication), and administering only that
    namespace or topic, which Pulsar has for whole tenants only. `functions`, `sources`, `sinks` and `packages` exist
    because Pulsar's tools grant them together with the others. Magnetar has no such features, and these actions allow
    nothing.
    """

    PRODUCE = "produce"
    CONSUME = "consume"
    REPLICATE = "replicate"
    ADMIN = "admin"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"


KEPT: Final = frozenset({Action.FUNCTIONS, Action.SOURCES, Action.SINKS, Action.PACKAGES})
"""Actions that allow nothing here."""

OURS: Final = frozenset({Action.REPLICATE, Action.ADMIN})
"""Actions that Pulsar has not, and whose names its tools refuse to read."""

MEANT: Final = tuple(action for action in Action if action not in KEPT)
"""Actions that allow something."""


class SubscriptionScope(NamedTuple):
    """A subscription's name in all topics of a namespace."""

    namespace: NamespaceName
    subscription: str

    def __str__(self) -> str:
        return f"subscription {self.subscription} of {self.namespace}"


Scope = NamespaceName | TopicName | SubscriptionScope
"""The scope of a permission: a namespace, a topic (only the name without a partition counts), or a subscription."""

NOTHING: Final[frozenset[Action]] = frozenset()


def permission_prefix(scope: Scope) -> str:
    """The prefix of the keys of a scope's permissions; the role follows."""
    if isinstance(scope, NamespaceName):
        return f"{_NAMESPACES}{scope.tenant}/{scope.local}/"
    if isinstance(scope, SubscriptionScope):
        return f"{_SUBSCRIPTIONS}{scope.namespace}/{quote(scope.subscription, safe='')}/"
    base = scope.base
    return f"{_TOPICS}{base.domain}/{base.tenant}/{base.namespace}/{quote(base.local, safe='')}/"


class PermissionTable:
    """The permissions of one cluster."""

    def __init__(self) -> None:
        self._scopes: dict[str, dict[str, frozenset[Action]]] = {}

    def put(self, key: str, value: bytes) -> bool:
        """Take one stored value; whether it is one of these.

        Raises:
            StorageError: it is damaged.
        """
        if not key.startswith(PERMISSION_PREFIX):
            return False
        prefix, role = _split(key)
        try:
            names = msgspec.json.decode(value, type=list[str])
        except msgspec.DecodeError as error:
            raise StorageError(f"the stored value of {key} is damaged: {error}") from error
        # A later version may have more actions: unknown ones allow nothing here.
        known = frozenset(action for action in Action if action in names)
        self._scopes.setdefault(prefix, {})[role] = known
        return True

    def delete(self, key: str) -> None:
        """Remove a deleted value; other keys are ignored."""
        if key.startswith(PERMISSION_PREFIX):
            prefix, role = _split(key)
            roles = self._scopes.get(prefix, {})
            roles.pop(role, None)
            if not roles:
                self._scopes.pop(prefix, None)

    def of(self, scope: Scope) -> Mapping[str, frozenset[Action]]:
        """The permissions given for a scope itself, by role."""
        return self._scopes.get(permission_prefix(scope), {})

    def actions(self, role: str, scope: Scope) -> frozenset[Action]:
        """The actions that a role may do in a scope: for a topic, the actions of its namespace and of the topic
        together.
        """
        found = self.of(scope).get(role, NOTHING)
        if isinstance(scope, TopicName):
            found = found | self.of(scope.namespace_name).get(role, NOTHING)
        return found

    def anywhere(self, role: str, action: Action) -> bool:
        """Whether a role may do something in any scope at all."""
        return any(action in roles.get(role, NOTHING) for roles in self._scopes.values())

    def topics_of(self, namespace: NamespaceName) -> dict[str, Mapping[str, frozenset[Action]]]:
        """Full names of topics of a namespace that have permissions of their own, with these."""
        found: dict[str, Mapping[str, frozenset[Action]]] = {}
        for domain in ("persistent", "non-persistent"):
            prefix = f"{_TOPICS}{domain}/{namespace}/"
            for scope, roles in self._scopes.items():
                if scope.startswith(prefix):
                    found[f"{domain}://{namespace}/{unquote(scope.removeprefix(prefix).rstrip('/'))}"] = roles
        return found

    def users_of(self, scope: SubscriptionScope) -> frozenset[str]:
        """The roles that alone may use a subscription; empty: all roles that may consume."""
        return frozenset(self._scopes.get(permission_prefix(scope), ()))

    def subscriptions_of(self, namespace: NamespaceName) -> dict[str, list[str]]:
        """Subscriptions of a namespace that only some roles may use, with these."""
        prefix = f"{_SUBSCRIPTIONS}{namespace}/"
        return {
            unquote(scope.removeprefix(prefix).rstrip("/")): sorted(roles)
            for scope, roles in sorted(self._scopes.items())
            if scope.startswith(prefix)
        }

    def keys_of_topic(self, topic: TopicName) -> tuple[str, ...]:
        """Keys of the permissions that a topic has of its own."""
        prefix = permission_prefix(topic)
        return tuple(prefix + quote(role, safe="") for role in sorted(self._scopes.get(prefix, ())))

    def keys_of(self, namespace: NamespaceName) -> tuple[str, ...]:
        """Keys of all permissions in a namespace: when it goes, they go with it."""
        prefixes = [permission_prefix(namespace), f"{_SUBSCRIPTIONS}{namespace}/"] + [
            f"{_TOPICS}{domain}/{namespace}/" for domain in ("persistent", "non-persistent")
        ]
        return tuple(
            scope + quote(role, safe="")
            for scope, roles in sorted(self._scopes.items())
            if scope.startswith(tuple(prefixes))
            for role in sorted(roles)
        )


class PermissionContext(Protocol):
    """The part of `Resources` that granting and revoking permissions needs."""

    @property
    def permissions(self) -> PermissionTable:
        """The permissions before."""

    def has_namespace(self, namespace: NamespaceName) -> bool:
        """Whether a namespace exists."""


def _split(key: str) -> tuple[str, str]:
    prefix, slash, role = key.rpartition("/")
    return prefix + slash, unquote(role)


def shown(roles: Mapping[str, frozenset[Action]]) -> dict[str, list[str]]:
    """Permissions as Pulsar's REST shows them: role -> actions."""
    return {role: sorted(actions) for role, actions in sorted(roles.items())}


def grant(resources: PermissionContext, scope: Scope, role: str, actions: Iterable[Action]) -> Change:
    """Give a role exactly these permissions in a scope, instead of those that it has.

    Raises:
        NotFound: the namespace. PreconditionFailed: not a role, no actions, or too many roles.
    """
    namespace = _namespace_of(resources, scope)
    _check(role)
    chosen = sorted(set(actions))
    if not chosen:
        raise PreconditionFailed(f"a permission names at least one of {', '.join(MEANT)}; to take it back, delete it")
    there = resources.permissions.of(scope)
    if role not in there and len(there) >= ROLES_PER_SCOPE_MAX:
        raise PreconditionFailed(f"{scope} has permissions of {len(there)} roles, the most allowed")
    key = permission_prefix(scope) + quote(role, safe="")
    return Change(puts={key: msgspec.json.encode(chosen)}, depends=frozenset({namespace_key(namespace)}))


def revoke(resources: PermissionContext, scope: Scope, role: str) -> Change:
    """Take all permissions of a role in a scope back; without any nothing changes.

    Raises:
        NotFound: the namespace. PreconditionFailed: not a role.
    """
    _namespace_of(resources, scope)
    _check(role)
    if role not in resources.permissions.of(scope):
        return Change()
    return Change(deletes=(permission_prefix(scope) + quote(role, safe=""),))


def reserve(resources: PermissionContext, scope: SubscriptionScope, roles: Iterable[str]) -> Change:
    """Let exactly these roles use a subscription; none: all roles that may consume.

    Raises:
        NotFound: the namespace. PreconditionFailed: not a role, too many of them, or too many such subscriptions.
    """
    namespace = _namespace_of(resources, scope)
    chosen = set(roles)
    for role in sorted(chosen):
        _check(role)
    if len(chosen) > ROLES_PER_SCOPE_MAX:
        raise PreconditionFailed(f"{len(chosen)} roles are too many: at most {ROLES_PER_SCOPE_MAX}")
    there = resources.permissions.users_of(scope)
    reserved = len(resources.permissions.subscriptions_of(namespace))
    if chosen and not there and reserved >= SUBSCRIPTIONS_PER_NAMESPACE_MAX:
        raise PreconditionFailed(
            f"{namespace} has {reserved} subscriptions that only some roles may use, the most allowed"
        )
    prefix, value = permission_prefix(scope), msgspec.json.encode([Action.CONSUME])
    return Change(
        puts={prefix + quote(role, safe=""): value for role in sorted(chosen - there)},
        deletes=tuple(prefix + quote(role, safe="") for role in sorted(there - chosen)),
        depends=frozenset({namespace_key(namespace)}),
    )


def first_permissions(
    namespace: NamespaceName,
    roles: Mapping[str, Iterable[Action]],
    topics: Mapping[str, Mapping[str, Iterable[Action]]],
    subscriptions: Mapping[str, Iterable[str]],
) -> Change:
    """The permissions that a new namespace begins with: its own, those of topics by full name, and roles by subscription.

    Raises:
        NameNotValid. PreconditionFailed: not a role, no actions, too many of them, or a topic of another namespace.
    """
    scopes: dict[Scope, Mapping[str, Iterable[Action]]] = {namespace: roles}
    for text, granted in topics.items():
        topic = TopicName.parse(text)
        if topic.namespace_name != namespace:
            raise PreconditionFailed(f"topic {topic} is not one of {namespace}")
        scopes[topic] = granted
    for name, users in subscriptions.items():
        scope = SubscriptionScope(namespace, check_subscription(name))
        scopes[scope] = dict.fromkeys(users, (Action.CONSUME,))
    if len(subscriptions) > SUBSCRIPTIONS_PER_NAMESPACE_MAX:
        raise PreconditionFailed(f"{len(subscriptions)} subscriptions that only some roles may use are too many")
    puts: dict[str, bytes] = {}
    for there, given in scopes.items():
        if len(given) > ROLES_PER_SCOPE_MAX:
            raise PreconditionFailed(f"{len(given)} roles of {there} are too many: at most {ROLES_PER_SCOPE_MAX}")
        for role, actions in given.items():
            _check(role)
            chosen = sorted(set(actions))
            if not chosen:
                raise PreconditionFailed(f"role {role[:60]!a} of {there} needs at least one of {', '.join(MEANT)}")
            puts[permission_prefix(there) + quote(role, safe="")] = msgspec.json.encode(chosen)
    return Change(puts=puts)


def _namespace_of(resources: PermissionContext, scope: Scope) -> NamespaceName:
    match scope:
        case NamespaceName():
            namespace = scope
        case SubscriptionScope():
            namespace = scope.namespace
        case _:
            namespace = scope.namespace_name
    if not resources.has_namespace(namespace):
        raise NotFound(f"namespace {namespace} does not exist")
    return namespace


def _check(role: str) -> None:
    try:
        check_role(role)
    except ValueError as error:
        raise PreconditionFailed(f"role {role[:60]!a}: {error}") from None
