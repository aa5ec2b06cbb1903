"""docs/cluster.md: its steps and its commands do what it says, with real bookies, official clients and a real pipeline."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pulsar
import pytest

from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.brokers import BrokerProcess, eventually, free_port
from tests.support.pipelines import Pipeline

pytestmark = pytest.mark.timeout(400)

PAGE = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text(encoding="utf-8")
TOPIC = "persistent://public/default/orders"


def block(language: str, holding: str) -> str:
    """The block of the page that has this text."""
    found: list[str] = [one for one in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if holding in one]
    assert len(found) == 1
    return found[0]


def here(text: str, cluster: BookKeeperCluster, ports: dict[str, int], node: str) -> str:
    """A configuration or a program of the page with the addresses of this machine.

    Args:
        text: of the page.
        cluster: ZooKeeper and bookies.
        ports: those of the page -> free ones; filled.
        node: of ZooKeeper, in place of the page's root.
    """

    def port(found: re.Match[str]) -> str:
        return f"127.0.0.1:{ports.setdefault(found[1], free_port())}"

    text = text.replace("zookeeper://127.0.0.1:2181/", f"zookeeper://{cluster.hosts}/{node}/")
    return re.sub(r"127\.0\.0\.1:(\d{4})\b(?!\d)", port, text)


@pytest.fixture
def processes() -> Iterator[list[BrokerProcess | Pipeline]]:
    made: list[BrokerProcess | Pipeline] = []
    yield made
    for process in made:
        process.kill()


def test_step_by_step(cluster: BookKeeperCluster, tmp_path: Path, processes: list[BrokerProcess | Pipeline]) -> None:
    ports: dict[str, int] = {}
    config = tmp_path / "clusters.toml"
    config.write_text(here(block("toml", "[clusters.us-west.brokers.b]"), cluster, ports, "page"))
    a = BrokerProcess(config, "us-west/a", ports["6650"], ports["8080"])
    b = BrokerProcess(config, "us-west/b", ports["6651"], ports["8081"])
    processes += [a, b]
    a.start()
    b.launch()
    eventually(lambda: "broker b of cluster us-west waits to take over; broker a serves" in b.log.read_text())
    program = here(block("python", "create_producer"), cluster, ports, "page")
    with subprocess.Popen(
        [sys.executable, "-uc", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stdout is not None
        # The client writes its own lines between those of the program.
        orders = (int(found[1]) for line in running.stdout if (found := re.match(r"b'order (\d+)'$", line)))
        numbers = list(islice(orders, 100))
        a.kill()
        numbers += islice(orders, 100)
        b.await_ready()
        a.launch()
        eventually(lambda: "broker a of cluster us-west waits to take over; broker b serves" in a.log.read_text())
        assert b.process is not None
        b.process.send_signal(signal.SIGINT)
        a.await_ready()
        numbers += orders
        assert running.wait(60) == 0
    # Every order came, in order. After a takeover those come again whose acknowledgements the former broker had not stored; for
    # each of them the program, which receives a thousand times, leaves one at the end.
    assert len(numbers) == 1_000
    first = list(dict.fromkeys(numbers))
    assert first == list(range(len(first)))
    client = pulsar.Client(a.url)
    rest = client.subscribe(TOPIC, "billing")
    seen = set(first)
    while len(seen) < 1_000:
        seen.add(int(rest.receive(20_000).data().split()[1]))
    client.close()


def test_moving_onto_bookkeeper(
    cluster: BookKeeperCluster, tmp_path: Path, processes: list[BrokerProcess | Pipeline]
) -> None:
    ports: dict[str, int] = {}
    config = tmp_path / "clusters.toml"
    old = BrokerProcess(config, "us-west", free_port(), free_port())
    text = (
        f'[clusters.us-west]\npulsar = "127.0.0.1:{old.pulsar_port}"\nhttp = "127.0.0.1:{old.http_port}"\n'
        '[namespaces."public/default"]\nclusters = ["us-west"]\n'
    )
    config.write_text(text)
    processes.append(old)
    old.start()
    client = pulsar.Client(old.url)
    consumer = client.subscribe(TOPIC, "billing", replicate_subscription_state_enabled=True)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for number in range(200):
        producer.send(b"order %d" % number)
    for _ in range(50):
        consumer.acknowledge(consumer.receive(20_000))
    client.close()
    assert old.stop() == 0

    config.write_text(text + here(block("toml", "[clusters.us-west-2]"), cluster, ports, "page"))
    new = BrokerProcess(config, "us-west-2", ports["6660"], ports["8090"])
    pipeline = Pipeline(config)
    processes += [new, pipeline]
    old.start()
    new.start()
    pipeline.start()
    commands = [line.split() for line in re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)]
    assert [words[1] for words in commands] == ["namespaces", "failover", "drain", "verify"]
    run(commands[0], tmp_path)
    client = pulsar.Client(new.url)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    assert [reader.read_next(60_000).data() for _ in range(200)] == [b"order %d" % number for number in range(200)]
    assert "active in us-west-2: 0 messages re-delivered, 0 skipped" in run(commands[1], tmp_path)
    consumer = client.subscribe(TOPIC, "billing", replicate_subscription_state_enabled=True)
    assert [consumer.receive(20_000).data() for _ in range(150)] == [b"order %d" % n for n in range(50, 200)]
    client.create_producer(TOPIC).send(b"order 200")
    client.close()
    assert "us-west can be switched off now" in run(commands[2], tmp_path)
    run(commands[3], tmp_path)


def run(words: list[str], folder: Path) -> str:
    """A command of the page, run in the folder of clusters.toml; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, check=False, timeout=300, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
