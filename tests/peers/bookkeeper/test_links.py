"""Links between a cluster of two brokers on real bookies and a cluster of one broker: they continue over a takeover."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.support.acknowledged import durably_acknowledged
from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.bookkeeper_brokers import Publisher, connect, stored
from tests.support.brokers import BrokerProcess, eventually, free_port
from tests.support.pipelines import Pipeline
from tests.support.receiving import nothing_more

pytestmark = [pytest.mark.timeout(900), pytest.mark.spark]

TOPIC = "persistent://public/default/both-ways"
PATH = "/admin/v2/persistent/public/default/both-ways"
RETENTION = "/admin/v2/namespaces/public/default/retention"
PAUSE_S = 0.01
"""Between two messages of a publisher: the test is about a takeover, and not about load."""

FILE = """\
[magnetar]
data_dir = "data"

[clusters.west]
storage = "bookkeeper"
store = "zookeeper://{hosts}{store}"
[clusters.west.brokers.a]
pulsar = "127.0.0.1:{a.pulsar_port}"
http = "127.0.0.1:{a.http_port}"
[clusters.west.brokers.b]
pulsar = "127.0.0.1:{b.pulsar_port}"
http = "127.0.0.1:{b.http_port}"

[clusters.east]
pulsar = "127.0.0.1:{east.pulsar_port}"
http = "127.0.0.1:{east.http_port}"

[deduplication]
enabled = true

[metadata]
metadata_sync_topic = "persistent://pulsar/system/metadata-sync"

[replication]
token_file = "{token}"
{tail}
"""


class Clusters:
    """West with brokers a and b, east with one broker, and the pipeline between them. Each has a folder of its own."""

    def __init__(self, folder: Path, hosts: str, store: str) -> None:
        names = {"a": "west/a", "b": "west/b", "east": "east"}
        self.brokers = {
            key: BrokerProcess(folder / key / "clusters.toml", name, free_port(), free_port())
            for key, name in names.items()
        }
        token = folder / "link.token"
        token.write_text("a-link-token-of-the-test-0123456789\n")
        token.chmod(0o600)
        tail = os.environ.get("MAGNETAR_TAIL", "")
        tail = f'tail = "{tail}"' if tail else ""
        self.config = folder / "clusters.toml"
        for config in (self.config, *(broker.config for broker in self.brokers.values())):
            config.parent.mkdir(exist_ok=True)
            config.write_text(FILE.format(hosts=hosts, store=store, token=token, tail=tail, **self.brokers))
        self.pipeline = Pipeline(self.config)

    def __getitem__(self, name: str) -> BrokerProcess:
        return self.brokers[name]

    @property
    def west(self) -> str:
        """Both brokers of west, as its clients name them."""
        return f"{self['a'].url},127.0.0.1:{self['b'].pulsar_port}"

    def start(self) -> None:
        """Start everything; a serves west."""
        self["a"].start()
        self["b"].launch()
        self["east"].start()
        eventually(lambda: "waits to take over" in self["b"].log.read_text(), what="b waits")
        self.pipeline.start()

    def close(self) -> None:
        """End everything."""
        self.pipeline.kill()
        for broker in self.brokers.values():
            broker.kill()

    def line(self, *words: str) -> list[str]:
        """A command line of `magnetar` with the file of the pipeline."""
        return [sys.executable, "-m", "magnetar", *words, "-c", str(self.config)]

    def command(self, *words: str) -> str:
        """What a command prints."""
        done = subprocess.run(self.line(*words), capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout


@pytest.fixture
def clusters(cluster: BookKeeperCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Clusters]:
    made = Clusters(tmp_path, cluster.hosts, f"/magnetar/{request.node.name}")
    yield made
    made.close()


def backlog(broker: BrokerProcess) -> int:
    """Messages that the subscription has still to get."""
    stats: dict[str, Any] = broker.rest("GET", f"{PATH}/stats")
    return int(stats["subscriptions"].get("s", {"msgBacklog": -1})["msgBacklog"])


def acknowledged_all(consumer: pulsar.Consumer, broker: BrokerProcess) -> bool:
    """Acknowledge what comes; whether nothing is left. What was on its way when the broker died comes again."""
    try:
        while True:
            consumer.acknowledge(consumer.receive(1_000))
    except pulsar.Timeout:
        return backlog(broker) == 0


def acknowledge(consumer: pulsar.Consumer, count: int) -> None:
    for _ in range(count):
        consumer.acknowledge(consumer.receive(60_000))


def test_links_in_both_directions_continue_over_a_takeover(clusters: Clusters) -> None:
    clusters.start()
    publishers = {
        name: Publisher(url, topic=TOPIC, name=name, prefix=f"{name}-", pause_s=PAUSE_S, patience_s=120)
        for name, url in (("from-west", clusters.west), ("from-east", clusters["east"].url))
    }
    for publisher in publishers.values():
        publisher.after(50)
    client = connect(clusters.west)
    consumer = client.subscribe(
        TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest, replicate_subscription_state_enabled=True
    )
    acknowledge(consumer, 40)
    eventually(lambda: backlog(clusters["east"]) >= 0, within_s=60, what="the subscription is in east")

    clusters["a"].kill()  # SIGKILL, while messages travel in both directions
    clusters["east"].rest("POST", RETENTION, {"retentionTimeInMinutes": 77, "retentionSizeInMB": 7})
    for publisher in publishers.values():
        publisher.after(50)
    clusters["b"].await_ready()
    for publisher in publishers.values():
        publisher.after(20)

    for publisher in publishers.values():
        publisher.close()
        assert not publisher.failed
    confirmed = {name: [f"{name}-{number}" for number in publisher.confirmed] for name, publisher in publishers.items()}
    expected = sum(map(len, confirmed.values()))
    for url in (clusters["b"].url, clusters["east"].url):
        found = eventually(
            lambda url=url: (all_ := stored(url, TOPIC)) and len(all_) >= expected and all_, within_s=120, every_s=1
        )
        for name, sent in confirmed.items():
            assert [one for one in found if one.startswith(name)] == sent, f"{name} at {url}"
        assert len(found) == expected

    eventually(lambda: acknowledged_all(consumer, clusters["b"]), within_s=120, what="all is acknowledged in west")
    eventually(lambda: backlog(clusters["east"]) == 0, within_s=60, what="the position came to east")
    arrived = {"retentionTimeInMinutes": 77, "retentionSizeInMB": 7}
    eventually(lambda: clusters["b"].rest("GET", RETENTION) == arrived, within_s=60, what="the policy came to west")
    client.close()

    # The file names the broker that was killed first: each command finds the other one.
    state = json.loads(clusters.command("status", "--json"))
    assert {name: one.get("error") for name, one in state.items()} == {"west": None, "east": None}
    assert "west:east" in clusters.command("links", "list")
    assert "can be switched off now" in clusters.command("drain", "west", "--timeout", "60")
    clusters.command("verify", TOPIC)
    assert clusters.pipeline.process is not None
    assert clusters.pipeline.process.poll() is None


def test_a_planned_failover_continues_over_a_takeover(clusters: Clusters) -> None:
    """There and back; the broker of west that serves is killed when the source is fenced. Nothing is lost or comes twice."""
    clusters.start()
    client = connect(clusters.west)
    elsewhere = connect(clusters["east"].url)
    producers = [
        one.create_producer(TOPIC, producer_name=name, batching_enabled=False, send_timeout_millis=0)
        for one, name in ((client, "from-west"), (elsewhere, "from-east"))
    ]
    consumer = client.subscribe(
        TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest, replicate_subscription_state_enabled=True
    )
    sent: list[str] = []
    seen: list[str] = []

    def publish() -> None:
        for _ in range(10):
            for producer in producers:
                sent.append(f"{len(sent)}")
                producer.send(sent[-1].encode())

    def receive() -> None:
        while len(seen) < len(sent):
            message = consumer.receive(120_000)
            seen.append(message.data().decode())
            consumer.acknowledge(message)

    publish()
    receive()
    eventually(lambda: backlog(clusters["east"]) >= 0, within_s=60, what="the subscription is in east")
    for source, target, dies, takes_over in (("west", "east", "a", "b"), ("east", "west", "b", "a")):
        publish()
        receive()
        serving = clusters[dies if source == "west" else "east"]
        eventually(lambda serving=serving: backlog(serving) == 0, within_s=60, what=f"all is acknowledged in {source}")
        durably_acknowledged(serving, TOPIC, "s")
        words = ("failover", TOPIC, "s", "--from", source, "--to", target, "--timeout", "120")
        with subprocess.Popen(
            clusters.line(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            printed = [next(line for line in running.stdout if line.startswith(f"fenced in {source}"))]
            clusters[dies].kill()
            publish()  # what comes now is for the target
            rest, errors = running.communicate(timeout=240)
            printed += rest.splitlines()
        assert running.returncode == 0, (printed, errors)
        assert printed[-1].startswith(f"active in {target}: 0 messages re-delivered, 0 skipped"), printed
        clusters[takes_over].await_ready()
        publish()
        receive()
        clusters[dies].log.unlink()
        clusters[dies].launch()
        eventually(lambda dies=dies: "waits to take over" in clusters[dies].log.read_text(), within_s=60)
    for name in ("a", "east"):
        eventually(lambda name=name: backlog(clusters[name]) == 0, within_s=60, what=f"all is acknowledged at {name}")
    assert nothing_more(consumer)
    assert sorted(seen) == sorted(sent)
    assert sorted(stored(clusters["a"].url, TOPIC)) == sorted(stored(clusters["east"].url, TOPIC)) == sorted(sent)
    client.close()
    elsewhere.close()
