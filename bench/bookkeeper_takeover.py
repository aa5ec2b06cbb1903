"""What idle topics cost a broker whose log is on BookKeeper, and how soon another broker has taken them over.

    python -m bench.bookkeeper_takeover [--quick] [--topics 100000]

`tests/support/apache_bookkeeper` starts ZooKeeper and three bookies. One broker serves, another one waits. Each topic gets one
message of 100 bytes by connections that are closed then. After that the serving broker is killed. The time from the kill
until the other one has confirmed a message of an official client to one of these topics contains the end of the session of
ZooKeeper (4 s). The client begins when the other broker says that it serves: one that was connected before waits longer and
longer between its attempts.
"""

import argparse
import asyncio
import contextlib
import http.client
import sys
import time
from functools import partial
from typing import Final

import psutil
from tests.support.apache_bookkeeper import kit
from tests.support.bookkeeper_brokers import Brokers, connect
from tests.support.brokers import BrokerProcess

from bench.crowd import Crowd, in_turns, until
from bench.measuring import bookkeeper_brokers
from bench.results import Figure, store

TOPICS: Final = 100_000

PRODUCERS: Final = 5_000
"""Of one connection: a broker accepts 10,000 (`handles_per_connection_max`)."""

CREATED_S: Final = 1_200.0
"""A deadline for the slowest machine."""

TAKEN_S: Final = 600.0
"""Likewise."""

PAUSE_S: Final = 0.02
"""Between two questions whether the other broker serves."""


async def fill(port: int, topics: int) -> None:
    """Make so many topics with a message in each."""
    for first in range(0, topics, PRODUCERS):
        numbers = range(first, min(first + PRODUCERS, topics))
        client = await Crowd.connect(port)

        async def publish(number: int, client: Crowd = client) -> None:
            await client.produce(f"idle-{number}", number)
            client.send(number, 0, b"x" * 100)

        await in_turns([partial(publish, number) for number in numbers])
        await until(partial(_confirmed, client, len(numbers)), within_s=CREATED_S)
        client.close()


def _confirmed(client: Crowd, messages: int) -> bool:
    return client.confirmed >= messages


def resident_mb(broker: BrokerProcess) -> float:
    """Memory of a broker's process that is not shared with others."""
    assert broker.process is not None
    return float(psutil.Process(broker.process.pid).memory_full_info().uss) / 1e6


def serves(broker: BrokerProcess) -> bool:
    """Whether a broker says that clients should come to it."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=5)
        try:
            connection.request("GET", "/admin/v2/brokers/ready")
            return connection.getresponse().status == 200
        finally:
            connection.close()
    return False


def measure(brokers: Brokers, topics: int) -> list[Figure]:
    """One takeover."""
    brokers["a"].start()
    before_mb = resident_mb(brokers["a"])
    brokers.wait_in_line("b")
    began_s = time.perf_counter()
    asyncio.run(fill(brokers["a"].pulsar_port, topics))
    made_s = time.perf_counter() - began_s
    memory_mb = resident_mb(brokers["a"])
    brokers["a"].kill()
    began_s = time.perf_counter()
    while not serves(brokers["b"]):
        if time.perf_counter() - began_s > TAKEN_S:
            raise SystemExit(f"the other broker does not serve after {TAKEN_S:.0f} s")
        time.sleep(PAUSE_S)
    serves_s = time.perf_counter() - began_s
    client = connect(brokers["b"].url)
    client.create_producer("idle-0").send(b"after")
    taken_s = time.perf_counter() - began_s
    client.close()
    detail = {"topics": topics, "empty_broker_mb": round(before_mb, 1), "topics_made_in_s": round(made_s, 1)}
    detail["serves_after_s"] = round(serves_s, 2)
    return [
        Figure(f"{topics:,} idle topics, memory of the broker", memory_mb, "MB", "< 500", detail),
        Figure(f"{topics:,} idle topics, from the kill to the first publish", taken_s, "s", "< 10"),
        Figure(f"{topics:,} idle topics, memory after a takeover", resident_mb(brokers["b"]), "MB", "< 500"),
    ]


def main() -> None:
    """Measure and store; one line, and nothing stored, where the peer cannot run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the topics")
    parser.add_argument("--topics", type=int, default=TOPICS)
    options = parser.parse_args()
    if reason := kit.missing():
        print(f"skipped: {reason}")
        return
    topics = options.topics // 10 if options.quick else options.topics
    with bookkeeper_brokers(deduplicates=False) as brokers:
        figures = measure(brokers, topics)
    store("bookkeeper_takeover", figures, sys.argv)


if __name__ == "__main__":
    main()
