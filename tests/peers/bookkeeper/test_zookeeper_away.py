"""ZooKeeper goes away while brokers serve from real bookies, or is not there when they start, or has a wrong identity."""

import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.runtime.bookkeeper.connecting import START_S
from magnetar.runtime.bookkeeper.ownership import SESSION_S
from magnetar.storage.bookkeeper.lease import LEASE_PART
from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.bookkeeper_brokers import TOPIC, Brokers, Publisher, connect, numbers
from tests.support.bookkeeper_up import Up
from tests.support.brokers import BrokerProcess, free_port

pytestmark = pytest.mark.timeout(400)

LEASE_S = LEASE_PART * SESSION_S
"""How long a broker serves without ZooKeeper."""

FREE = """
[deduplication]
enabled = true
[namespaces."public/default"]
clusters = ["one"]
"""
"""Tables of `clusters.toml`: what a client sends again is stored once."""


@pytest.fixture
def up(cluster: BookKeeperCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Up]:
    made = Up(tmp_path, cluster.hosts, f"/magnetar/{request.node.name}", FREE)
    yield made
    made.kill()


def test_zookeeper_away_for_a_minute(cluster: BookKeeperCluster, up: Up) -> None:
    """Longer than session and lease, and than a start waits: the broker serves until its lease is over, then stops. When
    ZooKeeper is back one of them serves again, without an operator, and clients that were there all the time continue."""
    up.start()
    serves = "ab"["ba".index(up.line(r"broker one/([ab]) waits")[1])]
    up.line(r"ready \(.*\); Ctrl-C stops everything")
    client = connect(up.url)
    consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    publisher = Publisher(up.url, pause_s=0.01, patience_s=120)
    publisher.after(20)
    before = len(up.lines)
    killed_s = time.perf_counter()
    cluster.zookeeper.kill()
    up.line(
        rf".*the broker stops: ZooKeeper has not confirmed for {LEASE_S:.1f} s that /magnetar/.*/shards/0/owner is its own",
        before,
    )
    up.line(rf"broker one/{serves} ended: exit code 1; restarting in .* s", before)
    last_s = publisher.moments[-1]
    count = len(publisher.confirmed)
    assert last_s > killed_s + LEASE_S / 2, "the broker served while it had its lease"
    # Its last question was answered before ZooKeeper was killed; a confirmation reaches the client a little later.
    assert last_s < killed_s + LEASE_S + 0.5
    up.line(
        rf"broker one/[ab] ended: zookeeper://{cluster.hosts}/.*: ZooKeeper does not answer within {START_S:g} s: "
        rf"{cluster.hosts}: Connection refused; restarting in .* s",
        before,
        within_s=2 * START_S + 60,
    )
    assert len(publisher.confirmed) == count
    cluster.start_zookeeper()
    returned = len(up.lines)
    up.line(r"broker one/[ab] (serves|is back)", returned, within_s=120)
    publisher.after(50)
    publisher.close()
    assert numbers(up.url) == publisher.confirmed
    missing = set(publisher.confirmed)
    while missing:
        message = consumer.receive(20_000)
        consumer.acknowledge(message)
        missing.discard(int(message.data()))
    client.close()
    assert sum("the broker stops" in line for line in up.lines) == 1
    assert not any("Traceback" in line for line in up.lines)
    assert len(up.lines) - before < 100


def test_a_start_without_zookeeper_is_one_line(tmp_path: Path) -> None:
    """What is missing is said after seconds; when nothing changes, the start ends with one line. Of `magnetar broker`, too."""
    hosts = f"127.0.0.1:{free_port()}"
    (tmp_path / "alone").mkdir()
    up, alone = Up(tmp_path, hosts, "/one"), Up(tmp_path / "alone", hosts, "/one")
    broker = BrokerProcess(alone.file, "one/a", 0, 0)
    began_s = time.monotonic()
    up.start()
    broker.launch()
    try:
        tries = rf".*ZooKeeper does not answer: {hosts}: Connection refused; the broker tries for {START_S:g} s"
        up.line(tries)
        said_s = time.monotonic() - began_s
        assert up.wait() == 1
        assert broker.process is not None
        assert broker.process.wait(60) == 1
    finally:
        up.kill()
        broker.kill()
    assert said_s < START_S / 2
    wrong = rf"zookeeper://{hosts}/one: ZooKeeper does not answer within {START_S:g} s: {hosts}: Connection refused"
    assert re.fullmatch(f"magnetar: broker one/[ab] did not start: {wrong}", up.lines[-1])
    lines = broker.log.read_text().splitlines()
    assert re.fullmatch(tries, lines[0])
    assert re.fullmatch(f"magnetar: {wrong}", lines[-1])
    assert len(lines) == 2


def refusal(broker: BrokerProcess) -> str:
    """The line with which a broker ends that does not start."""
    before = broker.log.stat().st_size if broker.log.exists() else 0
    broker.launch()
    assert broker.process is not None
    assert broker.process.wait(60) == 1
    *_, line = lines = broker.log.read_bytes()[before:].decode().splitlines()
    assert not any("Traceback" in one for one in lines)
    return line


def test_the_identity_of_a_cluster_is_damaged(brokers: Brokers, cluster: BookKeeperCluster) -> None:
    """It is not made anew, since the other clusters would take it for that of another one. The line says what it has to be."""
    broker = brokers["a"].start()
    publisher = Publisher(broker.url)
    publisher.after(5)
    publisher.close()
    assert broker.stop() == 0
    path = f"{brokers.store}/uuid"
    with cluster.client() as client:
        former = client.get(path)[0].decode()
        other = str(uuid.uuid4())
        for damaged, wrong in (
            (former[:-1], f"no uuid but {former[:-1]!r}"),
            (other, f"another cluster's uuid, {other}"),
        ):
            client.set(path, damaged.encode())
            assert refusal(broker) == (
                f"magnetar: ZooKeeper, {path}: it holds {wrong}: the other clusters would take this one for another; write "
                f"{former}, which the states of its brokers have"
            )
            assert client.get(path)[0] == damaged.encode()
        client.set(path, former.encode())
    broker.start()
    assert broker.rest("GET", "/geo/v1/status")["uuid"] == former
    assert numbers(broker.url) == publisher.confirmed


def test_the_node_of_another_cluster(brokers: Brokers, cluster: BookKeeperCluster) -> None:
    """A file with another name of the cluster and the same store: nothing of the cluster that is there is touched."""
    broker = brokers["a"].start()
    publisher = Publisher(broker.url)
    publisher.after(5)
    with cluster.client() as client:
        former, _ = client.get(f"{brokers.store}/uuid")
        folder = brokers["b"].config.parent
        text = brokers["b"].config.read_text().replace("clusters.one", "clusters.two").replace('["one"]', '["two"]')
        (folder / "two.toml").write_text(text)
        other = BrokerProcess(folder / "two.toml", "two/b", 0, 0)
        assert refusal(other) == (
            f"magnetar: {brokers.address}: cluster 'one' has its log there: write another path in [clusters.two] store"
        )
        assert client.get(f"{brokers.store}/uuid")[0] == former
        assert client.get_children(f"{brokers.store}/brokers") == ["a"]
    publisher.after(5)
    publisher.close()
    assert numbers(broker.url) == publisher.confirmed
