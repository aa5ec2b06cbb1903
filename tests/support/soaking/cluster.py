"""Rounds of clients on a cluster of two brokers on BookKeeper, linked with a cluster of one broker, while everything is killed.

    faults          at random moments: SIGKILL, SIGTERM and SIGSTOP of the broker that serves, SIGKILL of the one that waits, of
                    both, of the other cluster's broker and of the pipeline; bookies and ZooKeeper are killed or hang, and come
                    back. A repair takes its time: the next fault may come while the one before is still felt.
    then it heals   everything runs again
    the ledger      what the clients of `clients` and `crossing` sent and got has to add up, in both clusters

A process that ends although nothing that it needs was broken is a failure, too.
"""

import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

import pulsar
from examples.cluster.world import CLUSTER, OTHER, World
from examples.demo.world import PIPELINE_START_S, Process

from magnetar.runtime.bookkeeper.kazoo_errors import UNANSWERED
from tests.support.apache_bookkeeper.kit import START_S
from tests.support.brokers import eventually
from tests.support.soaking.clients import Clients, client_of
from tests.support.soaking.crossing import OPERATION_S, Crossing, first_difference
from tests.support.soaking.ledger import Ledger, Outage, judge_all

RETENTION: Final = {"retentionTimeInMinutes": 30, "retentionSizeInMB": -1}
"""Longer than a round, which reads everything back at its end. A longer run deletes what earlier rounds left."""

FAULTS_APART_S: Final = (3.0, 15.0)
"""From one fault to the next one."""

RESTART_S: Final = (0.2, 4.0)
"""From the end of a process until it is started again."""

HANG_S: Final = (0.5, 20.0)
"""How long a process hangs; a session in ZooKeeper lasts 4 s."""

DOWN_S: Final = (0.5, 20.0)
"""How long ZooKeeper or a bookie is down."""

DOUBT_S: Final = 15.0
"""From the repair of ZooKeeper or of a broker that hung until it is known whether the broker goes on."""

BLAME_S: Final = 60.0
"""A broker may end by itself so long after ZooKeeper was away or after it hung: its lease is over. One that starts may end so
long after a bookie was away: bookies register again some seconds after they start."""

TOO_FEW: Final = "bookies take entries"
"""Of the line of a broker that starts and finds fewer bookies than its ensemble needs."""

UNREGISTERED_S: Final = 30.0
"""After this time a bookie that runs and is not registered is started again. BookKeeper 4.17 makes its node again when its
session has ended, at times with a session that it ends a moment later; after that it does not look again."""

HEALED_S: Final = PIPELINE_START_S
"""Until everything is ready again after its repair, on the slowest machine; Spark's session is the slowest part."""

CROSS_S: Final = 180.0
"""Until both clusters hold everything once everything runs again, on the slowest machine."""

LOOK_S: Final = 10.0
"""Between two looks at the disk, and at the registered bookies."""

FOLDER_BYTES_MAX: Final = 24 << 30
LOG_BYTES_MAX: Final = 256 << 20
"""Limits of the whole folder, and of a process's log: a run that reaches one fails, before it fills the disk."""


@dataclass(slots=True)
class Repair:
    """Something that is broken until a moment."""

    at: float
    what: str
    do: Callable[[], None]


class Serving:
    """The cluster as clients see it, whichever of its brokers serves."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def url(self) -> str:
        """For clients."""
        return self._world.urls[CLUSTER]

    def rest(self, method: str, path: str, body: object = None) -> Any:
        """One request of the admin interface of the broker that serves; the decoded answer."""
        admin = self._world.admin(CLUSTER)
        return admin.get(path) if method == "GET" else admin.post(path, body)


class ClusterSoak:
    """One round after the other on one world.

    Args:
        world: opened.
        seed: decides what clients do, and what is broken when; the rest is chance of the machine.
        tell: gets a line for each fault.
    """

    def __init__(self, world: World, seed: int, tell: Callable[[str], None]) -> None:
        self.world = world
        self.faults: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.folder_bytes = 0
        self._tell = tell
        self._chance = random.Random(seed)
        self._serving = Serving(world)
        self._log = world.folder / "clients.log"
        self._clients = Clients(
            self._serving,
            self._log,
            self._chance,
            burst_max=10,
            tick_s=0.1,
            named=True,
            retried=(pulsar.PulsarException,),
        )
        self._repairs: list[Repair] = []
        self._outages: list[Outage] = []
        self._ready: set[str] = {world.serving}
        self._broken: set[str] = set()
        self._excused_until = 0.0
        self._few_bookies_until = 0.0
        self._doubted_until = 0.0
        self._looked = 0.0
        self._unregistered: dict[str, float] = {}
        for cluster in (CLUSTER, OTHER):
            world.admin(cluster).post("/admin/v2/namespaces/public/default/retention", RETENTION)

    def round(self, seconds: float, topics: int = 2) -> Counter[str]:
        """Clients and faults for some time, then healing and the ledger; what was counted.

        Raises:
            AssertionError: it does not add up, or something ended that had no reason to.
        """
        self._outages.clear()  # those of rounds before are of other topics
        name = uuid.uuid4().hex[:6]
        ledgers = {f"soak-{name}-{each}": Ledger(batched=each > 0, deduplicated=True) for each in range(topics)}
        crossing = Crossing(self.world.urls, f"persistent://public/default/cross-{name}", self._log)
        self._clients.begin(ledgers)
        try:
            crossing.begin()
            self._break_things(seconds, lambda: self._clients.failed or crossing.failed)
            self._heal_all()
            self._clients.end()
            crossing.end_publishing()
            for topic, ledger in ledgers.items():
                self._clients.heal(topic, ledger)
            counted = judge_all(ledgers, self._outages)
            for topic, ledger in ledgers.items():
                counted += self._judge_copies(f"persistent://public/default/{topic}", ledger)
            here, there = self._stored_in_both(crossing.topic)
            eventually(
                lambda: all(len(one) >= len(here) for one in crossing.received.values()) or crossing.failed,
                within_s=CROSS_S,
                every_s=0.5,
                what=f"the consumers of {crossing.topic} have got everything",
            )
            crossing.end()
            counted += crossing.judge({CLUSTER: here, OTHER: there})
        finally:
            self._clients.stop()
            crossing.stop()
        self.totals += counted
        return counted

    # ---------------------------------------------------------------------------------------------------------- faults

    def _break_things(self, seconds: float, failed: Callable[[], bool]) -> None:
        end = time.monotonic() + seconds
        following = time.monotonic() + self._chance.uniform(*FAULTS_APART_S)
        while time.monotonic() < end and not failed():
            self._step()
            if time.monotonic() >= following:
                what, fault = self._chance.choice(list(self._possible().items()))
                self._tell(what)
                self.faults[what] += 1
                fault()
                following = time.monotonic() + self._chance.uniform(*FAULTS_APART_S)
            time.sleep(0.05)  # the pace of the loop: processes say nothing when they end

    def _possible(self) -> dict[str, Callable[[], None]]:
        """What can be broken now, by its name. Of ZooKeeper and the bookies one at a time: two of three hold every entry."""
        world = self.world
        serving, waiting = world.brokers[world.serving], world.brokers[world.waiting]
        found: dict[str, Callable[[], None]] = {}
        if serving.running and world.serving not in self._broken:
            found["the serving broker is killed"] = lambda: self._end_broker(world.serving, serving.kill)
            found["the serving broker is stopped"] = lambda: self._end_broker(world.serving, serving.stop)
            found["the serving broker hangs"] = lambda: self._hang_broker(world.serving)
        if waiting.running and world.waiting not in self._broken:
            found["the waiting broker is killed"] = lambda: self._end_broker(world.waiting, waiting.kill)
            if serving.running:
                found["both brokers are killed"] = self._end_both
        if world.other.running:
            found["the other cluster's broker is killed"] = lambda: self._end_later(world.other, world.other.kill)
            found["the other cluster's broker is stopped"] = lambda: self._end_later(world.other, world.other.stop)
        if world.pipeline.running:
            found["the Spark driver is killed"] = lambda: self._end_later(world.pipeline, world.pipeline.kill)
        if "store" not in self._broken:
            found["a bookie is killed"] = self._kill_bookie
            found["a bookie hangs"] = self._hang_bookie
            found["ZooKeeper is killed"] = self._kill_zookeeper
            found["ZooKeeper hangs"] = self._hang_zookeeper
        return found

    def _end_broker(self, name: str, how: Callable[[], object]) -> None:
        process = self.world.brokers[name]
        if name == self.world.serving:
            self._outage()
        # One that was launched a moment ago does not handle signals yet.
        fine = {0, None} if name in self._ready else {0, None, -signal.SIGTERM}
        code = how()
        assert code in fine or time.monotonic() < self._excused_until, f"{process.name} ended with code {code}"
        self._broken.add(name)
        self._later(RESTART_S, f"{name} starts again", lambda: self._launch(name))

    def _end_both(self) -> None:
        for name in (self.world.serving, self.world.waiting):
            self._end_broker(name, self.world.brokers[name].kill)

    def _hang_broker(self, name: str) -> None:
        self._outage()
        self._broken.add(name)
        self._excuse(HANG_S[1] + BLAME_S)
        self.world.brokers[name].freeze(True)

        def wake() -> None:
            self._broken.discard(name)
            self._excuse(BLAME_S)
            self._doubt()
            self.world.brokers[name].freeze(False)

        self._later(HANG_S, f"{name} wakes up", wake)

    def _end_later(self, process: Process, how: Callable[[], object]) -> None:
        how()
        self._later(RESTART_S, f"{process.name} starts again", process.launch)

    def _kill_bookie(self) -> None:
        bookie = self._chance.choice(self.world.bookkeeper.bookies)
        self._break_store()
        bookie.kill()

        def start() -> None:
            self._mend_bookie()
            bookie.start(wait=False)

        self._later(DOWN_S, f"{bookie.name} starts again", start)

    def _hang_bookie(self) -> None:
        bookie = self._chance.choice(self.world.bookkeeper.bookies)
        self._break_store()
        bookie.freeze(True)

        def wake() -> None:
            self._mend_bookie()
            bookie.freeze(False)

        self._later(HANG_S, f"{bookie.name} wakes up", wake)

    def _kill_zookeeper(self) -> None:
        self._break_zookeeper()
        self.world.bookkeeper.zookeeper.kill()

        def start() -> None:
            self._mend_zookeeper()
            self.world.bookkeeper.zookeeper.start()

        self._later(DOWN_S, "ZooKeeper starts again", start)

    def _hang_zookeeper(self) -> None:
        self._break_zookeeper()
        self.world.bookkeeper.zookeeper.freeze(True)

        def wake() -> None:
            self._mend_zookeeper()
            self.world.bookkeeper.zookeeper.freeze(False)

        self._later(HANG_S, "ZooKeeper wakes up", wake)

    def _break_store(self) -> None:
        self._broken.add("store")
        self._few_bookies_until = time.monotonic() + DOWN_S[1] + BLAME_S

    def _mend_bookie(self) -> None:
        self._broken.discard("store")
        self._few_bookies_until = time.monotonic() + BLAME_S

    def _break_zookeeper(self) -> None:
        self._broken |= {"store", "zookeeper"}
        self._outage()
        self._excuse(DOWN_S[1] + BLAME_S)

    def _mend_zookeeper(self) -> None:
        self._broken -= {"store", "zookeeper"}
        self._excuse(BLAME_S)
        self._doubt()

    # --------------------------------------------------------------------------------------------------------- repairs

    def _later(self, between: tuple[float, float], what: str, do: Callable[[], None]) -> None:
        self._repairs.append(Repair(time.monotonic() + self._chance.uniform(*between), what, do))

    def _launch(self, name: str) -> None:
        self._broken.discard(name)
        self._ready.discard(name)
        self.world.brokers[name].launch()

    def _excuse(self, seconds: float) -> None:
        self._excused_until = max(self._excused_until, time.monotonic() + seconds)

    def _doubt(self) -> None:
        self._doubted_until = time.monotonic() + DOUBT_S

    def _outage(self) -> None:
        """Nothing is known of what was sent and acknowledged from now until a broker serves again."""
        if not self._outages or self._outages[-1].end < inf:
            self._outages.append(Outage(time.monotonic(), inf))

    def _step(self) -> None:
        """Do repairs whose time has come, look at all processes, and note who serves."""
        now = time.monotonic()
        for repair in [each for each in self._repairs if each.at <= now]:
            self._repairs.remove(repair)
            repair.do()
        for name, process in self.world.brokers.items():
            if not process.running and name not in self._broken:
                self._ended(process)
                self._outage()
                self._broken.add(name)
                self._later(RESTART_S, f"{name} starts again", lambda name=name: self._launch(name))  # type: ignore[misc]
            elif name not in self._ready and process.said_ready():
                self._ready.add(name)
                self.world.serving = name
        waiting = {repair.what for repair in self._repairs}
        for process in (self.world.other, self.world.pipeline):
            assert process.running or f"{process.name} starts again" in waiting, (
                f"{process.name} has ended by itself: {process.last_line()}"
            )
        for bookie in self.world.bookkeeper.bookies:
            if bookie.process is not None and bookie.process.poll() is not None:
                # As in production: what runs a bookie starts it again, for it ends when ZooKeeper is away for long.
                assert now < self._excused_until, f"{bookie.name} has ended by itself"
                bookie.kill()
                bookie.start(wait=False)
        if self._outages and self._outages[-1].end == inf and self._serves():
            self._outages[-1] = Outage(self._outages[-1].start, time.monotonic())
        if now - self._looked >= LOOK_S:
            self._look_at_disk()
            if "store" not in self._broken:
                self._look_at_bookies(now)
            self._looked = now

    def _serves(self) -> bool:
        name = self.world.serving
        return (
            time.monotonic() >= self._doubted_until
            and "zookeeper" not in self._broken
            and name in self._ready
            and name not in self._broken
            and self.world.brokers[name].running
        )

    def _ended(self, process: Process) -> None:
        """A broker that was not killed is gone: it gave up its lease, found too few bookies, or it is a failure."""
        line = process.last_line()
        until = self._few_bookies_until if TOO_FEW in line else self._excused_until
        assert time.monotonic() < max(until, self._excused_until), f"{process.name} has ended by itself: {line}"
        self._tell(f"{process.name} has ended: {line}")
        self.faults["a broker ends by itself"] += 1

    def _heal_all(self) -> None:
        """Everything runs again, and a broker serves."""
        for repair in self._repairs:
            repair.at = 0.0
        self._step()
        deadline = time.monotonic() + HEALED_S
        while missing := self._not_ready():
            assert time.monotonic() < deadline, f"{HEALED_S:g} s after everything was repaired: {', '.join(missing)}"
            self._step()
            time.sleep(0.05)  # the pace of the loop
        for bookie in self.world.bookkeeper.bookies:
            bookie.await_(bookie.serves, START_S)

    def _not_ready(self) -> list[str]:
        """What does not work yet, by name."""
        found = [repair.what for repair in self._repairs]
        if not self._serves():
            found.append(f"no broker of {CLUSTER} serves")
        return found + [
            f"{one.name} is not ready" for one in (self.world.other, self.world.pipeline) if not one.said_ready()
        ]

    def _look_at_bookies(self, now: float) -> None:
        """Start bookies again that have lost their registration, as whoever operates them does (docs/bookkeeper.md#bookies)."""
        try:
            missing = self.world.bookkeeper.unregistered()
        except UNANSWERED:
            return
        self._unregistered = {one.name: self._unregistered.get(one.name, now) for one in missing}
        for bookie in missing:
            if now - self._unregistered[bookie.name] >= UNREGISTERED_S:
                self._tell(f"{bookie.name} runs and is not registered: it is started again")
                self.faults["a bookie loses its registration"] += 1
                del self._unregistered[bookie.name]
                self._mend_bookie()
                bookie.kill()
                bookie.start(wait=False)

    def _look_at_disk(self) -> None:
        sizes = {path: size_of(path) for path in self.world.folder.rglob("*")}
        self.folder_bytes = sum(sizes.values())
        assert self.folder_bytes < FOLDER_BYTES_MAX, f"{self.world.folder} holds {self.folder_bytes >> 20} MiB"
        for path, size in sizes.items():
            assert (
                path.suffix != ".log" or "journal" in path.parts or "ledgers" in path.parts or size < LOG_BYTES_MAX
            ), f"{path} has {size >> 20} MiB"

    # ------------------------------------------------------------------------------------------------------ the ledger

    def _judge_copies(self, topic: str, ledger: Ledger) -> Counter[str]:
        """The other cluster holds what this one holds: every confirmed message once, in one order.

        Raises:
            AssertionError: it does not.
        """
        here, there = self._stored_in_both(topic)
        assert there == here, f"{topic} in {OTHER}: {first_difference(there, here)}"
        twice = [number for number, count in Counter(here).items() if count > 1]
        assert not twice, f"{topic} holds {len(twice)} messages twice, such as {twice[0]}"
        found = set(map(int, here))
        lost, strange = ledger.confirmed.keys() - found, found - ledger.sent.keys()
        assert not lost, f"{topic} has lost {len(lost)} confirmed messages, such as {min(lost)}"
        assert not strange, f"{topic} holds {len(strange)} messages that were not sent, such as {min(strange)}"
        return Counter({"crossed": len(there)})

    def _stored_in_both(self, topic: str) -> tuple[list[str], list[str]]:
        """What both clusters hold, once the other one has as many messages."""
        here = self._stored(CLUSTER, topic, 0)
        return here, self._stored(OTHER, topic, len(here))

    def _stored(self, cluster: str, topic: str, at_least: int) -> list[str]:
        client = client_of(self.world.urls[cluster], self._log, OPERATION_S)
        try:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            found: list[str] = []
            deadline = time.monotonic() + CROSS_S
            while reader.has_message_available() or len(found) < at_least:
                try:
                    found.append(reader.read_next(1_000).data().split(b" ", 1)[0].decode())
                except pulsar.Timeout:
                    assert time.monotonic() < deadline, (
                        f"{topic}: {cluster} has {len(found)} of {at_least} messages after {CROSS_S:g} s"
                    )
            return found
        finally:
            client.close()


def size_of(path: Path) -> int:
    """Of a file; 0 of a folder, and of what is gone."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0
