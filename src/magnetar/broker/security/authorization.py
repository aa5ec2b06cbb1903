"""Authorization: one table and one function, for the Pulsar port, the link commands and REST.

    operation        superuser   tenant's admin   namespace or topic permission      other roles
    ---------------  ----------  ---------------  ---------------------------------  --------------------------
    IDENTIFIED       yes         yes              every authenticated role           yes
    MONITOR          yes         no               no                                 `monitor_roles`
    LOOK             yes         yes              any of the four                    `replicate_roles`
    PRODUCE          yes         yes              produce, admin                     no
    CONSUME          yes         yes              consume, admin                     no
    REPLICATE        yes         no               replicate                          `replicate_roles`
    ADMIN            yes         yes              admin                              no
    TENANT           yes         yes              no                                 no
    SUPER            yes         no               no                                 no

Everything that is not a "yes" here is refused. A tenant's administrator may not act as a link: a link writes messages
under other clusters' names, which is beyond the tenant's own. So only a superuser may grant `replicate` to a role.

CONSUME with a subscription that is reserved for some roles (`metadata.permissions`) needs more than `consume`: the role
has to be one of these. In a namespace whose `subscription-auth-mode` is Prefix, the subscription's name has to begin
with the role's. Neither restriction applies to superusers and administrators. A role that may replicate a topic reads
all of it, so it may also look it up (`magnetar verify` does). If a proxy names an original role, both the proxy and the
original role need the permission.
"""

from enum import Enum
from typing import Final

from magnetar.broker.security.credentials import Identity
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.security import AuthorizationConfig
from magnetar.metadata.errors import NotFound
from magnetar.metadata.permissions import KEPT, Action, SubscriptionScope
from magnetar.metadata.resources import Resources

Where = str | NamespaceName | TopicName | None
"""The scope of an operation: a tenant's name, a namespace, a topic, or none."""


class Operation(Enum):
    """The kind of an operation, as coarse as permissions are. The value describes it in errors."""

    IDENTIFIED = "use this broker"
    MONITOR = "look at the state of this cluster"
    LOOK = "look up"
    PRODUCE = "produce to"
    CONSUME = "consume from"
    REPLICATE = "replicate"
    ADMIN = "administer"
    TENANT = "administer the tenant"
    SUPER = "administer this cluster"


NEEDED: Final[dict[Operation, frozenset[Action]]] = {
    Operation.LOOK: frozenset(Action) - KEPT,
    Operation.PRODUCE: frozenset({Action.PRODUCE, Action.ADMIN}),
    Operation.CONSUME: frozenset({Action.CONSUME, Action.ADMIN}),
    Operation.REPLICATE: frozenset({Action.REPLICATE}),
    Operation.ADMIN: frozenset({Action.ADMIN}),
}
"""Any of these permissions is enough. Operations that are not here cannot be given by a permission."""

OF_TENANT: Final = frozenset({Operation.LOOK, Operation.PRODUCE, Operation.CONSUME, Operation.ADMIN, Operation.TENANT})
"""The operations that a tenant's administrators may do in it."""


class Authorizer:
    """Decides.

    Args:
        config: the `[authorization]` table.
        resources: tenants and permissions.
    """

    def __init__(self, config: AuthorizationConfig, resources: Resources) -> None:
        self._superusers = frozenset(config.superusers)
        self._named: dict[Operation, frozenset[str]] = {
            Operation.MONITOR: frozenset(config.monitor_roles),
            Operation.REPLICATE: frozenset(config.replicate_roles),
            Operation.LOOK: frozenset(config.replicate_roles),
        }
        self._resources = resources

    def allowed(self, identity: Identity, operation: Operation, where: Where = None, subscription: str = "") -> bool:
        """Whether a client may do an operation there, with a subscription if it uses one."""
        return not self._refusal(identity, operation, where, subscription)

    def check(self, identity: Identity, operation: Operation, where: Where = None, subscription: str = "") -> None:
        """Refuse what is not allowed.

        Raises:
            BrokerError: AuthorizationError; names the role and what it may not do.
        """
        if what := self._refusal(identity, operation, where, subscription):
            raise BrokerError(ErrorCode.AUTHORIZATION, f"role {identity.shown} may not {what}")

    def _refusal(self, identity: Identity, operation: Operation, where: Where, subscription: str) -> str:
        """Why an operation is refused; "" if it is allowed. A proxy and its original role both have to be allowed."""
        roles = [identity.role, identity.original] if identity.original else [identity.role]
        if not all(self._allowed(role, operation, where) for role in roles):
            if operation is Operation.TENANT and where is not None and not isinstance(where, str):
                where = where.tenant
            return operation.value if where is None else f"{operation.value} {where}"
        if subscription and operation is Operation.CONSUME and isinstance(where, TopicName):
            namespace = where.namespace_name
            # A proxy does not read itself: subscriptions belong to its original role.
            role = identity.original or identity.role
            if not self._allowed(role, Operation.ADMIN, where):
                return self._held_up(role, namespace, subscription)
        return ""

    def _held_up(self, role: str, namespace: NamespaceName, subscription: str) -> str:
        """Why a role that may consume may not do it by this subscription; "" when it may."""
        users = self._resources.permissions.users_of(SubscriptionScope(namespace, subscription))
        if users and role not in users:
            return f"use subscription {subscription} of {namespace}, which is reserved for other roles"
        prefixed = self._resources.shared_policies(namespace).subscription_auth_mode == "Prefix"
        if prefixed and not subscription.startswith(role):
            return f"use subscription {subscription} of {namespace}: there its name has to begin with the role's"
        return ""

    def links_at_all(self, identity: Identity) -> bool:
        """Whether a client may be a link, for any namespace."""
        return self.allowed(identity, Operation.REPLICATE) or self._resources.permissions.anywhere(
            identity.role, Action.REPLICATE
        )

    def visible(self, identity: Identity, topics: list[str]) -> list[str]:
        """The topics that a client may look up."""
        return [topic for topic in topics if self.allowed(identity, Operation.LOOK, TopicName.parse(topic))]

    def _allowed(self, role: str, operation: Operation, where: Where) -> bool:
        if role in self._superusers or operation is Operation.IDENTIFIED:
            return True
        if role in self._named.get(operation, frozenset()):
            return True
        if operation in OF_TENANT and where is not None and role in self._admins(where):
            return True
        needed = NEEDED.get(operation)
        if needed is None or where is None or isinstance(where, str):
            return False
        return bool(needed & self._resources.permissions.actions(role, where))

    def _admins(self, where: str | NamespaceName | TopicName) -> list[str]:
        tenant = where if isinstance(where, str) else where.tenant
        try:
            return self._resources.tenant(tenant).admin_roles
        except NotFound:
            return []
