"""What goes wrong in a pipeline with long batches, and how often: drawn from a generator of its own."""

import random

from magnetar_sim.connections.ranges import WINDOW


class LongFaults:
    """The faults of one link's pipeline.

    Args:
        rng: draws them.
        bulk: whether topics with a backlog are handed over to planned batches.

    Attributes:
        rng: all chance of the link's pipeline.
        task_dies: how often a task dies at a step.
        twice: how often a batch is run a second time while it runs.
        loses: how often a command to a broker is stuck in its connection, or its answer is lost.
        stuck: how often an answer waits up to a minute on its way through a task.
        driver_dies: how often the driver dies in one tick.
        slow_ms: the longest of the usual pauses.
        ahead: questions under way at the source.
        window: pieces under way at the destination.
        window_bytes: handed out and not confirmed.
        answer_bytes: of one answer.
        length_ms: of a batch.
        scale: what one byte of a backlog counts for: the planner's limits are made for megabytes.
    """

    def __init__(self, rng: random.Random, *, bulk: bool) -> None:
        self.rng = rng
        self.task_dies = rng.choice((0.0, 0.02, 0.1))
        self.twice = rng.choice((0.0, 0.2, 0.6))
        self.loses = rng.choice((0.0, 0.05, 0.3))
        self.stuck = rng.choice((0.0, 0.0, 0.02))
        self.driver_dies = rng.choice((0.0, 0.01, 0.04))
        self.slow_ms = rng.choice((5, 50, 500))
        self.ahead = rng.choice((1, 2, 4))
        self.window = rng.choice((1, WINDOW))
        self.window_bytes = rng.choice((200, 600, 1 << 20))
        self.answer_bytes = rng.choice((1, 200, 600, 1 << 18))
        self.length_ms = rng.choice((3_000, 8_000, 30_000))
        self.scale = (64 << 20) // rng.choice((150, 400, 1_500)) if bulk else 1

    def chance(self, share: float) -> bool:
        """Whether something happens that happens this often."""
        return self.rng.random() < share

    def pause_ms(self) -> int:
        """How long a task takes for nothing."""
        return int(self.rng.random() * self.slow_ms)

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self.task_dies = self.loses = self.twice = self.stuck = self.driver_dies = 0.0
        self.slow_ms = 5
        self.ahead = 2
        self.window_bytes = self.answer_bytes = 1 << 18
        self.length_ms = 30_000
