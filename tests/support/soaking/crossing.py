"""A topic to which both clusters publish all the time, with a consumer in each: every message has to come to both, once."""

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pulsar

from tests.support.soaking.clients import JOIN_S, client_of

TICK_S: Final = 0.05
"""Between two messages of a producer."""

OPERATION_S: Final = 120
"""How long a client tries: a broker that takes over, or starts again, is away for some time."""


class Crossing:
    """One producer and one consumer in each cluster, from `begin` to `end`.

    Args:
        urls: of the clusters.
        topic: their topic.
        log: a file for the lines of the client library.
    """

    def __init__(self, urls: Mapping[str, str], topic: str, log: Path) -> None:
        self.topic = topic
        self.sent = dict.fromkeys(urls, 0)
        self.receipts: dict[str, Counter[int]] = {cluster: Counter() for cluster in urls}
        self.received: dict[str, set[str]] = {cluster: set() for cluster in urls}
        self._urls, self._log = urls, log
        self._stop = threading.Event()
        self._drained = threading.Event()
        self._errors: list[str] = []
        self._publishers = [threading.Thread(target=self._publish, args=(one,)) for one in urls]
        self._consumers = [threading.Thread(target=self._consume, args=(one,)) for one in urls]

    @property
    def failed(self) -> bool:
        """Whether a client met something that must not be."""
        return bool(self._errors)

    def begin(self) -> None:
        """Start all clients."""
        for thread in (*self._publishers, *self._consumers):
            thread.start()

    def stop(self) -> None:
        """Ask all clients to end: else they would keep the program from ending."""
        self._stop.set()
        self._drained.set()

    def end_publishing(self) -> None:
        """Wait until everything that was sent is confirmed; the consumers continue.

        Raises:
            AssertionError: a client failed, or something is not confirmed in time.
        """
        self._stop.set()
        self._join(self._publishers)

    def end(self) -> None:
        """End the consumers.

        Raises:
            AssertionError: one failed, or does not end.
        """
        self.stop()
        self._join(self._consumers)

    def judge(self, stored: Mapping[str, list[str]]) -> Counter[str]:
        """Whether it adds up; what was counted.

        Args:
            stored: what each cluster holds.

        Raises:
            AssertionError: it does not.
        """
        expected = {origin: [f"{origin}-{number}" for number in range(count)] for origin, count in self.sent.items()}
        for origin, receipts in self.receipts.items():
            twice = [number for number, count in receipts.items() if count != 1]
            assert not twice, f"{origin}: message {twice[0]} was confirmed {receipts[twice[0]]} times"
            assert len(receipts) == self.sent[origin], f"{origin}: {self.sent[origin] - len(receipts)} without receipt"
        for cluster, found in stored.items():
            for origin, wanted in expected.items():
                here = [one for one in found if one.startswith(f"{origin}-")]
                assert here == wanted, f"{self.topic} in {cluster}, of {origin}: {first_difference(here, wanted)}"
            count = sum(map(len, expected.values()))
            assert len(found) == count, f"{self.topic} in {cluster} holds {len(found)} messages, {count} were sent"
            lost = set(found) - self.received[cluster]
            assert not lost, f"{self.topic}: the consumer in {cluster} never got {len(lost)}, such as {min(lost)}"
            strange = self.received[cluster] - set(found)
            assert not strange, f"{self.topic}: the consumer in {cluster} got {min(strange)}, which is not stored"
        published = sum(self.sent.values())
        return Counter({"published": published, "crossed": published, "delivered": published * len(stored)})

    def _join(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join(timeout=JOIN_S)
        assert not self._errors, self._errors[0]
        assert not any(thread.is_alive() for thread in threads), f"{self.topic}: a client hangs"

    def _client(self, cluster: str) -> pulsar.Client:
        return client_of(self._urls[cluster], self._log, OPERATION_S)

    def _publish(self, cluster: str) -> None:
        try:
            client = self._client(cluster)
            producer = client.create_producer(
                self.topic, producer_name=f"of-{cluster}", send_timeout_millis=0, block_if_queue_full=True
            )

            def receipt_of(number: int, result: pulsar.Result) -> None:
                if result == pulsar.Result.Ok:
                    self.receipts[cluster][number] += 1
                else:
                    self._errors.append(f"{self.topic}, message {cluster}-{number}: {result}")

            while not self._stop.wait(TICK_S):
                number = self.sent[cluster]
                producer.send_async(
                    f"{cluster}-{number}".encode(), lambda result, _id, number=number: receipt_of(number, result)
                )
                self.sent[cluster] += 1
            producer.flush()
            client.close()
        except Exception as error:  # noqa: BLE001 - told by the main thread
            self._errors.append(f"{self.topic}, producer in {cluster}: {type(error).__name__}: {error}")

    def _consume(self, cluster: str) -> None:
        try:
            client = self._client(cluster)
            consumer = client.subscribe(
                self.topic, "s", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
            )
            while not self._drained.is_set():
                try:
                    message = consumer.receive(500)
                except pulsar.Timeout:
                    continue
                self.received[cluster].add(message.data().decode())
                consumer.acknowledge(message)
            client.close()
        except Exception as error:  # noqa: BLE001 - told by the main thread
            self._errors.append(f"{self.topic}, consumer in {cluster}: {type(error).__name__}: {error}")


def first_difference(found: list[str], wanted: list[str]) -> str:
    """What is wrong with a list."""
    counts = Counter(found)
    lost, strange = set(wanted) - counts.keys(), counts.keys() - set(wanted)
    twice = {one for one, count in counts.items() if count > 1}
    parts = [
        f"{len(ones)} {what}, such as {min(ones)}"
        for ones, what in ((lost, "lost"), (strange, "invented"), (twice, "stored twice"))
        if ones
    ]
    return ", ".join(parts) or "another order"
