"""What the cases of `test_rest` and `test_wording` start from: topics, policies, clients, failovers."""

import json
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from msgspec.structs import replace

from magnetar.broker.metadata_sync.sync import USUAL_TOPIC
from magnetar.core.config import Config
from magnetar.core.settings import MetadataConfig
from tests.web import failover_cases, policy_cases
from tests.web.conftest import CONFIG, LEDGER, Saved, World, described, told
from tests.web.schema_cases import LIMITS, SAME

A = "/admin/v2"
FULL = "persistent://public/default"
N = f"{A}/namespaces/public/default"
P = f"{A}/persistent/public/default"
NP = f"{A}/non-persistent/public/default"
CLUSTER = '{"serviceUrl": "http://h:1", "brokerServiceUrl": "pulsar://h:2"}'
DAMAGED_LEDGER, LINKED_LEDGER = LEDGER + 1, LEDGER + 2
BOTH = '["us-west", "us-east"]'
TOPICS = ("t", "damaged", "linked", "once-linked", "compacting", "numbered")
"""Each with a subscription and two messages; the first three have known ledgers."""

PARTITIONED = (("many", 3), ("busy-parts", 2), ("linked-parts", 2), ("numbered-parts", 2))
ALIVE = ("t", "busy-parts-partition-1")
"""Of both domains; somebody consumes them."""


async def prepare(world: World) -> None:
    """What the cases start from, as far as it is stored."""
    await world.have(
        ("POST", f"{N}/replication", '["us-west"]'),
        ("PUT", f"{A}/clusters/spare", CLUSTER),
        ("PUT", f"{A}/tenants/acme", f'{{"allowedClusters": {BOTH}}}'),
        ("PUT", f"{A}/tenants/empty", '{"allowedClusters": ["us-west"]}'),
        ("PUT", f"{A}/namespaces/acme/ns", None),
        ("PUT", f"{A}/namespaces/acme/narrow", '{"allowed_clusters": ["us-west"]}'),
        ("PUT", f"{A}/namespaces/acme/peers", None),
        ("PUT", f"{A}/namespaces/acme/wide", f'{{"replication_clusters": {BOTH}}}'),
        (
            "PUT",
            f"{A}/namespaces/acme/kept",
            json.dumps(
                {
                    "message_ttl_in_seconds": 5,
                    "retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 9},
                    "properties": {"team": "us"},
                }
            ),
        ),
        ("POST", f"{A}/schemas/public/default/with-schema/schema", SAME),
    )
    for name in TOPICS:
        world.create(f"{FULL}/{name}", subscriptions=["s"])
        for message in (b"one", b"two of " + name.encode(), *([b"three"] if name == "damaged" else [])):
            world.store(f"{FULL}/{name}", described(0, message, producer_name="a/b"))  # each synced by itself
    for name, partitions in PARTITIONED:
        world.create(f"{FULL}/{name}", partitions=partitions)
        await world.have(("PUT", f"{NP}/{name}/partitions", str(partitions)))
    await world.have(("PUT", f"{P}/many/subscription/s", None), ("PUT", f"{P}/busy-parts/subscription/s", None))
    await world.have(
        *(("POST", f"{P}/{name}/replication", BOTH) for name in ("linked", "linked-parts", "once-linked")),
        *(("POST", f"{P}/{name}/deduplicationEnabled", "true") for name in ("numbered", "numbered-parts")),
        ("DELETE", f"{P}/once-linked/replication", None),
    )
    policy_cases.prepare(world)
    assert [world.broker.topics[f"{FULL}/{name}"].log.incarnation for name in TOPICS[:3]] == [
        LEDGER, DAMAGED_LEDGER, LINKED_LEDGER,
    ]  # fmt: skip


def revive(world: World) -> None:
    """What the cases start from, as far as it ends with a broker."""
    policy_cases.revive(world)
    for name in ("t", "linked", "compacting"):
        world.create(f"non-{FULL}/{name}")
    for domain in ("", "non-"):
        for name in ALIVE:
            world.consume(f"{domain}{FULL}/{name}", "busy")
    world.report("us-east", "too large", topic=f"{FULL}/linked", blocked="size")
    world.node.unread.add(f"{FULL}/compacting")
    world.control.topics.compact(f"{FULL}/compacting")


@cache
def prepared() -> Saved:
    """What a broker has on its disk and in its store when the cases begin; one entry is damaged."""
    saved: list[Saved] = []

    async def story(world: World) -> None:
        await prepare(world)
        saved.append(world.save())

    told(story, limits=LIMITS)
    saved[0].damage(b"two of damaged")
    return saved[0]


class Start(NamedTuple):
    """What a case starts from."""

    saved: Callable[[], Saved] = prepared
    revive: Callable[[World], None] = revive
    settings: Config = CONFIG

    async def world(self) -> World:
        world = World(saved=self.saved(), settings=self.settings, limits=LIMITS)
        self.revive(world)
        world.advance_to(world.now_ms + 5_000)  # what a start makes a broker store is stored
        return world


USUAL = Start()
SYNCHRONISED = Start(settings=replace(CONFIG, metadata=MetadataConfig(metadata_sync_topic=USUAL_TOPIC)))
FAILOVERS = Start(failover_cases.prepared, failover_cases.revive)
