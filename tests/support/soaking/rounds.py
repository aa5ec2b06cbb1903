"""One round after the other on one broker, which is killed and stopped at random moments."""

import contextlib
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path

from bench.results import RESULTS, Figure, store

from magnetar.storage.rewriting import LIVE_FRACTION_MAX, REWRITE_BYTES_MIN
from tests.support.brokers import BrokerProcess, eventually
from tests.support.fuzzing import descriptors, resident_bytes
from tests.support.soaking.clients import Clients
from tests.support.soaking.ledger import TYPES, Ledger, Outage, judge_all

SEGMENT_BYTES = 2_097_152
LEDGER_BYTES = 524_288
CONFIG = f"""
[broker]
message_bytes_max = 1_048_576
segment_bytes = {SEGMENT_BYTES}
ledger_bytes_max = {LEDGER_BYTES}
retention_interval_ms = 500
"""
"""Small segments and ledgers (a segment takes the largest message at least): retention has something to do in every round."""

KEPT_S = 1800.0
"""A run of at least this long is written down in `bench/results/`."""


class Soak:
    """One round after the other on one broker.

    Args:
        broker: running, with CONFIG.
        data: its folder of data.
        seed: decides what clients do and when the broker is killed; the rest is chance of the machine.
        burst_max: messages that a producer sends at a time, twenty times a second.
    """

    def __init__(self, broker: BrokerProcess, data: Path, seed: int, burst_max: int = 100) -> None:
        self.broker = broker
        self._data = data
        self._chance = random.Random(seed)
        self._clients = Clients(broker, data / "clients.log", self._chance, burst_max=burst_max)
        self._outages: list[Outage] = []
        self.totals: Counter[str] = Counter()

    def disk_bytes(self) -> int:
        """Of the log's segments; the broker deletes some while they are counted."""
        total = 0
        for path in self._data.rglob("*.seg"):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def round(
        self, seconds: float, *, kills: int, topics: int = 3, tell: Callable[[str], None] = lambda _line: None
    ) -> dict[str, int]:
        """Clients and faults for some time, then healing and the ledger; what was counted.

        Raises:
            AssertionError: it does not add up.
        """
        self._outages.clear()  # those of rounds before are of other topics
        ledgers = {f"soak-{uuid.uuid4().hex[:6]}-{each}": Ledger(batched=each > 0) for each in range(topics)}
        self._clients.begin(ledgers)
        try:
            most = self._faults(seconds, kills)
        finally:
            self._clients.stop()
        self._clients.end()
        for topic, ledger in ledgers.items():
            self._clients.heal(topic, ledger)
        if kills:  # what is acknowledged has to stay so, whatever comes
            self.broker.kill()
            self.broker.start()
            for topic in ledgers:
                path = f"/admin/v2/persistent/public/default/{topic}/stats"
                left = {
                    name: each["msgBacklog"] for name, each in self.broker.rest("GET", path)["subscriptions"].items()
                }
                assert left == dict.fromkeys(TYPES, 0), f"{topic}: after a last kill there is a backlog again: {left}"
        counted = judge_all(ledgers, self._outages)
        shrunk = self._disk_comes_back(list(ledgers), most)
        self.totals += counted
        memory, files = self.held()
        tell(f"{dict(counted)}; {memory >> 20} MiB, {files} descriptors; log {shrunk}")
        return dict(counted)

    def held(self) -> tuple[int, int]:
        """Memory and descriptors of the broker."""
        pid = self._pid()
        return resident_bytes(pid), descriptors(pid)

    def _pid(self) -> int:
        assert self.broker.process is not None
        return self.broker.process.pid

    # --------------------------------------------------------------------------------------------------------- faults

    def _faults(self, seconds: float, kills: int) -> int:
        """Kill and restart; the most bytes of log that were seen."""
        end = time.monotonic() + seconds
        moments = sorted(self._chance.uniform(0.2, 0.9) * seconds for _ in range(kills))
        start, most = time.monotonic(), 0
        while time.monotonic() < end and not self._clients.failed:
            if moments and time.monotonic() - start >= moments[0]:
                moments.pop(0)
                killed = time.monotonic()
                self._outages.append(Outage(killed, inf))  # until it is known
                if self._chance.random() < 0.75:
                    self.broker.kill()
                else:
                    assert self.broker.stop() == 0, "SIGTERM did not end the broker cleanly"
                self.broker.start()
                self._outages[-1] = Outage(killed, time.monotonic())
            most = max(most, self.disk_bytes())
            self._clients.wait(0.1)
        return most

    def _disk_comes_back(self, topics: list[str], most: int) -> str:
        """What nobody needs is deleted: first by being acknowledged, then with its topics. How much there was."""
        path = "/admin/v2/persistent/public/default/{}"
        held = 0
        for topic in topics:
            inside = path.format(topic) + "/internalStats"
            eventually(
                partial(self._has_one_ledger, inside),
                within_s=60,
                every_s=0.2,
                what=f"all ledgers of {topic} but the last are deleted, as everything is acknowledged",
            )
            held += self.broker.rest("GET", path.format(topic) + "/stats")["storageSize"]
        after = self._shrinks(limit_acknowledged(held, len(topics)), most)
        for topic in topics:
            self.broker.rest("DELETE", path.format(topic) + "?force=true")
        return f"{most >> 20} -> {after >> 20} -> {self._shrinks(limit_acknowledged(0, 0), most) >> 20} MiB"

    def _has_one_ledger(self, path: str) -> bool:
        return len(self.broker.rest("GET", path)["ledgers"]) <= 1

    def _shrinks(self, limit: int, most: int) -> int:
        """Wait until the log is no larger; what it has then."""
        deadline = time.monotonic() + 60
        while (size := self.disk_bytes()) > limit:
            assert time.monotonic() < deadline, (
                f"the log had {most >> 20} MiB and does not shrink to {limit >> 20}: it has {size >> 20} MiB"
            )
            time.sleep(0.1)
        return size


def limit_acknowledged(held: int, ledgers: int) -> int:
    """Bytes that the log may have on the disk when this much of it is needed, in so many ledgers.

    A closed segment is rewritten when less than LIVE_FRACTION_MAX of it is needed, unless it is smaller than
    REWRITE_BYTES_MIN: such ones come from restarts, and no more than one belongs to a ledger. Besides there is the segment that
    is written, and one that is full and just being looked at; each may be too large by what was written last.
    """
    return int(held / LIVE_FRACTION_MAX) + ledgers * REWRITE_BYTES_MIN + 2 * (SEGMENT_BYTES + REWRITE_BYTES_MIN)


def keep(suite: str, figures: list[Figure], command: list[str]) -> Path:
    """Write down what a long run did, as the benches do; where."""
    store(suite, figures, command)
    path = RESULTS / f"{suite}.json"
    # `store` thinks of benches, which are modules.
    content = json.loads(path.read_text()) | {"command": " ".join(["python", *command])}
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    return path
