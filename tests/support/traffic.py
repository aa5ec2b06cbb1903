"""Publishers that go on while processes die, and what must hold afterwards."""

import threading
import urllib.error
from collections.abc import Callable

import pulsar

from tests.support.brokers import BrokerProcess, eventually

PACE_S = 0.01
"""Between two messages: a loop of kills lasts minutes, and everything that was published is read back at its end."""


class Publisher:
    """Publishes numbers until told to stop; remembers what was acknowledged.

    One message at a time, each waited for: the client sends again what was not acknowledged when its broker died, which
    without deduplication may store that one message twice *at its origin*. So there are at most as many doubles as kills
    of the origin; a link may make none.

    Args:
        client: of the origin.
        topic: that nobody else publishes to.
        prefix: one letter, before the number.
    """

    def __init__(self, client: pulsar.Client, topic: str, prefix: str) -> None:
        self.acknowledged: list[bytes] = []
        self._stop = threading.Event()
        self._producer = client.create_producer(topic, batching_enabled=False, max_pending_messages=200)
        self._prefix = prefix
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(PACE_S):
            data = f"{self._prefix}{number}".encode()
            try:
                self._producer.send(data)
            except pulsar.PulsarException:
                continue
            self.acknowledged.append(data)
            number += 1

    def stop(self) -> list[bytes]:
        """Stop, if it has not; what was acknowledged."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            self._producer.close()
        return self.acknowledged


def entries(broker: BrokerProcess, topic: str) -> int:
    """Entries of a topic in one cluster; 0 while there is no such topic or no broker."""
    try:
        stats = broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/internalStats")
    except (urllib.error.URLError, OSError):
        return 0
    return int(stats["numberOfEntries"])


def contents(client: pulsar.Client, topic: str) -> list[bytes]:
    """All messages of a topic in one cluster, in its order."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(60_000).data())
    reader.close()
    return found


class Flow:
    """One topic, published in one cluster, replicated to another.

    Args:
        origin, target: the two clusters.
        client_of: an official client of a broker.
        topic: of this flow alone.
        prefix: of its messages.
    """

    def __init__(
        self,
        origin: BrokerProcess,
        target: BrokerProcess,
        client_of: Callable[[str], pulsar.Client],
        topic: str,
        prefix: str,
    ) -> None:
        self.origin, self.target, self.topic = origin, target, topic
        self._client_of = client_of
        self.publisher = Publisher(client_of(origin.cluster), topic, prefix)

    @property
    def acknowledged(self) -> int:
        """Messages acknowledged so far."""
        return len(self.publisher.acknowledged)

    @property
    def arrived(self) -> int:
        """Entries at the target."""
        return entries(self.target, self.topic)

    def await_arrivals(self, more: int, within_s: float = 180) -> None:
        """Until everything acknowledged by now, and so many more, are at the target."""
        wanted = self.acknowledged + more
        eventually(
            lambda: self.arrived >= wanted,
            within_s=within_s,
            every_s=0.05,
            what=f"{wanted} messages of {self.origin.cluster} in {self.target.cluster}",
        )

    def await_acknowledged(self, more: int) -> None:
        """Until so many more messages were acknowledged."""
        wanted = self.acknowledged + more
        eventually(lambda: self.acknowledged >= wanted, within_s=60, every_s=0.005, what=f"{wanted} acknowledged")

    def finish(self, *, origin_kills: int) -> None:
        """Stop publishing; every acknowledged message is at its origin, and both clusters hold the same, once, in order."""
        acknowledged = self.publisher.stop()
        held = contents(self._client_of(self.origin.cluster), self.topic)
        first = list(dict.fromkeys(held))
        assert first[: len(acknowledged)] == acknowledged, "what was acknowledged is not at its origin, in order"
        assert len(first) <= len(acknowledged) + 1, "more was stored than was sent"
        assert len(held) - len(first) <= origin_kills, "doubles that no kill of the origin explains"
        eventually(
            lambda: self.arrived >= len(held),
            within_s=180,
            every_s=0.2,
            what=f"all {len(held)} messages of {self.origin.cluster} in {self.target.cluster}",
        )
        assert contents(self._client_of(self.target.cluster), self.topic) == held
