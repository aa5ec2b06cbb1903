"""Magnetar's link next to Apache Pulsar's geo-replication, in one run, turn by turn: latency, processor time, throughput.

    python -m bench.links --peer pulsar [--quick] [--tail long-batches] [--one-way SECONDS] [--rates 5,50,500,1000]
                                        [--topics 100,500] [--rounds 3]

Two brokers and the pipeline, or two real Pulsar clusters (tests/support/apache_pulsar). A is next to the producer, B next to the
consumer. Both pairs run through the whole bench; the one that is not measured has nothing to do, and each case is measured at one
pair and then at the other, in `--rounds` rounds. A ratio is Magnetar / Pulsar of one round; the figure is the median. Processor
time is that of all servers, Spark and its workers, without clients and proxies.

Latency: single messages of 1 KB by official clients, from the publish time to the arrival. Throughput: a producer of the official
client publishes as fast as it can, 1 KB in batches or 128 KB; the time runs until B has stored the last message, as its own
statistics say. Warm-up of a case: `bench.pairs.warmed`, at both pairs.

`--one-way 0.04` puts B behind tests/support/delaying_proxy.py, 80 ms of round trip away from A and from the pipeline. The
consumer stays next to B. The figures are kept apart then.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pulsar
from tests.support.apache_pulsar import kit
from tests.support.brokers import eventually

from bench import pairs
from bench.link_latency import Flow, numbers
from bench.links import full_name
from bench.measuring import latencies
from bench.pairs import Pair, stored
from bench.peers import KIB, client, result
from bench.peers_client import quiet
from bench.results import Figure, kept, store

RATES: Final = "5,50,500,1000"
TOPICS: Final = "100,500"
TOPICS_RATE: Final = 1000
ROUNDS: Final = 3
SECONDS: Final = 8
THERE_S: Final = 300.0
WARM_UPS: Final = 8
WARM_RATE: Final = 500
LOOK_S: Final = 0.01

Case = Callable[[Pair, str], dict[str, Any]]
"""Measures one thing at one pair with topics named after a text; has `cpu_us`."""


def latency(flows: dict[str, Flow], rate: int, seconds: int) -> Case:
    """At a steady rate over the open flow of a pair."""

    def case(pair: Pair, _: str) -> dict[str, Any]:
        count = max(50, rate * seconds)
        before = pair.processor.seconds()
        ages = flows[pair.name].publish(count, rate)
        return {**latencies(ages), "cpu_us": (pair.processor.seconds() - before) / count * 1e6}

    return case


def throughput(size: int, messages: int) -> Case:
    """As fast as an official client publishes, until B has everything."""

    def case(pair: Pair, name: str) -> dict[str, Any]:
        topic = full_name(name)
        with contextlib.closing(pulsar.Client(pair["a"].url, logger=quiet())) as first:
            first.create_producer(topic).send(b"the link opens")
        eventually(lambda: stored(pair["b"], name) == 1, within_s=THERE_S)
        before, began = pair.processor.seconds(), time.perf_counter()
        producing = client("produce", pair["a"], [topic], messages, "--size", str(size), "--batch")
        published = result(producing)
        published_s = time.perf_counter() - began
        eventually(lambda: stored(pair["b"], name) > messages, within_s=THERE_S, every_s=LOOK_S)
        behind_s = time.perf_counter() - began - published_s
        # The client measures its own publishing, without its start.
        seconds = published["seconds"] + behind_s
        return {
            "per_s": messages / seconds,
            "mb_per_s": messages * size / seconds / 1e6,
            "behind_ms": behind_s * 1000,
            "cpu_us": (pair.processor.seconds() - before) / messages * 1e6,
        }

    return case


class Bench:
    """Measures cases at both pairs in turns.

    Args:
        both: the pairs, ours first.
        rounds: of each case.
    """

    def __init__(self, both: list[Pair], rounds: int) -> None:
        self._both = both
        self._rounds = rounds
        self.figures: list[Figure] = []

    def warm(self, case: Case, name: str) -> dict[str, Any]:
        """Warm up for cases of one kind, at each pair."""
        return {
            pair.name: pairs.warmed(lambda turn, pair=pair: case(pair, f"warm-{name}-{turn}")["cpu_us"], WARM_UPS)
            for pair in self._both
        }

    def measure(self, label: str, case: Case, keys: dict[str, tuple[str, str]], warmed: dict[str, Any]) -> None:
        """One case; `keys` names what is taken from its results: shown as, unit."""
        rounds: dict[str, list[dict[str, Any]]] = {pair.name: [] for pair in self._both}
        name = "".join(letter if letter.isalnum() else "-" for letter in label)
        for turn in range(self._rounds):
            for pair in self._both if turn % 2 else self._both[::-1]:
                rounds[pair.name].append(case(pair, f"{name}-{turn}"))
        detail = {"rounds": rounds, "warm-up": warmed}
        for key, (shown, unit) in keys.items():
            for pair in self._both:
                middle = statistics.median(one[key] for one in rounds[pair.name])
                self.figures.append(Figure(f"{label}: {shown}, {pair.name}", middle, unit, "", detail))
                detail = {}
            ours, theirs = (rounds[pair.name] for pair in self._both)
            ratio = statistics.median(mine[key] / its[key] for mine, its in zip(ours, theirs, strict=True))
            self.figures.append(Figure(f"{label}: {shown}, magnetar / pulsar", ratio, "ratio"))
            print(*(f"{one.name} {one.value:,.4g} {one.unit}" for one in self.figures[-3:]), sep="; ", flush=True)


AGES: Final = {
    "p50_ms": ("p50", "ms"),
    "p99_ms": ("p99", "ms"),
    "cpu_us": ("processor", "us/message"),
}
RATES_OF: Final = {"per_s": ("rate", "messages/s"), "cpu_us": ("processor", "us/message")}


def at_steady_rates(bench: Bench, both: list[Pair], rates: list[int], topics: list[int], seconds: int) -> None:
    """At steady rates to one topic, and to many."""
    if rates:
        flows = {pair.name: Flow(pair, 1) for pair in both}
        warmed = bench.warm(latency(flows, WARM_RATE, 4), "latency")
        for rate in rates:
            bench.measure(f"1 topic, {rate}/s", latency(flows, rate, seconds), AGES, warmed)
        for flow in flows.values():
            flow.close()
    for number in topics:
        flows = {pair.name: Flow(pair, number) for pair in both}
        warmed = bench.warm(latency(flows, TOPICS_RATE, max(2, number // 100)), f"{number}")
        bench.measure(f"{number} topics, {TOPICS_RATE}/s", latency(flows, TOPICS_RATE, seconds), AGES, warmed)
        for flow in flows.values():
            flow.close()


def throughputs(bench: Bench, scale: int) -> None:
    """As fast as a producer is."""
    for label, size, messages in (("128 KB", 128 * KIB, 4000), ("1 KB", KIB, 200_000)):
        warmed = bench.warm(throughput(size, messages // 4), label.replace(" ", ""))
        bench.measure(f"throughput, {label}", throughput(size, messages // scale), RATES_OF, warmed)


def main(arguments: list[str] | None = None) -> None:
    """Measure and store; one line, and nothing stored, where the peer cannot run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the time and of the messages, one round")
    parser.add_argument("--peer", choices=["pulsar"], default="pulsar")
    parser.add_argument("--tail", default="", help="[replication] tail of Magnetar; its default without")
    parser.add_argument("--one-way", type=float, default=0.0, help="seconds between A and B in each direction")
    parser.add_argument("--rates", default=RATES, help=f"messages a second to one topic (default: {RATES})")
    parser.add_argument("--topics", default=TOPICS, help=f"numbers of topics at {TOPICS_RATE}/s (default: {TOPICS})")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--only", choices=["latency", "throughput"], help="one part; figures that are not taken stay as they are"
    )
    options = parser.parse_args(arguments)
    if reason := kit.missing():
        print(f"skipped: {reason}")
        return
    extra = f'[replication]\ntail = "{options.tail}"\n' if options.tail else ""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        pairs.magnetar(Path(folder) / "magnetar", options.one_way, extra) as ours,
        pairs.pulsar(Path(folder) / "pulsar", options.one_way) as theirs,
    ):
        bench = Bench([ours, theirs], 1 if options.quick else options.rounds)
        scale = 4 if options.quick else 1
        if options.only != "throughput":
            rates, topics = numbers(options.rates), numbers(options.topics)
            at_steady_rates(bench, [ours, theirs], rates, topics, max(2, SECONDS // scale))
        if options.only != "latency":
            throughputs(bench, scale)
    whole = (options.only, options.rates, options.topics) == (None, RATES, TOPICS)
    others = [] if whole else kept("links_pulsar_far" if options.one_way else "links_pulsar", bench.figures)
    if options.one_way:
        store("links_pulsar_far", others + bench.figures, sys.argv)
    else:
        # `magnetar bench` finds a suite by this call with the module's name (cli/source_tree/bench.py).
        store("links_pulsar", others + bench.figures, sys.argv)


if __name__ == "__main__":
    main()
