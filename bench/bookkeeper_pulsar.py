"""One Magnetar broker and one broker of Apache Pulsar on the same three bookies, in one run, turn by turn.

    python -m bench.bookkeeper_pulsar [--quick] [--rounds 5] [--only WORDS ...]

`tests/support/apache_bookkeeper` starts ZooKeeper and the bookies, whose journals are synced; the peer is started by
`tests/support/apache_pulsar/broker.py`. Both write each entry to three bookies and confirm it when two have it on disk. Both
brokers get the same load from the same generators, one after the other, in `--rounds` rounds. A ratio is Magnetar / Pulsar of one
round; the figure is the median. Processor time is that of the broker's process: the bookies are not in it.

Entries of 128 KB are also compared with what the same bookies take from Java's own client (`bench/BookKeeperLoad.java`), in the
same rounds. In a round each of the three has the bookies for itself. The client's code is warm: it runs before it is measured.

Three bookies, ZooKeeper, a broker and a generator share the processors of one machine, so the rates are those of the whole.
"""

import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
from tests.support.apache_bookkeeper import kit as bookkeeper
from tests.support.apache_pulsar import broker as pulsar_broker
from tests.support.apache_pulsar import kit as pulsar

from bench.bookkeeper_load import JavaLoad, java_load
from bench.pairs import warmed
from bench.peers import (
    KIB,
    Cell,
    Running,
    end_to_end,
    loaded,
    magnetar,
    memory_of,
    options_of,
    picked,
    published,
    scale_of,
    turns,
)
from bench.peers_pulsar import BUNDLE_TOPICS, WARM_UPS, warm_up
from bench.results import Figure, kept, store

ROUNDS: Final = 5

BATCH: Final = 128
"""Messages of 1 KB of an entry of 128 KB."""

WINDOW: Final = 64
"""Entries of 128 KB that are not confirmed: 8 MiB."""

LARGE: Final = "publish, 128 KB batches, one connection"
"""The cell that is compared with Java's client, too."""


def on_bookkeeper(cluster: bookkeeper.BookKeeperCluster) -> str:
    """Lines for the table of a cluster of ours."""
    return f'storage = "bookkeeper"\nstore = "zookeeper://{cluster.hosts}/bench"\n'


@contextmanager
def apache_pulsar(folder: Path, cluster: bookkeeper.BookKeeperCluster) -> Iterator[Running]:
    """One broker of the peer."""
    with pulsar_broker.serving(folder, cluster) as broker:
        broker.owns(BUNDLE_TOPICS)
        yield Running("pulsar", broker.pulsar_port, psutil.Process(broker.pid))


def steady(rate: int, messages: int) -> Cell:
    """One connection that sends by the clock, whatever the broker does. Value: p99 of the receipts in ms."""

    def cell(broker: Running, name: str) -> dict[str, Any]:
        done, cpu_us = loaded(broker, name, messages, KIB, "--rate", str(rate))
        return {"value": done["latency_ms"]["p99"], "cpu_us": cpu_us, "receipt_ms": done["latency_ms"]}

    return cell


def large(entries: int) -> Cell:
    """Entries of 128 KB by one connection. Value: entries/s; processor time is for each of their messages."""

    def cell(broker: Running, name: str) -> dict[str, Any]:
        done, cpu_us = loaded(broker, name, entries * BATCH, KIB, "--batch", str(BATCH), "--window", str(WINDOW))
        return {"value": done["entries_per_s"], "cpu_us": cpu_us, "receipt_ms": done["latency_ms"]}

    return cell


def cells(scale: int) -> list[tuple[str, str, Cell]]:
    """What is measured at both brokers: name, unit, how."""
    return [
        ("publish, 1 KB single, one connection", "messages/s", published(KIB, 1, 100_000 // scale)),
        ("publish, 1 KB single at 1,000/s, receipt p99", "ms", steady(1_000, 10_000 // scale)),
        ("end to end at 1,000/s, 1 KB, p99", "ms", end_to_end(1, 1_000, 5_000 // scale)),
        (LARGE, "entries/s", large(4_000 // scale)),
    ]


def beside_java(ours: Running, java: JavaLoad, entries: int, rounds: int) -> list[Figure]:
    """Entries of 128 KB by our broker and by Java's client in turns; the medians, and of the ratios of one round."""
    size = BATCH * KIB

    def java_rate() -> float:
        return java.entries_per_s(entries, size, WINDOW)

    java_warm = warmed(lambda _turn: 1e6 / java_rate(), WARM_UPS)
    cell = large(entries)
    seen: list[tuple[float, float]] = []
    for turn in range(rounds):
        if turn % 2:
            mine, its = cell(ours, f"java-{turn}")["value"], java_rate()
        else:
            its = java_rate()
            mine = cell(ours, f"java-{turn}")["value"]
        seen.append((mine, its))
    detail = {"pairs": [[round(one, 1) for one in pair] for pair in seen], "warm-up": java_warm}
    ratio = statistics.median(mine / its for mine, its in seen)
    return [
        Figure(f"{LARGE}: Java's client", statistics.median(its for _, its in seen), "entries/s"),
        Figure(f"{LARGE}: beside Java's client", ratio, "ratio", ">= 0.8", detail),
    ]


AIMS: Final = {
    "publish, 1 KB single, one connection": ">= 25000",
    "publish, 1 KB single at 1,000/s, receipt p99: beside pulsar": "<= 1.2",
    "publish, 1 KB single, one connection: beside pulsar in processor time": "< 1",
    "publish, 1 KB single at 1,000/s, receipt p99: beside pulsar in processor time": "< 1",
}


def aimed(figure: Figure) -> Figure:
    """The figure with its aim, if it has one."""
    aim = AIMS.get(figure.name, figure.aim)
    return Figure(figure.name, figure.value, figure.unit, aim, figure.detail)


def main() -> None:
    """Measure and store; one line, and nothing stored, where the peers cannot run."""
    options = options_of(__doc__, ROUNDS).parse_args()
    scale, rounds = scale_of(options)
    if reason := bookkeeper.missing() or pulsar.missing():
        print(f"skipped: {reason}")
        return
    chosen = picked(cells(scale), options.only)
    pulsar.fetch()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, bookkeeper.ended_by_sigterm():
        folder = Path(name)
        with (
            bookkeeper.running(folder / "bookkeeper") as cluster,
            magnetar(folder / "magnetar", on_bookkeeper(cluster)) as ours,
        ):
            with apache_pulsar(folder / "peer", cluster) as other:
                figures += turns(ours, other, chosen, rounds, warm_up(other, cells(4)))
                figures += [] if options.only else memory_of(ours, other)  # after all, not after some
            if any(cell == LARGE for cell, _, _ in chosen):
                with java_load(folder / "java", cluster) as java:
                    figures += beside_java(ours, java, 4_000 // scale, rounds)
    figures = [aimed(figure) for figure in figures]
    others = kept("bookkeeper_pulsar", figures) if options.only else []
    store("bookkeeper_pulsar", others + figures, sys.argv)


if __name__ == "__main__":
    main()
