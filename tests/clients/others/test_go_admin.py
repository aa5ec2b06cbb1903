"""Go's typed administration library, which pulsarctl is made of, understands every answer."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import schema

from tests.clients.others.conversation import Missing, fetch, prepared, run, tool
from tests.support.brokers import World, eventually

pytestmark = pytest.mark.timeout(1200)

NOT_BUILT = {"namespaces.GetAntiAffinityNamespaces"}
"""What answers that it is not implemented: of what only asks, what is asked here with a path that Pulsar has not."""

NOT_THERE = {
    "brokers.GetOwnedNamespaces",
    "clusters.GetFailureDomain",
    "subscriptions.GetMessageByID",
    "subscriptions.GetMessagesByID",
}
"""An address, a domain and a message id that there are not: refused in the library's own type of error."""


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        go = tool("go")
        folder = prepared("go-admin")
        fetch([go, "mod", "download"], folder)
    except Missing as why:
        pytest.skip(f"Go's administration library cannot be built here: {why}")
    run([go, "build", "-o", "asks", "."], folder)
    return folder / "asks"


def test_everything_that_it_can_ask(program: Path, tmp_path: Path) -> None:
    class Flight(schema.Record):
        number = schema.Integer()

    world = World(tmp_path, ["a"])
    broker = world["a"]
    broker.start()
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        broker.rest("PUT", "/admin/v2/persistent/public/default/p/partitions", 2)
        consumer = client.subscribe("persistent://public/default/t", "s", consumer_type=pulsar.ConsumerType.KeyShared)
        producer = client.create_producer("persistent://public/default/t", batching_enabled=False)
        for number in range(3):
            producer.send(b"%d" % number, partition_key="k")
        consumer.acknowledge(consumer.receive(60_000))
        stats = "/admin/v2/persistent/public/default/t/stats"
        eventually(
            lambda: broker.rest("GET", stats)["subscriptions"]["s"]["msgBacklog"] == 2
        )  # the client gathers them
        typed = client.create_producer("persistent://public/default/p", schema=schema.AvroSchema(Flight))
        typed.send(Flight(number=1))
        said = subprocess.run(
            [program, f"http://127.0.0.1:{broker.http_port}", "a", "public/default"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
    finally:
        client.close()
        world.close()
    answers: dict[str, dict[str, Any]] = {one["Asked"]: one for one in map(json.loads, said.splitlines())}
    failed = {asked: one["Error"] for asked, one in answers.items() if one["Error"]}
    expected = NOT_BUILT | NOT_THERE
    assert failed.keys() == expected, {each: failed.get(each) for each in failed.keys() ^ expected}
    for asked, error in failed.items():
        wanted = "code: 404" if asked in NOT_THERE else "code: 501"
        assert wanted in error, (asked, error)

    def value(asked: str) -> Any:
        return json.loads(answers[asked]["Value"])

    assert value("clusters.List") == ["a"]
    assert value("brokers.GetRuntimeConfigurations")["clusterName"] == "a"
    assert value("brokers.GetLeaderBroker")["brokerId"] == f"127.0.0.1:{broker.http_port}"
    assert value("topics.GetStats")["msgInCounter"] == 3
    assert value("topics.GetStats")["subscriptions"]["s"]["msgBacklog"] == 2
    assert value("topics.GetStats")["subscriptions"]["s"]["type"] == "Key_Shared"
    assert value("topics.GetInternalStats")["numberOfEntries"] == 3
    assert len(value("topics.GetPartitionedStats")["partitions"]) == 2
    assert value("topics.GetBundleRange") == "0x00000000_0xffffffff"
    assert value("schemas.GetSchemaInfoWithVersion")["version"] == 0
    assert value("namespaces.GetMaxTopicsPerNamespace") == 0
