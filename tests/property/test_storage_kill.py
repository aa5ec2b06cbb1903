"""A process that appends is killed at random moments, again and again, on a real disk: what it said is stored is there."""

import os
import random
import signal
import subprocess
import sys
import zlib
from pathlib import Path

from magnetar.core.ids import NONE
from magnetar.runtime.log.files import OsFiles
from magnetar.storage.topiclog import TopicLog
from tests.unit.storage.harness import Log

ROUNDS = int(os.environ.get("MAGNETAR_KILLS", "6"))
TOPICS = 4

CHILD = """
import random, sys, threading, zlib
from pathlib import Path
from magnetar.core.settings import BrokerConfig
from magnetar.runtime.log.files import OsFiles
from magnetar.runtime.log.lanes import Lanes
from magnetar.storage import topiclog
from magnetar.storage.entries import NewEntry
from magnetar.storage.topiclog import EntryCache, LedgerIds, TopicLog

folder, seed, first = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "first"
rng = random.Random(seed)
room = threading.Semaphore(200)
turn = threading.Lock()

def appended(batch):
    lines = []
    with turn:
        for append, location in batch:
            logs[append.topic].confirm(append, location)
            for entry in append.entries:
                lines.append(f"{append.topic} {entry.ledger} {entry.entry} {entry.first_index} {zlib.crc32(entry.data)}")
            room.release()
    sys.stdout.write("\\n".join(lines) + "\\n")
    sys.stdout.flush()

def failed(batch, error):
    raise SystemExit(error)

topiclog.LARGE_BYTES = 40_000
thread = Lanes(OsFiles(), folder, BrokerConfig(segment_bytes=200_000, disk_free_bytes_min=0),
               on_appended=appended, on_failed=failed, on_healed=lambda: None)
recovered = thread.start()
assert not recovered.problems, recovered.problems
ids, cache = LedgerIds(max(recovered.last_ledger, 100)), EntryCache(1 << 20)
logs = {
    f"t{n}": TopicLog(f"t{n}", n + 1, ids, cache, ledger_entries_max=60,
                      recovered=recovered.topics.get((f"t{n}", n + 1)), fresh=first)
    for n in range(int(sys.argv[4]))
}
while True:
    room.acquire()
    data = [rng.randbytes(rng.choice((1, 100, 1000, 30_000))) for _ in range(rng.randint(1, 5))]
    with turn:
        append = logs[rng.choice(sorted(logs))].stage([NewEntry(each, 0, rng.choice((1, 1, 3)), 1) for each in data], 1)
        thread.submit(append)
"""


def test_what_was_reported_survives_being_killed(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    rng = random.Random(11)
    told: dict[tuple[str, int, int], tuple[int, int]] = {}
    for number in range(ROUNDS):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder), str(number), "first" if not number else "again", str(TOPICS)],
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        lines: list[bytes] = []
        wanted = rng.randint(1, 1500)
        for line in child.stdout:
            lines.append(line)
            if len(lines) >= wanted:
                break
        assert len(lines) >= wanted, "the child ended by itself"
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read()
        child.wait()
        for line in [*lines, *rest.splitlines(keepends=True)]:
            if line.endswith(b"\n"):
                topic, ledger, entry, index, checksum = line.split()
                place = topic.decode(), int(ledger), int(entry)
                assert told.get(place, (int(index), int(checksum))) == (int(index), int(checksum)), (
                    f"{place} was given twice"
                )
                told[place] = int(index), int(checksum)
        check(folder, told)


def check(folder: Path, told: dict[tuple[str, int, int], tuple[int, int]]) -> None:
    log = Log(OsFiles(), folder, segment_bytes=200_000)
    try:
        assert log.recovered.problems == []
        found: dict[tuple[str, int, int], tuple[int, int]] = {}
        for number in range(TOPICS):
            topic: TopicLog = log.topic(f"t{number}", number + 1, fresh=False)
            topic.validate()
            following = 0
            for entry in log.read(topic) if topic.first != NONE else []:
                assert entry.first_index == following, "an origin index is missing or names two messages"
                following += entry.count
                found[f"t{number}", entry.ledger, entry.entry] = entry.first_index, zlib.crc32(entry.data)
            assert topic.next_index == following
        assert told.items() <= found.items(), f"{len(told.items() - found.items())} stored entries are gone or changed"
        # What was written and not reported is stored all the same; nobody else may be given its place.
        told.update(found)
    finally:
        log.stop()
