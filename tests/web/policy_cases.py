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
    "replication-clusters": ["us-west"],
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
    "retention": [
        {"retentionTimeInMinutes": 5, "retentionSizeInMB": 0},
        {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1},
    ],
    "schema-strategy": [],
    "schema-validation": [],
    "encryption-required": [],
    "auto-topic-creation": [
        {"allowAutoTopicCreation": True, "topicType": "partitioned"},
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 0},
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 10**6},
        {"allowAutoTopicCreation": True, "topicType": "non-partitioned", "defaultNumPartitions": 3},
    ],
    "auto-subscription-creation": [],
    "subscription-types": [],
    "schema-auto-update-over-links": [],
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
    "schema-strategy": '"SIDEWAYS"',
    "schema-validation": '"yes"',
    "encryption-required": '"yes"',
    "auto-topic-creation": "{}",
    "subscription-types": '["Some"]',
    "replication-clusters": "7",
}
"""Bodies that are no value of the type at all."""


def plain(policy: Policy, level: Literal["namespace", "topic"]) -> bool:
    """Whether the cases below fit: the routes are all made from the row, without words of their own."""
    return bool(getattr(policy, level) and not policy.by_hand and getattr(policy, f"{level}_words") is None)


def value(policy: Policy) -> Any:
    """A possible value."""
    other = policy.kind.__args__[0] if get_origin(policy.kind) is Literal else True if policy.kind is bool else 7
    return VALUES.get(policy.name, other)


def impossible(policy: Policy) -> list[Any]:
    """Values of the type that are refused."""
    return IMPOSSIBLE.get(policy.name, [] if get_origin(policy.kind) is Literal else [-1, -(2**31)])


def json(something: Any) -> str:
    """As a body."""
    return msgspec.json.encode(something).decode()


def _cases() -> list[tuple[str, str, str | None, int]]:
    cases: list[tuple[str, str, str | None, int]] = []
    for policy in TABLE:
        good = json(value(policy))
        wrong = WRONG.get(policy.name, '"seven"')
        if plain(policy, "namespace"):
            root = f"{G if policy.own else A}/namespaces"
            path = policy.namespace_path
            cases += [
                ("GET", f"{root}/public/default/{path}", None, 200 if policy.namespace_unset is not None else 204),
                ("GET", f"{root}/acme/all/{path}", None, 200),
                (policy.namespace_method, f"{root}/public/default/{path}", good, 204),
                (policy.namespace_method, f"{root}/public/default/{path}", wrong, 400),
                (policy.namespace_method, f"{root}/public/default/{path}", None, 400),
                (policy.namespace_method, f"{root}/public/missing/{path}", good, 404),
                (policy.namespace_method, f"{root}/public/{BAD}/{path}", good, 412),
                ("DELETE", f"{root}/acme/all/{path}", None, 204),
            ]
            for method in ("GET", "DELETE"):
                cases += [
                    (method, f"{root}/public/missing/{path}", None, 404),
                    (method, f"{root}/x/{BAD}/{path}", None, 412),
                ]
            cases += [
                (policy.namespace_method, f"{root}/public/default/{path}", json(each), 412)
                for each in impossible(policy)
            ]
        if plain(policy, "topic"):
            path, method = policy.topic_path, policy.topic_method
            base = f"{G if policy.own_topic else A}/persistent/public/default"
            cases += [
                ("GET", f"{base}/t/{path}", None, 200 if policy.topic_unset is not None else 204),
                ("GET", f"{base}/all-set/{path}?isGlobal=true", None, 200),
                ("GET", f"{base}/t/{path}?applied=maybe", None, 400),
                (method, f"{base}/many/{path}", good, 204),
                (method, f"{base}/t/{path}", wrong, 400),
                (method, f"{base}/missing/{path}", good, 404),
                (method, f"{base}/a%5Cb/{path}", good, 412),
                ("DELETE", f"{base}/all-set/{path}", None, 204),
            ]
            for other in ("GET", "DELETE"):
                cases += [(other, f"{base}/missing/{path}", None, 404), (other, f"{base}/a%5Cb/{path}", None, 412)]
            cases += [(method, f"{base}/t/{path}", json(each), 412) for each in impossible(policy)]
    return cases


LOST = f"{A}/non-persistent/public/default"


def _lost_cases(path: str, unset: int) -> list[tuple[str, str, str | None, int]]:
    """Of a topic that stores nothing: what it has not can be read and taken back."""
    return [
        ("GET", f"{LOST}/t/{path}", None, unset),
        ("GET", f"{LOST}/missing/{path}", None, 404),
        ("GET", f"{LOST}/a%5Cb/{path}", None, 412),
        ("DELETE", f"{LOST}/t/{path}", None, 204),
        ("DELETE", f"{LOST}/missing/{path}", None, 404),
        ("DELETE", f"{LOST}/a%5Cb/{path}", None, 412),
    ]


OF_LOST = [policy for policy in TABLE if policy.topic and not policy.own_topic and not policy.kind_query]
LOST_CASES = [
    case
    for policy in OF_LOST
    for case in (
        *_lost_cases(policy.topic_path, 200 if policy.topic_unset is not None else 204),
        (policy.topic_method, f"{LOST}/t/{policy.topic_path}", json(value(policy)), 204),
        (policy.topic_method, f"{LOST}/missing/{policy.topic_path}", json(value(policy)), 404),
        (policy.topic_method, f"{LOST}/a%5Cb/{policy.topic_path}", json(value(policy)), 412),
    )
]
LOST_CASES += [
    ("GET", f"{LOST}/all-set/{policy.topic_path}", None, 200) for policy in OF_LOST if policy.topic_unset is None
]
LOST_CASES += [
    ("POST", f"{LOST}/t/backlogQuota", '{"limitSize": 1000, "policy": "consumer_backlog_eviction"}', 204),
    ("POST", f"{LOST}/t/backlogQuota?backlogQuotaType=other", "{}", 400),
    ("POST", f"{LOST}/missing/backlogQuota", "{}", 404),
    ("POST", f"{LOST}/t/backlogQuota", '{"limitSize": -2}', 412),
    ("POST", f"{LOST}/t/replication", '["us-west", "nowhere"]', 403),
    ("POST", f"{A}/non-persistent/acme/narrow/t/replication", '["us-west", "us-east"]', 400),
    ("POST", f"{A}/non-persistent/acme/peers/t/replication", '["us-west", "us-east"]', 409),
]
LOST_CASES += _lost_cases("backlogQuotaMap", 200)[:3] + _lost_cases("backlogQuota", 204)[3:]
LOST_CASES += _lost_cases("policies", 204)[3:]

CASES: list[tuple[str, str, str | None, int]] = [
    *_cases(),
    *LOST_CASES,
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
    ("POST", f"{TOPICS}/t/replication", '["us-west", "nowhere"]', 403),
    ("POST", f"{A}/persistent/acme/narrow/t/replication", '["us-west", "us-east"]', 400),
    ("POST", f"{A}/persistent/acme/peers/t/replication", '["us-west", "us-east"]', 409),
    # backlog quotas of a topic
    ("GET", f"{TOPICS}/t/backlogQuotaMap", None, 200),
    ("GET", f"{TOPICS}/t/backlogQuotaMap?applied=true", None, 200),
    ("GET", f"{TOPICS}/missing/backlogQuotaMap", None, 404),
    ("GET", f"{TOPICS}/a%5Cb/backlogQuotaMap", None, 412),
    ("POST", f"{TOPICS}/t/backlogQuota", '{"limitSize": 1000, "policy": "consumer_backlog_eviction"}', 204),
    ("POST", f"{TOPICS}/t/backlogQuota?backlogQuotaType=message_age", '{"limitTime": 60}', 204),
    ("POST", f"{TOPICS}/t/backlogQuota?backlogQuotaType=other", "{}", 400),
    ("POST", f"{TOPICS}/missing/backlogQuota", "{}", 404),
    ("POST", f"{TOPICS}/t/backlogQuota", '{"limitSize": -2}', 412),
    ("DELETE", f"{TOPICS}/all-set/backlogQuota", None, 204),
    ("DELETE", f"{TOPICS}/t/backlogQuota?backlogQuotaType=other", None, 400),
    ("DELETE", f"{TOPICS}/missing/backlogQuota", None, 404),
    ("DELETE", f"{TOPICS}/a%5Cb/backlogQuota", None, 412),
    ("DELETE", f"{TOPICS}/all-set/policies", None, 204),
    ("DELETE", f"{TOPICS}/missing/policies", None, 404),
    ("DELETE", f"{TOPICS}/a%5Cb/policies", None, 412),
    # a subscription's own rate
    *(
        case
        for path in (f"PLACE/{part}s/dispatchRate" for part in ("", "subscription/"))
        for case in (
            ("GET", f"{TOPICS}/{path}".replace("PLACE", "t"), None, 204),
            ("GET", f"{TOPICS}/{path}?applied=true".replace("PLACE", "t"), None, 200),
            ("GET", f"{LOST}/{path}".replace("PLACE", "t"), None, 204),
            ("GET", f"{LOST}/{path}".replace("PLACE", "all-set"), None, 200),
            ("POST", f"{LOST}/{path}".replace("PLACE", "t"), '{"dispatchThrottlingRateInMsg": 5}', 204),
            ("POST", f"{LOST}/{path}".replace("PLACE", "t"), '{"dispatchThrottlingRateInMsg": -5}', 412),
            ("POST", f"{LOST}/{path}".replace("PLACE", "missing"), '{"dispatchThrottlingRateInMsg": 5}', 404),
            ("POST", f"{TOPICS}/{path}".replace("PLACE", "t"), '{"dispatchThrottlingRateInMsg": 5}', 204),
            ("POST", f"{TOPICS}/{path}".replace("PLACE", "t"), '{"dispatchThrottlingRateInMsg": -5}', 412),
            ("POST", f"{TOPICS}/{path}".replace("PLACE", "missing"), '{"dispatchThrottlingRateInMsg": 5}', 404),
            *(
                (method, f"{root}/{path}".replace("PLACE", topic), None, status)
                for method, root in (("GET", TOPICS), ("GET", LOST), ("DELETE", TOPICS), ("DELETE", LOST))
                for topic, status in (("missing", 404), ("a%5Cb", 412))
            ),
            ("DELETE", f"{TOPICS}/{path}".replace("PLACE", "t"), None, 204),
            ("DELETE", f"{LOST}/{path}".replace("PLACE", "t"), None, 204),
        )
    ),
    # all topics of a namespace
    ("POST", f"{A}/namespaces/public/default/clearBacklog", None, 204),
    ("POST", f"{A}/namespaces/public/missing/clearBacklog", None, 404),
    ("POST", f"{A}/namespaces/public/{BAD}/clearBacklog", None, 412),
    ("POST", f"{A}/namespaces/public/default/clearBacklog/s", None, 204),
    ("POST", f"{A}/namespaces/public/missing/clearBacklog/s", None, 404),
    ("POST", f"{A}/namespaces/public/{BAD}/clearBacklog/s", None, 412),
    ("POST", f"{A}/namespaces/public/default/unsubscribe/s", None, 204),
    ("POST", f"{A}/namespaces/public/missing/unsubscribe/s", None, 404),
    ("POST", f"{A}/namespaces/public/default/unsubscribe/busy", None, 412),
    *(
        (method, f"{A}/namespaces/public/{namespace}/{path}", None, status)
        for method, path, ok in (
            ("PUT", f"{WHOLE_RANGE}/unload", 204),
            ("GET", "bundles", 200),
            ("GET", f"{WHOLE_RANGE}/topicHashPositions", 200),
            ("POST", f"{WHOLE_RANGE}/clearBacklog", 204),
            ("POST", f"{WHOLE_RANGE}/clearBacklog/s", 204),
            ("POST", f"{WHOLE_RANGE}/unsubscribe/s", 204),
        )
        for namespace, status in (("default", ok), ("missing", 404), (BAD, 412))
    ),
    ("PUT", f"{A}/namespaces/public/default/unload", None, 204),
    ("PUT", f"{A}/namespaces/public/missing/unload", None, 404),
    ("PUT", f"{A}/namespaces/public/{BAD}/unload", None, 412),
]


def prepare(world: World) -> None:
    """A namespace `acme/all` and a topic `all-set` that have every policy, without a request for each."""
    resources, control = world.resources, world.control
    both = {policy: msgspec.convert(value(policy), policy.kind) for policy in TABLE if plain(policy, "namespace")}
    shared = {policy.namespace: set_to for policy, set_to in both.items()}
    resources.apply(
        resources.create_namespace(NamespaceName("acme", "all"), resources.policies(NamespaceName("acme", "ns")))
    )
    resources.apply(resources.change_policies(NamespaceName("acme", "all"), **shared))
    own = {policy.topic: msgspec.convert(value(policy), policy.kind) for policy in TABLE if plain(policy, "topic")}
    from tests.web.fake_control import FakeTopic

    control.existing[FULL] = FakeTopic()
    control.existing[f"non-{FULL}"] = FakeTopic()
    for namespace in ("narrow", "peers"):
        for domain in ("persistent", "non-persistent"):
            control.existing[f"{domain}://acme/{namespace}/t"] = FakeTopic()
    resources.apply(resources.change_topic_policies(TopicName.parse(FULL), **own))
    own |= {policy.topic: msgspec.convert(value(policy), policy.kind) for policy in OF_LOST}
    own["subscription_policies"] = {"s": SubscriptionPolicies(DispatchRate(5))}
    resources.apply(resources.change_topic_policies(TopicName.parse(f"non-{FULL}"), **own))
