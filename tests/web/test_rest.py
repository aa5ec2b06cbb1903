"""Every operation's success and each of its refusals, in one table; and that the table leaves none out."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from magnetar.admin.http.reference import statuses
from magnetar.admin.http.routing import Route
from magnetar.admin.http.server import ROUTES
from tests.web import failover_cases, metadata_cases, policy_cases
from tests.web.conftest import LEDGER, Tell, World
from tests.web.message_cases import FIRST, TOO_MANY, message_cases
from tests.web.never_set_cases import CASES as NEVER_SET_CASES
from tests.web.permission_cases import CASES as PERMISSION_CASES
from tests.web.permission_cases import prepare as prepare_permissions
from tests.web.schema_cases import CASES as SCHEMA_CASES
from tests.web.starts import (
    CLUSTER,
    DAMAGED_LEDGER,
    FAILOVERS,
    LINKED_LEDGER,
    NP,
    SYNCHRONISED,
    USUAL,
    A,
    N,
    P,
    Start,
)

G = "/geo/v1"
GP = f"{G}/persistent/public/default"
L = "/lookup/v2/topic/persistent/public/default"
D = "/lookup/v2/destination/persistent/public/default"
NS404 = "public/missing"
BAD = "a%20b"

Case = tuple[str, str, str | None, int]

CASES: list[Case] = [
    # brokers
    ("GET", f"{A}/brokers/health", None, 200),
    ("GET", f"{A}/brokers/ready", None, 200),
    ("GET", f"{A}/brokers/version", None, 200),
    ("GET", f"{A}/brokers", None, 200),
    ("GET", f"{A}/brokers/us-west", None, 200),
    ("GET", f"{A}/brokers/us-east", None, 404),
    ("GET", f"{A}/brokers/nowhere", None, 404),
    ("GET", f"{A}/brokers/internal-configuration", None, 200),
    ("DELETE", f"{A}/brokers/configuration/keepAliveIntervalSeconds", None, 412),
    ("GET", f"{A}/brokers/backlog-quota-check", None, 501),
    *(
        ("GET", f"{A}/broker-stats/{part}", None, 200)
        for part in (
            "topics",
            "destinations",
            "metrics",
            "load-report",
            "mbeans",
            "bookieops",
            "allocator-stats/default",
        )
    ),
    ("GET", f"{A}/brokers/leaderBroker", None, 200),
    ("GET", f"{A}/brokers/us-west/leaderBroker", None, 200),
    ("GET", f"{A}/brokers/us-east/leaderBroker", None, 404),
    ("GET", f"{A}/brokers/us-west/127.0.0.1:8080/ownedNamespaces", None, 200),
    ("GET", f"{A}/brokers/us-west/127.0.0.1:1/ownedNamespaces", None, 404),
    ("GET", f"{A}/brokers/configuration", None, 200),
    ("GET", f"{A}/brokers/configuration/runtime", None, 200),
    ("GET", f"{A}/brokers/configuration/values", None, 200),
    # clusters
    ("GET", f"{A}/clusters", None, 200),
    ("GET", f"{A}/clusters/us-west", None, 200),
    ("GET", f"{A}/clusters/nowhere", None, 404),
    ("PUT", f"{A}/clusters/new", CLUSTER, 200),
    ("PUT", f"{A}/clusters/new", '{"serviceUrl": null, "proxyProtocol": null, "unknownKey": 1}', 200),
    ("PUT", f"{A}/clusters/us-west", CLUSTER, 409),
    ("PUT", f"{A}/clusters/Upper.Case", CLUSTER, 412),
    ("PUT", f"{A}/clusters/new", '{"peerClusterNames": ["nowhere"]}', 200),
    ("PUT", f"{A}/clusters/new", '{"peerClusterNames": [""]}', 200),
    ("PUT", f"{A}/clusters/new", '{"peerClusterNames": ["new"]}', 412),
    ("POST", f"{A}/clusters/us-east", '{"peerClusterNames": ["nowhere", ""]}', 200),
    ("PUT", f"{A}/clusters/new", '{"serviceUrl": 7}', 400),
    ("POST", f"{A}/clusters/us-east", CLUSTER, 200),
    ("POST", f"{A}/clusters/nowhere", CLUSTER, 404),
    ("POST", f"{A}/clusters/us-east", '{"peerClusterNames": ["us-east"]}', 412),
    ("DELETE", f"{A}/clusters/spare", None, 204),
    ("DELETE", f"{A}/clusters/nowhere", None, 404),
    ("DELETE", f"{A}/clusters/us-east", None, 412),
    ("DELETE", f"{A}/clusters/us-west", None, 412),
    ("GET", f"{A}/clusters/us-west/peers", None, 200),
    ("GET", f"{A}/clusters/nowhere/peers", None, 404),
    ("POST", f"{A}/clusters/us-west/peers", '["spare"]', 204),
    ("POST", f"{A}/clusters/nowhere/peers", "[]", 404),
    ("POST", f"{A}/clusters/us-west/peers", None, 204),
    ("POST", f"{A}/clusters/us-west/peers", '[""]', 204),
    ("POST", f"{A}/clusters/us-west/peers", '["nowhere"]', 412),
    ("POST", f"{A}/clusters/us-west/peers", '["us-west"]', 412),
    # tenants
    ("GET", f"{A}/tenants", None, 200),
    ("GET", f"{A}/tenants/public", None, 200),
    ("GET", f"{A}/tenants/nobody", None, 404),
    ("PUT", f"{A}/tenants/new", '{"allowedClusters": ["us-west"], "adminRoles": ["me"]}', 204),
    ("PUT", f"{A}/tenants/public", '{"allowedClusters": ["us-west"]}', 409),
    ("PUT", f"{A}/tenants/new", '{"allowedClusters": []}', 412),
    ("PUT", f"{A}/tenants/new", '{"allowedClusters": ["nowhere"]}', 412),
    ("PUT", f"{A}/tenants/new", '{"allowedClusters": ["us-west"], "adminRoles": [" me"]}', 412),
    ("PUT", f"{A}/tenants/{BAD}", '{"allowedClusters": ["us-west"]}', 412),
    ("POST", f"{A}/tenants/acme", '{"allowedClusters": ["us-west", "us-east"]}', 204),
    ("POST", f"{A}/tenants/nobody", '{"allowedClusters": ["us-west"]}', 404),
    ("POST", f"{A}/tenants/acme", '{"allowedClusters": ["us-west"]}', 412),
    ("POST", "/geo/v1/tenants/acme", '{"adminRoles": ["me"]}', 204),
    ("POST", "/geo/v1/tenants/acme", '{"adminRoles": 7}', 400),
    ("POST", "/geo/v1/tenants/nobody", "{}", 404),
    ("POST", "/geo/v1/tenants/acme", '{"allowedClusters": ["nowhere"]}', 412),
    ("DELETE", f"{A}/tenants/empty", None, 204),
    ("DELETE", f"{A}/tenants/nobody", None, 404),
    ("DELETE", f"{A}/tenants/empty?force=true", None, 405),
    ("DELETE", f"{A}/tenants/acme", None, 409),
    ("DELETE", f"{A}/tenants/pulsar", None, 412),
    # namespaces
    ("GET", f"{A}/namespaces/public", None, 200),
    ("GET", f"{A}/namespaces/nobody", None, 404),
    ("GET", N, None, 200),
    ("GET", f"{A}/namespaces/{NS404}", None, 404),
    ("GET", f"{A}/namespaces/public/{BAD}", None, 412),
    ("PUT", f"{A}/namespaces/public/new", None, 204),
    ("PUT", f"{A}/namespaces/public/new", '{"replication_clusters": ["us-west"], "bundles": {"numBundles": 4}}', 204),
    ("PUT", f"{A}/namespaces/public/new", '{"replication_clusters": ["nowhere"]}', 403),
    ("PUT", f"{A}/namespaces/nobody/new", None, 404),
    ("PUT", N, None, 409),
    ("PUT", f"{A}/namespaces/public/{BAD}", None, 412),
    ("DELETE", f"{A}/namespaces/acme/ns", None, 204),
    ("DELETE", f"{A}/namespaces/{NS404}", None, 404),
    ("DELETE", f"{A}/namespaces/acme/ns?force=true", None, 405),
    ("DELETE", N, None, 409),
    ("DELETE", f"{A}/namespaces/pulsar/system", None, 412),
    ("GET", f"{N}/topics", None, 200),
    ("GET", f"{N}/topics?mode=PERSISTENT", None, 200),
    ("GET", f"{N}/topics?mode=BOTH", None, 400),
    ("GET", f"{A}/namespaces/{NS404}/topics", None, 404),
    ("GET", f"{A}/namespaces/public/{BAD}/topics", None, 412),
    ("POST", f"{A}/namespaces/acme/narrow/replication", '["us-west", "us-east"]', 400),
    ("POST", f"{N}/replication", '["us-west", "nowhere"]', 403),
    ("POST", f"{A}/namespaces/acme/ns/replication", '["eu-central"]', 403),
    ("POST", f"{A}/namespaces/acme/peers/replication", '["us-west", "us-east"]', 409),
    ("POST", f"{A}/namespaces/acme/wide/allowedClusters", '["us-west"]', 400),
    ("POST", f"{N}/allowedClusters", '["nowhere"]', 403),
    # replicated subscriptions
    ("GET", f"{P}/t/subscription/s/replicatedSubscriptionStatus", None, 200),
    ("GET", f"{P}/t/subscription/missing/replicatedSubscriptionStatus", None, 404),
    ("GET", f"{P}/t/subscription/__compaction/replicatedSubscriptionStatus", None, 412),
    ("POST", f"{P}/t/subscription/s/replicatedSubscriptionStatus", "true", 204),
    ("POST", f"{P}/t/subscription/s/replicatedSubscriptionStatus", '"yes"', 400),
    ("POST", f"{P}/t/subscription/missing/replicatedSubscriptionStatus", "true", 404),
    ("POST", f"{P}/t/subscription/__compaction/replicatedSubscriptionStatus", "true", 412),
    ("GET", f"{P}/t/replicateSubscriptionState?applied=true", None, 200),
    ("POST", "/geo/v1/namespaces/public/default/subscriptionMode", '"snapshot"', 204),
    ("POST", "/geo/v1/namespaces/public/default/subscriptionMode", '"fuzzy"', 400),
    ("GET", "/geo/v1/subscriptions", None, 200),
    ("GET", "/geo/v1/subscriptions?limit=0", None, 400),
    ("GET", "/geo/v1/subscriptions?namespace=public", None, 412),
    ("GET", "/geo/v1/subscriptions?topic=persistent://public/default/t", None, 200),
    ("GET", f"{N}/properties", None, 200),
    ("GET", f"{A}/namespaces/{NS404}/properties", None, 404),
    ("GET", f"{A}/namespaces/public/{BAD}/properties", None, 412),
    ("PUT", f"{N}/properties", '{"team": "me"}', 204),
    ("PUT", f"{N}/properties", '{"team": 1}', 400),
    ("PUT", f"{N}/properties", TOO_MANY, 400),
    ("PUT", f"{A}/namespaces/{NS404}/properties", "{}", 404),
    ("PUT", f"{A}/namespaces/public/{BAD}/properties", "{}", 412),
    ("DELETE", f"{N}/properties", None, 204),
    ("DELETE", f"{A}/namespaces/{NS404}/properties", None, 404),
    ("DELETE", f"{A}/namespaces/public/{BAD}/properties", None, 412),
    ("GET", f"{N}/property/team", None, 204),
    ("GET", f"{A}/namespaces/acme/kept/property/team", None, 200),
    ("GET", f"{A}/namespaces/{NS404}/property/team", None, 404),
    ("GET", f"{A}/namespaces/public/{BAD}/property/team", None, 412),
    ("PUT", f"{N}/property/team/me", None, 204),
    ("PUT", f"{N}/property/team/{'x' * 1100}", None, 400),
    ("PUT", f"{A}/namespaces/{NS404}/property/team/me", None, 404),
    ("PUT", f"{A}/namespaces/public/{BAD}/property/team/me", None, 412),
    ("DELETE", f"{N}/property/team", None, 204),
    ("DELETE", f"{A}/namespaces/acme/kept/property/team", None, 200),
    ("DELETE", f"{A}/namespaces/{NS404}/property/team", None, 404),
    ("DELETE", f"{A}/namespaces/public/{BAD}/property/team", None, 412),
    ("GET", f"{N}/backlogQuotaMap", None, 200),
    ("GET", f"{A}/namespaces/{NS404}/backlogQuotaMap", None, 404),
    ("GET", f"{A}/namespaces/public/{BAD}/backlogQuotaMap", None, 412),
    ("POST", f"{N}/backlogQuota", '{"limitSize": 1000, "policy": "producer_exception"}', 204),
    ("POST", f"{N}/backlogQuota?backlogQuotaType=other", "{}", 400),
    ("POST", f"{N}/backlogQuota", '{"policy": "drop"}', 400),
    ("POST", f"{A}/namespaces/{NS404}/backlogQuota", "{}", 404),
    ("POST", f"{A}/namespaces/acme/kept/backlogQuota", '{"limitSize": 99999999999}', 412),
    ("DELETE", f"{N}/backlogQuota?backlogQuotaType=message_age", None, 204),
    ("DELETE", f"{N}/backlogQuota?backlogQuotaType=other", None, 400),
    ("DELETE", f"{A}/namespaces/{NS404}/backlogQuota", None, 404),
    ("DELETE", f"{A}/namespaces/public/{BAD}/backlogQuota", None, 412),
]


def _topic_cases(base: str, missing: str, persistent: bool) -> list[Case]:
    """The same for both domains; what needs stored messages is 405 in one of them."""
    stored = 204 if persistent else 405
    looked = 200 if persistent else 405
    cases: list[Case] = [
        ("GET", base, None, 200),
        ("GET", f"{base}?includeSystemTopic=maybe", None, 400),
        ("GET", missing, None, 404),
        ("GET", f"{base}%20", None, 412),
        ("GET", f"{base}/partitioned", None, 200),
        ("GET", f"{missing}/partitioned", None, 404),
        ("GET", f"{base}%20/partitioned", None, 412),
        ("PUT", f"{base}/new", None, 204),
        ("PUT", f"{base}/new", '{"owner": "me"}', 204),
        ("PUT", f"{base}/new", '{"owner": 7}', 400),
        ("PUT", f"{missing}/new", None, 404),
        ("PUT", f"{base}/t", None, 409),
        ("PUT", f"{base}/many", None, 409),
        ("PUT", f"{base}/many-partition-7", None, 412),
        ("PUT", f"{base}/none-partition-0", None, 412),
        ("PUT", f"{base}/t-partition-0", None, 412),
        ("PUT", f"{base}/new/partitions", "3", 204),
        ("PUT", f"{base}/new/partitions", '{"partitions": 2, "properties": {"a": "b"}}', 204),
        ("PUT", f"{base}/new/partitions", '"3"', 204),
        ("PUT", f"{missing}/new/partitions", "3", 404),
        ("PUT", f"{base}/new/partitions", "0", 406),
        ("PUT", f"{base}/new/partitions", "1000000", 406),
        ("PUT", f"{base}/t/partitions", "3", 409),
        ("PUT", f"{base}/many/partitions", "3", 409),
        ("PUT", f"{base}/x-partition-1/partitions", "3", 412),
        ("GET", f"{base}/t/partitions", None, 200),
        ("GET", f"{base}/new/partitions", None, 404),
        ("GET", f"{base}/a%5Cb/partitions", None, 412),
        ("POST", f"{base}/many/partitions", "4", 204),
        ("POST", f"{base}/new/partitions", "4", 409),
        ("POST", f"{missing}/new/partitions", "4", 404),
        ("POST", f"{base}/many/partitions", "3", 204),
        ("POST", f"{base}/many/partitions", "1000000", 422),
        ("POST", f"{base}/many-partition-0/partitions", "4", 412),
        ("POST", f"{base}/t/partitions", "4", 409),
        ("POST", f"{base}/a%5Cb/partitions", "4", 412),
        ("POST", f"{base}/many/partitions", "2", 422),
        ("DELETE", f"{base}/many/partitions", None, 204),
        ("DELETE", f"{base}/busy-parts/partitions?force=true", None, 204),
        ("DELETE", f"{base}/new/partitions", None, 404),
        ("DELETE", f"{base}/t/partitions", None, 409),
        ("DELETE", f"{base}/many-partition-0/partitions", None, 412),
        ("DELETE", f"{base}/busy-parts/partitions", None, 412),
        ("DELETE", f"{base}/linked-parts/partitions", None, 422 if persistent else 204),
        ("DELETE", f"{base}/compacting", None, 204),
        ("DELETE", f"{base}/t?force=true", None, 204),
        ("DELETE", f"{base}/new", None, 404),
        ("DELETE", f"{base}/t", None, 412),
        ("DELETE", f"{base}/many", None, 409),
        ("DELETE", f"{base}/linked", None, 422 if persistent else 204),
        ("DELETE", f"{base}/many-partition-0", None, 412 if persistent else 404),
        ("GET", f"{base}/t/stats", None, 200),
        ("GET", f"{base}/many/stats", None, 404),
        ("GET", f"{base}/new/stats", None, 404),
        ("GET", f"{base}/%2E%2E/stats", None, 412),
        ("GET", f"{base}/many/partitioned-stats", None, 200),
        ("GET", f"{base}/t/partitioned-stats", None, 404),
        ("GET", f"{base}/many-partition-0/partitioned-stats", None, 412),
        ("GET", f"{base}/%00/partitioned-stats", None, 412),
        ("GET", f"{base}/t/internalStats", None, looked),
        ("GET", f"{base}/new/internalStats", None, 404 if persistent else 405),
        ("GET", f"{base}/many/internalStats", None, 404 if persistent else 405),
        ("GET", f"{base}/a%2Fb/internalStats", None, 412),
        ("GET", f"{base}/many/partitioned-internalStats", None, looked),
        ("GET", f"{base}/t/partitioned-internalStats", None, 404 if persistent else 405),
        ("GET", f"{missing}/t/partitioned-internalStats", None, 404),
        ("GET", f"{base}/%00/partitioned-internalStats", None, 412),
        ("POST", f"{base}/many/createMissedPartitions", None, stored),
        ("POST", f"{base}/t/createMissedPartitions", None, 404 if persistent else 405),
        ("POST", f"{missing}/t/createMissedPartitions", None, 404),
        ("POST", f"{base}/%00/createMissedPartitions", None, 412),
        ("POST", f"{base}/many/terminate/partitions", None, looked),
        ("POST", f"{base}/t/terminate/partitions", None, 405),
        ("POST", f"{missing}/t/terminate/partitions", None, 404),
        ("POST", f"{base}/%00/terminate/partitions", None, 412),
        ("GET", f"{base}/t/lastMessageId", None, looked),
        ("GET", f"{base}/new/lastMessageId", None, 404 if persistent else 405),
        ("GET", f"{base}/many/lastMessageId", None, 405),
        ("GET", f"{base}/a%2Fb/lastMessageId", None, 412),
        ("PUT", f"{base}/t/unload", None, 204),
        ("PUT", f"{base}/new/unload", None, 404),
        ("PUT", f"{base}/a%2Fb/unload", None, 412),
        ("DELETE", f"{base}/many/truncate", None, stored),
        ("DELETE", f"{missing}/t/truncate", None, 404),
        ("DELETE", f"{base}/a%2Fb/truncate", None, 412),
        ("GET", f"{base}/t/compaction", None, 200 if persistent else 405),
        ("GET", f"{base}/many/compaction", None, 200 if persistent else 405),
        ("GET", f"{missing}/t/compaction", None, 404),
        ("GET", f"{base}/a%2Fb/compaction", None, 412),
        ("PUT", f"{base}/t/compaction", None, stored),
        ("PUT", f"{base}/compacting/compaction", None, 409 if persistent else 405),
        ("PUT", f"{base}/many/compaction", None, stored),
        ("PUT", f"{missing}/t/compaction", None, 404),
        ("PUT", f"{base}/a%2Fb/compaction", None, 412),
        ("POST", f"{base}/t/terminate", None, looked),
        ("POST", f"{missing}/t/terminate", None, 404),
        ("POST", f"{base}/many/terminate", None, 405),
        ("POST", f"{base}/a%2Fb/terminate", None, 412),
        # subscriptions
        ("GET", f"{base}/t/subscriptions", None, 200),
        ("GET", f"{base}/new/subscriptions", None, 404),
        ("GET", f"{base}/a%2Fb/subscriptions", None, 412),
        ("PUT", f"{base}/t/subscription/new", None, stored),
        ("PUT", f"{base}/many/subscription/new", '{"ledgerId": -1, "entryId": -1}', stored),
        ("PUT", f"{missing}/t/subscription/new", None, 404),
        ("PUT", f"{base}/many/subscription/new", FIRST, 405),
        ("PUT", f"{base}/t/subscription/s", None, 409 if persistent else 405),
        ("PUT", f"{base}/t/subscription/pulsar.repl.x", None, 412 if persistent else 405),
        ("DELETE", f"{base}/t/subscription/s", None, 204 if persistent else 404),
        ("DELETE", f"{base}/t/subscription/new", None, 404),
        ("DELETE", f"{base}/t/subscription/busy", None, 412),
        ("DELETE", f"{base}/t/subscription/busy?force=true", None, 204),
        ("POST", f"{base}/many/subscription/s/resetcursor/0", None, stored),
        ("POST", f"{base}/t/subscription/s/resetcursor/soon", None, 400 if persistent else 405),
        ("POST", f"{missing}/t/subscription/s/resetcursor/0", None, 404),
        ("POST", f"{base}/a%2Fb/subscription/s/resetcursor/0", None, 412),
        ("POST", f"{base}/t/subscription/s/resetcursor", FIRST, stored),
        ("POST", f"{base}/t/subscription/s/resetcursor", '{"ledgerId": 99, "entryId": 0}', 409 if persistent else 405),
        ("POST", f"{base}/t/subscription/s/resetcursor", '{"ledgerId": 7}', 400),
        ("POST", f"{base}/t/subscription/new/resetcursor", FIRST, 404 if persistent else 405),
        ("POST", f"{base}/many/subscription/s/resetcursor", FIRST, 405),
        ("POST", f"{base}/a%2Fb/subscription/s/resetcursor", FIRST, 412),
        ("POST", f"{base}/t/subscription/s/skip/3", None, stored),
        ("POST", f"{base}/t/subscription/s/skip/0", None, 400 if persistent else 405),
        ("POST", f"{missing}/t/subscription/s/skip/3", None, 404),
        ("POST", f"{base}/many/subscription/s/skip/3", None, 405),
        ("POST", f"{base}/a%2Fb/subscription/s/skip/3", None, 412),
        ("POST", f"{base}/many/subscription/s/skip_all", None, stored),
        ("POST", f"{missing}/t/subscription/s/skip_all", None, 404),
        ("POST", f"{base}/a%2Fb/subscription/s/skip_all", None, 412),
        ("POST", f"{base}/t/subscription/s/expireMessages/60", None, stored),
        ("POST", f"{base}/t/subscription/s/expireMessages/-1", None, 400 if persistent else 405),
        ("POST", f"{missing}/t/subscription/s/expireMessages/60", None, 404),
        ("POST", f"{base}/a%2Fb/subscription/s/expireMessages/60", None, 412),
        ("POST", f"{base}/t/all_subscription/expireMessages/60", None, stored),
        ("POST", f"{base}/t/all_subscription/expireMessages/soon", None, 400 if persistent else 405),
        ("POST", f"{missing}/t/all_subscription/expireMessages/60", None, 404),
        ("POST", f"{base}/a%2Fb/all_subscription/expireMessages/60", None, 412),
        ("GET", f"{base}/t/subscription/s/position/1", None, looked),
        ("GET", f"{base}/t/subscription/s/position/0", None, 400 if persistent else 405),
        ("GET", f"{base}/t/subscription/s/position/3", None, 404 if persistent else 405),
        ("GET", f"{missing}/t/subscription/s/position/1", None, 404),
        ("GET", f"{base}/many/subscription/s/position/1", None, 405),
        ("GET", f"{base}/a%2Fb/subscription/s/position/1", None, 412),
    ]
    return cases


CASES += _topic_cases(P, f"{A}/persistent/{NS404}", True)
CASES += _topic_cases(NP, f"{A}/non-persistent/{NS404}", False)
for _base in (L, D, L.replace("persistent", "non-persistent"), D.replace("persistent", "non-persistent")):
    CASES += [
        ("GET", f"{_base}/t", None, 200),
        ("GET", f"{_base}/not-there-yet", None, 200),
        ("GET", f"{_base.replace('default', 'missing')}/t", None, 404),
        ("GET", f"{_base}/a%2Fb", None, 412),
        ("GET", f"{_base}/t/bundle", None, 200),
        ("GET", f"{_base.replace('default', 'missing')}/t/bundle", None, 404),
        ("GET", f"{_base}/a%2Fb/bundle", None, 412),
    ]

T = "topic=persistent://public/default/linked"
CASES += [
    ("GET", f"{G}/links", None, 200),
    ("GET", f"{G}/links/us-east", None, 200),
    ("GET", f"{G}/links/nowhere", None, 404),
    ("GET", f"{G}/links/No.Where", None, 412),
    *(
        case
        for verb in ("pause", "resume")
        for case in (
            ("POST", f"{G}/links/us-east/{verb}", None, 204),
            ("POST", f"{G}/links/us-east/{verb}?{T}", None, 204),
            ("POST", f"{G}/links/nowhere/{verb}", None, 404),
            ("POST", f"{G}/links/us-east/{verb}?topic=ftp://x", None, 412),
        )
    ),
    ("POST", f"{G}/links/us-east/throttle", '{"bytes_per_s": 1000000}', 204),
    ("POST", f"{G}/links/us-east/throttle", '{"bytes_per_s": null}', 204),
    ("POST", f"{G}/links/us-east/throttle", None, 204),
    ("POST", f"{G}/links/us-east/throttle", '{"bytes_per_s": 0}', 400),
    ("POST", f"{G}/links/nowhere/throttle", None, 404),
    ("POST", f"{G}/links/No.Where/throttle", None, 412),
    ("POST", f"{G}/links/us-east/skip", None, 200),
    ("POST", f"{G}/links/us-east/skip?preview=true&through=latest", None, 200),
    ("POST", f"{G}/links/us-east/skip?{T}&through={LINKED_LEDGER}:1", None, 200),
    ("POST", f"{G}/links/us-east/skip?through={LINKED_LEDGER}:3", None, 400),
    ("POST", f"{G}/links/us-east/skip?{T}&through=somewhere", None, 400),
    ("POST", f"{G}/links/nowhere/skip", None, 404),
    ("POST", f"{G}/links/us-east/skip?topic=persistent://public/default/linked-parts-partition-0", None, 412),
    ("DELETE", f"{G}/links/us-east/cursor?topic=persistent://public/default/once-linked", None, 204),
    ("DELETE", f"{G}/links/gone/cursor?{T}", None, 404),
    ("DELETE", f"{G}/links/gone/cursor", None, 400),
    ("DELETE", f"{G}/links/us-east/cursor?{T}", None, 412),
    ("GET", f"{G}/status", None, 200),
    ("GET", f"{G}/drain", None, 200),
    ("GET", f"{G}/held/us-east", None, 200),
    ("GET", f"{G}/held/Upper.Case", None, 412),
    ("POST", f"{G}/namespaces/public/default/idempotency", "{}", 204),
    ("POST", f"{G}/namespaces/public/default/idempotency", '{"windowSeconds": 604801}', 400),
    ("POST", f"{G}/namespaces/public/default/idempotency", '{"keysMax": 100000000}', 400),
    ("POST", f"{G}/namespaces/public/default/idempotency", '{"property": ""}', 400),
    ("POST", f"{G}/namespaces/public/default/idempotency", '{"windowSecond": 5}', 400),
    ("POST", f"{GP}/t/adoptPartitions", "2", 204),
    ("POST", f"{GP}/t/adoptPartitions", '"2"', 204),
    ("POST", f"{GP}/many/adoptPartitions", "2", 409),
    ("POST", f"{GP}/missing/adoptPartitions", "2", 404),
    ("POST", f"{GP}/t/adoptPartitions", "0", 406),
    ("POST", f"{GP}/t/adoptPartitions", "many", 400),
    ("POST", f"{GP}/t-partition-0/adoptPartitions", "2", 412),
    ("GET", f"{GP}/numbered/sequence-ids", None, 200),
    ("GET", f"{GP}/numbered-parts/sequence-ids", None, 200),
    ("GET", f"{GP}/t/sequence-ids", None, 412),
    ("GET", f"{GP}/missing/sequence-ids", None, 404),
    ("GET", f"{GP}/{BAD}%00/sequence-ids", None, 412),
    ("DELETE", f"{GP}/numbered/sequence-ids/a%2Fb", None, 204),
    ("DELETE", f"{GP}/numbered/sequence-ids/nobody", None, 404),
    ("DELETE", f"{GP}/missing/sequence-ids/p", None, 404),
    ("DELETE", f"{GP}/{BAD}%00/sequence-ids/p", None, 412),
    ("GET", f"{GP}/t/damaged", None, 200),
    ("GET", f"{GP}/many/damaged", None, 200),
    ("GET", f"{GP}/missing/damaged", None, 404),
    ("GET", f"{GP}/{BAD}%00/damaged", None, 412),
    ("DELETE", f"{GP}/damaged/damaged/{DAMAGED_LEDGER}/1", None, 204),
    ("DELETE", f"{GP}/t/damaged/{LEDGER}/0", None, 412),
    ("DELETE", f"{GP}/t/damaged/8/0", None, 404),
    ("DELETE", f"{GP}/many/damaged/8/0", None, 405),
    ("DELETE", f"{GP}/t/damaged/x/0", None, 400),
    ("DELETE", f"{GP}/missing/damaged/7/1", None, 404),
    ("DELETE", f"{GP}/{BAD}%00/damaged/7/1", None, 412),
    ("POST", f"{GP}/many/idempotency", '{"enabled": false}', 204),
    ("POST", f"{G}/namespaces/public/default/replicationStart", '"latest"', 204),
    ("POST", f"{G}/namespaces/public/default/replicationStart", '"now"', 400),
    ("GET", f"{G}/namespaces/acme/ns/replicationPreview?clusters=us-west,us-east", None, 200),
    ("GET", f"{G}/namespaces/acme/narrow/replicationPreview?clusters=us-east", None, 400),
    ("GET", f"{G}/namespaces/public/default/replicationPreview?clusters=nowhere", None, 403),
    ("GET", f"{G}/namespaces/{NS404}/replicationPreview?clusters=us-west", None, 404),
    ("GET", f"{G}/namespaces/acme/peers/replicationPreview?clusters=us-west,us-east", None, 409),
    ("GET", f"{G}/namespaces/public/default/replicationPreview", None, 412),
    ("GET", "/metrics", None, 200),
    ("GET", "/metrics/", None, 200),
    ("GET", "/status.html", None, 200),
    ("GET", "/", None, 200),
    ("GET", "/openapi.json", None, 200),
]

CASES += message_cases(P, f"{A}/persistent/{NS404}", True)
CASES += message_cases(NP, f"{A}/non-persistent/{NS404}", False)
CASES += failover_cases.CASES
CASES += SCHEMA_CASES
CASES += metadata_cases.CASES
CASES += metadata_cases.OFF_CASES
CASES += policy_cases.CASES
CASES += PERMISSION_CASES
CASES += NEVER_SET_CASES

CHANGE_NOTHING = {*NEVER_SET_CASES}
"""What is never set can be taken back, and all stays as it is."""

KNOWN_GAPS = {
    # (operation, status): a broker whose log is broken: test_shape, test_tools.
    ("GET /admin/v2/brokers/health", 503),
    ("GET /admin/v2/brokers/ready", 503),
    ("GET /status.html", 503),
    # Of thousands of topics: test_tools.
    ("GET /admin/v2/broker-stats/topics", 412),
    ("GET /admin/v2/broker-stats/destinations", 412),
    # Answered from the second question on, in a world that has one.
    ("GET /admin/v2/namespaces/{tenant}/{namespace}/antiAffinity", 200),
}


def start_of(case: Case) -> Start:
    """Whether a case needs another start than most."""
    if case in failover_cases.CASES:
        return FAILOVERS
    return SYNCHRONISED if case in metadata_cases.CASES else USUAL


@pytest.fixture(scope="module")
def still() -> Iterator[Callable[[Start], Tell]]:
    """Run stories over one world of each start, which none of them changes."""
    with asyncio.Runner() as runner:
        meanwhile = AsyncExitStack()
        worlds: dict[int, World] = {}

        def over(start: Start) -> Tell:
            if id(start) not in worlds:
                worlds[id(start)] = runner.run(start.world())
                runner.run(meanwhile.enter_async_context(worlds[id(start)].serving()))
            return lambda story: runner.run(story(worlds[id(start)]))

        yield over
        runner.run(meanwhile.aclose())


def state(world: World) -> Any:
    """Everything that a request could change."""
    broker, control = world.broker, world.control
    subscriptions = [one for topic in broker.topics.values() for one in topic.subscriptions.values()]
    return (
        dict(world.resources.documents()),
        {text: control.topics.ledger_info(text) for text in broker.topics},
        [(one.topic, one.name, len(one.consumers), dict(one.cursor.labels), one.replicated) for one in subscriptions],
        [(one.topic, one.name, str(one.cursor.mark_delete)) for one in subscriptions],
        {text: list(topic.subscriptions) for text, topic in broker.nonpersistent.topics.items()},
        control.failovers.held(),
        [list(broker.schemas.registry.live(one)) for one in broker.schemas.registry],
    )


NEEDS_PEERS = "acme/peers"
"""Cases of it want a cluster to have peers, which the others do without."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]} {case[2] or ''} -> {case[3]}")
def test_case(still: Callable[[Start], Tell], case: Case) -> None:
    """Questions and refused requests leave everything as it was, so that one world will do for all of them."""
    method, path, body, status = case
    alone = method != "GET" and status < 400 and case not in CHANGE_NOTHING
    start = start_of(case)
    start.saved()  # made in a loop of its own

    async def story(world: World) -> None:
        if alone or NEEDS_PEERS in path:
            await prepare_permissions(world, method, path)
        if NEEDS_PEERS in path:
            await world.have(("POST", f"{A}/clusters/us-west/peers", '["us-east"]'))
        world.settle()  # metadata synchronisation acknowledges what it has published of the changes above
        before = state(world)
        answer = await world.ask(method, path, body)
        assert answer.status == status, (answer.status, answer.data)
        if status >= 400:
            assert answer.reason
        elif status == 204:
            assert answer.data == b""
        assert alone or state(world) == before

    async def by_itself() -> None:
        await (await start.world()).within(story)

    if alone or NEEDS_PEERS in path:
        asyncio.run(by_itself())
    else:
        still(start)(story)


def _pattern(route: Route) -> re.Pattern[str]:
    return re.compile(re.sub(r"{\w+}", "[^/]+", route.path))


def _route_of(case: Case) -> Route:
    path = case[1].partition("?")[0].removesuffix("/") or "/"
    return next(route for route in ROUTES if route.method == case[0] and _pattern(route).fullmatch(path))


def _both_domains(route: Route) -> str:
    """Operations of persistent and non-persistent topics are declared once; what only one of them refuses counts."""
    return route.name.replace("/non-persistent/", "/persistent/")


def test_the_table_leaves_nothing_out() -> None:
    """Every operation has a case of its success and of each refusal that it declares; and no case is undeclared."""
    assert {_route_of(case).name for case in CASES} == {route.name for route in ROUTES}
    met: dict[str, set[int]] = {}
    for case in CASES:
        met.setdefault(_both_domains(_route_of(case)), set()).add(case[3])
    missing, undeclared = set(), set()
    for route in ROUTES:
        declared = {route.ok, *route.errors}
        seen = met[_both_domains(route)]
        missing |= {(route.name, status) for status in declared - seen} - KNOWN_GAPS
        undeclared |= {(route.name, status) for status in seen - set(statuses(route))}
    assert (missing, undeclared) == (set(), set())
