"""The table of `broker.security.authorization`, cell by cell, written down anew from its text."""

import pytest

from magnetar.broker.security.authorization import Authorizer, Operation
from magnetar.broker.security.credentials import Identity
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.security import AuthorizationConfig
from magnetar.metadata.change import Change
from magnetar.metadata.errors import NotFound, PreconditionFailed
from magnetar.metadata.keys import tenant_key
from magnetar.metadata.permissions import (
    ROLES_PER_SCOPE_MAX,
    SUBSCRIPTIONS_PER_NAMESPACE_MAX,
    Action,
    SubscriptionScope,
    grant,
    reserve,
    revoke,
)
from magnetar.metadata.policies.namespace import ClusterData, Policies, TenantInfo
from magnetar.metadata.resources import Resources

ORDERS = NamespaceName("shop", "orders")
BILLS = NamespaceName("shop", "bills")
TOPIC = TopicName.parse("persistent://shop/orders/new")
PARTITION = TopicName.parse("persistent://shop/orders/new-partition-3")
OTHER = TopicName.parse("persistent://shop/orders/old")
ALL = list(Operation)


def world() -> Resources:
    made = Resources("here")
    made.apply(made.create_cluster("here", ClusterData()))
    made.apply(made.create_tenant("shop", TenantInfo(["boss"], ["here"])))
    made.apply(made.create_tenant("bank", TenantInfo(["banker"], ["here"])))
    for namespace in (ORDERS, BILLS):
        made.apply(made.create_namespace(namespace, Policies()))
    for place, role, actions in (
        (ORDERS, "producer", [Action.PRODUCE]),
        (ORDERS, "consumer", [Action.CONSUME]),
        (ORDERS, "link", [Action.REPLICATE]),
        (TOPIC, "narrow", [Action.PRODUCE, Action.CONSUME]),
        (TOPIC, "consumer", [Action.PRODUCE]),
        (ORDERS, "keeper", [Action.ADMIN]),
        (TOPIC, "owner", [Action.ADMIN]),
        (ORDERS, "worker", [Action.FUNCTIONS, Action.SOURCES, Action.SINKS, Action.PACKAGES]),
    ):
        made.apply(grant(made, place, role, actions))
    return made


def authorizer(resources: Resources | None = None) -> Authorizer:
    config = AuthorizationConfig(superusers=["root"], replicate_roles=["pipeline"], monitor_roles=["monitor"])
    return Authorizer(config, resources or world())


IDENTIFIED, MONITOR, LOOK, PRODUCE = Operation.IDENTIFIED, Operation.MONITOR, Operation.LOOK, Operation.PRODUCE
CONSUME, REPLICATE, TENANT = Operation.CONSUME, Operation.REPLICATE, Operation.TENANT
ADMIN = Operation.ADMIN
NARROW = {IDENTIFIED}

TABLE = {
    "root": (set(ALL), set(ALL), set(ALL)),
    "boss": ({IDENTIFIED, LOOK, PRODUCE, CONSUME, ADMIN, TENANT},) * 3,
    "keeper": ({IDENTIFIED, LOOK, PRODUCE, CONSUME, ADMIN}, {IDENTIFIED, LOOK, PRODUCE, CONSUME, ADMIN}, NARROW),
    "owner": ({IDENTIFIED, LOOK, PRODUCE, CONSUME, ADMIN}, NARROW, NARROW),
    "banker": (NARROW,) * 3,
    "producer": ({IDENTIFIED, LOOK, PRODUCE}, {IDENTIFIED, LOOK, PRODUCE}, NARROW),
    "consumer": ({IDENTIFIED, LOOK, PRODUCE, CONSUME}, {IDENTIFIED, LOOK, CONSUME}, NARROW),
    "narrow": ({IDENTIFIED, LOOK, PRODUCE, CONSUME}, NARROW, NARROW),
    "worker": ({IDENTIFIED},) * 3,
    "link": ({IDENTIFIED, LOOK, REPLICATE}, {IDENTIFIED, LOOK, REPLICATE}, NARROW),
    "pipeline": ({IDENTIFIED, LOOK, REPLICATE},) * 3,
    "monitor": ({IDENTIFIED, MONITOR},) * 3,
    "stranger": (NARROW,) * 3,
    "": (NARROW,) * 3,
}
"""Role -> what it may do with: the topic, the namespace of it, another namespace of its tenant."""


@pytest.mark.parametrize("role", TABLE)
def test_every_role_and_operation(role: str) -> None:
    it = authorizer()
    for place, expected in zip((TOPIC, ORDERS, BILLS), TABLE[role], strict=True):
        assert {operation for operation in ALL if it.allowed(Identity(role, "token"), operation, place)} == expected


def test_a_partition_has_the_permissions_of_its_topic() -> None:
    it = authorizer()
    assert it.allowed(Identity("narrow", "token"), PRODUCE, PARTITION)
    assert not it.allowed(Identity("narrow", "token"), PRODUCE, OTHER)


def test_a_tenant_alone_and_nothing_in_particular() -> None:
    it = authorizer()
    assert it.allowed(Identity("boss", "token"), TENANT, "shop")
    assert not it.allowed(Identity("boss", "token"), TENANT, "bank")
    assert not it.allowed(Identity("boss", "token"), TENANT, "nowhere")
    for role in ("boss", "producer", "link"):
        for operation in ALL:
            assert it.allowed(Identity(role, "token"), operation) is (operation is IDENTIFIED), (role, operation)


def may_use(it: Authorizer, subscription: str, topic: TopicName = TOPIC) -> list[str]:
    return [role for role in TABLE if it.allowed(Identity(role, "token"), CONSUME, topic, subscription)]


def test_a_reserved_subscription_is_for_its_roles_alone() -> None:
    made = world()
    it = authorizer(made)
    everybody = ["root", "boss", "keeper", "owner", "consumer", "narrow"]
    assert may_use(it, "billing") == everybody
    place = SubscriptionScope(ORDERS, "billing")
    made.apply(reserve(made, place, ["narrow", "producer"]))
    assert may_use(it, "billing") == ["root", "boss", "keeper", "owner", "narrow"], "a producer may not by being named"
    made.apply(reserve(made, place, ["producer"]))
    assert may_use(it, "billing") == ["root", "boss", "keeper", "owner"]
    assert may_use(it, "billing", OTHER) == ["root", "boss", "keeper"]
    assert may_use(it, "other") == everybody
    with pytest.raises(BrokerError, match="may not use subscription billing of shop/orders, which is reserved"):
        it.check(Identity("narrow", "token"), CONSUME, TOPIC, "billing")
    assert not it.allowed(Identity("root", "token", None, "narrow"), CONSUME, TOPIC, "billing"), "for whom it speaks"
    assert made.permissions.subscriptions_of(ORDERS) == {"billing": ["producer"]}
    made.apply(revoke(made, place, "producer"))
    assert may_use(it, "billing") == everybody and made.permissions.subscriptions_of(ORDERS) == {}


def test_subscriptions_named_after_roles() -> None:
    made = world()
    it = authorizer(made)
    made.apply(made.change_policies(ORDERS, subscription_auth_mode="Prefix"))
    assert may_use(it, "narrow-billing") == ["root", "boss", "keeper", "owner", "narrow"]
    assert may_use(it, "billing") == ["root", "boss", "keeper", "owner"]
    made.apply(made.change_policies(ORDERS, subscription_auth_mode=None))
    assert "narrow" in may_use(it, "billing")


def test_reservations_that_cannot_be() -> None:
    made = world()
    place = SubscriptionScope(ORDERS, "a/b %")
    made.apply(reserve(made, place, ["one", "two"]))
    made.apply(reserve(made, place, ["two", "three"]))
    assert made.permissions.subscriptions_of(ORDERS) == {"a/b %": ["three", "two"]}
    with pytest.raises(PreconditionFailed):
        reserve(made, place, ["good", " bad"])
    with pytest.raises(PreconditionFailed, match="too many"):
        reserve(made, place, [f"r{number}" for number in range(ROLES_PER_SCOPE_MAX + 1)])
    with pytest.raises(NotFound):
        reserve(made, SubscriptionScope(NamespaceName("shop", "missing"), "s"), ["a"])
    for number in range(SUBSCRIPTIONS_PER_NAMESPACE_MAX - 1):
        made.apply(Change(puts={f"permissions/subscriptions/shop/orders/s{number}/a": b'["consume"]'}))
    with pytest.raises(PreconditionFailed, match="the most allowed"):
        reserve(made, SubscriptionScope(ORDERS, "one-more"), ["a"])
    made.apply(reserve(made, place, ["a"]))
    made.apply(made.delete_namespace(ORDERS, []))
    assert made.permissions.subscriptions_of(ORDERS) == {}


def test_a_proxy_and_whom_it_speaks_for_both_need_it() -> None:
    it = authorizer()
    for role, original, may in (
        ("producer", "boss", True),
        ("producer", "consumer", False),
        ("consumer", "boss", False),
    ):
        assert it.allowed(Identity(role, "token", None, original), PRODUCE, ORDERS) is may
    with pytest.raises(BrokerError, match="role consumer for boss may not produce to shop/orders") as caught:
        it.check(Identity("consumer", "token", None, "boss"), PRODUCE, ORDERS)
    assert caught.value.code is ErrorCode.AUTHORIZATION


def test_what_a_role_may_see_of_a_list() -> None:
    it = authorizer()
    assert it.visible(Identity("narrow", "token"), [str(TOPIC), str(PARTITION), str(OTHER)]) == [
        str(TOPIC),
        str(PARTITION),
    ]


def test_links_for_one_namespace_or_all() -> None:
    it = authorizer()
    assert [role for role in TABLE if it.links_at_all(Identity(role, "token"))] == ["root", "link", "pipeline"]


def test_permissions_are_stored_by_role_and_come_back() -> None:
    before = world()
    stored: dict[str, bytes] = {}
    for place, role in ((ORDERS, "cn=a/b, o=c"), (TOPIC, "ü%/x")):
        change = grant(before, place, role, [Action.PRODUCE])
        before.apply(change)
        stored |= change.puts
    for key, value in before.permissions._scopes.items():
        assert key.startswith("permissions/") and value
    after = world()
    for key, data in stored.items():
        after.apply(Change(puts={key: data}))
    assert after.permissions.of(ORDERS) == before.permissions.of(ORDERS)
    assert "cn=a/b, o=c" in after.permissions.of(ORDERS) and "ü%/x" in after.permissions.of(TOPIC)
    before.apply(revoke(before, ORDERS, "cn=a/b, o=c"))
    for role in list(before.permissions.of(TOPIC)):
        before.apply(revoke(before, TOPIC, role))
    assert "cn=a/b, o=c" not in before.permissions.of(ORDERS) and not before.permissions.of(TOPIC)


def test_permissions_that_cannot_be() -> None:
    it = world()
    for role in ("", " a", "a\n", "x" * 513):
        with pytest.raises(PreconditionFailed):
            grant(it, ORDERS, role, [Action.PRODUCE])
    with pytest.raises(PreconditionFailed, match="at least one"):
        grant(it, ORDERS, "a", [])
    with pytest.raises(NotFound):
        grant(it, NamespaceName("shop", "missing"), "a", [Action.PRODUCE])
    for number in range(ROLES_PER_SCOPE_MAX):
        it.apply(grant(it, BILLS, f"r{number}", [Action.CONSUME]))
    with pytest.raises(PreconditionFailed, match="the most allowed"):
        grant(it, BILLS, "one-more", [Action.CONSUME])
    it.apply(grant(it, BILLS, "r7", [Action.PRODUCE]))


def test_a_namespace_takes_its_permissions_with_it() -> None:
    it = world()
    it.apply(it.delete_namespace(ORDERS, []))
    it.apply(it.create_namespace(ORDERS, Policies()))
    assert not it.permissions.of(ORDERS) and not it.permissions.of(TOPIC)


def test_actions_of_later_versions_allow_nothing() -> None:
    it = world()
    it.apply(Change(puts={"permissions/namespaces/shop/orders/new": b'["produce","teleport"]'}))
    assert it.permissions.of(ORDERS)["new"] == {Action.PRODUCE}


def test_administrators_change_with_the_tenant() -> None:
    it = world()
    change = it.update_tenant("shop", TenantInfo(["deputy"], ["here"]))
    assert tenant_key("shop") in change.puts
    it.apply(change)
    check = authorizer(it)
    assert check.allowed(Identity("deputy", "token"), TENANT, ORDERS)
    assert not check.allowed(Identity("boss", "token"), TENANT, ORDERS)
