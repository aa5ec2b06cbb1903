"""What a broker does under load, and what everybody else notices of it.

    python -m bench.load [--quick] [--only NAME ...] [--logs FOLDER] [--probe bare|official]

A probe publishes 200 messages of 1 KB per second on a topic of its own, one by one: nothing but a socket, which notices
every tenth of a millisecond, or with `--probe official` the official client, which is what people have. Its p99 is taken
on the idle broker right before and right after each load, and during it: their ratio is what "the others" notice. Loads
that can be stopped are on and off in rounds, and the ratio is the median of theirs: what else the machine does for some
seconds then hardly counts; rounds in which the machine's host took more than 3 % of the processors' time count not at all.
Before, the same load runs at another broker of the machine while the probe is at one that has nothing else to do: what it
notices then is the machine's part, and the rest is the broker's. On a machine that always has other work both say little;
what says something there is how long the broker's event loop was busy at a time during the load, in processor time of its
own thread (`bench/watched`). Memory is the broker's resident memory.

A disk that others use, too, may take longer for a publish than everything else together, and when it does is no matter of
the load. With `--logs` in a folder in memory (/dev/shm) no disk is in the figures at all; their names say so.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from tests.support import brokers
from tests.support.brokers import BrokerProcess, World
from tests.support.fuzzing import descriptors, resident_bytes
from tests.support.machine import Taken

from bench.broker import load
from bench.crowd import Crowd, in_turns, on_each, until
from bench.results import Figure, kept, store

ROOT = Path(__file__).resolve().parent.parent
KIB = 1 << 10
PROBE_RATE = 200
PROBE_S = 8.0

ROUNDS = 5
"""How often a load is on and off, if it can be."""

TAKEN_MAX = 0.03
"""Of the processor time wanted in a round the machine's host may have taken this share; else the round does not count."""

TRIES = 4
"""Times the rounds that are wanted: so many are tried until enough of them count."""

WAITS = 30
"""Looks, with 5 s between, whether the host leaves the machine alone again."""

STARTERS = 2
"""Processes that are started and waited for at the same time: a probe, and a broker beside it."""


class Round(NamedTuple):
    """What the probe saw before, beside and behind a load, in ms.

    Attributes:
        before, during, after: its latencies.
        taken: the share of wanted processor time that the machine's host took, at its worst.
        span: when the load began and ended, as `time.time` tells.
    """

    before: dict[str, float]
    during: dict[str, float]
    after: dict[str, float]
    taken: float
    span: tuple[float, float]

    @property
    def counts(self) -> bool:
        """Whether the machine was its own."""
        return self.taken <= TAKEN_MAX

    def ratio(self) -> float:
        """With the load to without: of the two beside it the better one, for what else goes on must not flatter."""
        return self.during["p99"] / min(self.before["p99"], self.after["p99"])


class Bench:
    """One broker and the figures taken from it.

    Args:
        folder: for the brokers' files.
        scale: divides the numbers of every load.
        starter: starts the processes that are measured, from a thread whose priority they inherit.
        suffix: of every figure's name.
        official: the probe is the official client. Only what it notices is told then: the rest is as with the bare one.
    """

    def __init__(
        self, folder: Path, scale: int, starter: ThreadPoolExecutor, suffix: str = "", *, official: bool = False
    ) -> None:
        self.folder = folder
        self.scale = scale
        self.suffix = suffix
        self.official = official
        self.starter = starter
        self.figures: list[Figure] = []
        self.broker: BrokerProcess
        """Has the load."""
        self.elsewhere = False
        """The probe goes to another broker than the load."""
        self._probed: BrokerProcess
        self._apart: dict[str, list[dict[str, float]]] = {}
        self._probes = 0
        self._worlds: list[World] = []
        self._turns = Path()
        self._peak = 0

    # -------------------------------------------------------------------------------------------------------- broker

    def fresh(self, name: str, extra: str = "") -> None:
        """A new broker with nothing in it, and if the probe goes elsewhere, another."""
        self.close()
        folder = self.folder / f"{name}-{self.elsewhere}"
        folder.mkdir()
        self._worlds.append(World(folder, ["bench"], extra))
        self.broker = self._probed = self._worlds[0]["bench"]
        if self.elsewhere:
            (folder / "other").mkdir()
            self._worlds.append(World(folder / "other", ["other"]))
            self._probed = self._worlds[1]["other"]
            self.starter.submit(self._probed.start).result()
        self._turns = folder / "turns"
        watched = str(Path(__file__).with_name("watched"))
        folders = os.pathsep.join([watched, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.broker.environment |= {"PYTHONPATH": folders, "MAGNETAR_BENCH_TURNS": str(self._turns)}
        self.start()

    def start(self) -> None:
        """Start the broker, with the priority of an ordinary process."""
        self.starter.submit(self.broker.start).result()

    def close(self) -> None:
        """End the brokers."""
        while self._worlds:
            self._worlds.pop().close()

    @property
    def pid(self) -> int:
        """Of the broker."""
        assert self.broker.process is not None
        return self.broker.process.pid

    @property
    def port(self) -> int:
        """Of the broker."""
        return self.broker.pulsar_port

    @property
    def address(self) -> str:
        """Of the broker."""
        return f"127.0.0.1:{self.broker.pulsar_port}"

    def memory_mb(self) -> float:
        """Resident now."""
        return resident_bytes(self.pid) / 1e6

    def restart(self, wait_for: str) -> tuple[float, float]:
        """SIGKILL; the seconds until it is ready, and until a publish to `wait_for` is answered."""
        self.broker.kill()
        started = time.perf_counter()
        self.start()
        ready = time.perf_counter() - started
        load(self.address, wait_for, "--messages", "1", "--size", "16")
        return ready, time.perf_counter() - started

    # --------------------------------------------------------------------------------------------------------- probe

    async def probe(self) -> dict[str, float]:
        """Latencies of somebody else's publishes, in ms."""
        self._probes += 1
        address, topic = f"127.0.0.1:{self._probed.pulsar_port}", f"probe-{self._probes}"
        if self.official:
            program = ["-m", "bench.peers_client", "produce", "--url", f"pulsar://{address}", "--topics", topic]
        else:
            program = ["-m", "bench.loadgen", "--url", address, "--topic", topic]
        command = [sys.executable, *program, "--size", "1024", "--rate", str(PROBE_RATE)]
        command += ["--messages", str(int(PROBE_RATE * PROBE_S))]
        told = await asyncio.get_running_loop().run_in_executor(self.starter, in_front, command)
        return dict(json.loads(told)["receipt_ms" if self.official else "latency_ms"])

    async def beside(
        self,
        name: str,
        work: Callable[[asyncio.Event], Awaitable[dict[str, Any]]],
        calm: dict[str, float] | None = None,
        rounds: int = 1,
    ) -> dict[str, Any]:
        """Run a load until the probe beside it is done and the load itself says so; what both saw.

        Args:
            name: of the load.
            work: the load.
            calm: what the probe saw without it, if there is no time to probe now.
            rounds: how often; the load's own story is that of the last time.
        """
        found: list[Round] = []
        self._peak = 0

        async def watch() -> None:
            while True:
                self._peak = max(self._peak, resident_bytes(self.pid))
                await asyncio.sleep(0.1)

        watching = asyncio.create_task(watch())
        detail: dict[str, Any] = {}
        before, taken_before = (calm, 0.0) if calm else await self._probe_watched()
        tries = rounds * TRIES if rounds > 1 else 1
        while sum(each.counts for each in found) < rounds and len(found) < tries:
            stop = asyncio.Event()
            began = time.time()
            loading = asyncio.ensure_future(work(stop))
            during, taken = await self._probe_watched()
            stop.set()
            detail = await loading
            ended = time.time()
            after, taken_after = await self._probe_watched()
            found.append(Round(before, during, after, max(taken_before, taken, taken_after), (began, ended)))
            before, taken_before = after, taken_after
            if taken_after > TAKEN_MAX and rounds > 1:
                await self._until_left_alone()
                before, taken_before = await self._probe_watched()
        watching.cancel()
        # A round in which the machine's host ran something else says nothing; if there are no others, it says that.
        counting = [each for each in found if each.counts] or found
        loaded = [each.during for each in counting]
        if self.elsewhere:
            self._apart[name] = loaded
            return detail
        ratios = [each.ratio() for each in counting]
        detail |= {
            "calm_ms": [[each.before, each.after] for each in counting],
            "loaded_ms": loaded,
            "peak_mb": round(self._peak / 1e6),
            "ratios": ratios,
            "taken_by_the_host": [round(each.taken, 4) for each in counting],
            "rounds_that_do_not_count": len(found) - len(counting),
        }
        changed = statistics.median(ratios)
        self.noticed(f"{name}: p99 of other publishers, with / without", changed, detail)
        if name in self._apart:
            here, there = (statistics.median(each["p99"] for each in seen) for seen in (loaded, self._apart[name]))
            told = {"elsewhere_ms": self._apart[name], "here_ms": loaded}
            self.noticed(f"{name}: p99 of other publishers, here / at another broker", here / there, told)
        self._turns_of(name, [each.span for each in counting])
        self.figure(f"{name}: most memory", self._peak / 1e6, "MB")
        return detail

    async def _probe_watched(self) -> tuple[dict[str, float], float]:
        """What the probe saw, and how much of the processors' time the machine's host took meanwhile."""
        taken = Taken()
        return await self.probe(), taken.share()

    async def _until_left_alone(self) -> None:
        """Wait until the host leaves the machine its processors, but not for ever."""
        for _ in range(WAITS):
            taken, until_s = Taken(), time.perf_counter() + 1
            while time.perf_counter() < until_s:
                pass  # only who wants a processor sees that there is none
            if taken.share() <= TAKEN_MAX:
                return
            await asyncio.sleep(5)

    def _turns_of(self, name: str, spans: list[tuple[float, float]]) -> None:
        """The longest turns of the event loop within these times."""
        rows = [(ms, who) for at_s, ms, *who in self._busy() if any(began <= at_s <= ended for began, ended in spans)]
        turns = sorted((ms for ms, who in rows if not who), reverse=True)
        longest = {
            "longest_ms": turns[:10],
            "over_10_ms": sum(ms > 10 for ms in turns),
            "seconds": sum(ended - began for began, ended in spans),
            "collector_longest_ms": max((ms for ms, who in rows if who), default=0.0),
        }
        self.figure(f"{name}: longest turn of the event loop", turns[0] if turns else 0.0, "ms", "< 10", longest)

    def _busy(self) -> list[tuple[Any, ...]]:
        """When, and for how many ms, the broker's event loop (or the collector in it) was busy without a pause."""
        rows = [line.split() for line in self._turns.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [(float(at_s), float(ms), *who) for at_s, ms, *who in rows]

    def noticed(self, name: str, ratio: float, detail: dict[str, Any]) -> None:
        """Keep what the probe noticed."""
        self._keep(f"{name}, official client" if self.official else name, ratio, "ratio", "< 2", detail)

    def figure(self, name: str, value: float, unit: str, aim: str = "", detail: dict[str, Any] | None = None) -> None:
        """Keep a number that is the same whoever probes."""
        if not self.official:
            self._keep(name, value, unit, aim, detail)

    def _keep(self, name: str, value: float, unit: str, aim: str, detail: dict[str, Any] | None) -> None:
        if self.elsewhere:
            return
        name += self.suffix
        self.figures.append(Figure(name, value, unit, aim, detail or {}))
        print(f"{name}: {value:,.3g} {unit}", flush=True)


# ------------------------------------------------------------------------------------------------------------- the loads


async def pace(started: float, number: int, per_s: float) -> None:
    """Wait until something comes for the so many-th time, at a moment of chance.

    By the clock it would meet the same publish of the probe, who goes by the clock, again and again, or none: from run to run
    p99 beside messages of 1 MB was 1.0 to 4.4 ms.
    """
    await asyncio.sleep(max(0.0, started + (number + random.random() - 0.5) / per_s - time.perf_counter()))


async def crowd(bench: Bench) -> None:
    """1,000 connections, 10,000 topics, 5,000 subscriptions; then all of that after a SIGKILL."""
    bench.fresh("crowd")
    connections, topics_each = 1_000 // bench.scale, 10
    idle = bench.memory_mb()
    started = time.perf_counter()
    clients = [await Crowd.connect(bench.port) for _ in range(connections)]
    await on_each(clients, topics_each, Crowd.produce)
    opened = time.perf_counter() - started
    started = time.perf_counter()
    await on_each(clients, topics_each // 2, lambda client, topic, each: client.consume(topic, "s", each))
    subscribed = time.perf_counter() - started
    topics = connections * topics_each
    bench.figure(f"{topics:,} topics opened by {connections:,} connections", opened, "s")
    bench.figure(f"{topics // 2:,} durable subscriptions made", subscribed, "s")
    bench.figure("memory of a topic with half a subscription", (bench.memory_mb() - idle) * 1e3 / topics, "KB")

    sent = 0

    async def traffic(stop: asyncio.Event) -> dict[str, Any]:
        nonlocal sent
        started, begun = time.perf_counter(), sent
        while not stop.is_set():
            client = clients[sent // topics_each % connections]
            for each in range(topics_each):
                client.send(each, sent, bytes(100))
                sent += 1
            await pace(started, (sent - begun) // topics_each, 1_000 / topics_each)
        await until(lambda: sum(client.confirmed for client in clients) >= sent)
        wanted = sent // 2
        await until(lambda: sum(sum(client.received.values()) for client in clients) >= wanted)
        return {"published": sent, "received": wanted, "descriptors": descriptors(bench.pid)}

    await bench.beside(f"{connections:,} connections, {topics:,} topics, 1,000 messages/s", traffic, rounds=ROUNDS)
    for client in clients:
        client.close()
    ready, published = bench.restart("crowd-0-0")
    bench.figure(f"recovery with {topics:,} topics: ready", ready, "s", "< 10")
    bench.figure(f"recovery with {topics:,} topics: first publish", published, "s", "< 10")


async def backlog(bench: Bench) -> None:
    """Subscriptions with a backlog of 10 million messages each, in a million entries; one after the other catches up."""
    bench.fresh("backlog")
    messages = 10_000_000 // bench.scale
    late = [f"late-{number}" for number in range(ROUNDS * TRIES)]
    client = await Crowd.connect(bench.port)
    for number, name in enumerate(late):
        await client.consume("backlog", name, number, permits=0)
    client.close()
    command = ["--messages", str(messages), "--size", "100", "--batch", "10", "--window", "500"]
    await asyncio.to_thread(load, bench.address, "backlog", *command)

    def waiting(name: str) -> int:
        path = "/admin/v2/persistent/public/default/backlog/stats"
        return int(bench.broker.rest("GET", path)["subscriptions"][name]["msgBacklog"])

    async def catch_up(stop: asyncio.Event) -> dict[str, Any]:
        name = late.pop()
        consumer = await Crowd.connect(bench.port)
        consumer.batch = 10
        started, used = time.perf_counter(), time.thread_time()
        await consumer.consume("backlog", name, 1, permits=20_000)
        await until(lambda: consumer.received.get(1, 0) >= messages)
        seconds, used = time.perf_counter() - started, time.thread_time() - used
        await until(lambda: not waiting(name))  # acknowledged, too
        consumer.close()
        per_s = messages / seconds
        return {"messages": messages, "seconds": seconds, "messages_per_s": per_s, "consumer_cpu": used / seconds}

    detail = await bench.beside(f"backlog of {messages:,} messages caught up", catch_up, rounds=ROUNDS)
    bench.figure("catching up, batches of 10 x 100 B", detail["messages_per_s"], "messages/s")


async def large(bench: Bench) -> None:
    """Messages of 1 MB, to a consumer."""
    bench.fresh("large")
    payload = bytes(1_000_000)

    async def publish(stop: asyncio.Event) -> dict[str, Any]:
        client = await Crowd.connect(bench.port)
        await client.produce("large", 1)
        await client.consume("large", "s", 1)
        window = asyncio.Semaphore(4)
        client.on_receipt = window.release
        sent = 0
        started = time.perf_counter()
        while not stop.is_set():
            await window.acquire()
            client.send(1, sent, payload)
            sent += 1
            await pace(started, sent, 50)
        await until(lambda: client.received.get(1, 0) >= sent)
        client.close()
        return {"messages": sent, "mb_per_s": sent / (time.perf_counter() - started)}

    await bench.beside("messages of 1 MB, 50 per second at most", publish, rounds=ROUNDS)


async def slow(bench: Bench) -> None:
    """Consumers that acknowledge nothing, and ones that read nothing, beside one that does both."""
    bench.fresh("slow", "[broker]\nunacked_messages_per_consumer_max = 1000\n")
    number = max(100 // bench.scale, 5)

    async def work(stop: asyncio.Event) -> dict[str, Any]:
        fast = await Crowd.connect(bench.port)
        await fast.produce("slow", 1)
        await fast.consume("slow", "fast", 1)
        idle = []
        for each in range(number):
            client = await Crowd.connect(bench.port)
            client.acknowledges = False
            await client.consume("slow", f"idle-{each % 50}", 1, permits=1 << 31)
            if each % 4 == 0:
                client.deafen()
            idle.append(client)
        sent = 0
        started = time.perf_counter()
        while not stop.is_set():
            for _ in range(20):
                fast.send(1, sent, bytes(1_000))
                sent += 1
            await pace(started, sent // 20, 500 / 20)
        published = time.perf_counter()
        await until(lambda: fast.received.get(1, 0) >= sent)
        most = max(client.received.get(1, 0) for client in idle)
        assert most <= 1_100, f"a consumer that acknowledges nothing got {most} messages, over its limit"
        for client in (*idle, fast):
            client.close()
        return {"published": sent, "fast_behind_s": time.perf_counter() - published, "idle_got_at_most": most}

    await bench.beside(f"{number} consumers that acknowledge or read nothing", work, rounds=ROUNDS)


async def visitors(bench: Bench) -> None:
    """10,000 connections that open and drop."""
    bench.fresh("visitors")
    total = 10_000 // bench.scale
    files = descriptors(bench.pid)

    async def come_and_go(stop: asyncio.Event) -> dict[str, Any]:
        started = time.perf_counter()
        opened = 0

        async def visit() -> None:
            nonlocal opened
            client = await Crowd.connect(bench.port)
            opened += 1
            client.close()
            await pace(started, opened, 1_250)

        while opened < total or not stop.is_set():
            await in_turns([visit] * min(200, total), at_once=20)
        return {"connections": opened, "per_s": opened / (time.perf_counter() - started)}

    async def work(stop: asyncio.Event) -> dict[str, Any]:
        found = await come_and_go(stop)
        with contextlib.suppress(TimeoutError):
            await until(lambda: descriptors(bench.pid) <= files, within_s=10)
        return found | {"descriptors_left": descriptors(bench.pid) - files}

    name = f"{total:,} connections open and drop"
    detail = await bench.beside(name, work, rounds=ROUNDS)
    bench.figure("descriptors left behind", detail["descriptors_left"], "", "0")


async def delayed(bench: Bench) -> None:
    """A million delayed messages: their memory, a SIGKILL, and that they come."""
    await hold_back(bench, "delayed messages", lambda number, total: number)  # as equal delays come due


async def scattered(bench: Bench) -> None:
    """The same when messages that lie side by side come due far apart, so that each is fetched from elsewhere in the log."""
    await hold_back(bench, "scattered delayed messages", lambda number, total: number * 618_033_989 % total)


async def hold_back(bench: Bench, what: str, place: Callable[[int, int], int]) -> None:
    """Delayed messages that come due at 100,000 per second; `place` of a message is its place in the order of times."""
    bench.fresh(what.replace(" ", "-"))
    total = 1_000_000 // bench.scale
    client = await Crowd.connect(bench.port)
    await client.produce("delayed", 1)
    await client.produce("before", 2)
    await client.consume("delayed", "s", 1)
    window = asyncio.Semaphore(2_000)
    client.on_receipt = window.release

    async def publish(producer: int, number: int, deliver_at_ms: Callable[[int], int]) -> float:
        client.confirmed = 0
        started = time.perf_counter()
        for each in range(number):
            await window.acquire()
            client.send(producer, each, b"x" * 20, deliver_at_ms(each))
        await until(lambda: client.confirmed >= number)
        return time.perf_counter() - started

    # None may come due before all are published, however fast this machine is today; and found again after the SIGKILL.
    lead_s = 40 + 3 * total / 20_000 * await publish(2, 20_000, lambda _each: 0)
    due_ms = int((time.time() + lead_s) * 1000)
    before = bench.memory_mb()
    started = time.perf_counter()
    await publish(1, total, lambda each: due_ms + place(each, total) // 100)
    path = "/admin/v2/persistent/public/default/delayed/stats"

    def waiting() -> int:
        return int(bench.broker.rest("GET", path)["subscriptions"]["s"]["msgDelayed"])

    await until(lambda: waiting() >= total, 0.2, within_s=lead_s)
    bench.figure(f"{total:,} {what} published and held back", time.perf_counter() - started, "s")
    bench.figure(
        f"memory of one of {total:,} {what}, log's index and cache included",
        (bench.memory_mb() - before) * 1e6 / total,
        "B",
    )
    client.close()
    bench.broker.kill()
    started = time.perf_counter()
    bench.start()
    ready = time.perf_counter() - started
    client = await Crowd.connect(bench.port)
    client.on_message = lambda: early.append(time.time() * 1000) if not early else None
    early: list[float] = []

    async def read_again(stop: asyncio.Event) -> dict[str, Any]:
        await asyncio.sleep(1.0)  # the probe's process starts
        again = time.perf_counter()
        await client.consume("delayed", "s", 1)
        await until(lambda: waiting() >= total or bool(client.received), 0.1)
        return {"seconds": time.perf_counter() - again}

    detail = await bench.beside(f"a subscription finds its {what} again", read_again)
    bench.figure(f"after SIGKILL: ready with {total:,} {what}", ready, "s")
    bench.figure(f"after SIGKILL: all {what} known again", detail["seconds"], "s")
    await until(lambda: bool(client.received), within_s=2 * lead_s)
    assert early[0] >= due_ms, "a delayed message came before its time"
    started = time.perf_counter()

    async def delivered(stop: asyncio.Event) -> dict[str, Any]:
        await until(lambda: client.received[1] >= total, within_s=900)
        return {"seconds": time.perf_counter() - started}

    detail = await bench.beside(f"due {what} delivered", delivered, calm=detail["calm_ms"][0][0])
    bench.figure(f"due {what} delivered", total / max(0.1, detail["seconds"]), "messages/s")
    client.close()


async def recovery(bench: Bench) -> None:
    """A SIGKILL with some GB in the log."""
    bench.fresh("recovery")
    gigabytes = 10 if bench.scale == 1 else 1
    entries = gigabytes * 8_000
    await asyncio.to_thread(
        load, bench.address, "bulk", "--messages", str(entries), "--size", str(128 * KIB), "--window", "100"
    )
    ready, published = bench.restart("bulk")
    bench.figure(f"recovery with {gigabytes} GB: ready", ready, "s", "< 10")
    bench.figure(f"recovery with {gigabytes} GB: first publish", published, "s", "< 10")
    bench.figure(f"memory after recovery with {gigabytes} GB", bench.memory_mb(), "MB")


def in_front(command: list[str]) -> bytes:
    """What a program prints that has a processor whenever it wants one, if this user may give it that (Linux: SCHED_RR).

    The probe, too, is on another machine in life. Here the kernel wakes it beside the broker, behind whose thread it waited
    for half a millisecond in one publish of a hundred: for no fault of the broker's, who had answered.

    Raises:
        RuntimeError: the program failed; says why.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        if sys.platform == "linux":
            try:
                os.sched_setscheduler(process.pid, os.SCHED_RR, os.sched_param(1))
            except PermissionError:
                print(
                    "the probe waits for a processor like others: this user may not give it SCHED_RR", file=sys.stderr
                )
            except ProcessLookupError:
                pass  # it has failed already, and says why
        told, problems = process.communicate()
    if process.returncode:
        raise RuntimeError(problems.decode())
    return told


def in_the_background(work: Callable[[ThreadPoolExecutor], None]) -> None:
    """Do something in what others leave of the processors; what its argument starts is as important as anything.

    The clients of a load are on other machines in life. Here they share the processors with the broker and the probe, and
    may have only what those leave: else the figures tell how the kernel divides two processors among three processes. On
    Linux they are of the class "idle", which gives way at once to whoever wakes up; a process of the lowest nice value keeps
    its processor to the end of its slice, some 3 ms. A class belongs to a thread and is inherited by what that thread starts;
    elsewhere than on Linux nothing is changed.
    """
    starter = ThreadPoolExecutor(STARTERS)
    warm = threading.Barrier(STARTERS + 1)
    for _ in range(STARTERS):
        starter.submit(warm.wait)  # a thread that were made later would inherit the class
    warm.wait()
    problems: list[BaseException] = []

    def idle() -> None:
        if sys.platform == "linux":
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        try:
            work(starter)
        except BaseException as problem:  # noqa: BLE001 - raised again by the thread that waits
            problems.append(problem)

    thread = threading.Thread(target=idle, name="load")
    thread.start()
    thread.join()
    starter.shutdown()
    if problems:
        raise problems[0]


LOADS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    each.__name__: each for each in (crowd, backlog, large, slow, visitors, delayed, scattered, recovery)
}

APART = ("crowd", "backlog", "large", "slow", "visitors")
"""Loads that are also done at another broker; the others take minutes."""


def in_memory(folder: Path) -> bool:
    """Whether a folder's files are on no disk."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [(len(point), kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(holding, default=(0, ""))[1] == "tmpfs"


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="as --scale 20")
    parser.add_argument("--scale", type=int, default=1, help="divides every number; figures are kept at 1 only")
    parser.add_argument(
        "--only", nargs="*", choices=sorted(LOADS), help="some of the loads; figures of the others stay"
    )
    parser.add_argument("--probe", choices=("bare", "official"), default="bare", help="who notices the load")
    parser.add_argument("--logs", type=Path, help="existing folder for the brokers' files; default: a temporary one")
    options = parser.parse_args()
    if options.logs is not None and not options.logs.is_dir():
        parser.error(f"--logs {options.logs}: there is no such folder; /dev/shm is one in memory")
    suffix = ", log in memory" if options.logs is not None and in_memory(options.logs) else ""
    scale = 20 if options.quick else options.scale
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8_192)), hard))
    brokers.START_S = 300  # how long it takes is measured here, not judged

    def work(starter: ThreadPoolExecutor) -> None:
        with tempfile.TemporaryDirectory(dir=options.logs) as name:
            bench = Bench(Path(name), scale, starter, suffix, official=options.probe == "official")
            try:
                for each in options.only or LOADS:
                    for bench.elsewhere in (True, False) if each in APART else (False,):
                        uvloop.run(LOADS[each](bench))
            finally:
                bench.close()
        if scale == 1:
            store("load", kept("load", bench.figures) + bench.figures, sys.argv)

    in_the_background(work)


if __name__ == "__main__":
    main()
