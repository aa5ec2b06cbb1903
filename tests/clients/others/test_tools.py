"""Pulsar's own command-line tools, `pulsar-admin` and `pulsar-client`, do with a broker what people do with them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.others import commands
from tests.clients.others.conversation import Missing
from tests.clients.others.pulsartools import Tools, program
from tests.support.brokers import BrokerProcess, World
from tests.support.secured import Secured, token

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def command() -> list[str]:
    """The program, built."""
    try:
        return program()
    except Missing as why:
        pytest.skip(f"the tools cannot be built here: {why}")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    world = World(tmp_path_factory.mktemp("tools"), ["a", "b"])
    world["a"].start()
    yield world["a"]
    world.close()


@pytest.fixture(scope="module")
def tools(command: list[str], broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    urls = {"webServiceUrl": f"http://127.0.0.1:{broker.http_port}/", "brokerServiceUrl": broker.url}
    made = Tools(command, tmp_path_factory.mktemp("conf"), **urls)
    yield made
    made.close()


@pytest.fixture
def space(tools: Tools, request: pytest.FixtureRequest) -> str:
    """A namespace of one test."""
    name = "public/" + "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:60]
    tools.admin(f"namespaces create {name}")
    return name


def test_the_first_commands_that_anybody_gives(tools: Tools, broker: BrokerProcess) -> None:
    assert tools.admin("clusters list").split() == ["a", "b"]
    address = f"127.0.0.1:{broker.http_port}"
    assert tools.admin("brokers list a") == address
    assert tools.json("brokers leader-broker") == {"serviceUrl": f"http://{address}", "brokerId": address}
    assert tools.admin("brokers healthcheck") == "ok"
    assert tools.json("clusters get a")["brokerServiceUrl"] == broker.url
    assert "clusterName" in tools.admin("brokers get-runtime-config")
    assert "public/default/0x00000000_0xffffffff" in tools.admin(f"brokers namespaces a --url {address}")
    assert "public" in tools.admin("tenants list").split()


def test_tenants_and_clusters(tools: Tools) -> None:
    tools.admin("tenants create acme --admin-roles boss --allowed-clusters a")
    assert tools.json("tenants get acme") == {"adminRoles": ["boss"], "allowedClusters": ["a"]}
    tools.admin("tenants update acme --admin-roles boss,chief --allowed-clusters a,b")
    assert tools.json("tenants get acme")["adminRoles"] == ["boss", "chief"]
    tools.admin("namespaces create acme/n --clusters a")
    assert tools.admin("namespaces list acme") == "acme/n"
    assert tools.admin("namespaces get-clusters acme/n") == "a"
    assert tools.json("namespaces bundles acme/n")["numBundles"] == 1
    tools.admin("namespaces unload acme/n -b 0x00000000_0xffffffff")
    assert "still has 1 namespaces, such as acme/n" in tools.refused("tenants delete acme")
    tools.admin("namespaces delete acme/n")
    tools.admin("tenants delete acme")
    tools.admin("clusters create --url http://127.0.0.1:1 --broker-url pulsar://127.0.0.1:1 west")
    tools.admin("clusters update --url http://127.0.0.1:2 west")
    assert tools.json("clusters get west")["serviceUrl"] == "http://127.0.0.1:2"
    tools.admin("clusters delete west")


POLICIES = [
    ("message-ttl", "-ttl 1h", "-t 3600", "3600"),
    ("max-producers-per-topic", "-p 3", "", "3"),
    ("max-consumers-per-topic", "-c 3", "", "3"),
    ("max-consumers-per-subscription", "-c 3", "-c 3", "3"),
    ("max-subscriptions-per-topic", "-m 3", "-s 3", "3"),
    ("max-unacked-messages-per-consumer", "-c 100", "-m 100", "100"),
    ("max-unacked-messages-per-subscription", "-c 100", "-m 100", "100"),
    ("deduplication", "-e", "", "true"),
    ("deduplication-snapshot-interval", "-i 100", "-i 100", "100"),
    ("retention", "-s 20G -t 3h", "-s 20G -t 3h", '"retentionSizeInMB" : 20480'),
    ("compaction-threshold", "-t 100M", "-t 100M", "104857600"),
    ("publish-rate", "-m 100 -b 1000", "-m 100 -b 1000", '"publishThrottlingRateInMsg" : 100'),
    ("dispatch-rate", "-md 100 -bd 1000 -dt 1", "-md 100 -bd 1000 -dt 1", '"dispatchThrottlingRateInMsg" : 100'),
    ("subscription-dispatch-rate", "-md 100", "-md 100", '"dispatchThrottlingRateInMsg" : 100'),
    ("delayed-delivery", "-e -t 1s", "-e -t 1s", '"active" : true'),
    ("max-topics-per-namespace", "-t 10", "", "10"),
    ("auto-topic-creation", "-d", "", '"allowAutoTopicCreation" : false'),
    ("auto-topic-creation", "-e -t non-partitioned", "", '"topicType" : "non-partitioned"'),
    ("auto-subscription-creation", "-e", "-e", '"allowAutoSubscriptionCreation" : true'),
    ("subscription-types-enabled", "-t Shared,Failover", "-t Shared,Failover", "Failover"),
    (
        "inactive-topic-policies",
        "-e -t 1h -m delete_when_no_subscriptions",
        "-e -t 1h -m delete_when_no_subscriptions",
        '"maxInactiveDurationSeconds" : 3600',
    ),
]
"""Name, what sets it for a namespace, for a topic ("": not by that name), what `get` then has in it."""


@pytest.mark.parametrize(("name", "value", "of_topic", "shown"), POLICIES, ids=[row[0] for row in POLICIES])
def test_policies(tools: Tools, space: str, name: str, value: str, of_topic: str, shown: str) -> None:
    before = tools.admin(f"namespaces get-{name} {space}")
    tools.admin(f"namespaces set-{name} {space} {value}")
    assert shown in tools.admin(f"namespaces get-{name} {space}")
    tools.admin(f"namespaces remove-{name} {space}")
    assert tools.admin(f"namespaces get-{name} {space}") == before
    if of_topic:
        topic = f"{space}/t"
        tools.admin(f"topics create {topic}")
        tools.admin(f"topicPolicies set-{name} {topic} {of_topic}")
        assert shown in tools.admin(f"topicPolicies get-{name} {topic}")
        tools.admin(f"topicPolicies remove-{name} {topic}")
        assert shown not in tools.admin(f"topicPolicies get-{name} {topic}")


def test_encryption_is_required_or_not(tools: Tools, space: str) -> None:
    assert tools.admin(f"namespaces get-encryption-required {space}") == "false"
    tools.admin(f"namespaces set-encryption-required {space} -e")
    assert tools.admin(f"namespaces get-encryption-required {space}") == "true"
    tools.admin(f"namespaces set-encryption-required {space} -d")
    assert tools.admin(f"namespaces get-encryption-required {space}") == "false"


def test_properties_of_a_namespace(tools: Tools, space: str) -> None:
    tools.admin(f"namespaces set-property {space} -k team -v us")
    tools.admin(f"namespaces set-properties {space} -p cost=7,more=x")
    assert tools.admin(f"namespaces get-property {space} -k team") == "us"
    told = tools.admin(f"namespaces get-properties {space}")
    assert all(word in told for word in ("team", "us", "cost", "7", "more", "x"))
    assert "us" in tools.admin(f"namespaces remove-property {space} -k team")
    assert "team" not in tools.admin(f"namespaces get-properties {space}")
    tools.admin(f"namespaces clear-properties {space}")
    assert "cost" not in tools.admin(f"namespaces get-properties {space}")


def test_quotas_schemas_and_permissions(tools: Tools, space: str, tmp_path: Path) -> None:
    tools.admin(f"namespaces set-backlog-quota {space} -l 10G -p producer_request_hold")
    tools.admin(f"namespaces set-backlog-quota {space} -lt 1h -p consumer_backlog_eviction -t message_age")
    assert tools.admin(f"namespaces get-backlog-quotas {space}").count("limitSize") == 2
    tools.admin(f"namespaces remove-backlog-quota {space} -t message_age")
    assert tools.admin(f"namespaces get-backlog-quotas {space}").count("limitSize") == 1
    assert "must exceed the backlog quota" in tools.refused(f"namespaces set-retention {space} -s 10G -t 3h")
    topic = f"{space}/t"
    tools.admin(f"topics create {topic}")
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "AVRO", "schema": json.dumps(schema), "properties": {}}))
    tools.admin(f"schemas upload {topic} -f {file}")
    assert tools.json(f"schemas get {topic}")["version"] == 0
    assert tools.json(f"schemas get {topic} -v 0")["type"] == "AVRO"
    tools.admin(f"schemas compatibility {topic} -f {file}")  # prints nothing
    tools.admin(f"schemas delete {topic}")
    assert "has no schema" in tools.refused(f"schemas get {topic}")
    for what, place in (("namespaces", space), ("topics", topic)):
        tools.admin(f"{what} grant-permission {place} --role bob --actions produce,consume")
        found = tools.admin(f"{what} permissions {place}")
        assert "bob" in found
        assert "produce" in found
        tools.admin(f"{what} revoke-permission {place} --role bob")
        assert "bob" not in tools.admin(f"{what} permissions {place}")


def test_messages(tools: Tools, space: str) -> None:
    topic = f"persistent://{space}/t"
    tools.admin(f"topics create {topic}")
    tools.admin(f"topics create-subscription {topic} -s s -m earliest -p a=b")
    tools.admin(f"topics create-subscription {topic} -s other -m earliest")
    assert sorted(tools.admin(f"topics subscriptions {topic}").split()) == ["other", "s"]
    assert "a" in tools.admin(f"topics get-subscription-properties {topic} -s s")
    tools.client(f"produce {topic} -m one,two,three,four,five -k key -p x=y")
    peeked = tools.admin(f"topics peek-messages {topic} -s s -n 2")
    assert "one" in peeked
    assert "two" in peeked
    stats = tools.json(f"topics stats {topic} -gpb -sbs -etb")
    assert (stats["msgInCounter"], stats["subscriptions"]["s"]["msgBacklog"]) == (5, 5)
    internal = tools.json(f"topics stats-internal {topic}")
    last = tools.json(f"topics last-message-id {topic}")
    assert internal["lastConfirmedEntry"] == f"{last['ledgerId']}:{last['entryId']}"
    assert internal["numberOfEntries"] == 5
    ledger, first = internal["cursors"]["s"]["readPosition"].split(":")
    assert "one" in tools.admin(f"topics get-message-by-id {topic} -l {ledger} -e {first}")
    assert "two" in tools.admin(f"topics examine-messages {topic} -i earliest -m 2")
    assert tools.json(f"topics get-message-id {topic} -d 2020-01-01T00:00:00.000Z")["entryId"] == int(first)
    assert int(tools.admin(f"topics get-backlog-size {topic} -m {ledger}:{first}")) > 0
    assert tools.json(f"topics analyze-backlog {topic} -s s")["messages"] == 5
    tools.admin(f"topics skip {topic} -s s -n 1")
    tools.admin(f"topics expire-messages {topic} -s s -p {ledger}:{int(first) + 1}")
    assert tools.json(f"topics stats {topic}")["subscriptions"]["s"]["msgBacklog"] == 3
    read = tools.client(f"consume {topic} -s s -n 3")
    assert [word for word in ("one", "two", "three", "four", "five") if f"content:{word}" in read] == [
        "three",
        "four",
        "five",
    ]
    assert "key:[key]" in read
    assert "properties:[x=y]" in read
    tools.admin(f"topics reset-cursor {topic} -s s -m earliest")
    assert tools.json(f"topics stats {topic}")["subscriptions"]["s"]["msgBacklog"] == 5
    tools.admin(f"topics clear-backlog {topic} -s s")
    tools.admin(f"topics expire-messages-all-subscriptions {topic} -t 3600")
    assert tools.client(f"read {topic} -m earliest -n 5").count("content:") == 5
    tools.admin(f"topics compact {topic}")
    assert "success" in tools.admin(f"topics compaction-status {topic} -w")
    tools.admin(f"topics unsubscribe {topic} -s other")
    tools.admin(f"topics unload {topic}")
    assert f"terminated at {ledger}:" in tools.admin(f"topics terminate {topic}")
    tools.admin(f"topics delete {topic}")
    assert tools.admin(f"topics list {space}") == ""


def test_partitions(tools: Tools, space: str) -> None:
    topic = f"persistent://{space}/p"
    tools.admin(f"topics create-partitioned-topic {topic} -p 2 -m k=v")
    tools.admin(f"topics update-partitioned-topic {topic} -p 3")
    assert tools.json(f"topics get-partitioned-topic-metadata {topic}")["partitions"] == 3
    assert tools.admin(f"topics list-partitioned-topics {space}") == topic
    assert tools.admin(f"topics partitioned-lookup {topic}").count("pulsar://") == 3
    assert tools.admin(f"topics bundle-range {topic}-partition-0") == "0x00000000_0xffffffff"
    tools.admin(f"topics create-subscription {topic} -s s")
    tools.client(f"produce {topic} -m one,two,three -n 2")
    stats = tools.json(f"topics partitioned-stats {topic} --per-partition")
    assert (stats["msgInCounter"], len(stats["partitions"])) == (6, 3)
    assert len(tools.json(f"topics partitioned-stats-internal {topic}")["partitions"]) == 3
    assert "k" in tools.admin(f"topics get-properties {topic}")
    assert tools.admin(f"topics partitioned-terminate {topic}").count("successfully terminated") == 3
    tools.admin(f"topics delete-partitioned-topic {topic} -f")
    assert tools.admin(f"topics list {space}") == ""


@pytest.mark.parametrize(
    "line",
    [
        "functions restart --tenant public --namespace default --name f",
        "resource-quotas set -mi 1 -mo 1 -bi 1 -bo 1 -mem 1 -d",
        "transactions coordinators-list",
        "namespaces set-offload-threshold public/default -s 10M",
        "namespaces set-bookie-affinity-group public/default -pg g",
    ],
)
def test_what_is_not_built_says_so(tools: Tools, line: str) -> None:
    assert " is not implemented by Magnetar: " in tools.refused(line)


def test_a_shadow_is_refused(tools: Tools, space: str) -> None:
    tools.admin(f"topics create {space}/t")
    assert "has no shadows" in tools.refused(f"topics create-shadow-topic {space}/shadow -s {space}/t")


def test_with_a_token_by_tls(command: list[str], tmp_path: Path) -> None:
    secured = Secured(tmp_path)
    secured.world.start()
    try:
        settings = {
            "webServiceUrl": f"https://127.0.0.1:{secured.broker.https_port}/",
            "brokerServiceUrl": secured.broker.url_tls,
            "authPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "tlsTrustCertsFilePath": str(secured.authority.file),
        }
        for role in ("root", "stranger"):
            (tmp_path / role).mkdir()
        root = Tools(command, tmp_path / "root", **settings, authParams=f"token:{token('root')}")
        stranger = Tools(command, tmp_path / "stranger", **settings, authParams=f"token:{token('stranger')}")
        try:
            assert root.admin("clusters list") == "solo"
            root.admin("topics create public/default/t")
            root.client("produce public/default/t -m hello")
            assert "hello" in root.client("consume public/default/t -s s -p Earliest -n 1")
            assert "stranger" in stranger.refused("topics stats public/default/t")
            assert "stranger" in stranger.refused("tenants list")
        finally:
            root.close()
            stranger.close()
    finally:
        secured.world.close()


def test_every_sub_command(command: list[str], tmp_path: Path) -> None:
    """None is left out, and each does what it says, or is refused with the reason."""
    world = World(tmp_path, ["a", "b"])
    broker = world["a"]
    broker.start()
    urls = {"webServiceUrl": f"http://127.0.0.1:{broker.http_port}/", "brokerServiceUrl": broker.url}
    tools = Tools(command, tmp_path, **urls)
    try:
        told = list(commands.answers(tools, broker, tmp_path))
        assert commands.every(tools) - {one.name for one in told} == set()
    finally:
        tools.close()
        world.close()
    assert [(one.line, one.refusal, one.text) for one in told if not one.expected] == []
