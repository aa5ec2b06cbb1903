"""Cases of the table-made routes: each policy's success on both levels, and each refusal; with values that are not possible."""

from typing import Any, Literal, get_origin

import msgspec

from magnetar.admin.unsupported.not_built import WHOLE_RANGE
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.policies.table import TABLE, Policy
from magnetar.metadata.policies.types import DispatchRate, SubscriptionPolicies
from tests.web.conftest import World

A, G = "/admin/v2", "/geo/v1"
TOPICS = f"{A}/persistent/public/default"
FULL = "persistent://public/default/all-set"
BAD = "a%20b"

VALUES: dict[str, Any] = {
    "replication-clusters": ["us-east", "us-west"],
    "allowed-clusters": ["us-east", "us-west"],
    "idempotency": {"property": "k", "windowSeconds": 60, "keysMax": 1000, "enabled": True},
    "retention": {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1},
    "ttl": 60,
    "schema-strategy": "BACKWARD",
    "schema-validation": True,
    "encryption-required": True,
    "auto-topic-creation": {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
    "auto-subscription-creation": {"allowAutoSubscriptionCreation": False},
    "subscription-types": ["Shared", "Key_Shared"],
    "schema-auto-update-over-links": True,
    "publish-rate": {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1},
    "dispatch-rate": {"dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": 1000, "ratePeriodInSecond": 2},
    "subscription-dispatch-rate": {"dispatchThrottlingRateInMsg": 10, "relativeToPublishRate": True},
    "replicator-dispatch-rate": {"dispatchThrottlingRateInMsg": 10},
    "subscribe-rate": {"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30},
    "delayed-delivery": {"active": False, "tickTime": 1000},
    "persistence": {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2},
    "inactive-topics": {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 60,
        "deleteWhileInactive": True,
    },
}
IMPOSSIBLE: dict[str, list[Any]] = {
    "replication-clusters": [[]],
    "allowed-clusters": [[]],
    "deduplication-interval": [],
    "idempotency": [],
    "retention": [
        {"retentionTimeInMinutes": 5, "retentionSizeInMB": 0},
        {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1},
    ],
    "auto-topic-creation": [
        {"allowAutoTopicCreation": True, "topicType": "partitioned"},
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 0},
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 10**6},
        {"allowAutoTopicCreation": True, "topicType": "non-partitioned", "defaultNumPartitions": 3},
    ],
    "auto-subscription-creation": [],
    "subscription-types": [],
    "publish-rate": [{"publishThrottlingRateInMsg": -2}, {"publishThrottlingRateInByte": -(2**63)}],
    "dispatch-rate": [
        {"dispatchThrottlingRateInMsg": -2},
        {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 0},
    ],
    "subscription-dispatch-rate": [{"dispatchThrottlingRateInByte": -2}],
    "replicator-dispatch-rate": [{"dispatchThrottlingRateInByte": -2}],
    "subscribe-rate": [{"subscribeThrottlingRatePerConsumer": -2}, {"ratePeriodInSecond": 0}],
    "persistence": [],
    "delayed-delivery": [{"tickTime": -1}, {"maxDeliveryDelayInMillis": 2**62}],
    "inactive-topics": [{"maxInactiveDurationSeconds": 0}],
    "compaction-delete-retention": [-2, -(2**31), 2**40],
}
WRONG = {
    "deduplication-interval": "-1",
    "idempotency": '{"windowSeconds": 0}',
    "auto-topic-creation": "{}",
    "subscription-types": '["Some"]',
    "replication-clusters": "7",
    "allowed-clusters": "7",
}
"""Bodies that are no value of the type at all."""


def plain(policy: Policy, level: Literal["namespace", "topic"]) -> bool:
    """Whether the cases below fit: the routes are all made from the row."""
    return bool(getattr(policy, level) and not policy.by_hand)


def value(policy: Policy) -> Any:
    """A possible value."""
    other = policy.kind.__args__[0] if get_origin(policy.kind) is Literal else True if policy.kind is bool else 7
    return VALUES.get(policy.name, other)


def impossible(policy: Policy) -> list[Any]:
    """Values of the type that are refused."""
    of_numbers = get_origin(policy.kind) is not Literal and policy.kind is not bool
    return IMPOSSIBLE.get(policy.name, [-1, -(2**31)] if of_numbers else [])


def json(something: Any) -> str:
    """As a body."""
    return msgspec.json.encode(something).decode()


Case = tuple[str, str, str | None, int]


def _of_namespaces(policy: Policy) -> list[Case]:
    root, path, method = f"{G if policy.own else A}/namespaces", policy.namespace_path, policy.namespace_method
    good, wrong = json(value(policy)), WRONG.get(policy.name, '"seven"')
    answered = policy.namespace_unset is not None or policy.always_applied
    here = f"{root}/public/default/{path}"
    cases = [
        ("GET", here, None, 200 if answered else 204),
        ("GET", f"{root}/acme/all/{path}", None, 200),
        (method, here, good, 204),
        (method, here, wrong, 400),
        *((method, here, none, 204 if policy.namespace_nullable else 400) for none in (None, "null")),
        *((method, here, json(each), 412) for each in impossible(policy)),
        (method, f"{root}/public/missing/{path}", good, 404),
        (method, f"{root}/public/{BAD}/{path}", good, 412),
    ]
    if policy.removable:
        cases += [("DELETE", f"{root}/{one}/{path}", None, 204) for one in ("acme/all", "public/default")]
    for other in ("GET", "DELETE") if policy.removable else ("GET",):
        cases += [(other, f"{root}/public/missing/{path}", None, 404), (other, f"{root}/x/{BAD}/{path}", None, 412)]
    return cases


def _absent(base: str, path: str, *methods: str) -> list[Case]:
    """Of a topic that does not exist, and of none."""
    return [(method, f"{base}/{topic}/{path}", None, code) for method in methods for topic, code in ABSENT]


def _of_topics(policy: Policy, base: str) -> list[Case]:
    """The same for both domains: what a topic that stores nothing does not follow can be set and taken back."""
    path, method = policy.topic_path, policy.topic_method
    good, wrong = json(value(policy)), WRONG.get(policy.name, '"seven"')
    unset = 200 if policy.topic_unset is not None else 204
    cases = [
        *(("GET", f"{base}/{topic}/{path}", None, unset) for topic in ("t", "many")),
        ("GET", f"{base}/all-set/{path}?isGlobal=true", None, 200),
        ("GET", f"{base}/t/{path}?applied=maybe", None, 400),
        *((method, f"{base}/{topic}/{path}", good, 204) for topic in ("t", "many")),
        (method, f"{base}/t/{path}", wrong, 400),
        *((method, f"{base}/t/{path}", json(each), 412) for each in impossible(policy)),
        *((method, f"{base}/{topic}/{path}", good, code) for topic, code in ABSENT),
        *(("DELETE", f"{base}/{topic}/{path}", None, 204) for topic in ("all-set", "t", "many")),
        *_absent(base, path, "GET", "DELETE"),
    ]
    nullable = policy.topic_nullable and base != LOST  # in a group of its own alone
    return [*cases, (method, f"{base}/t/{path}", "null", 204)] if nullable else cases


ABSENT = (("missing", 404), ("a%5Cb", 412))
LOST = f"{A}/non-persistent/public/default"


def _by_hand(base: str) -> list[Case]:
    """Of a topic of either domain, what is not made from a row."""
    quota, elsewhere = f"{base}/t/backlogQuota", base.removesuffix("/public/default")
    return [
        ("GET", f"{quota}Map", None, 200),
        ("GET", f"{quota}Map?applied=true", None, 200),
        *_absent(base, "backlogQuotaMap", "GET"),
        ("POST", quota, '{"limitSize": 1000, "policy": "consumer_backlog_eviction"}', 204),
        ("POST", f"{quota}?backlogQuotaType=message_age", '{"limitTime": 60}', 204),
        ("POST", f"{quota}?backlogQuotaType=other", "{}", 400),
        ("POST", f"{base}/missing/backlogQuota", "{}", 404),
        ("POST", quota, '{"limitSize": -2}', 412),
        ("DELETE", quota, None, 204),
        ("DELETE", f"{base}/all-set/backlogQuota", None, 204),
        ("DELETE", f"{quota}?backlogQuotaType=other", None, 400),
        *(("DELETE", f"{base}/{topic}/policies", None, 204) for topic in ("t", "all-set")),
        *(case for path in ("backlogQuota", "policies") for case in _absent(base, path, "DELETE")),
        ("POST", f"{base}/t/replication", '["us-west", "nowhere"]', 403),
        ("POST", f"{elsewhere}/acme/narrow/t/replication", '["us-west", "us-east"]', 400),
        ("POST", f"{elsewhere}/acme/peers/t/replication", '["us-west", "us-east"]', 409),
    ]


OF_LOST = [policy for policy in TABLE if policy.topic and not policy.own_topic and not policy.kind_query]

CASES: list[Case] = [
    *(case for policy in TABLE if plain(policy, "namespace") for case in _of_namespaces(policy)),
    *(
        case
        for policy in TABLE
        if plain(policy, "topic")
        for case in _of_topics(policy, f"{G if policy.own_topic else A}/persistent/public/default")
    ),
    *(case for policy in OF_LOST for case in _of_topics(policy, LOST)),
    *_by_hand(TOPICS),
    *_by_hand(LOST),
    *(
        (
            "POST",
            path,
            json({"bookkeeperEnsemble": most, "bookkeeperWriteQuorum": write, "bookkeeperAckQuorum": 2}),
            400,
        )
        for path in (f"{A}/namespaces/public/default/persistence", f"{TOPICS}/t/persistence")
        for most, write in ((2, 5), (2, 1), (6, 2), (2, 0))
    ),
    ("POST", f"{TOPICS}/t/persistence", '{"managedLedgerMaxMarkDeleteRate": -1}', 400),
    ("POST", f"{TOPICS}/t/messageTTL?messageTTL=60", None, 204),
    ("POST", f"{TOPICS}/t/messageTTL?messageTTL=-5", None, 412),
    ("POST", f"{TOPICS}/t/messageTTL?messageTTL=soon", None, 400),
    ("POST", f"{TOPICS}/t/messageTTL", None, 400),
    # a subscription's own rate
    *(
        case
        for base in (TOPICS, LOST)
        for path in ("s/dispatchRate", "subscription/s/dispatchRate")
        for case in (
            ("GET", f"{base}/t/{path}", None, 204),
            ("GET", f"{base}/t/{path}?applied=true", None, 200),
            ("POST", f"{base}/t/{path}", '{"dispatchThrottlingRateInMsg": 5}', 204),
            ("POST", f"{base}/t/{path}", '{"dispatchThrottlingRateInMsg": -5}', 412),
            ("POST", f"{base}/missing/{path}", '{"dispatchThrottlingRateInMsg": 5}', 404),
            ("DELETE", f"{base}/t/{path}", None, 204),
            *_absent(base, path, "GET", "DELETE"),
        )
    ),
    *(("GET", f"{LOST}/all-set/{path}", None, 200) for path in ("s/dispatchRate", "subscription/s/dispatchRate")),
    # all topics of a namespace
    *(
        (method, f"{A}/namespaces/public/{namespace}/{path}", None, status)
        for method, path, ok in (
            ("GET", "bundles", 200),
            ("GET", f"{WHOLE_RANGE}/topicHashPositions", 200),
            *(
                (method, f"{piece}{path}", 204)
                for piece in ("", f"{WHOLE_RANGE}/")
                for method, path in (
                    ("PUT", "unload"),
                    ("POST", "clearBacklog"),
                    ("POST", "clearBacklog/s"),
                    ("POST", "unsubscribe/s"),
                )
            ),
        )
        for namespace, status in (("default", ok), ("missing", 404), (BAD, 412))
    ),
    ("POST", f"{A}/namespaces/public/default/unsubscribe/busy", None, 412),
]


def prepare(world: World) -> None:
    """A namespace `acme/all` and a topic `all-set` that have every policy, without a request for each."""
    resources, name = world.resources, NamespaceName("acme", "all")
    both = {policy: msgspec.convert(value(policy), policy.kind) for policy in TABLE if plain(policy, "namespace")}
    shared = {policy.namespace: set_to for policy, set_to in both.items()}
    world.apply(resources.create_namespace(name, resources.policies(NamespaceName("acme", "ns"))))
    world.apply(resources.change_policies(name, **shared))
    for topic in (FULL, "persistent://acme/narrow/t", "persistent://acme/peers/t"):
        world.create(topic)
    own = {policy.topic: msgspec.convert(value(policy), policy.kind) for policy in TABLE if plain(policy, "topic")}
    world.apply(resources.change_topic_policies(TopicName.parse(FULL), **own))
    own |= {policy.topic: msgspec.convert(value(policy), policy.kind) for policy in OF_LOST}
    own["subscription_policies"] = {"s": SubscriptionPolicies(DispatchRate(5))}
    world.apply(resources.change_topic_policies(TopicName.parse(f"non-{FULL}"), **own))


def revive(world: World) -> None:
    """Topics that store nothing are there again."""
    for topic in (FULL, "persistent://acme/narrow/t", "persistent://acme/peers/t"):
        world.create(f"non-{topic}")
