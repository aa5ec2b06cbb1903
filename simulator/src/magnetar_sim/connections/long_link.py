"""The pipeline of one link whose tail goes by long batches (docs/design/pipeline.md#long-batches).

`Driver` is the process that compares, grants and begins batches, `LongTask` an attempt to carry a long batch, `PlannedBatch` a
batch of the query for topics with a backlog. The driver dies and starts again, under its name or under another one; tasks of the
former one run on. Nothing of that is needed for safety: that is what is tested.
"""

import random
from typing import Final

from magnetar_sim.connections.driver import Driver
from magnetar_sim.connections.link_filter import LinkFilter
from magnetar_sim.connections.long_faults import LongFaults
from magnetar_sim.connections.long_task import LongTask
from magnetar_sim.connections.planned_batch import PlannedBatch
from magnetar_sim.connections.workers import LinkSurroundings, Workers

TICK_MS: Final = 250
"""Between two looks of an idle driver for something to do, while things go wrong."""

CALM_TICK_MS: Final = 1_000
"""The same when all is well."""

AGAIN_MS: Final = 5_000
"""The longest that a driver takes to start again."""

OTHER_NAME: Final = 0.3
"""How often another pipeline takes over from a driver that died."""


class LongLink:
    """One link.

    Args:
        around: the world.
        source, target: clusters.
        bulk: whether topics with a backlog go by planned batches.

    Attributes:
        filter: its operator's.
        workers: the connections of its tasks.
        faults: what goes wrong.
        stopped: the driver does nothing; tasks go on.
    """

    def __init__(self, around: LinkSurroundings, source: str, target: str, *, bulk: bool) -> None:
        self.context = context = around.context
        rng = random.Random(f"long-{context.seed}-{source}>{target}")  # noqa: S311 - chance that replays
        self.source, self.target = source, target
        self.faults = LongFaults(rng, bulk=bulk)
        self.filter = LinkFilter(rng, around.truth, target)
        self.workers = Workers(around, rng, source, target, lambda: self._driver.polls if self._driver else None)
        self.stopped = False
        self._names = 1
        self._driver: Driver | None = Driver(self, "p1")
        self._attempts: list[LongTask] = []
        self._planned: list[PlannedBatch] = []
        context.clock.after(int(rng.random() * TICK_MS), self._tick)

    @property
    def tasks(self) -> list[LongTask | PlannedBatch]:
        """Those that carry something now, or will."""
        busy: list[LongTask | PlannedBatch] = [task for task in self._attempts if task.busy]
        return busy + [batch for batch in self._planned if batch.busy]

    def calm(self) -> None:
        """Nothing goes wrong in the pipeline any more."""
        self.faults.calm()
        self.stopped = False

    def begin(self, task: LongTask) -> None:
        """See `DriverHost`."""
        self._attempts = [one for one in self._attempts if not one.over]
        self._attempts.append(task)

    def carry(self, batch: PlannedBatch) -> None:
        """See `DriverHost`."""
        self._planned = [one for one in self._planned if one.busy]
        self._planned.append(batch)

    def _tick(self) -> None:
        self.context.clock.after(TICK_MS if self.context.storm else CALM_TICK_MS, self._tick)
        if self._driver is None:
            return
        if self.faults.chance(self.faults.driver_dies):
            self._kill(self._driver)
            return
        self._driver.work()

    def _kill(self, driver: Driver) -> None:
        """The driver dies; its tasks die with it, or run on for a while."""
        self.context.count("driver died")
        driver.die()
        self._driver = None
        self.kill_tasks(0.5)
        rng = self.faults.rng
        if rng.random() < OTHER_NAME:
            self._names += 1
        self.context.clock.after(int(rng.random() * AGAIN_MS), self._start)

    def kill_tasks(self, share: float) -> None:
        """Workers die with the attempts that they run."""
        for task in self._attempts:
            if self.faults.chance(share):
                task.kill()

    def _start(self) -> None:
        self._driver = Driver(self, f"p{self._names}")
        self._driver.work()
