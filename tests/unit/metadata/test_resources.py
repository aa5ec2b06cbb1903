"""Resources: rules, first starts, changes in flight; and a random world against a dumb twin."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from magnetar.core.config import Config, builtin, parse, single
from magnetar.core.errors import MagnetarError, NameNotValid, StorageError
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.change import Change
from magnetar.metadata.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    NotAcceptable,
    NotFound,
    PreconditionFailed,
    Refused,
    Unprocessable,
)
from magnetar.metadata.policies.namespace import BacklogQuota, ClusterData, Policies, RetentionPolicies, TenantInfo
from magnetar.metadata.policies.topic import TopicPolicies
from magnetar.metadata.resources import Resources

PUBLIC = NamespaceName("public", "default")
TOPIC = TopicName.parse("persistent://public/default/t")
DATA = Path("data")


def started(config: Config | None = None, cluster: str = "us-west") -> Resources:
    """The resources of a broker after its first start."""
    resources = Resources.load({})
    resources.apply(resources.first_start(config or builtin(DATA), cluster, f"uuid-{cluster}"))
    return resources


def do(resources: Resources, change: Change) -> None:
    """Begin, and apply."""
    resources.begin(change)
    resources.apply(change)


def test_a_first_start_replicates_public_default_everywhere() -> None:
    resources = started()
    assert resources.clusters() == ["eu-central", "us-east", "us-west"]
    assert resources.tenants() == ["public", "pulsar"]
    assert resources.replication_clusters(PUBLIC) == ("eu-central", "us-east")
    assert resources.replication_clusters(NamespaceName("pulsar", "system")) == ()
    assert resources.cluster_data("us-west").uuid == "uuid-us-west"
    assert resources.cluster_data("us-east").uuid == ""
    assert resources.cluster_data("us-east").broker_service_url == "pulsar://127.0.0.1:6651"
    assert resources.serves(PUBLIC) and resources.replication_start(PUBLIC) == "earliest"


def test_a_first_start_takes_the_namespaces_of_the_file() -> None:
    text = """
        [clusters.a]
        pulsar = "127.0.0.1:1001"
        http = "127.0.0.1:1002"
        [clusters.b]
        pulsar = "127.0.0.1:1003"
        http = "127.0.0.1:1004"
        [namespaces."public/default"]
        clusters = ["a"]
        [namespaces."acme/orders"]
        clusters = "all"
        replication_start = "latest"
    """
    resources = started(parse(text, Path("clusters.toml")), "a")
    orders = NamespaceName("acme", "orders")
    assert resources.replication_clusters(PUBLIC) == ()
    assert resources.replication_clusters(orders) == ("b",)
    assert resources.replication_start(orders) == "latest"
    assert resources.tenant("acme").allowed_clusters == ["a", "b"]


def test_a_later_start_changes_addresses_only() -> None:
    resources = started()
    do(resources, resources.set_replication(PUBLIC, ["us-west"]))
    assert resources.first_start(builtin(DATA), "us-west", "uuid-us-west").keys == frozenset()
    do(resources, resources.update_cluster("us-east", ClusterData(service_url="http://elsewhere:1", listener_name="x")))
    change = resources.first_start(builtin(DATA), "us-west", "uuid-us-west")
    assert change.keys == {"clusters/us-east"}
    resources.apply(change)
    east = resources.cluster_data("us-east")
    assert (east.service_url, east.listener_name) == ("http://127.0.0.1:8081", "x")
    assert resources.replication_clusters(PUBLIC) == ()


def test_a_cluster_that_joins_the_file_may_be_named_but_gets_nothing_by_itself() -> None:
    resources = started(single("us-west", DATA, 6650, 8080))
    resources.apply(resources.first_start(builtin(DATA), "us-west", "u"))
    assert resources.tenant("public").allowed_clusters == ["eu-central", "us-east", "us-west"]
    assert resources.replication_clusters(PUBLIC) == ()
    do(resources, resources.set_replication(PUBLIC, ["us-west", "us-east"]))


def test_damaged_values_are_named_at_the_start() -> None:
    for key in ("clusters/a", "tenants/a", "namespaces/a/b", "partitioned/persistent://a/b/c"):
        with pytest.raises(StorageError, match=key):
            Resources.load({key: b"{"})
    assert Resources.load({"topics/x": b"{", "broker/uuid": b"\xff"}).clusters() == []


@pytest.mark.parametrize(
    ("clusters", "error"),
    [
        ([], PreconditionFailed),
        (["nowhere"], Forbidden),
        (["eu-central"], Forbidden),
        (["us-west", "us-east"], BadRequest),
    ],
)
def test_replication_is_refused_for_pulsars_reasons(clusters: list[str], error: type[Refused]) -> None:
    resources = started()
    do(resources, resources.create_tenant("acme", TenantInfo([], ["us-west", "us-east"])))
    namespace = NamespaceName("acme", "ns")
    do(resources, resources.create_namespace(namespace, Policies(allowed_clusters=["us-west"])))
    with pytest.raises(error):
        resources.set_replication(namespace, clusters)
    assert resources.policies(namespace).replication_clusters == ["us-west"]


def test_peers_are_not_mixed() -> None:
    resources = started()
    do(resources, resources.set_peers("eu-central", ["us-east"]))
    with pytest.raises(Conflict, match="peers"):
        resources.set_replication(PUBLIC, ["us-east", "eu-central"])


def test_what_is_named_cannot_be_deleted() -> None:
    resources = started()
    with pytest.raises(PreconditionFailed, match="public/default"):
        resources.delete_cluster("us-east")
    do(resources, resources.set_replication(PUBLIC, ["us-west"]))
    with pytest.raises(PreconditionFailed, match="tenant public"):
        resources.delete_cluster("us-east")
    with pytest.raises(Conflict, match="namespace"):
        resources.delete_tenant("public")
    with pytest.raises(Conflict, match="persistent://public/default/x"):
        resources.delete_namespace(PUBLIC, ["persistent://public/default/x"])
    do(resources, resources.delete_namespace(PUBLIC, []))
    do(resources, resources.delete_tenant("public"))
    assert resources.replication_clusters(PUBLIC) == () and not resources.serves(PUBLIC)


@pytest.mark.parametrize(
    ("minutes", "megabytes", "quotas", "fine"),
    [
        (0, 0, {}, True),
        (-1, -1, {}, True),
        (10, -1, {}, True),
        (0, 5, {}, False),
        (5, 0, {}, False),
        (-2, 5, {}, False),
        (10, 1, {"destination_storage": BacklogQuota(limit_size=2**20 - 1)}, True),
        (10, 1, {"destination_storage": BacklogQuota(limit_size=2**20)}, False),
        (10, -1, {"destination_storage": BacklogQuota(limit_size=2**20)}, True),
        (10, 1, {"message_age": BacklogQuota(limit_time=600)}, False),
        (10, 1, {"message_age": BacklogQuota(limit_time=599)}, True),
    ],
)
def test_retention_and_backlog_quota_fit_together(
    minutes: int, megabytes: int, quotas: dict[str, BacklogQuota], fine: bool
) -> None:
    resources = started()
    retention = RetentionPolicies(minutes, megabytes)
    for kind, quota in quotas.items():
        do(resources, resources.set_backlog_quota(PUBLIC, kind, quota))  # type: ignore[arg-type]
    if fine:
        do(resources, resources.change_policies(PUBLIC, retention_policies=retention))
        assert resources.retention(TOPIC) == retention
        assert retention.time_ms == (minutes * 60_000 if minutes >= 0 else -1)
        assert retention.size_bytes == (megabytes * 2**20 if megabytes >= 0 else -1)
    else:
        with pytest.raises(PreconditionFailed):
            resources.change_policies(PUBLIC, retention_policies=retention)
        assert resources.retention(TOPIC) == RetentionPolicies(0, 0)


def test_partitions_only_grow() -> None:
    resources = started()
    topic = TopicName.parse("many")
    do(resources, resources.create_partitioned(topic, 3, {"a": "b"}))
    assert resources.partitions(topic) == 3 and resources.partitioned_topics(PUBLIC) == [str(topic)]
    assert resources.partitions(topic.with_partition(1)) is None
    for number, error in ((3, Unprocessable), (2, Unprocessable), (0, NotAcceptable), (4097, NotAcceptable)):
        with pytest.raises(error):
            resources.update_partitioned(topic, number)
    do(resources, resources.update_partitioned(topic, 4))
    assert resources.partitions(topic) == 4 and resources.partitioned_properties(topic) == {"a": "b"}
    with pytest.raises(Conflict):
        resources.create_partitioned(topic, 3, {})
    with pytest.raises(PreconditionFailed):
        resources.create_partitioned(topic.with_partition(0), 3, {})
    with pytest.raises(NotFound):
        resources.create_partitioned(TopicName.parse("a/b/c"), 3, {})
    with pytest.raises(BadRequest):
        resources.create_partitioned(TopicName.parse("other"), 3, {"k": "v" * 2000})
    do(resources, resources.delete_partitioned(topic))
    assert resources.partitions(topic) is None
    with pytest.raises(NotFound):
        resources.update_partitioned(topic, 5)


def test_changes_in_flight_keep_each_other_out() -> None:
    resources = started()
    first = resources.change_policies(PUBLIC, message_ttl_in_seconds=60)
    second = resources.set_replication(PUBLIC, ["us-west"])
    resources.begin(first)
    with pytest.raises(Conflict, match="namespaces/public/default"):
        resources.begin(second)
    resources.apply(first)
    again = resources.set_replication(PUBLIC, ["us-west"])
    do(resources, again)
    assert resources.message_ttl_s(TOPIC) == 60


def test_a_parent_cannot_go_while_its_child_is_on_its_way() -> None:
    resources = started()
    do(resources, resources.create_tenant("acme", TenantInfo([], ["us-west"])))
    child = resources.create_namespace(NamespaceName("acme", "ns"), Policies())
    parent = resources.delete_tenant("acme")
    resources.begin(child)
    with pytest.raises(Conflict):
        resources.begin(parent)
    other = resources.create_namespace(NamespaceName("acme", "other"), Policies())
    resources.begin(other)  # two children do not disturb each other
    resources.abort(child)
    resources.apply(other)
    assert resources.namespaces("acme") == ["acme/other"]


def test_unknown_keys_of_policies_are_passed_over_and_known_ones_are_pulsars() -> None:
    text = b"""{"auth_policies": {}, "replication_clusters": ["a"], "bundles": {"numBundles": 4},
        "backlog_quota_map": {"destination_storage": {"limit": 1, "limitSize": 5, "policy": "producer_exception"}},
        "deduplicationEnabled": true, "message_ttl_in_seconds": 7,
        "retention_policies": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2}}"""
    policies = msgspec.json.decode(text, type=Policies)
    assert policies.backlog_quota_map["destination_storage"].limit_size == 5
    assert policies.deduplication_enabled is True and policies.retention_policies == RetentionPolicies(1, 2)
    assert msgspec.json.decode(msgspec.json.encode(policies), type=Policies) == policies
    assert policies.public()["allowed_clusters"] == []


def test_merged_changes_write_what_the_later_one_says() -> None:
    one = Change(puts={"a": b"1", "b": b"1"}, deletes=("c",), namespaces=("n",))
    two = Change(puts={"c": b"2"}, deletes=("a",), depends=frozenset({"d"}), namespaces=("n", "m"))
    both = one.merged(two)
    assert (dict(both.puts), both.deletes) == ({"b": b"1", "c": b"2"}, ("a",))
    assert (both.namespaces, both.depends) == (("n", "m"), frozenset({"d"}))


CLUSTERS = ["us-west", "us-east", "eu-central", "new", "No.Name"]
TENANTS = ["public", "acme", "bad name"]
SPACES = ["default", "orders"]
some_clusters = st.lists(st.sampled_from(CLUSTERS), max_size=4)


class World(RuleBasedStateMachine):
    """Any change at any time: what is stored always stays whole, and is what a restart loads."""

    def __init__(self) -> None:
        super().__init__()
        self.resources = started()
        self.stored: dict[str, bytes] = {}
        fresh = Resources.load({}).first_start(builtin(DATA), "us-west", "uuid-us-west")
        self._store(fresh)

    def _store(self, change: Change) -> None:
        assert not set(change.puts) & set(change.deletes)
        self.stored |= change.puts
        for key in change.deletes:
            del self.stored[key]

    def _try(self, make: object, *arguments: object) -> None:
        try:
            change = make(*arguments)  # type: ignore[operator]
        except (Refused, NameNotValid) as error:
            assert isinstance(error, MagnetarError) and str(error).isprintable()
            return
        do(self.resources, change)
        self._store(change)

    @rule(name=st.sampled_from(CLUSTERS), peers=some_clusters)
    def cluster(self, name: str, peers: list[str]) -> None:
        make = self.resources.update_cluster if name in self.resources.clusters() else self.resources.create_cluster
        self._try(make, name, ClusterData(peer_cluster_names=peers))

    @rule(name=st.sampled_from(CLUSTERS))
    def delete_cluster(self, name: str) -> None:
        self._try(self.resources.delete_cluster, name)

    @rule(name=st.sampled_from(TENANTS), clusters=some_clusters)
    def tenant(self, name: str, clusters: list[str]) -> None:
        make = self.resources.update_tenant if name in self.resources.tenants() else self.resources.create_tenant
        self._try(make, name, TenantInfo([], clusters))

    @rule(name=st.sampled_from(TENANTS))
    def delete_tenant(self, name: str) -> None:
        self._try(self.resources.delete_tenant, name)

    @rule(tenant=st.sampled_from(TENANTS), local=st.sampled_from(SPACES), clusters=some_clusters, allowed=some_clusters)
    def namespace(self, tenant: str, local: str, clusters: list[str], allowed: list[str]) -> None:
        namespace = NamespaceName(tenant, local)
        policies = Policies(replication_clusters=clusters, allowed_clusters=allowed)
        self._try(self.resources.create_namespace, namespace, policies)

    @rule(tenant=st.sampled_from(TENANTS), local=st.sampled_from(SPACES), clusters=some_clusters, allowed=st.booleans())
    def policy(self, tenant: str, local: str, clusters: list[str], allowed: bool) -> None:
        make = self.resources.set_allowed if allowed else self.resources.set_replication
        self._try(make, NamespaceName(tenant, local), clusters)

    @rule(tenant=st.sampled_from(TENANTS), local=st.sampled_from(SPACES))
    def delete_namespace(self, tenant: str, local: str) -> None:
        self._try(self.resources.delete_namespace, NamespaceName(tenant, local), [])

    @rule(local=st.sampled_from(SPACES), number=st.integers(-1, 5))
    def partitioned(self, local: str, number: int) -> None:
        topic = TopicName("persistent", "public", local, "t")
        if self.resources.partitions(topic) is None:
            self._try(self.resources.create_partitioned, topic, number, {})
        elif number < 0:
            self._try(self.resources.delete_partitioned, topic)
        else:
            self._try(self.resources.update_partitioned, topic, number)

    @invariant()
    def whole(self) -> None:
        resources = self.resources
        known = set(resources.clusters())
        for name in known:
            assert not {name, ""} & set(resources.cluster_data(name).peer_cluster_names)
        for tenant in resources.tenants():
            allowed = set(resources.tenant(tenant).allowed_clusters)
            assert allowed and allowed <= known
            for text in resources.namespaces(tenant):
                policies = resources.policies(NamespaceName.parse(text))
                replication = set(policies.replication_clusters)
                assert replication and replication <= allowed
                assert not policies.allowed_clusters or replication <= set(policies.allowed_clusters) <= allowed
        for namespace in resources.all_namespaces():
            assert namespace.tenant in resources.tenants()
        for local in SPACES:
            if resources.partitioned_topics(NamespaceName("public", local)):
                assert resources.has_namespace(NamespaceName("public", local))

    @invariant()
    def a_restart_loads_the_same(self) -> None:
        again = Resources.load(self.stored, "us-west")
        assert again.clusters() == self.resources.clusters()
        assert again.tenants() == self.resources.tenants()
        assert again.all_namespaces() == self.resources.all_namespaces()
        for namespace in again.all_namespaces():
            assert again.policies(namespace) == self.resources.policies(namespace)
            assert again.partitioned_topics(namespace) == self.resources.partitioned_topics(namespace)


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_policies_of_a_topic_override_and_go_with_their_namespace() -> None:
    resources = started()
    namespace = NamespaceName("public", "short")
    topic = TopicName.parse("persistent://public/short/t-partition-3")
    resources.apply(resources.create_namespace(namespace, Policies(replication_clusters=["us-west"])))
    resources.apply(resources.change_policies(namespace, message_ttl_in_seconds=60, max_producers_per_topic=7))
    resources.apply(
        resources.change_topic_policies(topic, message_ttl_in_seconds=0, replication_clusters=["us-east", "us-west"])
    )
    assert resources.message_ttl_s(topic) == 0
    assert resources.message_ttl_s(TopicName.parse("persistent://public/short/other")) == 60
    assert resources.topic_replication_clusters(topic) == ("us-east",)
    for fields in ({"max_producers_per_topic": -1}, {"message_ttl_in_seconds": -1}, {"replication_clusters": []}):
        before = resources.topic_policies(topic)
        with pytest.raises(PreconditionFailed):
            resources.change_topic_policies(topic, max_message_size=5, **fields)
        assert resources.topic_policies(topic) == before
    change = resources.delete_namespace(namespace, [])
    assert "topicpolicies/persistent://public/short/t" in change.deletes
    resources.apply(change)
    assert resources.topic_policies(topic) == TopicPolicies()
