"""The story: publish in both clusters, kill each kind of process in turn, check whether anything was lost.

    1  both clusters publish; each gets everything of the other                                  (nothing is broken: calm)
    2  the broker that serves is killed while both publish; the other broker takes over
    3  the bookie that has the newest entries is killed while both publish; it comes back
    4  the Spark driver is killed while both publish; it comes back
    5  the broker that serves is stopped while both publish: it hands over
    6  both publish once more                                                                    (calm)

The publishers have names and the brokers deduplicate: what a client sends again after a takeover is stored once.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from examples.cluster.world import CLUSTER, OTHER, World
from examples.demo.cast import SUBSCRIPTION, TOPIC, Cast
from examples.demo.flights import Departures
from examples.demo.reasons import Again
from examples.demo.screen import Screen
from examples.demo.tally import Tally

PARTS: Final = (0.3, 0.45, 0.6, 0.75, 0.9, 1.0)
"""How much of the flights is published by the end of each part of the story."""

WARM: Final = 0.02
"""How much is published before anything is measured."""

BROKER_KILLED: Final = "the serving broker is killed"
BOOKIE_KILLED: Final = "a bookie is killed"
HANDED_OVER: Final = "the serving broker is stopped"

NOT_STORED: Final = "whose acknowledgement the former broker had not stored"
"""The one reason why the consumer may get a flight twice."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """One broker of the cluster took over from another one.

    Attributes:
        again: second deliveries that the consumer had seen before it.
        stored: acknowledgements that the former broker had stored. Those must not be lost. A broker that is killed loses those
            of its last 20 ms (`cursor_flush_ms`), which it had only in memory; one that is stopped stores all of them first.
    """

    again: int
    stored: int


@dataclass(slots=True)
class Outcome:
    """What the players saw.

    Attributes:
        published: by cluster, confirmed.
        watchers: by cluster.
        consumer: of the subscription.
        pauses_s: what was done -> the longest time without a confirmation in the cluster of two brokers.
        times: what happened when, seconds since the start.
    """

    published: dict[str, int]
    watchers: dict[str, Tally]
    consumer: Tally
    pauses_s: dict[str, float] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)

    def faults(self) -> list[str]:
        """Everything that must not be, a line each; empty when all is well."""
        lines = []
        for cluster, tally in self.watchers.items():
            lines += tally.faults(f"the reader in {cluster}")
        return lines + self.consumer.faults("the consumer")


def unexplained(again: Sequence[Again], takeovers: Sequence[Takeover]) -> int:
    """How many second deliveries have no reason.

    A flight may come again after a takeover if its acknowledgement was not stored before.

    Args:
        again: the second deliveries, in order.
        takeovers: in order.
    """
    count = 0
    for number, one in enumerate(again):
        before = [takeover for takeover in takeovers if takeover.again <= number]
        if not before or one.before.order < before[-1].stored:
            count += 1
    return count


class Story:
    """Runs it, part by part.

    Args:
        world: opened: brokers running, the pipeline starting.
        departures: by cluster.
        per_second: how fast each cluster publishes.
        screen: where the progress is shown.
    """

    def __init__(self, world: World, departures: Mapping[str, Departures], per_second: int, screen: Screen) -> None:
        self.world, self.screen = world, screen
        self._began = time.monotonic()
        self.cast = Cast(departures, per_second, world.urls, (CLUSTER,), screen)
        watchers = {cluster: one.tally for cluster, one in self.cast.watchers.items()}
        self.outcome = Outcome({}, watchers, self.cast.consumer.tally)
        self._takeovers: list[Takeover] = []
        self._published = 0.0

    def run(self) -> Outcome:
        """Run all parts; the brokers are left running, the pipeline is not.

        Raises:
            MagnetarError: nothing moved for too long, or a player failed.
        """
        try:
            self.start()
            self.both_publish(PARTS[0], "all is well")
            self.the_broker_dies(PARTS[1])
            self.a_bookie_dies(PARTS[2])
            self.the_driver_dies(PARTS[3])
            self.the_broker_hands_over(PARTS[4])
            self.both_publish(PARTS[5], "all is well again")
            self.settle()
        finally:
            self.dismiss()
        return self.outcome

    # -------------------------------------------------------------------------------------------------------- the parts

    def start(self) -> None:
        """Wait for the pipeline, let all players begin, and send the first flights, which do not count as calm."""
        self.world.pipeline.await_ready(self.screen.look)
        self._mark("pipeline ready")
        self.cast.begin()
        self.screen.step(f"the pipeline is ready; the first {WARM:.0%} of the flights warm it up")
        self.cast.trouble()
        self._allow(WARM)
        self.cast.heal()

    def both_publish(self, share: float, mood: str) -> None:
        """A calm part: nothing is broken."""
        self.screen.step(f"{CLUSTER} and {OTHER} publish up to {share:.0%}; {mood}")
        self._allow(share)
        self.cast.wait(self.cast.published, "publishing")
        self.cast.wait(self.cast.everywhere, "every cluster to have what was published")

    def the_broker_dies(self, share: float) -> None:
        """SIGKILL to the broker that serves, in the middle of its work."""
        self._before_takeover()
        former = self._in_the_middle(share)
        self.world.brokers[former].kill()
        self.screen.step(f"broker {CLUSTER}/{former}, which serves, is killed (SIGKILL)")
        self._taken_over(former, BROKER_KILLED)

    def a_bookie_dies(self, share: float) -> None:
        """SIGKILL to a bookie that gets entries; the broker replaces it with another one."""
        self._in_the_middle(share)
        bookie = self.world.busiest_bookie()
        bookie.kill()
        self.screen.step(f"{bookie.name}, which has the newest entries, is killed (SIGKILL)")
        self.cast.heal()
        pause_s = self._pause(BOOKIE_KILLED)
        self.screen.step(f"publishing stood still for {pause_s:.2f} s; {bookie.name} starts again")
        bookie.start(wait=False)

    def the_driver_dies(self, share: float) -> None:
        """SIGKILL to Spark, with everything it started."""
        self._in_the_middle(share)
        self.world.pipeline.kill()
        self.screen.step("the Spark driver is killed (SIGKILL); publishing continues")
        self.cast.wait(self.cast.published, "publishing without a pipeline")
        self.screen.step("everything is published; the Spark driver starts again")
        self.world.pipeline.start(self.screen.look)
        self.cast.heal()

    def the_broker_hands_over(self, share: float) -> None:
        """SIGTERM to the broker that serves: it closes its ledgers, and the other one takes over at once."""
        former = self._in_the_middle(share)
        self._before_takeover()
        self.screen.step(f"broker {CLUSTER}/{former}, which serves, is stopped (SIGTERM)")
        self.world.brokers[former].stop()
        self._taken_over(former, HANDED_OVER)

    def settle(self) -> None:
        """Wait for the consumer, and find the reasons of what came twice."""
        consumer = self.cast.consumer
        self.cast.wait(lambda: not consumer.tally.missing, "the consumer to have every flight")
        self._mark("all delivered")
        self.outcome.published = {name: publisher.confirmed for name, publisher in self.cast.publishers.items()}
        strange = unexplained(consumer.again, self._takeovers)
        explained = consumer.tally.again - strange
        if explained:
            consumer.tally.reasons[NOT_STORED] = explained
        if strange:
            consumer.tally.strange["whose acknowledgement was stored, or without a takeover"] = strange

    def dismiss(self) -> None:
        """Let the players go, then the pipeline."""
        self.cast.dismiss(join=self.world.other.running and self.world.brokers[self.world.serving].running)
        if self.world.pipeline.running:
            self.world.pipeline.stop()
        self.screen.look()

    # ----------------------------------------------------------------------------------------------------------- helpers

    def _allow(self, share: float) -> None:
        self.cast.publishers[CLUSTER].watch()
        self.cast.allow(share, *self.cast.publishers)
        self._part, self._published = share - self._published, share

    def _in_the_middle(self, share: float) -> str:
        """Both publish, and a quarter of this part has arrived; the name of the broker that serves."""
        self.cast.trouble()
        before = self.cast.arrived()
        self._allow(share)
        some = len(self.cast.watchers) * self.cast.total * self._part / 4
        self.cast.wait(lambda: self.cast.arrived() - before >= some, "some flights of this part to arrive")
        return self.world.serving

    def _before_takeover(self) -> None:
        rows: list[dict[str, Any]] = self.world.admin(CLUSTER).get(f"/geo/v1/subscriptions?topic={TOPIC}")
        stored = sum(int(row.get("acknowledged", 0)) for row in rows if row["subscription"] == SUBSCRIPTION)
        self._takeovers.append(Takeover(len(self.cast.consumer.again), stored))

    def _taken_over(self, former: str, what: str) -> None:
        self.world.await_takeover(self.screen.look)
        self.screen.step(f"broker {CLUSTER}/{self.world.serving} has taken over; {former} starts again, and waits")
        self.cast.heal()
        self.screen.step(f"publishing stood still for {self._pause(what):.2f} s")

    def _pause(self, what: str) -> float:
        self.outcome.pauses_s[what] = round(self.cast.publishers[CLUSTER].pause_s, 3)
        return self.outcome.pauses_s[what]

    def _mark(self, what: str) -> None:
        self.outcome.times[what] = round(time.monotonic() - self._began, 1)
