"""The brokers of one cluster whose log is on real bookies, and official clients that publish to them and read from them."""

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pulsar

from magnetar.runtime.bookkeeper.shards import shard_path
from magnetar.storage.bookkeeper.chain import Chain
from tests.support.acknowledged import Place, place
from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.brokers import BrokerProcess, eventually, free_port

TOPIC = "persistent://public/default/moved"


def connect(url: str, timeout_s: int = 30, **options: Any) -> pulsar.Client:
    """An official client."""
    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    return pulsar.Client(url, operation_timeout_seconds=timeout_s, logger=logger, **options)


class Brokers:
    """The brokers of one cluster: one file, of which each has a copy, and a folder for each.

    Args:
        folder: for all of them.
        cluster: the bookies.
        store: the node of ZooKeeper.
        more: tables of the file.
        of_broker: lines for each broker, in which `{port}` is its Pulsar port.
        hosts: of ZooKeeper, if they are not those of the cluster.
        deduplicates: whether deduplication is on.

    Attributes:
        cluster: the bookies.
        store: see above.
        address: of the node, as it is in the file.
    """

    def __init__(
        self,
        folder: Path,
        cluster: BookKeeperCluster,
        store: str,
        more: str = "",
        of_broker: str = "",
        hosts: str = "",
        *,
        deduplicates: bool = True,
    ) -> None:
        self.cluster = cluster
        self.store = store
        self.address = f"zookeeper://{hosts or cluster.hosts}{store}"
        ports = {name: (free_port(), free_port()) for name in "ab"}
        text = (
            f'[magnetar]\ndata_dir = "data"\n[clusters.one]\nstorage = "bookkeeper"\n'
            f'store = "{self.address}"\n'
            f"[deduplication]\nenabled = {str(deduplicates).lower()}\n"
            '[namespaces."public/default"]\nclusters = ["one"]\n'
        )
        for name, (pulsar_port, http_port) in ports.items():
            text += (
                f'[clusters.one.brokers.{name}]\npulsar = "127.0.0.1:{pulsar_port}"\nhttp = "127.0.0.1:{http_port}"\n'
                + of_broker.format(port=pulsar_port)
            )
        text += more
        self.brokers: dict[str, BrokerProcess] = {}
        for name, (pulsar_port, http_port) in ports.items():
            home = folder / name
            home.mkdir()
            (home / "clusters.toml").write_text(text)
            self.brokers[name] = BrokerProcess(home / "clusters.toml", f"one/{name}", pulsar_port, http_port)

    def __getitem__(self, name: str) -> BrokerProcess:
        return self.brokers[name]

    @property
    def url(self) -> str:
        """All of them, as clients are told."""
        return "pulsar://" + ",".join(f"127.0.0.1:{one.pulsar_port}" for one in self.brokers.values())

    def close(self) -> None:
        """End all brokers, those that hang too."""
        for broker in self.brokers.values():
            broker.kill()

    def start(self) -> "Brokers":
        """Broker a serves, broker b waits."""
        self["a"].start()
        self.wait_in_line("b")
        return self

    def end(self, name: str, how: str) -> None:
        """End a broker: it is `killed`, or `stopped` in good order."""
        if how == "killed":
            self[name].kill()
        else:
            assert self[name].stop() == 0

    def wait_in_line(self, name: str) -> None:
        """A broker that starts while another one serves."""
        log = self[name].log
        before = log.stat().st_size if log.exists() else 0
        self[name].launch()
        eventually(lambda: b"waits to take over" in log.read_bytes()[before:], what=f"{name} waits")


def ledgers_of(cluster: BookKeeperCluster, store: str) -> dict[str, int]:
    """The files of a cluster's log, and the ledger of each.

    Args:
        cluster: the bookies.
        store: the cluster's node of ZooKeeper.
    """
    with cluster.client() as client:
        chain = Chain.decode(bytes(client.get(f"{shard_path(store)}/chain")[0]))
    return {name: file.ledger for name, file in chain.files.items()}


def stored(url: str, topic: str) -> list[str]:
    """Everything that is stored in a topic."""
    client = connect(url)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(20_000).data().decode())
        return found
    finally:
        client.close()


def numbers(url: str) -> list[int]:
    """Everything that a `Publisher` without a prefix stored in `TOPIC`."""
    return [int(text) for text in stored(url, TOPIC)]


def longest_s(moments: Sequence[float]) -> float:
    """The longest time between two moments that follow each other."""
    return max(after - before for before, after in pairwise(moments))


class Publisher:
    """Sends numbers one after the other, until it is stopped; counts those that are confirmed.

    Args:
        url: of the cluster.
        topic: to which it publishes.
        name: of the producer.
        prefix: of each message.
        pause_s: between two messages.
        patience_s: of `after`.
        keys: the number of different keys of the messages; 0: they have none.

    Attributes:
        confirmed: the numbers.
        moments: when each of them was confirmed, by `time.perf_counter`.
        failed: the error that ended it, if there was one.
    """

    def __init__(
        self,
        url: str,
        *,
        topic: str = TOPIC,
        name: str = "p",
        prefix: str = "",
        pause_s: float = 0.0,
        patience_s: float = 60,
        keys: int = 0,
    ) -> None:
        self.confirmed: list[int] = []
        self.failed: list[str] = []
        self.moments: list[float] = []
        self._prefix, self._pause_s, self._patience_s, self._keys = prefix, pause_s, patience_s, keys
        self._stop = threading.Event()
        self._client = connect(url)
        self._producer = self._client.create_producer(
            topic, producer_name=name, batching_enabled=False, send_timeout_millis=0, block_if_queue_full=True
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._pause_s):
            key = f"k{number % self._keys}" if self._keys else None
            try:
                self._producer.send(f"{self._prefix}{number}".encode(), partition_key=key)
            except pulsar.PulsarException as error:
                self.failed.append(str(error))
                return
            self.moments.append(time.perf_counter())
            self.confirmed.append(number)
            number += 1

    def longest_pause_s(self, first: int) -> float:
        """The longest time between two confirmations, from message `first` on."""
        return longest_s(self.moments[first:])

    def after(self, count: int) -> None:
        """Wait until so many more are confirmed."""
        wanted = len(self.confirmed) + count
        eventually(
            lambda: self.failed or len(self.confirmed) >= wanted,
            within_s=self._patience_s,
            what=f"{count} more messages",
        )
        assert not self.failed

    def close(self) -> None:
        """End it; once is enough."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._client.close()


class Receiver:
    """An official client that receives everything in `TOPIC` in a thread and acknowledges it.

    Args:
        url: of the cluster.

    Attributes:
        places: where the messages came from, by their texts.
        failed: errors, after which it receives no more.
    """

    def __init__(self, url: str) -> None:
        self.places: dict[str, set[Place]] = {}
        self.failed: list[str] = []
        self._moments: list[float] = []
        self._stop = threading.Event()
        self._client = connect(url)
        self._consumer = self._client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                message = self._consumer.receive(200)
                self._moments.append(time.perf_counter())
                self._consumer.acknowledge(message)
            except pulsar.Timeout:
                continue
            except pulsar.PulsarException as error:
                self.failed.append(str(error))
                return
            self.places.setdefault(message.data().decode(), set()).add(place(message))

    @property
    def count(self) -> int:
        """Messages received, repeated ones too."""
        return len(self._moments)

    def longest_pause_s(self, first: int) -> float:
        """The longest time between two messages, from number `first` on."""
        return longest_s(self._moments[first:])

    def after(self, count: int) -> None:
        """Wait until so many more are received."""
        wanted = self.count + count
        eventually(lambda: self.failed or self.count >= wanted, within_s=60, what=f"{count} more messages received")
        assert not self.failed

    def close(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join(60)
        self._client.close()


class Stream:
    """Sends numbers without waiting for their receipts, the number as sequence id, and knows which are confirmed.

    Args:
        url: of the cluster.
        topic: to which it publishes.
        name: of the producer, and the prefix of each message.
        unanswered_max: messages that wait for their receipts.
        pause_s: between two messages.
    """

    def __init__(
        self, url: str, name: str, *, topic: str = TOPIC, unanswered_max: int = 50, pause_s: float = 0.0
    ) -> None:
        self.name = name
        self.confirmed: set[int] = set()
        self.failed: list[str] = []
        self.sent = 0
        self._pause_s = pause_s
        self._room = threading.Semaphore(unanswered_max)
        self._stop = threading.Event()
        self._client = connect(url)
        self._producer = self._client.create_producer(
            topic, producer_name=name, batching_enabled=False, send_timeout_millis=0
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def text(self, number: int) -> str:
        """A message."""
        return f"{self.name}-{number}"

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            if not self._room.acquire(timeout=0.1):
                continue
            number = self.sent
            self.sent += 1
            self._producer.send_async(self.text(number).encode(), partial(self._answered, number), sequence_id=number)

    def _answered(self, number: int, result: pulsar.Result, _id: object) -> None:
        if result == pulsar.Result.Ok:
            self.confirmed.add(number)
        else:
            self.failed.append(f"{self.text(number)}: {result}")
        self._room.release()

    def after(self, count: int) -> None:
        """Wait until so many more are confirmed."""
        wanted = len(self.confirmed) + count
        eventually(
            lambda: self.failed or len(self.confirmed) >= wanted, within_s=60, what=f"{count} more of {self.name}"
        )
        assert not self.failed

    def finish(self) -> list[str]:
        """Send no more, and wait until all are confirmed; what was sent."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        eventually(lambda: self.failed or len(self.confirmed) == self.sent, within_s=60, what=f"all of {self.name}")
        assert not self.failed
        return [self.text(number) for number in range(self.sent)]

    def close(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join(60)
        self._client.close()
