"""What a new namespace is told: everything of Pulsar's Policies is taken, refused with a reason, or means nothing at all."""

import json
from typing import Any

import pytest
from aiohttp import web

from tests.web.conftest import Tell, World

A = "/admin/v2"
NEW = f"{A}/namespaces/public/new"

JAVA: dict[str, Any] = {
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "replication_clusters": [],
    "allowed_clusters": [],
    "backlog_quota_map": {},
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "publishMaxMessageRate": {},
    "latency_stats_sample_rate": {},
    "deleted": False,
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "is_allow_auto_update_schema_with_replicator": True,
    "schema_validation_enforced": False,
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
}
"""What `pulsar-admin namespaces create` of Pulsar 4 sends."""

GO: dict[str, Any] = dict.fromkeys(
    ("bundles", "persistence", "retention_policies", "deduplicationEnabled", "message_ttl_in_seconds",
     "max_producers_per_topic", "compaction_threshold", "offload_deletion_lag_ms", "replication_clusters",
     "latency_stats_sample_rate", "backlog_quota_map", "topicDispatchRate", "subscriptionDispatchRate",
     "replicatorDispatchRate", "publishMaxMessageRate", "clusterSubscribeRate", "autoTopicCreationOverride",
     "is_allow_auto_update_schema")
) | {
    "schema_validation_enforced": False,
    "deleted": False,
    "encryption_required": False,
    "offload_threshold": 0,
    "antiAffinityGroup": "",
    "schema_auto_update_compatibility_strategy": "",
    "schema_compatibility_strategy": "",
    "auth_policies": {"namespace_auth": None, "destination_auth": None, "subscription_auth_roles": None},
    "subscription_auth_mode": "",
}  # fmt: skip
"""What `CreateNamespace` of the official Go client sends: zero values."""


@pytest.mark.parametrize("body", [JAVA, GO, GO | {"bundles": {"boundaries": None, "numBundles": 8}}])
def test_what_tools_send_that_name_every_field(tell: Tell, body: dict[str, Any]) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", NEW, json.dumps(body)))
        shown = (await world.ask("GET", NEW)).json
        assert shown["replication_clusters"] == ["us-west"]
        assert not shown.keys() & {"publish_rate", "message_ttl_in_seconds"}
        assert shown["schema_compatibility_strategy"] == "UNDEFINED"

    tell(story)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("replicatorDispatchRate", {"other": {"dispatchThrottlingRateInMsg": 5}}, "has to name us-west"),
        ("clusterSubscribeRate", {"other": {"subscribeThrottlingRatePerConsumer": 5}}, "has to name us-west"),
        ("clusterSubscribeRate", {"us-west": {"ratePeriodInSecond": 0}}, "ratePeriodInSecond"),
        ("autoTopicCreationOverride", {"allowAutoTopicCreation": True, "topicType": "partitioned"}, "cannot be null"),
        ("scalableTopicAutoScalePolicy", {"enabled": True}, "partitions"),
        ("subscription_expiration_time_minutes", -5, "subscription expiration time"),
        ("offload_threshold", 1_000, "tiered storage"),
        ("offload_threshold_in_seconds", 60, "tiered storage"),
        ("offload_deletion_lag_ms", 60, "tiered storage"),
        ("offload_policies", {"managedLedgerOffloadDriver": "aws-s3"}, "tiered storage"),
        ("allowed_topic_property_keys_for_metrics", ["team"], "labels"),
        ("resource_group_name", "group", "no groups"),
        ("migrated", True, "by links"),
        ("dispatcherPauseOnAckStatePersistentEnabled", True, "max-unacked"),
        ("entryFilters", {"entryFilterNames": "mine"}, "no code of their users"),
        ("publishMaxMessageRate", {"elsewhere": {"publishThrottlingRateInMsg": 5}}, "has to name us-west"),
        ("topicDispatchRate", {"us-west": {"ratePeriodInSecond": 0}}, "ratePeriodInSecond"),
        ("auth_policies", {"destination_auth": {"persistent://public/other/t": {"me": ["produce"]}}}, "not one of"),
        ("auth_policies", {"destination_auth": {"t": {"me": ["produce"]}}}, "not one of"),
        ("auth_policies", {"namespace_auth": {"me": []}}, "at least one"),
        ("auth_policies", {"namespace_auth": {" me": ["produce"]}}, "role"),
        ("auth_policies", {"subscription_auth_roles": {"pulsar.repl.x": ["me"]}}, "pulsar.repl"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(tell: Tell, key: str, value: Any, why: str) -> None:
    async def story(world: World) -> None:
        answer = await world.ask("PUT", NEW, json.dumps({key: value}))
        assert (answer.status, why in answer.reason) == (412, True), answer.data
        assert (await world.ask("GET", NEW)).status == 404

    tell(story)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("replicatorDispatchRate", {"other": {"dispatchThrottlingRateInMsg": -1, "ratePeriodInSecond": 1}}),
        ("clusterSubscribeRate", {"other": {"subscribeThrottlingRatePerConsumer": -1, "ratePeriodInSecond": 30}}),
        ("autoSubscriptionCreationOverride", {"allowAutoSubscriptionCreation": True}),
        ("subscription_types_enabled", ["Key_Shared", "Shared", "Failover", "Exclusive"]),
        ("entryFilters", {"entryFilterNames": ""}),
        ("subscription_expiration_time_minutes", 0),
        ("latency_stats_sample_rate", {"x": 1}),
        ("unknownKey", 1),
        ("persistence", {"bookkeeperEnsemble": 0, "bookkeeperWriteQuorum": 0, "bookkeeperAckQuorum": 0}),
    ],
)
def test_what_stands_at_its_default_is_no_fault(tell: Tell, key: str, value: Any) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", NEW, json.dumps({key: value})))

    tell(story)


RATE = {
    "dispatchThrottlingRateInMsg": 5,
    "dispatchThrottlingRateInByte": -1,
    "ratePeriodInSecond": 2,
    "relativeToPublishRate": False,
}
PUBLISH = {"publishThrottlingRateInMsg": 7, "publishThrottlingRateInByte": 9}


def test_what_has_a_meaning_is_taken_and_shown_under_pulsars_names(tell: Tell) -> None:
    wanted = {
        "topicDispatchRate": {"us-west": RATE},
        "subscriptionDispatchRate": {"us-west": RATE, "us-east": RATE},
        "publishMaxMessageRate": {"us-west": PUBLISH},
        "backlog_quota_map": {"destination_storage": {"limit": 1_000, "policy": "producer_exception"}},
        "schema_auto_update_compatibility_strategy": "ForwardTransitive",
        "persistence": {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2},
        "auth_policies": {
            "namespace_auth": {"app": ["consume", "produce"]},
            "destination_auth": {"persistent://public/new/t": {"other": ["produce"]}},
            "subscription_auth_roles": {"billing": ["app", "clerk"]},
        },
    }

    async def story(world: World) -> None:
        await world.have(("PUT", NEW, json.dumps(wanted)))
        assert (await world.ask("GET", f"{NEW}/dispatchRate")).json == RATE
        assert (await world.ask("GET", f"{NEW}/subscriptionDispatchRate")).json == RATE
        assert (await world.ask("GET", f"{NEW}/publishRate")).json == PUBLISH
        assert (await world.ask("GET", f"{NEW}/schemaCompatibilityStrategy")).json == "FORWARD_TRANSITIVE"
        assert (await world.ask("GET", f"{NEW}/persistence")).json == wanted["persistence"] | {
            "managedLedgerMaxMarkDeleteRate": 0.0
        }
        quota = (await world.ask("GET", f"{NEW}/backlogQuotaMap")).json["destination_storage"]
        assert (quota["limitSize"], quota["policy"]) == (1_000, "producer_exception")
        assert (await world.ask("GET", f"{NEW}/permissions")).json == {"app": ["consume", "produce"]}
        there = f"{A}/persistent/public/new/t/permissions"
        assert (await world.ask("GET", there)).json == {"app": ["consume", "produce"], "other": ["produce"]}
        assert (await world.ask("GET", f"{NEW}/permissions/subscription")).json == {"billing": ["app", "clerk"]}
        shown = (await world.ask("GET", NEW)).json
        assert shown["auth_policies"] == wanted["auth_policies"]
        assert shown["topicDispatchRate"] == shown["subscriptionDispatchRate"] == {"us-west": RATE}
        assert shown["publishMaxMessageRate"] == {"us-west": PUBLISH}
        # What is shown makes the same namespace again.
        await world.have(("DELETE", NEW, None), ("PUT", NEW, json.dumps(shown)))
        assert (await world.ask("GET", NEW)).json == shown
        await world.have(("DELETE", NEW, None))
        answer = await world.ask("PUT", NEW, json.dumps(shown | {"publish_rate": {}}))
        assert (answer.status, "different rates" in answer.reason) == (412, True)

    tell(story)


class Doorkeeper:
    """Lets everybody in, and takes nobody for a superuser."""

    def check(self, request: web.Request, route: object) -> None: ...

    def superuser(self, request: web.Request) -> bool:
        return False

    def middleware(self) -> Any:
        @web.middleware
        async def middleware(request: web.Request, handler: Any) -> Any:
            return await handler(request)

        return middleware


def test_only_a_superuser_lets_links_in(tell: Tell) -> None:
    async def story(world: World) -> None:
        for place in ({"namespace_auth": {}}, {"destination_auth": {"persistent://public/new/t": {}}}):
            for actions, status in ((["replicate"], 403), (["produce", "admin"], 204)):
                body = json.loads(json.dumps(place).replace("{}", json.dumps({"link": actions})))
                assert (await world.ask("PUT", NEW, json.dumps({"auth_policies": body}))).status == status
            await world.have(("DELETE", NEW, None))

    tell(story, gate=Doorkeeper())


def test_all_keys_that_pulsars_policies_have_are_there(tell: Tell) -> None:
    """Tools reach into them without looking. What links may bring follows another policy here until somebody sets it."""
    of_new = {key: value for key, value in JAVA.items() if key != "is_allow_auto_update_schema_with_replicator"}

    async def story(world: World) -> None:
        await world.have(("PUT", NEW, None))
        shown = (await world.ask("GET", NEW)).json
        assert shown.items() >= (of_new | {"replication_clusters": ["us-west"]}).items()
        assert shown["bundles"] == {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
        await world.have(("DELETE", NEW, None), ("PUT", NEW, json.dumps(shown)))
        assert (await world.ask("GET", NEW)).json == shown
        await world.have(
            ("POST", f"{NEW}/encryptionRequired", "true"), ("POST", f"{NEW}/subscriptionAuthMode", '"Prefix"')
        )
        shown = (await world.ask("GET", NEW)).json
        assert (shown["encryption_required"], shown["subscription_auth_mode"]) == (True, "Prefix")

    tell(story)
