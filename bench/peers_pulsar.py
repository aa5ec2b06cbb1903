"""One Magnetar broker next to one real Apache Pulsar, in one run, turn by turn: rates, latency, processor time for each message.

    python -m bench.peers --peer pulsar [--quick] [--rounds 3] [--only WORDS ...]

tests/support/apache_pulsar starts the peer: broker and bookie in one JVM, its journal synced, with the settings that
standalone.conf there explains. Both brokers get the same load from the same generators, one after the other, in `--rounds`
rounds. A ratio is Magnetar / Pulsar of one round; the figure is the median. Over 1 is better for rates, under 1 for times.
Processor time is user and system time of the whole server process, from /proc.

Warm-up: the JVM compiles what is used often, so a first round says little. Each cell runs at the peer alone, with a quarter of
its messages, until the peer's processor time for each message is steady (`bench.pairs.warmed`). After `WARM_UPS` runs it is
measured anyway. The details of each cell have the processor time of each run and say whether it was steady.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pulsar
from tests.support.apache_pulsar import kit

from bench.pairs import warmed
from bench.peers import (
    KIB,
    ROUNDS,
    Cell,
    Running,
    catching_up,
    end_to_end,
    magnetar,
    memory_of,
    one_by_one,
    options_of,
    picked,
    published,
    scale_of,
    topics_of,
    tried,
    turns,
)
from bench.peers_client import quiet
from bench.results import Figure, kept, store

WARM_UPS: Final = 8
"""Runs of a cell before it is measured, at most."""

BUNDLE_TOPICS: Final = 64
"""Topics that are looked up once. The generator of single connections looks nothing up, and the broker owns a bundle of the
namespace from the first look-up on; each of the four bundles has some of these topics."""


SINGLES: Final = 160_000
"""Single messages of the official client in a cell: some five seconds. The queues of its producers take 50,000 messages with ten
topics. While it fills them, its sending thread and the one that gets receipts take the interpreter from each other, up to once a
message: the sooner receipts come, the longer this takes. So a run of a second says more about that than about a broker."""


@contextmanager
def apache_pulsar(folder: Path) -> Iterator[Running]:
    """One cluster of the peer."""
    with kit.running(folder, "peer") as clusters:
        cluster = clusters["peer"]
        for number in range(BUNDLE_TOPICS):
            cluster.rest("GET", f"/lookup/v2/topic/persistent/public/default/owned-{number}")
        yield Running("pulsar", cluster.pulsar_port, psutil.Process(cluster.pid))


def cells(scale: int) -> list[tuple[str, str, Cell]]:
    """What is measured: name, unit, how."""
    made: list[tuple[str, str, Cell]] = [("one at a time, 1 KB, receipt p50", "ms", one_by_one(2000 // scale))]
    for label, size, batch, messages in (
        ("1 KB single", KIB, 1, 100_000),
        ("1 KB in batches of 100", KIB, 100, 400_000),
        ("128 KB single", 128 * KIB, 1, 3_000),
    ):
        made.append((f"publish, {label}, one connection", "messages/s", published(size, batch, messages // scale)))
    for count in (10, 100):
        for label, batched, messages in (("single", False, SINGLES), ("batched", True, 40_000)):
            cell = topics_of(count, messages // scale, KIB, batch=batched)
            made.append((f"publish, official client, 1 KB {label}, {count} topics", "messages/s", cell))
    for count in (1, 10, 100):
        cell = end_to_end(1, 1000, 5000 // scale, topics=count)
        made.append((f"end to end at 1,000/s, 1 KB, {count} topics, p99", "ms", cell))
    for label, size, batch, messages in (
        ("1 KB in batches of 100", KIB, 100, 200_000),
        ("1 KB single", KIB, 1, 60_000),
        ("128 KB single", 128 * KIB, 1, 2_000),
    ):
        made.append((f"catch-up of a backlog, {label}", "messages/s", catching_up(messages // scale, size, batch)))
    return made


def warm_up(peer: Running, made: list[tuple[str, str, Cell]]) -> Callable[[str, str], dict[str, Any]]:
    """Runs a cell at the peer until it is steady.

    Args:
        peer: the broker.
        made: its cells with a quarter of their messages. A quick run has no fewer: the JVM needs as much.
    """
    quarters = {name: cell for name, _, cell in made}

    def warm(cell: str, topics: str) -> dict[str, Any]:
        return warmed(lambda turn: float(tried(quarters[cell], peer, f"{topics}-{turn}").get("cpu_us", 0.0)), WARM_UPS)

    return warm


def start_to_first_publish(url: str, began: float) -> float:
    """Seconds from `began` until a message of an official client is confirmed."""
    client = pulsar.Client(url, logger=quiet(), io_threads=1)
    client.create_producer("first").send(b"x")
    client.close()
    return time.monotonic() - began


def measure(scale: int, rounds: int, only: list[str] | None) -> None:
    """Measure and store; one line, and nothing stored, where the peer cannot run."""
    if reason := kit.missing():
        print(f"skipped: {reason}")
        return
    chosen = picked(cells(scale), only)
    kit.fetch()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        began = time.monotonic()
        with magnetar(Path(name) / "magnetar") as ours:
            ready = {ours.name: start_to_first_publish(ours.url, began)}
            began = time.monotonic()
            with apache_pulsar(Path(name) / "peer") as other:
                ready[other.name] = start_to_first_publish(other.url, began)
                figures += turns(ours, other, chosen, rounds, warm_up(other, cells(4)))
                if not only:  # after all, not after some
                    figures += [
                        Figure(f"start to first publish, {one}", after_s, "s") for one, after_s in ready.items()
                    ]
                    figures += memory_of(ours, other)
    others = kept("peers_pulsar", figures) if only else []
    store("peers_pulsar", others + figures, sys.argv)


def main() -> None:
    """As `bench.peers --peer pulsar`, for `make bench`."""
    options = options_of(__doc__, ROUNDS).parse_args()
    measure(*scale_of(options), options.only)


if __name__ == "__main__":
    main()
