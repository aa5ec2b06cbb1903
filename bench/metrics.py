"""What a scrape of `/metrics` costs a broker with many topics, and what others notice of it.

    python -m bench.metrics [--quick] [--topics 50000]

Each topic has one message of 100 bytes. A scrape has rows of 1,000 topics at most, so with 1,000 topics the cost is that of the
rows. With more topics the sums over all of them are added. Another connection publishes 200 messages a second, once without
scrapes, and once while one scrape follows the other.
"""

import argparse
import asyncio
import http.client
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

import psutil
from tests.support.brokers import BrokerProcess, World

from bench.bookkeeper_takeover import fill
from bench.broker import load
from bench.results import Figure, store

TOPICS: Final = 50_000

ROWS: Final = 1_000
"""Topics that have rows of their own by default (`metrics_topics_max`)."""

SCRAPES: Final = 50
"""Scrapes whose processor time is taken together: its clock has ticks of 10 ms."""

OTHER: Final = ("--messages", "1000", "--rate", "200", "--size", "1024")
"""The other publisher."""


def scrape(broker: BrokerProcess) -> int:
    """Read `/metrics` once; the bytes of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=60)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"bench.metrics: /metrics answered {answer.status}")
        return len(answer.read())
    finally:
        connection.close()


def cost_ms(broker: BrokerProcess) -> tuple[float, int]:
    """Processor time of one scrape in ms, all threads of the broker; bytes of the answer."""
    assert broker.process is not None
    process, size = psutil.Process(broker.process.pid), scrape(broker)
    before = sum(process.cpu_times()[:2])
    for _ in range(SCRAPES):
        scrape(broker)
    return (sum(process.cpu_times()[:2]) - before) / SCRAPES * 1e3, size


def other(broker: BrokerProcess, *, scraped: bool) -> dict[str, Any]:
    """Latencies of another publisher in ms; `scraped`: while one scrape follows the other."""
    ended = threading.Event()

    def scrapes() -> None:
        while not ended.is_set():
            scrape(broker)

    thread = threading.Thread(target=scrapes)
    if scraped:
        thread.start()
    try:
        return dict(load(f"127.0.0.1:{broker.pulsar_port}", "other", *OTHER)["latency_ms"])
    finally:
        ended.set()
        if scraped:
            thread.join()


def measure(broker: BrokerProcess, topics: int) -> list[Figure]:
    """Costs and latencies with few topics, and with many."""
    figures = []
    for count in (ROWS, topics):
        asyncio.run(fill(broker.pulsar_port, count))
        spent, size = cost_ms(broker)
        alone, beside = other(broker, scraped=False), other(broker, scraped=True)
        name = f"{count:,} topics"
        figures += [
            Figure(f"{name}: one scrape, processor", round(spent, 1), "ms", "", {"bytes": size}),
            Figure(f"{name}: another publisher, p99", alone["p99"], "ms", "", alone),
            Figure(f"{name}: another publisher beside scrapes, p99", beside["p99"], "ms", "", beside),
        ]
    few, many = figures[0].value, figures[3].value
    each = (many - few) / (topics - ROWS) * 1e3
    return [*figures, Figure("each topic without a row", round(each, 2), "us", "")]


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the topics")
    parser.add_argument("--topics", type=int, default=TOPICS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), ["bench"])
        try:
            broker = world["bench"]
            broker.start()
            figures = measure(broker, options.topics // 10 if options.quick else options.topics)
        finally:
            world.close()
    store("metrics", figures, sys.argv)


if __name__ == "__main__":
    main()
