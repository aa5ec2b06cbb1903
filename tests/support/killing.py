"""The format `pulsar` with places where a process dies: for tests that kill a query at every step of a micro-batch.

The steps, in the order in which a batch goes through them:

    plan         the source has chosen the batch's end; nothing is written down yet
    partitions   Spark has written the batch's end down (its write-ahead log); its tasks are known
    read         a task's source has handed out its first rows
    open         a task's sink is about to write, nothing is sent
    sent         a task's sink has sent its first entry, no receipt was waited for
    confirmed    a task's sink has all receipts; Spark does not know
    commit       all tasks are done; Spark has not written down that the batch is
    committed    it has; the source is told

A *scene* is a set of points, a step and the number of a task each (one task a topic; 0 for steps outside tasks), and a victim.
Whoever comes to a point waits there until all points are taken by processes that live; then the victim is killed, while
everybody stands where he stands. (Outside tasks the executor that dies is the one that ran the last of them.) Scenes are played
one after the other, each once. All of this is in files in a folder, so that it survives its victims.
"""

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from magnetar.spark import sink
from magnetar.spark.format import PulsarFormat
from magnetar.spark.source import StreamReader, StretchPartition

FOLDER = "MAGNETAR_TEST_SCENES"
"""Environment variable: the folder of the scenes."""

FORMAT = "pulsar-killed"
TASKS = ("read", "open", "sent", "confirmed")
"""Steps of tasks; every one is taken by a task of its own."""

BESIDE = ("plan", "partitions", "commit", "committed")
"""Steps in the processes beside the driver."""

WAIT_S = 600.0
"""A deadline that only ends what hangs: who died at its point is noticed at once, and its successor takes the point."""


@dataclass(frozen=True)
class Scene:
    """Points, as `step/task`, and who dies: "worker" (everybody at a point), "executor" (its JVM), "driver" (JVM and Python)."""

    points: tuple[str, ...]
    victim: str


def all_tasks(victim: str, turn: int = 0) -> Scene:
    """Four tasks, each at another step; which one is where changes from turn to turn."""
    return Scene(tuple(f"{step}/{(number + turn) % len(TASKS)}" for number, step in enumerate(TASKS)), victim)


def beside(step: str, victim: str) -> Scene:
    """One of the steps outside tasks."""
    return Scene((f"{step}/0",), victim)


class Stage:
    """The folder with the scenes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def prepare(cls, folder: Path, scenes: Sequence[Scene]) -> "Stage":
        """Write down what will happen."""
        folder.mkdir(parents=True)
        (folder / "scenes.json").write_text(json.dumps([asdict(scene) for scene in scenes]))
        return cls(folder)

    def scenes(self) -> list[Scene]:
        """All of them."""
        return [
            Scene(tuple(one["points"]), one["victim"]) for one in json.loads((self.folder / "scenes.json").read_text())
        ]

    @property
    def played(self) -> int:
        """How many are over."""
        return len(list(self.folder.glob("over-*")))

    @property
    def killed(self) -> int:
        """In how many somebody was there to be killed."""
        return len(list(self.folder.glob("killed-*")))

    def reach(self, step: str, task: int) -> None:
        """A process came to a step; it may be its last."""
        number, scenes, point = self.played, self.scenes(), f"{step}/{task}"
        if step in TASKS and any(scene.victim == "executor" for scene in scenes):
            self._note("executor", str(_jvm_of(os.getpid())))
        if number >= len(scenes) or point not in scenes[number].points or not self._take(f"at-{number}-{step}-{task}"):
            return
        scene = scenes[number]
        until = time.monotonic() + WAIT_S
        while not (self.folder / f"over-{number}").exists():
            if self._alive(number) == len(scene.points):
                if self._take(f"over-{number}"):
                    self._kill(number, scene.victim)
                    return  # only if the victim is another process
            elif time.monotonic() > until:
                raise AssertionError(f"{point} of scene {number} waited {WAIT_S} s for the other points")
            time.sleep(0.01)
        if scene.victim == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        # Otherwise this process goes on behind its dead JVM, as a forgotten one does: nothing must come of it.

    def _take(self, name: str) -> bool:
        """The first process to ask has it; the file, which holds its id, is there at once with that."""
        mine = self.folder / f"by-{os.getpid()}"
        mine.write_text(str(os.getpid()))
        try:
            os.link(mine, self.folder / name)
        except FileExistsError:
            return False
        finally:
            mine.unlink()
        return True

    def _alive(self, number: int) -> int:
        """How many points are taken; a point whose process died is free again."""
        found = 0
        for taken in self.folder.glob(f"at-{number}-*"):
            try:
                pid = int(taken.read_text())
            except FileNotFoundError:  # another process found out just now
                continue
            if _lives(pid):
                found += 1
            elif self._take(f"gone-{taken.name}-{pid}"):  # one removes it: a second one would remove the successor's
                taken.unlink()
        return found

    def _note(self, name: str, text: str) -> None:
        """A file that is there as a whole or not at all."""
        mine = self.folder / f"note-{os.getpid()}"
        mine.write_text(text)
        mine.replace(self.folder / name)

    def _kill(self, number: int, victim: str) -> None:
        pids = [os.getpid()] if victim == "worker" else [int(p) for p in (self.folder / victim).read_text().split()]
        if all(map(_lives, pids)):
            self._note(f"killed-{number}", "")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    """Whether the process is there, and not only its entry in the table."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _jvm_of(pid: int) -> int:
    """The first ancestor that is Java."""
    while pid > 1:
        status = Path(f"/proc/{pid}/status").read_text()
        pid = int(status.split("PPid:")[1].split()[0])
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            return pid
    raise AssertionError("no JVM above this process")


def stage() -> Stage:
    """As the environment says."""
    return Stage(Path(os.environ[FOLDER]))


class KilledFormat(PulsarFormat):
    """Streaming ends with the hooks; everything else is the format's own."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` is given."""
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For `spark.readStream`."""
        made = super().streamReader(schema)
        made.__class__ = KilledReader  # however the format makes it
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """For `df.writeStream`."""
        made = super().streamWriter(schema, overwrite)
        made.__class__ = KilledWriter
        return made


class KilledReader(StreamReader):
    """The source."""

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """Step `plan`."""
        end = super().latestOffset(start, limit)
        if end != start:
            stage().reach("plan", 0)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Step `partitions`."""
        made = super().partitions(start, end)
        stage().reach("partitions", 0)
        return made

    def commit(self, end: dict[str, Any]) -> None:
        """Step `committed`."""
        super().commit(end)
        stage().reach("committed", 0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Step `read`."""
        assert isinstance(partition, StretchPartition)
        task = int(partition.value.topic[-1])
        for batch in super().read(partition):
            yield batch.slice(0, 1)
            stage().reach("read", task)
            yield batch.slice(1)


class KilledWriter(sink.StreamWriter):
    """The sink."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Steps `open`, `sent`, `confirmed`."""
        here, (_, task) = stage(), sink._task()
        flush = sink.Target.flush

        def flushed(target: sink.Target) -> None:
            flush(target)
            here.reach("sent", task)

        here.reach("open", task)
        sink.Target.flush = flushed  # type: ignore[method-assign]
        try:
            done = super().write(iterator)
        finally:
            sink.Target.flush = flush  # type: ignore[method-assign]
        here.reach("confirmed", task)
        return done

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Step `commit`."""
        stage().reach("commit", 0)
        super().commit(messages, batchId)
