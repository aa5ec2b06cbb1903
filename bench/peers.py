"""One broker next to another of its kind: Magnetar and a peer, by the same generator, in one run, turn by turn.

    python -m bench.peers [--quick] [--peer pulsar-lite|pulsar|PATH] [--only WORDS ...]

`--peer pulsar` is a real Apache Pulsar: bench/peers_pulsar.py says what is measured then. The rest is about the other peer.

pulsar-lite is the other Pulsar-compatible broker on PyPI that needs nothing else: one process, written in Rust, storing in
one local database. It is fetched into `.cache/peers` (a package that the project itself does not need), or PATH names its
program. Ratios are Magnetar / peer of the same minute: over 1 is better for rates, under 1 for times.

What each promises differs, and the figures have to be read with it: Magnetar confirms a message when `fdatasync` has returned.
`syncs` in the details of the first cell tells how many syncs each broker asked the kernel for (counted by strace, where there
is one) while single messages were confirmed one after the other.
"""

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from tests.support.brokers import World, free_port

from bench.broker import load
from bench.measuring import cpu_s
from bench.results import Figure, kept, store

PEER: Final = "pulsar-lite==0.2.0"
CACHE: Final = Path(__file__).resolve().parents[1] / ".cache" / "peers"
KIB: Final = 1024
START_S: Final = 20
ROUNDS: Final = 3
CELL_S: Final = 300


@dataclass(frozen=True)
class Running:
    """A broker that runs: its name, address and process; `began` is called when what is measured begins."""

    name: str
    port: int
    process: psutil.Process
    began: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        """For official clients."""
        return f"pulsar://127.0.0.1:{self.port}"

    def begin(self) -> float:
        """What is measured begins; processor seconds until now."""
        self.began()
        return self.cpu_s()

    def cpu_s(self) -> float:
        """Processor seconds of the process until now; in steps of 10 ms."""
        return cpu_s(self.process)


def peer_program() -> Path:
    """The peer's program, fetched when it is not there."""
    found = list(CACHE.rglob("bin/pulsar-lite"))
    if not found:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(CACHE), PEER]
        subprocess.run(command, check=True)
        found = list(CACHE.rglob("bin/pulsar-lite"))
    found[0].chmod(0o755)
    return found[0]


@contextmanager
def magnetar(folder: Path, more: str = "") -> Iterator[Running]:
    """One broker of ours.

    Args:
        folder: for its data and log.
        more: lines for the table of its cluster.
    """
    folder.mkdir()
    world = World(folder, ["bench"], f'{more}[namespaces."public/default"]\nclusters = ["bench"]\n')
    broker = world["bench"].start()
    try:
        assert broker.process is not None
        yield Running("magnetar", broker.pulsar_port, psutil.Process(broker.process.pid))
    finally:
        broker.kill()


@contextmanager
def peer(program: Path, folder: Path) -> Iterator[Running]:
    """One broker of the peer."""
    folder.mkdir()
    port = free_port()
    (folder / "pulsar-lite.toml").write_text("")
    command = [str(program), "--addr", f"127.0.0.1:{port}", "--db-path", str(folder / "db"), "--log-level", "error"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_S
        while not any(
            one.laddr.port == port for one in psutil.Process(process.pid).net_connections() if one.status == "LISTEN"
        ):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"pulsar-lite did not start: {(folder / 'log').read_text()[-500:]}")
            time.sleep(0.05)
        yield Running("pulsar-lite", port, psutil.Process(process.pid))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def client(what: str, broker: Running, topics: list[str], messages: int, *more: str) -> subprocess.Popen[str]:
    """A generator process."""
    command = [sys.executable, "-m", "bench.peers_client", what, "--url", broker.url, "--topics", *topics]
    command += ["--messages", str(messages), *more]
    # A client that a peer's answer confuses says so in any bytes.
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Its last line."""
    out, errors = process.communicate(timeout=CELL_S)
    if process.returncode:
        raise RuntimeError(errors.strip().splitlines()[-1] if errors.strip() else "no word")
    return dict(json.loads(out.strip().splitlines()[-1]))


Cell = Callable[[Running, str], dict[str, Any]]
"""Measures one thing at one broker with topics named after a text; must have `value`."""


def loaded(broker: Running, name: str, messages: int, size: int, *more: str) -> tuple[dict[str, Any], float]:
    """One connection, everything encoded before the clock starts (bench/loadgen.py).

    Returns:
        What the generator reports, and the broker's processor time for each message in microseconds.
    """
    before = broker.begin()
    done = load(f"127.0.0.1:{broker.port}", name, "--messages", str(messages), "--size", str(size), *more)
    return done, (broker.cpu_s() - before) / messages * 1e6


def published(size: int, batch: int, messages: int) -> Cell:
    """One connection, pipelined."""

    def cell(broker: Running, name: str) -> dict[str, Any]:
        window = "64" if size > 64 * KIB else "1000"
        done, cpu_us = loaded(broker, name, messages, size, "--batch", str(batch), "--window", window)
        return {"value": done["messages_per_s"], "cpu_us": cpu_us, "receipt_ms": done["latency_ms"]}

    return cell


def topics_of(count: int, messages: int, size: int, *, batch: bool) -> Cell:
    """The official client, to many topics in turn."""

    def cell(broker: Running, name: str) -> dict[str, Any]:
        before = broker.begin()
        more = ["--size", str(size), *(["--batch"] if batch else [])]
        done = result(client("produce", broker, [f"{name}-{n}" for n in range(count)], messages, *more))
        cpu = broker.cpu_s() - before
        return {"value": done["messages_per_s"], "cpu_us": cpu / messages * 1e6, "receipt_ms": done["receipt_ms"]}

    return cell


def end_to_end(
    subscriptions: int, rate: float, messages: int, size: int = KIB, *, batch: bool = True, topics: int = 1
) -> Cell:
    """From a producer of the official client to consumers in another process. Value: p99 in ms, or messages/s."""

    def cell(broker: Running, name: str) -> dict[str, Any]:
        names = [f"{name}-{n}" for n in range(topics)]
        consuming = client("consume", broker, names, messages, "--subscriptions", str(subscriptions))
        assert consuming.stdout is not None
        if consuming.stdout.readline().strip() != "ready":
            result(consuming)
        before = broker.begin()
        more = ["--size", str(size), *(["--batch"] if batch else []), *(["--rate", str(rate)] if rate else [])]
        result(client("produce", broker, names, messages, *more))
        seen = result(consuming)
        cpu = broker.cpu_s() - before
        value = seen["age_ms"]["p99"] if rate else seen["messages_per_s"]
        return {"value": value, "age_ms": seen["age_ms"], "cpu_us": cpu / messages / subscriptions * 1e6}

    return cell


def catching_up(messages: int, size: int, batch: int) -> Cell:
    """A backlog, read by a subscription that comes late."""

    def cell(broker: Running, name: str) -> dict[str, Any]:
        window = "64" if size > 64 * KIB else "1000"
        more = ["--messages", str(messages), "--size", str(size), "--batch", str(batch), "--window", window]
        load(f"127.0.0.1:{broker.port}", name, *more)
        before = broker.begin()
        seen = result(client("consume", broker, [name], messages))
        return {"value": seen["messages_per_s"], "cpu_us": (broker.cpu_s() - before) / messages * 1e6}

    return cell


def one_by_one(messages: int) -> Cell:
    """Single messages, each confirmed before the next is sent: what a receipt costs. Value: p50 in ms."""

    def cell(broker: Running, name: str) -> dict[str, Any]:
        done, cpu_us = loaded(broker, name, messages, KIB, "--window", "1")
        with syncs(broker) as count:
            load(f"127.0.0.1:{broker.port}", name, "--messages", "100", "--size", str(KIB), "--window", "1")
            seen = count()
        latency = done["latency_ms"]
        return {"value": latency["p50"], "cpu_us": cpu_us, "receipt_ms": latency, "syncs per 100 messages": seen}

    return cell


@contextmanager
def syncs(broker: Running) -> Iterator[Callable[[], int | None]]:
    """Counts a broker's calls that sync; None where there is no strace. Of pwritev2 Magnetar makes those with RWF_DSYNC alone."""
    program = shutil.which("strace")
    if program is None:
        yield lambda: None
        return
    command = [
        program,
        "-f",
        "-c",
        "-e",
        "trace=fsync,fdatasync,sync_file_range,msync,pwritev2",
        "-p",
        str(broker.process.pid),
    ]
    tracing = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert tracing.stderr is not None
    tracing.stderr.readline()  # it says when it is attached

    def count() -> int:
        tracing.send_signal(signal.SIGINT)
        _, table = tracing.communicate(timeout=START_S)
        calls = [line.split()[3] for line in table.splitlines() if line.strip().endswith(("sync", "range", "pwritev2"))]
        return sum(int(each) for each in calls)

    yield count
    if tracing.poll() is None:
        tracing.kill()
        tracing.wait()


SORTS: Final = (
    ("100 B", 100, True, 100_000),
    ("100 B", 100, False, 30_000),
    ("1 KB", KIB, True, 100_000),
    ("1 KB", KIB, False, 30_000),
    ("128 KB", 128 * KIB, True, 2_000),
    ("128 KB", 128 * KIB, False, 2_000),
)
"""Of messages, by the official client: size, batched or not, how many; a few seconds each."""


def cells(scale: int) -> list[tuple[str, str, Cell]]:
    """Everything that is measured: name, unit, how."""
    made: list[tuple[str, str, Cell]] = [("one at a time, 1 KB, receipt p50", "ms", one_by_one(2000 // scale))]
    for label, size, batch, messages in (
        ("100 B single", 100, 1, 100_000),
        ("100 B in batches of 100", 100, 100, 1_000_000),
        ("1 KB single", KIB, 1, 100_000),
        ("1 KB in batches of 100", KIB, 100, 300_000),
        ("128 KB single", 128 * KIB, 1, 2_000),
        ("128 KB in batches of 8", 128 * KIB, 8, 2_000),
    ):
        made.append((f"publish, {label}, one connection", "messages/s", published(size, batch, messages // scale)))
    for count in (1, 10, 100):
        made += [
            (
                f"publish, official client, {label} {'batched' if batch else 'single'}, {count} topics",
                "messages/s",
                topics_of(count, messages // scale, size, batch=batch),
            )
            for label, size, batch, messages in SORTS
        ]
    for fan in (1, 10):
        made.append((f"end to end at 1,000/s, {fan} subscriptions, p99", "ms", end_to_end(fan, 1000, 5000 // scale)))
        made += [
            (
                f"end to end, as fast as it goes, {label} {'batched' if batch else 'single'}, {fan} subscriptions",
                "messages/s",
                end_to_end(fan, 0, messages // scale // fan, size, batch=batch),
            )
            for label, size, batch, messages in SORTS
        ]
    made += [
        (
            f"end to end at 1,000/s, {count} topics, p99",
            "ms",
            end_to_end(1, 1000, 5000 // scale, topics=count),
        )
        for count in (10, 100)
    ]
    for label, size, batch, messages in (
        ("100 B in batches of 100", 100, 100, 400_000),
        ("1 KB in batches of 100", KIB, 100, 200_000),
        ("1 KB single", KIB, 1, 50_000),
        ("128 KB single", 128 * KIB, 1, 2_000),
    ):
        made.append((f"catch-up of a backlog, {label}", "messages/s", catching_up(messages // scale, size, batch)))
    return made


def picked(made: list[tuple[str, str, Cell]], only: list[str] | None) -> list[tuple[str, str, Cell]]:
    """Those with any of these words in their names. Raises SystemExit when there is none."""
    chosen = [one for one in made if not only or any(words in one[0] for words in only)]
    if not chosen:
        raise SystemExit(f"--only {' '.join(only or [])}: no cell has that in its name")
    return chosen


def tried(cell: Cell, broker: Running, name: str) -> dict[str, Any]:
    """A measurement, or why there is none: a peer that cannot do a thing does not end the run."""
    try:
        return cell(broker, name)
    except (RuntimeError, subprocess.SubprocessError) as failure:
        reason = (
            failure.stderr.decode(errors="replace").strip()
            if isinstance(failure, subprocess.CalledProcessError)
            else str(failure)
        )
        return {"failed": reason.splitlines()[-1][:200] if reason else type(failure).__name__}


def compared(name: str, unit: str, rounds: dict[str, list[dict[str, Any]]], other: str) -> list[Figure]:
    """Our median and the median ratio to the peer's, also of the processor time of each server where it was measured."""
    ours = [one["value"] for one in rounds["magnetar"] if "value" in one]
    if len(ours) < len(rounds["magnetar"]):
        raise SystemExit(f"{name}: {[one for one in rounds['magnetar'] if 'failed' in one]}")
    figures = [Figure(name, statistics.median(ours), unit, detail={"rounds": rounds})]
    for key, what in (("value", ""), ("cpu_us", " in processor time")):
        pairs = [
            mine[key] / its[key]
            for mine, its in zip(rounds["magnetar"], rounds[other], strict=True)
            if mine.get(key) and its.get(key)
        ]
        if pairs:
            figures.append(Figure(f"{name}: beside {other}{what}", statistics.median(pairs), "ratio"))
    return figures


def turns(
    ours: Running, other: Running, chosen: list[tuple[str, str, Cell]], rounds: int, warm: Callable[[str, str], Any]
) -> list[Figure]:
    """Measure each cell at both brokers in turns. `warm` is called before, with the cell's name and a name for its topics."""
    figures: list[Figure] = []
    for number, (name, unit, cell) in enumerate(chosen):
        warmed = warm(name, f"warm-{number}")
        seen: dict[str, list[dict[str, Any]]] = {ours.name: [], other.name: []}
        for turn in range(rounds):
            for broker in (ours, other) if turn % 2 else (other, ours):
                seen[broker.name].append(tried(cell, broker, f"cell-{number}-{turn}"))
        found = compared(name, unit, seen, other.name)
        found[0].detail["warm-up"] = warmed
        figures += found
        print(*(f"{one.name}: {one.value:,.3g} {one.unit}" for one in found), sep="; ", flush=True)
    return figures


def options_of(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """A parser of what all of these benches have; `scale_of` reads it."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages, one round")
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="of each cell at each broker; ratios are their medians"
    )
    parser.add_argument(
        "--only", nargs="+", help="cells with any of these words in their names; figures of the others stay"
    )
    return parser


def scale_of(options: argparse.Namespace) -> tuple[int, int]:
    """By which the messages are divided, and how many rounds there are."""
    return (10, 1) if options.quick else (1, options.rounds)


def memory_of(*brokers: Running) -> list[Figure]:
    """What they hold after everything."""
    return [
        Figure(f"memory after all, {broker.name}", broker.process.memory_info().rss / 1e6, "MB") for broker in brokers
    ]


def main() -> None:
    """Measure and store."""
    parser = options_of(__doc__, ROUNDS)
    parser.add_argument(
        "--peer", default="pulsar-lite", help="pulsar-lite (fetched), pulsar (fetched) or a program that is pulsar-lite"
    )
    options = parser.parse_args()
    scale, rounds = scale_of(options)
    if options.peer == "pulsar":
        from bench import peers_pulsar

        peers_pulsar.measure(scale, rounds, options.only)
        return
    chosen = picked(cells(scale), options.only)
    program = peer_program() if options.peer == "pulsar-lite" else Path(options.peer).resolve()
    figures: list[Figure] = []
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        magnetar(Path(name) / "magnetar") as ours,
        peer(program, Path(name) / "peer") as other,
    ):
        figures += turns(ours, other, chosen, rounds, lambda _cell, _name: None)
        figures += [] if options.only else memory_of(ours, other)  # after all, not after some
    others = kept("peers", figures) if options.only else []
    store("peers", others + figures, sys.argv)


if __name__ == "__main__":
    main()
