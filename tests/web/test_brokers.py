"""What tools ask of brokers before they do anything else, answered as one broker without pieces of namespaces can."""

from pathlib import Path

import pytest

from magnetar.admin.metrics.runtime_settings import runtime_settings
from magnetar.core.config import builtin, parse
from magnetar.metadata.policies.namespace import Policies
from tests.web.conftest import Tell, World

A = "/admin/v2"
WHOLE = "0x00000000_0xffffffff"


def test_settings_have_pulsars_names_and_this_brokers_values(tell: Tell) -> None:
    async def story(world: World) -> None:
        answer = await world.ask("GET", f"{A}/brokers/configuration/runtime")
        assert answer.json["clusterName"] == "us-west"
        assert answer.json["maxMessageSize"] == str(5 << 20)
        assert {type(value) for value in answer.json.values()} == {str}
        assert (await world.ask("GET", f"{A}/brokers/configuration")).json == []
        assert (await world.ask("GET", f"{A}/brokers/configuration/values")).json == {}

    tell(story)


def test_settings_follow_the_file(tmp_path: Path) -> None:
    config = parse(
        """
        [clusters.one]
        pulsar = "0.0.0.0:7000"
        http = "127.0.0.1:7001"
        advertised = "[fd00::1]:7000"
        [broker]
        auto_create_topics = false
        message_bytes_max = 1000000
        [deduplication]
        enabled = true
        producer_inactive_s = 7200
        """,
        tmp_path / "clusters.toml",
    )
    found = runtime_settings(config, "one", config.cluster("one").broker(""), Policies(message_ttl_in_seconds=60))
    assert found["brokerServicePort"] == "7000"
    assert found["webServicePort"] == "7001"
    assert found["webServicePortTls"] == ""
    assert found["advertisedAddress"] == "fd00::1"
    assert found["maxMessageSize"] == "1000000"
    assert (found["allowAutoTopicCreation"], found["brokerDeduplicationEnabled"]) == ("false", "true")
    assert found["brokerDeduplicationProducerInactivityTimeoutMinutes"] == "120"
    assert found["ttlDurationDefaultInSeconds"] == "60"
    assert found["authenticationEnabled"] == "false"


def test_no_secret_is_among_them() -> None:
    config = builtin(Path("data"))
    found = runtime_settings(config, "us-west", config.clusters["us-west"].broker(""), Policies())
    assert not [
        key for key in found if any(word in key.lower() for word in ("secret", "token", "key", "file", "password"))
    ]


def test_the_leader_and_what_it_owns(tell: Tell) -> None:
    async def story(world: World) -> None:
        leader = {"brokerId": "127.0.0.1:8080", "serviceUrl": "http://127.0.0.1:8080"}
        for path in ("leaderBroker", "us-west/leaderBroker"):
            assert (await world.ask("GET", f"{A}/brokers/{path}")).json == leader
        owned = (await world.ask("GET", f"{A}/brokers/us-west/127.0.0.1:8080/ownedNamespaces")).json
        assert owned[f"public/default/{WHOLE}"] == {
            "broker_assignment": "shared",
            "is_controlled": False,
            "is_active": True,
        }
        wanted = set()
        for tenant in (await world.ask("GET", f"{A}/tenants")).json:
            wanted |= {f"{name}/{WHOLE}" for name in (await world.ask("GET", f"{A}/namespaces/{tenant}")).json}
        assert owned.keys() == wanted

    tell(story)


def test_a_namespace_is_one_piece(tell: Tell) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", f"{A}/persistent/public/default/t", None))
        bundles = (await world.ask("GET", f"{A}/namespaces/public/default/bundles")).json
        assert bundles == {"boundaries": WHOLE.split("_"), "numBundles": 1}
        answer = await world.ask("GET", "/lookup/v2/topic/persistent/public/default/t/bundle")
        assert answer.data.decode() == WHOLE
        client = world.produce("persistent://public/default/t")
        assert (await world.ask("PUT", f"{A}/namespaces/public/default/{WHOLE}/unload")).status == 204
        assert client.answers[-1].HasField("close_producer")

    tell(story)


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize(
    ("topic", "status"), [("new", 200), ("new-partition-0", 404), ("p-partition-1", 200), ("p-partition-2", 404)]
)
def test_clients_by_http_are_told_of_no_partition_that_nobody_makes(
    tell: Tell, domain: str, topic: str, status: int
) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", f"{A}/{domain}/public/default/p/partitions", "2"))
        place = f"{domain}/public/default/{topic}"
        assert (await world.ask("GET", f"/lookup/v2/topic/{place}")).status == status
        asked = await world.ask("GET", f"{A}/{place}/partitions?checkAllowAutoCreation=true")
        assert asked.status == status
        if domain == "persistent":
            made = await world.ask("PUT", f"{A}/{place}/subscription/s")
            assert made.status == (204 if status == 200 else 404)

    tell(story)


@pytest.mark.parametrize("path", ["t", "t/partitions"])
def test_a_shadow_is_refused_instead_of_being_an_ordinary_topic(tell: Tell, path: str) -> None:
    """`pulsar-admin topics create-shadow-topic` creates one with this property."""
    properties = '{"PULSAR.SHADOW_SOURCE": "persistent://public/default/source"}'
    body = properties if path == "t" else f'{{"partitions": 2, "properties": {properties}}}'

    async def story(world: World) -> None:
        answer = await world.ask("PUT", f"{A}/persistent/public/default/{path}", body)
        assert (answer.status, answer.reason) == (412, "a topic has no shadows; links copy topics between clusters")
        assert not world.topics()

    tell(story)


def test_a_number_that_javas_tools_need_is_there(tell: Tell) -> None:
    """They take it for one that cannot be missing, and fail on the empty answer that the other policies have."""

    async def story(world: World) -> None:
        path = f"{A}/namespaces/public/default/maxTopicsPerNamespace"
        assert (await world.ask("GET", path)).json == 0
        await world.have(("POST", path, "7"))
        assert (await world.ask("GET", path)).json == 7
        assert (await world.ask("GET", f"{A}/namespaces/public/default/maxProducersPerTopic")).status == 204

    tell(story)
