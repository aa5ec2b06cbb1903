"""What Pulsar's tools ask for, path by path: there, or 501 with a reason of its own in the one error shape; never "nothing here".

The first list is what tools use most (docs/design/pulsar.md#admin), the second what else `pulsar-admin` has commands for.
"""

import re

import pytest

from magnetar.admin.http.server import ROUTES
from tests.web.conftest import Tell, World

A = "/admin/v2"
N = f"{A}/namespaces/{{t}}/{{n}}"
P = f"{A}/persistent/{{t}}/{{n}}/{{topic}}"
S = f"{P}/subscription/{{s}}"
C = f"{A}/schemas/{{t}}/{{n}}/{{topic}}"

THERE = f"""
GET {A}/clusters
GET,PUT,POST,DELETE {A}/clusters/{{c}}
GET,POST {A}/clusters/{{c}}/peers
GET {A}/tenants
GET,PUT,POST,DELETE {A}/tenants/{{t}}
GET {A}/namespaces/{{t}}
GET,PUT,DELETE {N}
GET {N}/topics
GET,POST,DELETE {N}/antiAffinity
GET,POST {N}/replication
GET,POST {N}/allowedClusters
GET,POST,DELETE {N}/deduplication
GET,POST {N}/deduplicationSnapshotInterval
GET,PUT {N}/schemaCompatibilityStrategy
GET,PUT {N}/schemaAutoUpdateCompatibilityStrategy
GET,POST {N}/isAllowAutoUpdateSchema
GET,POST {N}/schemaValidationEnforced
GET,POST {N}/encryptionRequired
GET,POST,DELETE {N}/autoTopicCreation
GET,POST,DELETE {N}/autoSubscriptionCreation
GET,POST,DELETE {P}/autoSubscriptionCreation
GET,POST,DELETE {N}/subscriptionTypesEnabled
GET,POST,DELETE {P}/subscriptionTypesEnabled
GET,POST,DELETE {N}/messageTTL
GET,POST,DELETE {N}/retention
GET,POST,DELETE {N}/persistence
GET,POST,DELETE {P}/persistence
GET {N}/backlogQuotaMap
POST,DELETE {N}/backlogQuota
GET {N}/permissions
POST,DELETE {N}/permissions/{{role}}
GET {N}/permissions/subscription
POST {N}/permissions/subscription/{{s}}
DELETE {N}/permissions/{{s}}/{{role}}
GET,POST {N}/subscriptionAuthMode
GET,POST,DELETE {N}/publishRate
GET,POST,DELETE {N}/dispatchRate
GET,POST,DELETE {N}/replicatorDispatchRate
GET,POST,DELETE {P}/replicatorDispatchRate
GET,POST,DELETE {N}/subscribeRate
GET,POST,DELETE {P}/subscribeRate
GET,POST,DELETE {N}/subscriptionExpirationTime
GET,POST,DELETE {P}/{{s}}/dispatchRate
GET,POST,DELETE {A}/non-persistent/{{t}}/{{n}}/{{topic}}/maxProducers
GET,POST,DELETE {A}/non-persistent/{{t}}/{{n}}/{{topic}}/retention
GET,POST,DELETE {A}/non-persistent/{{t}}/{{n}}/{{topic}}/deduplicationEnabled
POST,DELETE {A}/non-persistent/{{t}}/{{n}}/{{topic}}/backlogQuota
GET,POST,DELETE {A}/non-persistent/{{t}}/{{n}}/{{topic}}/replication
GET,PUT,DELETE {A}/non-persistent/{{t}}/{{n}}/{{topic}}/schemaCompatibilityStrategy
GET,POST,DELETE {A}/non-persistent/{{t}}/{{n}}/{{topic}}/{{s}}/dispatchRate
GET,POST,DELETE {A}/non-persistent/{{t}}/{{n}}/{{topic}}/subscription/{{s}}/dispatchRate
GET,POST,DELETE {N}/subscriptionDispatchRate
GET,POST,DELETE {N}/maxTopicsPerNamespace
GET,POST,DELETE {N}/maxProducersPerTopic
GET,POST,DELETE {N}/maxConsumersPerTopic
GET,POST,DELETE {N}/maxConsumersPerSubscription
GET,POST,DELETE {N}/maxSubscriptionsPerTopic
POST {N}/unsubscribe/{{s}}
POST {N}/clearBacklog
POST {N}/clearBacklog/{{s}}
PUT {N}/unload
GET {A}/persistent/{{t}}/{{n}}
GET {A}/persistent/{{t}}/{{n}}/partitioned
PUT,DELETE {P}
GET,PUT,POST,DELETE {P}/partitions
PUT {P}/unload
GET {P}/stats
GET {P}/partitioned-stats
GET {P}/internalStats
GET {P}/partitioned-internalStats
POST {P}/createMissedPartitions
GET {P}/lastMessageId
GET {P}/subscriptions
PUT,DELETE {S}
POST {S}/resetcursor
POST {S}/resetcursor/{{number}}
POST {S}/skip/{{number}}
POST {S}/skip_all
POST {S}/expireMessages/{{number}}
POST {S}/expireMessages
POST {S}/analyzeBacklog
GET,PUT,DELETE {N}/properties
GET,DELETE {N}/property/{{s}}
PUT {N}/property/{{s}}/{{s}}
GET,PUT {S}/properties
GET,PUT,DELETE {P}/properties
GET {P}/internal-info
GET {P}/examinemessage
GET {P}/messageid/{{number}}
GET {P}/ledger/{{number}}/entry/{{number}}
PUT {P}/backlogSize
POST {P}/trim
GET {S}/position/{{number}}
GET,POST {S}/replicatedSubscriptionStatus
GET,POST,DELETE {P}/replication
GET,POST,DELETE {P}/deduplicationEnabled
GET,POST,DELETE {P}/deduplicationSnapshotInterval
DELETE {P}/policies
POST {P}/terminate
POST {P}/terminate/partitions
DELETE {P}/truncate
GET,PUT {P}/compaction
GET,POST,DELETE {C}/schema
GET {C}/schema/{{number}}
GET {C}/schemas
POST {C}/compatibility
POST {C}/version
GET {A}/brokers/health
GET {A}/brokers/version
GET {A}/brokers/ready
GET {A}/brokers/{{c}}
GET {A}/brokers/{{c}}/leaderBroker
GET {A}/brokers/{{c}}/{{s}}/ownedNamespaces
GET {A}/brokers/leaderBroker
GET {A}/brokers/configuration
GET {A}/brokers/internal-configuration
GET {A}/broker-stats/topics
GET {A}/broker-stats/metrics
GET {A}/broker-stats/load-report
GET {A}/broker-stats/mbeans
GET {A}/broker-stats/allocator-stats/{{s}}
GET {P}/offload
GET {A}/brokers/configuration/runtime
GET {A}/brokers/configuration/values
GET {N}/bundles
PUT {N}/0x00000000_0xffffffff/unload
POST {N}/0x00000000_0xffffffff/clearBacklog
POST {N}/0x00000000_0xffffffff/clearBacklog/{{s}}
POST {N}/0x00000000_0xffffffff/unsubscribe/{{s}}
GET {N}/0x00000000_0xffffffff/topicHashPositions
GET /lookup/v2/topic/persistent/{{t}}/{{n}}/{{topic}}
GET /lookup/v2/topic/persistent/{{t}}/{{n}}/{{topic}}/bundle
"""
"""Methods and path; names in braces stand for a segment."""

NOT_BUILT = f"""
POST {A}/clusters/{{c}}/migrate | links
POST {A}/clusters/{{c}}/failureDomains/{{s}} | one broker
POST {A}/clusters/{{c}}/namespaceIsolationPolicies/{{s}} | one broker
POST {N}/persistence/bookieAffinity | bookies
GET {P}/backlog | stats
PUT {N}/0x00000000_0x80000000/unload | bundles
POST {N}/0x00000000_0x80000000/clearBacklog | bundles
POST {N}/0x00000000_0x80000000/unsubscribe/{{s}} | bundles
GET /ws/v2/producer/persistent/{{t}}/{{n}}/{{topic}} | WebSocket
GET /ws/v2/consumer/persistent/{{t}}/{{n}}/{{topic}}/{{s}} | WebSocket
POST /topics/persistent/{{t}}/{{n}}/{{topic}} | Pulsar protocol
POST /topics/non-persistent/{{t}}/{{n}}/{{topic}}/partitions/{{number}} | Pulsar protocol
PUT {N}/0x00000000_0xffffffff/split | bundles
GET {A}/persistent/{{t}}/{{n}}/0x00000000_0xffffffff | bundles
GET {A}/non-persistent/{{t}}/{{n}}/0x00000000_0xffffffff | bundles
POST {P}/resourceGroup | one broker
GET /admin/persistent/{{t}}/{{c}}/{{n}}/{{topic}}/stats | version 1
GET /admin/namespaces/{{t}} | version 1
GET {N}/destination/{{c}} | bundles
POST {N}/offloadPolicies | tiered
PUT {N}/offloadThreshold | tiered
PUT {N}/offloadThresholdInSeconds | tiered
PUT {N}/offloadDeletionLagMs | tiered
PUT {P}/offload | tiered
POST {P}/offloadPolicies | tiered
POST {N}/resourcegroup/{{s}} | one broker
POST {N}/entryFilters | filter
POST {P}/entryFilters | filter
PUT {P}/shadowTopics | links
POST {N}/migration | links
POST {N}/dispatcherPauseOnAckStatePersistent | max-unacked
POST {P}/dispatcherPauseOnAckStatePersistent | max-unacked
POST {A}/namespaces/grantPermissionsOnTopics | topic by topic
POST {A}/namespaces/revokePermissionsOnTopics | topic by topic
GET {N}/scanOffloadedLedgers | tiered
POST {N}/resourcegroup/{{s}} | one broker
GET {A}/non-persistent/{{t}}/{{n}}/{{topic}}/backlog | stats
GET,POST {A}/non-persistent/{{t}}/{{n}}/{{topic}}/subscription/{{s}}/replicatedSubscriptionStatus | no state
GET {P}/getMessageIdByIndex | messageid
GET,POST {A}/scalable/{{t}}/{{n}}/{{topic}}/autoScalePolicy | segments
PUT {A}/segments/{{t}}/{{n}}/{{topic}}/{{s}} | segments
POST {A}/brokers/configuration/{{s}}/{{s}} | clusters.toml
GET {A}/brokers/backlog-quota-check | retention_interval_ms
POST {A}/brokers/shutdown | SIGTERM
GET {A}/broker-stats/broker-resource-availability/{{t}}/{{n}} | /metrics
POST {A}/resource-quotas | one broker
POST {A}/resource-quotas/{{t}}/{{n}}/0x00000000_0xffffffff | one broker
PUT {A}/resourcegroups/{{s}} | one broker
GET {A}/worker/cluster | Functions
GET {A}/worker-stats/metrics | Functions
POST,PUT /admin/v3/functions/{{t}}/{{n}}/{{s}} | Functions
POST,PUT /admin/v3/sources/{{t}}/{{n}}/{{s}} | Functions
POST,PUT /admin/v3/sinks/{{t}}/{{n}}/{{s}} | Functions
POST /admin/v3/packages/function/{{t}}/{{n}}/{{s}}/{{number}} | Functions
GET /admin/v3/transactions/coordinatorStats/{{number}} | transactions
POST {A}/bookies/racks-info/{{s}} | bookies
GET {A}/proxy-stats/connections | proxy
"""

NAMES = {"t": "public", "n": "default", "topic": "t", "s": "s", "c": "us-west", "role": "app", "number": "1"}
SHAPES = {(route.method, re.sub(r"{\w+}", "{}", route.path)) for route in ROUTES}


def _rows(text: str) -> list[tuple[str, str]]:
    rows = (line.partition(" ") for line in text.strip().splitlines())
    return [(method, rest) for methods, _, rest in rows for method in methods.split(",")]


def _filled(path: str) -> str:
    return re.sub(r"{(\w+)}", lambda match: NAMES[match[1]], path)


def test_every_path_of_the_design_is_there() -> None:
    assert [row for row in _rows(THERE) if (row[0], re.sub(r"{\w+}", "{}", row[1])) not in SHAPES] == []


@pytest.mark.parametrize("row", _rows(NOT_BUILT), ids=" ".join)
def test_what_is_not_built_says_why(tell: Tell, row: tuple[str, str]) -> None:
    method, rest = row
    path, _, why = rest.partition(" | ")

    async def story(world: World) -> None:
        for domain in ("persistent", "non-persistent"):
            world.create(f"{domain}://public/default/t")
        body = '{"some": "thing"}' if method in {"POST", "PUT"} else None
        answer = await world.ask(method, _filled(path), body)
        assert answer.status == 501, (answer.status, answer.data)
        reason = answer.reason.partition(" is not implemented by Magnetar: ")[2]
        assert why in reason, answer.reason

    tell(story)


def test_a_slash_at_the_end_changes_nothing_and_head_is_get_without_a_body(tell: Tell) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", f"{A}/persistent/public/default/t", None))
        for path in (
            f"{A}/tenants",
            f"{A}/clusters",
            f"{A}/brokers",
            f"{A}/brokers/health",
            f"{A}/namespaces/public",
            f"{A}/persistent/public/default",
            f"{A}/persistent/public/default/t/stats",
            "/lookup/v2/topic/persistent/public/default/t",
        ):
            answer, slashed = await world.ask("GET", path), await world.ask("GET", path + "/")
            assert answer.status == 200
            assert (slashed.status, slashed.data) == (200, answer.data), path
            for same in (path, path + "/"):
                head = await world.ask("HEAD", same)
                assert (head.status, head.data) == (200, b""), same
                assert head.headers["Content-Length"] == answer.headers["Content-Length"]
                assert head.headers["Content-Type"] == answer.headers["Content-Type"]
        await world.have(("PUT", f"{A}/persistent/public/default/u/", None))
        assert "persistent://public/default/u" in world.topics()
        assert (await world.ask("HEAD", f"{A}/tenants/none")).status == 404
        world.break_log()
        assert (await world.ask("HEAD", f"{A}/brokers/health")).status == 503
        assert (await world.ask("GET", f"{A}/tenants//")).status == 501

    tell(story)


def test_all_topics_are_those_of_the_whole_range(tell: Tell) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", f"{A}/persistent/public/default/t", None))
        for whole in ("", "?bundle=", "?bundle=0x00000000_0xFFFFFFFF"):
            answer = await world.ask("GET", f"{A}/persistent/public/default{whole}")
            assert answer.json == ["persistent://public/default/t"]
        part = await world.ask("GET", f"{A}/persistent/public/default?bundle=0x00000000_0x80000000")
        assert part.status == 412 and "no bundles" in part.reason

    tell(story)
