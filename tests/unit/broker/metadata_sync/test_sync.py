"""Synchronisation through whole brokers: their log, their store, their links; time, disks and power cuts in the test's hands."""

from collections import deque
from typing import Any

import msgspec
import pytest

from magnetar.broker.metadata_sync import sync as metasync
from magnetar.broker.metadata_sync.publisher import GATHER_MS_MAX, GATHER_MS_MIN
from magnetar.core.names import NamespaceName, TopicName
from magnetar.effects.outbox import Store
from magnetar.effects.store_batches import Piece
from magnetar.metadata.errors import PreconditionFailed
from magnetar.metadata.policies.namespace import Policies, RetentionPolicies, TenantInfo
from magnetar.metadata.sync.updates import RECORD_PREFIX
from magnetar.storage.entries import NewEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.support.geosteps import SYNC_ON
from tests.support.geoworld import Node, World

SYNC = "persistent://pulsar/system/metadata-sync"
NS = NamespaceName("acme", "n")
TOPIC = TopicName.parse("persistent://acme/n/p")


def worlds(names: str = "abc", extra: str = SYNC_ON, **more: Any) -> World:
    world = World(names, extra=extra, **more)
    world.advance(3_000)
    return world


def make(node: Node, namespace: NamespaceName = NS) -> None:
    if namespace.tenant not in node.broker.resources.tenants():
        node.apply(node.broker.resources.create_tenant(namespace.tenant, TenantInfo([], list(node.world.nodes))))
    node.apply(node.broker.resources.create_namespace(namespace, Policies(replication_clusters=list(node.world.nodes))))


def policies(node: Node, namespace: NamespaceName = NS) -> Policies | None:
    return node.broker.resources.policies(namespace) if node.broker.resources.has_namespace(namespace) else None


def told(node: Node) -> dict[str, Any]:
    return node.broker.metasync.describe()


def agree(world: World) -> bool:
    return len({told(node)["digest"] for node in world.nodes.values()}) == 1


def test_off_is_off() -> None:
    world = worlds(extra="")
    make(world["a"])
    world.advance(1_000)
    assert policies(world["b"]) is None
    assert told(world["a"]) == {"enabled": False}
    assert not any(key.startswith("metasync/") for key in world["a"].meta)
    with pytest.raises(PreconditionFailed, match="metadata_sync_topic"):
        world["a"].control.metadata.fingerprints()


def test_both_fields_survive_and_nothing_is_told_twice() -> None:
    world = worlds()
    a, b, c = (world[name] for name in "abc")
    make(a)
    world.advance(1_000)
    world.cut |= {("a", "b"), ("b", "a")}
    a.apply(a.broker.resources.change_policies(NS, message_ttl_in_seconds=60))
    b.apply(b.broker.resources.change_policies(NS, deduplication_enabled=True))
    world.cut.clear()
    before = told(c)["counters"]["told"]
    world.advance(1_000)
    for node in (a, b, c):
        found = policies(node)
        assert found is not None
        assert (found.message_ttl_in_seconds, found.deduplication_enabled) == (60, True)
    assert agree(world)
    assert told(c)["counters"]["told"] == before


def test_the_first_of_many_changes_is_told_at_once_and_the_others_together() -> None:
    world = worlds("ab")
    a, b = world["a"], world["b"]
    make(a)
    world.advance(3_000)
    before, documents = told(a)["counters"], 50

    def ask(name: str) -> None:
        change = a.broker.resources.create_namespace(
            NamespaceName("acme", name), Policies(replication_clusters=["a", "b"])
        )
        a.control.policies.apply(change, lambda error: None)
        world.work()

    ask("first")
    assert told(a)["counters"]["published"] == before["published"] + 1
    for number in range(documents):
        ask(f"n{number}")
    world.advance(1_000)
    after = told(a)["counters"]
    assert after["told"] == before["told"] + 1 + documents
    assert after["published"] <= before["published"] + 3
    assert agree(world)
    assert b.broker.resources.has_namespace(NamespaceName("acme", "n49"))


def test_single_changes_are_published_at_once_and_a_stream_in_few_events() -> None:
    world = worlds("ab")
    a = world["a"]
    make(a)
    world.advance(3_000)

    def published(changes: int, every_ms: int) -> list[int]:
        """Events that each of these changes was in at once (0 or 1), and those at the end."""
        found = []
        for number in range(changes):
            before = told(a)["counters"]["published"]
            change = a.broker.resources.change_policies(NS, message_ttl_in_seconds=every_ms * 1_000 + number)
            a.control.policies.apply(change, lambda error: None)
            world.work()
            found.append(told(a)["counters"]["published"] - before)
            world.advance(every_ms)
        return found

    assert published(20, 2 * GATHER_MS_MIN) == [1] * 20
    world.advance(3_000)
    before = told(a)["counters"]["published"]
    assert published(500, 2)[0] == 1
    world.advance(1_000)
    assert told(a)["counters"]["published"] - before <= 500 * 2 // GATHER_MS_MAX + 5


def test_three_clusters_set_the_same_field_at_the_same_time() -> None:
    world = worlds()
    make(world["a"])
    world.advance(1_000)
    for number, node in enumerate(world.nodes.values()):
        change = node.broker.resources.change_policies(NS, message_ttl_in_seconds=number + 1)
        node.control.policies.apply(change, lambda error: None)
    world.advance(2_000)
    assert agree(world)
    shown = [policies(node) for node in world.nodes.values()]
    assert shown[0] is not None
    assert shown[0] == shown[1] == shown[2]


def test_a_value_and_its_stamp_are_stored_together() -> None:
    world = worlds("ab")
    a, b = world["a"], world["b"]
    make(a)
    key = f"{RECORD_PREFIX}namespaces/acme/n"
    a.hold_stores = True
    a.control.policies.apply(a.broker.resources.change_policies(NS, message_ttl_in_seconds=5), lambda error: None)
    batch = [set(store.puts) for store in a.stores]
    assert [puts for puts in batch if "namespaces/acme/n" in puts] == [puts for puts in batch if key in puts] != []
    a.hold_stores = False
    world.advance(500)
    found = policies(b)
    assert found is not None
    assert found.message_ttl_in_seconds == 5


def test_a_store_that_fails_is_tried_again_and_nothing_is_applied_by_half() -> None:
    world = worlds("ab")
    a, b = world["a"], world["b"]
    b.hold_stores = True
    a.control.policies.apply(a.broker.resources.create_tenant("acme", TenantInfo([], ["a", "b"])), lambda error: None)
    world.advance(200)
    held = [store for store in b.stores if any(key.startswith("metasync/") for key in store.puts)]
    assert held
    for store in held:
        assert b.store.answer("the disk is full", store)
    assert "acme" not in b.broker.resources.tenants()
    assert not any("acme" in key for key in b.meta)
    b.hold_stores = False
    world.advance(2_000)
    assert "acme" in b.broker.resources.tenants()
    assert any("cannot store" in note.text for note in b.notes)


def test_power_cuts_lose_no_change() -> None:
    """A change that is stored is told after a restart, also when its event was never published."""
    world = worlds("ab")
    a, b = world["a"], world["b"]
    a.hold_log = True
    a.control.policies.apply(a.broker.resources.create_tenant("acme", TenantInfo([], ["a", "b"])), lambda error: None)
    world.work()
    assert "tenants/acme" in a.meta
    a.hold_log = False
    a.restart()
    world.advance(3_000)
    assert "acme" in b.broker.resources.tenants()
    b.restart()
    world.advance(3_000)
    assert agree(world)


def test_an_emptied_cluster_gets_everything_and_takes_nothing_away() -> None:
    world = worlds()
    a, c = world["a"], world["c"]
    make(a)
    a.apply(
        a.broker.resources.change_policies(
            NamespaceName("public", "default"), retention_policies=RetentionPolicies(60, 100)
        )
    )
    world.advance(6_000)
    c.kill()
    c.meta = {}
    from magnetar_sim.host.memory_files import MemoryFiles

    c.files = MemoryFiles(c.files.random)
    c.start()
    world.advance(20_000)
    assert policies(c) is not None
    found = policies(c, NamespaceName("public", "default"))
    assert found is not None
    assert found.retention_policies == RetentionPolicies(60, 100)
    assert agree(world)


def test_synchronisation_switched_on_later_adopts_what_is_there() -> None:
    world = worlds("ab", extra="")
    a, b = world["a"], world["b"]
    make(a)
    make(b, NamespaceName("other", "m"))
    from magnetar.core.settings import MetadataConfig

    world.config = msgspec.structs.replace(world.config, metadata=MetadataConfig(metadata_sync_topic=SYNC))
    a.restart()
    b.restart()
    world.advance(6_000)
    for node in (a, b):
        assert policies(node) is not None
        assert policies(node, NamespaceName("other", "m")) is not None
        assert node.broker.resources.policies(NamespaceName("pulsar", "system")).replication_clusters == ["a", "b"]
    assert agree(world)


def test_what_topics_need_is_kept_until_they_are_deleted_by_name() -> None:
    world = worlds("ab")
    a, b = world["a"], world["b"]
    make(a)
    world.advance(1_000)
    b.create("persistent://acme/n/mine")
    b.publish(b"data", topic="persistent://acme/n/mine")
    world.cut |= {("b", "a")}
    a.apply(a.broker.resources.delete_namespace(NS, []))
    a.apply(a.broker.resources.delete_tenant("acme"))
    world.cut.clear()
    world.advance(6_000)
    assert told(b)["kept"].keys() == {"namespaces/acme/n", "tenants/acme"}
    assert policies(b) is not None
    assert "persistent://acme/n/mine" in b.broker.topics
    assert agree(world)
    assert b.control_call(lambda done: b.control.topics.delete("persistent://acme/n/mine", True, done)) is None
    world.advance(1_000)
    assert policies(b) is None
    assert "acme" not in b.broker.resources.tenants()
    assert not told(b)["kept"]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_topic_that_is_being_created_needs_its_namespace_too(fails: bool, partitions: int) -> None:
    """It was there without one: nobody saw it, and a new namespace of the name had it."""
    world = worlds("ab")
    a, b = world["a"], world["b"]
    make(a)
    world.advance(1_000)
    b.hold_stores = True
    answers: list[Any] = []
    b.control.topics.create(str(TOPIC), partitions or None, {}, answers.append)
    creation = b.stores[-1]
    a.apply(a.broker.resources.delete_namespace(NS, []))
    world.advance(1_000)
    assert policies(a) is None
    if fails:
        assert b.store.answer("no space left", creation)
    b.hold_stores = False
    world.advance(3_000)
    assert [answer is not None for answer in answers] == [fails]
    assert (policies(b) is None) is fails and bool(told(b)["kept"]) is not fails
    made = [text for text, one in b.broker.topics.items() if one.name.namespace_name == NS]
    assert len(made) == (0 if fails else partitions or 1)
    if partitions and not fails:
        return  # what is known of it as a whole goes by its own name
    for text in made:
        assert b.control_call(lambda done, text=text: b.control.topics.delete(text, True, done)) is None  # type: ignore[misc]
    world.advance(1_000)
    assert policies(b) is None and not told(b)["kept"]


def test_partitioned_topics_are_made_grow_and_are_hidden_where_they_have_no_place() -> None:
    world = worlds()
    a, b, c = (world[name] for name in "abc")
    a.apply(a.broker.resources.create_tenant("acme", TenantInfo([], ["a", "b", "c"])))
    a.apply(a.broker.resources.create_namespace(NS, Policies(replication_clusters=["a", "b"])))
    assert a.control_call(lambda done: a.control.topics.create(str(TOPIC), 3, {}, done)) is None
    world.advance(1_000)
    world.cut |= {("a", "b"), ("b", "a")}
    assert a.control_call(lambda done: a.control.topics.update_partitions(str(TOPIC), 8, done)) is None
    assert b.control_call(lambda done: b.control.topics.update_partitions(str(TOPIC), 5, done)) is None
    world.cut.clear()
    world.advance(3_000)
    assert [node.broker.resources.partitions(TOPIC) for node in (a, b, c)] == [8, 8, None]
    assert sum(text.startswith(str(TOPIC)) for text in b.broker.topics) == 8
    assert told(c)["hidden"] == [f"partitioned/{TOPIC}"]
    a.apply(a.broker.resources.set_replication(NS, ["a", "b", "c"]))
    world.advance(8_000)
    assert c.broker.resources.partitions(TOPIC) == 8
    assert agree(world)


def test_properties_of_a_partitioned_topic_follow_and_so_does_growth_elsewhere_at_the_same_time() -> None:
    world = worlds("ab")
    a, b = world["a"], world["b"]
    make(a)
    assert a.control_call(lambda done: a.control.topics.create(str(TOPIC), 2, {"old": "1", "kept": "2"}, done)) is None
    world.advance(1_000)
    world.cut |= {("a", "b"), ("b", "a")}
    a.apply(a.broker.resources.describe_partitioned(TOPIC, {"new": "3"}, "old"))
    assert b.control_call(lambda done: b.control.topics.update_partitions(str(TOPIC), 4, done)) is None
    world.cut.clear()
    world.advance(3_000)
    for node in (a, b):
        assert node.broker.resources.partitioned_properties(TOPIC) == {"kept": "2", "new": "3"}
        assert node.broker.resources.partitions(TOPIC) == 4
    assert agree(world)


def test_a_change_from_the_future_waits_and_its_cluster_is_told() -> None:
    world = worlds("ab")
    a, b = world["a"], world["b"]
    hour = 3_600_000
    machine = b.broker.metasync.machine
    assert machine is not None
    machine.clock.latest = (world.now_ms + hour) * 1000  # as if the clock of b were an hour ahead
    update = machine.local({"tenants/early": b'{"allowedClusters":["a"],"adminRoles":[]}'}, world.now_ms + hour)
    messages = machine.changes(update.records, world.now_ms)
    machine.commit(update, world.now_ms)
    messages = machine.changes(update.records, world.now_ms)
    b.run(lambda: b.broker.metasync.publisher.append(messages, lambda error: None))
    world.advance(3_000)
    assert "early" not in a.broker.resources.tenants()
    assert "tenants/early" in told(a)["waiting"]
    make(a)
    world.advance(1_000)
    assert policies(b) is not None, "other changes go on"
    with pytest.raises(PreconditionFailed, match="behind the newest change"):
        b.control.policies.apply(b.broker.resources.change_policies(NS, message_ttl_in_seconds=5), lambda error: None)
    a.restart()
    assert "tenants/early" in told(a)["waiting"], "it waits in the store"
    world.advance(hour + 10_000)
    assert "early" in a.broker.resources.tenants()
    b.apply(b.broker.resources.change_policies(NS, message_ttl_in_seconds=5))


def test_excluded_paths_and_fields_stay_local() -> None:
    world = World("ab", extra=SYNC_ON)
    world.config = msgspec.structs.replace(
        world.config,
        metadata=msgspec.structs.replace(
            world.config.metadata, metadata_sync_exclude=("namespaces/acme/mine", "namespaces/*:retention_policies")
        ),
    )
    for node in world.nodes.values():
        node.restart()
    world.advance(3_000)
    a, b = world["a"], world["b"]
    a.apply(a.broker.resources.create_tenant("acme", TenantInfo([], ["a", "b"])))
    a.apply(a.broker.resources.create_namespace(NamespaceName("acme", "mine"), Policies()))
    a.apply(a.broker.resources.create_namespace(NS, Policies(replication_clusters=["a", "b"])))
    a.apply(a.broker.resources.change_policies(NS, retention_policies=RetentionPolicies(60, 100)))
    a.apply(a.broker.resources.change_policies(NS, message_ttl_in_seconds=7))
    world.advance(1_000)
    found = policies(b)
    assert found is not None
    assert (found.message_ttl_in_seconds, found.retention_policies) == (7, None)
    assert policies(b, NamespaceName("acme", "mine")) is None
    shown = {
        row["field"]: row["local"]
        for row in b.control.metadata.preview(
            "acme/n",
            {"retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}, "message_ttl_in_seconds": 8},
        )
    }
    assert shown == {"retention_policies": True, "message_ttl_in_seconds": False}


def test_deletions_rest_in_the_end() -> None:
    world = worlds()
    a = world["a"]
    make(a)
    world.advance(1_000)
    a.apply(a.broker.resources.delete_namespace(NS, []))
    world.advance(1_000)
    for _ in range(3):
        for node in world.nodes.values():
            assert node.control_call(node.control.metadata.snapshot) is None
        world.advance(6_000)
    assert [told(node)["deletions"] for node in world.nodes.values()] == [0, 0, 0]
    world["b"].restart()
    world.advance(6_000)
    assert policies(world["b"]) is None
    assert [told(node)["deletions"] for node in world.nodes.values()] == [0, 0, 0]


def test_a_cluster_that_was_away_for_a_week_learns_that_its_tenant_is_gone() -> None:
    """It had no topics of it; what it changed just before it went, unheard, does not bring the tenant back."""
    world = worlds()
    a, b, c = (world[name] for name in "abc")
    make(a)
    a.apply(a.broker.resources.create_namespace(NamespaceName("acme", "m"), Policies(replication_clusters=["a", "c"])))
    world.advance(1_000)
    c.hold_log = True
    c.control.policies.apply(c.broker.resources.change_policies(NS, message_ttl_in_seconds=5), lambda error: None)
    world.work()
    c.hold_log = False
    c.kill()
    for namespace in (NS, NamespaceName("acme", "m")):
        a.apply(a.broker.resources.delete_namespace(namespace, []))
    a.apply(a.broker.resources.delete_tenant("acme"))
    world.advance(10_000)
    for node in (a, b):
        assert node.control_call(node.control.metadata.snapshot) is None
    world.advance(1_000)
    assert told(a)["deletions"] == 3, "a deletion does not rest before everybody has confirmed it"
    world.now_ms += 7 * 24 * 3_600_000
    c.start()
    world.advance(20_000)
    for node in (a, b, c):
        assert "acme" not in node.broker.resources.tenants()
        assert policies(node) is None
    assert agree(world)
    assert told(c)["kept"] == {}
    for _ in range(2):
        for node in (a, b, c):
            assert node.control_call(node.control.metadata.snapshot) is None
        world.advance(6_000)
    assert [told(node)["deletions"] for node in (a, b, c)] == [0, 0, 0]


def test_the_topic_comes_back_when_somebody_deletes_it() -> None:
    world = worlds("ab")
    a = world["a"]
    a.run(lambda: a.broker.catalog.delete(a.broker.topics[SYNC], force=True, done=lambda error: None))
    world.advance(8_000)
    assert SYNC in a.broker.topics
    make(a)
    world.advance(70_000)
    assert policies(world["b"]) is not None


class Limited(deque[Store]):
    """Transactions on their way to a store that takes no large ones."""

    largest = 0

    def append(self, store: Store) -> None:
        weight = Piece((), store.puts, store.deletes).weight
        assert weight <= LIMIT, f"{len(store.puts)} keys, {weight} bytes"
        self.largest = max(self.largest, weight)
        super().append(store)


LIMIT = 12_000


def test_what_is_too_much_for_one_transaction_is_stored_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot with many namespaces; later, all their deletions confirmed at once. ZooKeeper would refuse it for ever."""
    monkeypatch.setattr(metasync, "WHOLE_BYTES_MAX", LIMIT)
    world = worlds("ab")
    a, b = world["a"], world["b"]
    names = [NamespaceName("acme", f"n{number}") for number in range(30)]
    b.kill()
    for name in names:
        make(a, name)
    b.start()
    b.store.waiting = Limited()
    world.advance(3_000)
    assert all(policies(b, name) for name in names)
    assert agree(world)
    assert b.stores.largest > LIMIT // 2
    b.kill()
    for name in names:
        a.apply(a.broker.resources.delete_namespace(name, []))
    b.start()
    for node in (a, b):
        node.store.waiting = Limited()
    world.advance(6_000)
    for _ in range(3):
        for node in (a, b):
            assert node.control_call(node.control.metadata.snapshot) is None
        world.advance(6_000)
    assert [told(node)["deletions"] for node in (a, b)] == [0, 0]
    assert not any(policies(b, name) for name in names)
    b.restart()
    world.advance(3_000)
    assert [told(node)["deletions"] for node in (a, b)] == [0, 0]
    assert agree(world)


def test_a_client_cannot_take_the_cursor_of_the_broker() -> None:
    world = worlds("ab")
    client = world["a"].client()
    client.subscribe("pulsar.metadata-sync", topic=SYNC, replicated=False)
    assert [answer.error.message for answer in client.answers if answer.HasField("error")]


def test_a_message_whose_producer_has_no_name_in_letters_is_refused_as_any_other() -> None:
    """Whoever may publish to the topic may write anything there: it stops nobody's synchronisation, and no broker."""
    world = worlds("ab")
    b = world["b"]
    seen = pb.MessageMetadata(producer_name="@@", sequence_id=0, publish_time=1).SerializeToString()
    entry = NewEntry(build(pb.MessageMetadata.FromString(seen.replace(b"@@", b"\xff\xfe")), b"x"), 0, 1, 1)
    b.run(lambda: b.broker.topics[SYNC].append([entry], lambda append, error: None))
    world.advance(1_000)
    assert told(b)["counters"]["refused"] == 1
    make(world["a"])
    world.advance(3_000)
    assert policies(b) is not None


def test_an_administrator_s_change_in_flight_makes_an_event_wait() -> None:
    """Neither waits for ever, neither is lost, also when what topics needed goes at the same time."""
    world = worlds("ab")
    a, b = world["a"], world["b"]
    make(a)
    world.advance(1_000)
    b.hold_stores = True
    b.control.policies.apply(b.broker.resources.change_policies(NS, deduplication_enabled=True), lambda error: None)
    a.apply(a.broker.resources.change_policies(NS, message_ttl_in_seconds=60))
    world.advance(500)
    b.hold_stores = False
    world.advance(1_000)
    for node in (a, b):
        found = policies(node)
        assert found is not None
        assert (found.message_ttl_in_seconds, found.deduplication_enabled) == (60, True)
    world.cut |= {("b", "a")}
    b.create("persistent://acme/n/mine")
    a.apply(a.broker.resources.delete_namespace(NS, []))
    world.cut.clear()
    world.advance(1_000)
    b.control.policies.apply(
        b.broker.resources.change_policies(NamespaceName("public", "default"), message_ttl_in_seconds=7),
        lambda error: None,
    )
    assert b.control_call(lambda done: b.control.topics.delete("persistent://acme/n/mine", True, done)) is None
    world.advance(2_000)
    assert policies(b) is None
    assert agree(world)


def test_metrics_tell_with_whom_a_cluster_agrees() -> None:
    from magnetar.admin.metrics.metadata_families import families

    world = worlds("ab")
    make(world["a"])
    world.advance(12_000)
    found = {family.name: rows for family, rows in families(told(world["a"]))}
    assert found["magnetar_metadata_agrees"] == [(("b",), 1)]
    assert found["magnetar_metadata_documents"] == [((), told(world["a"])["documents"])]
    assert (("told",), 2) in found["magnetar_metadata_events_total"]
    assert not list(families({"enabled": False}))


@pytest.mark.parametrize(
    "topic", ["metadata", "non-persistent://pulsar/system/m", "persistent://pulsar/system/m-partition-1", "a//b"]
)
def test_a_topic_that_cannot_be(topic: str) -> None:
    from pathlib import Path

    from magnetar.core.config import parse
    from magnetar.core.errors import ConfigError

    text = f'[clusters.a]\npulsar = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\n[metadata]\nmetadata_sync_topic = "{topic}"'
    if topic == "metadata":
        assert parse(text, Path("/f")).metadata.metadata_sync_topic == topic  # a short name: public/default
        return
    with pytest.raises(ConfigError, match="metadata_sync_topic") as refused:
        parse(text, Path("/f"))
    assert "\n" not in str(refused.value)
