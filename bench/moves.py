"""A consumer of a replicated subscription moves to another cluster: how many messages that it acknowledged come again.

    python -m bench.moves [--quick] [--peer pulsar|none]

A producer of the official client publishes 500 messages a second in A all the time. A consumer of a replicated subscription in A
acknowledges each message until the subscription is in B. For four more seconds it acknowledges each message, or four of five
(each fifth is left for later), and closes. A consumer of the same subscription opens in B, at once or after two seconds, and
receives until nothing is left. A message that was acknowledged in A and is delivered in B counts as repeated. A message that no
consumer acknowledged has to arrive in B; the bench ends if one does not.

Two clusters of a real Apache Pulsar (tests/support/apache_pulsar) do the same in the same run. Magnetar's planned move (`magnetar
failover`) is a third way, which Pulsar does not have.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
from pathlib import Path
from typing import Any, Final

import pulsar
from tests.support.apache_pulsar import kit
from tests.support.jvm import PeerError

from bench import pairs
from bench.links import full_name
from bench.pairs import Pair
from bench.peers_client import quiet
from bench.results import Figure, store

RATE: Final = 500
SECONDS: Final = 4.0
"""From the moment when the subscription is in B. Pulsar takes a snapshot each second: a few of them have to be there."""

ROUNDS: Final = 3
SILENCE_MS: Final = 2_000
"""The subscription has nothing left when every message has been consumed and nothing comes for so long."""

MISSING_MS: Final = 60_000
"""A message has been lost when none comes for so long and some were consumed nowhere."""

KNOWN_S: Final = 240.0
"""A deadline for the slowest machine."""

MOVES: Final = {"at once": 0.0, "after 2 s": 2.0}


class Publishing(threading.Thread):
    """Publishes at a steady rate until it is over; knows what was confirmed."""

    def __init__(self, url: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._client = pulsar.Client(url, logger=quiet())
        self._producer = self._client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
        self._over = threading.Event()
        self.confirmed: set[bytes] = set()
        self.failed = 0

    def run(self) -> None:
        """At RATE."""
        begin, number = time.perf_counter(), 0
        while not self._over.wait(max(0.0, begin + number / RATE - time.perf_counter())):
            data = b"%d" % number
            self._producer.send_async(data, lambda result, _, data=data: self._came(result, data))
            number += 1
        self._producer.flush()

    def _came(self, result: pulsar.Result, data: bytes) -> None:
        if result == pulsar.Result.Ok:
            self.confirmed.add(data)
        else:
            self.failed += 1

    def end(self) -> None:
        """No more messages; all are confirmed."""
        self._over.set()
        self.join()
        self._client.close()
        if self.failed:
            raise SystemExit(f"{self.failed} messages were not confirmed")


def consumer_of(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    """Of the replicated subscription."""
    return client.subscribe(
        topic,
        "mover",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=1000,
        replicate_subscription_state_enabled=True,
    )


def planned(pair: Pair, topic: str) -> None:
    """Magnetar's planned move."""
    command = [sys.executable, "-m", "magnetar", "failover", full_name(topic), "mover", "--from", "a", "--to", "b"]
    subprocess.run([*command, "-c", str(pair.config)], check=True, capture_output=True, timeout=300)


class Looking(threading.Thread):
    """Looks whether the subscription has come to b, and says so once."""

    def __init__(self, pair: Pair, topic: str) -> None:
        super().__init__(daemon=True)
        self._pair = pair
        self._topic = topic
        self.over = threading.Event()
        self.found = False
        self.start()

    def run(self) -> None:
        """Until it has, or the deadline has passed."""
        ends = time.perf_counter() + KNOWN_S
        while not self.found and time.perf_counter() < ends:
            time.sleep(0.2)
            self.found = self._known()
        self.over.set()

    def _known(self) -> bool:
        # A topic that is not in b yet is an error in both systems.
        with contextlib.suppress(urllib.error.HTTPError, PeerError):
            stats = self._pair["b"].rest("GET", f"/admin/v2/persistent/public/default/{self._topic}/stats")
            return "mover" in stats["subscriptions"]
        return False


def moved(pair: Pair, topic: str, wait_s: float | None, *, in_order: bool) -> dict[str, Any]:
    """One move; `wait_s` is the time between closing and opening, None for the planned move."""
    clients = {name: pulsar.Client(pair[name].url, logger=quiet()) for name in "ab"}
    consumer = consumer_of(clients["a"], topic)
    publishing = Publishing(pair["a"].url, topic)
    publishing.start()
    acknowledged: set[bytes] = set()
    looking = Looking(pair, topic)
    ends, number = 0.0, 0
    while not ends or time.perf_counter() < ends:
        message = consumer.receive(60_000)
        number += 1
        if not ends and looking.over.is_set():
            if not looking.found:
                raise SystemExit(f"{pair.name}: the subscription was not in b after {KNOWN_S:.0f} s")
            ends = time.perf_counter() + SECONDS
        if in_order or not ends or number % 5:
            consumer.acknowledge(message)
            acknowledged.add(message.data())
    consumer.close()  # sends the acknowledgements that the client still groups
    if wait_s is None:
        planned(pair, topic)
    else:
        time.sleep(wait_s)
    consumer = consumer_of(clients["b"], topic)
    publishing.end()
    again: set[bytes] = set()
    missing = publishing.confirmed - acknowledged
    while True:
        try:
            message = consumer.receive(MISSING_MS if missing else SILENCE_MS)
        except pulsar.Timeout:
            break
        consumer.acknowledge(message)
        missing.discard(message.data())
        if message.data() in acknowledged:
            again.add(message.data())
    for client in clients.values():
        client.close()
    if missing:
        raise SystemExit(f"{pair.name}, {topic}: {len(missing)} messages were consumed in no cluster")
    return {"acknowledged": len(acknowledged), "repeated": len(again)}


def measured(pair: Pair, rounds: int) -> list[Figure]:
    """All kinds of moves."""
    # JVMs compile, links and snapshots work: before the first move counts.
    moved(pair, "warm", 0.0, in_order=True)
    figures = []
    for in_order in (True, False):
        ways: dict[str, float | None] = dict(MOVES)
        if pair.name == "magnetar":
            ways["as planned"] = None
        for way, wait_s in ways.items():
            name = f"{'in-order' if in_order else 'out-of-order'}-{way.replace(' ', '-')}"
            found = [moved(pair, f"{name}-{number}", wait_s, in_order=in_order) for number in range(rounds)]
            order = "acknowledged in order" if in_order else "each fifth left for later"
            title = f"{pair.name}: repeated after a move {way}, {order}"
            middle = statistics.median(one["repeated"] for one in found)
            figures.append(Figure(title, middle, f"of {found[0]['acknowledged']}", "", {"rounds": found}))
            print(f"{title}: {', '.join('{repeated} of {acknowledged}'.format(**one) for one in found)}", flush=True)
    return figures


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--peer", choices=["pulsar", "none"], default="pulsar", help="none: Magnetar alone")
    options = parser.parse_args()
    kinds = ["magnetar", "pulsar"]
    if options.peer == "none" or (reason := kit.missing()):
        kinds.remove("pulsar")
        if options.peer != "none":
            print(f"Magnetar alone: {reason}")
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for kind in kinds:
            with pairs.KINDS[kind](Path(folder) / kind, 0.0) as pair:
                figures += measured(pair, 1 if options.quick else ROUNDS)
    store("moves", figures, sys.argv)


if __name__ == "__main__":
    main()
