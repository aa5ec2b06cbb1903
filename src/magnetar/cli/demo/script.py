"""The story of the demo: publish, break things, look whether anything was lost.

    1  all three airports publish; every cluster gets everything                         (nothing is broken: calm)
    2  the consumer's broker is killed while the others publish; it comes back, the consumer goes on
    3  a destination broker is down while the others publish; their other links go on; it comes back and catches up
    4  the Spark driver is killed while all publish; it comes back
    5  all publish once more                                                             (calm)

A publisher whose own broker is about to be killed has been flushed before: without publisher deduplication (a later
version) a client that sends again what was not confirmed stores it twice, and that would be the demo's doing, not
replication's.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from magnetar.cli.demo.flights import Departures
from magnetar.cli.demo.players import Consumer, Player, Publisher, Watcher
from magnetar.cli.demo.screen import Screen
from magnetar.cli.demo.tally import Board, Tally
from magnetar.cli.demo.world import World
from magnetar.core.errors import MagnetarError

TOPIC: Final = "persistent://public/default/departures"
SUBSCRIPTION: Final = "boarding"

PATIENCE_S: Final = 90.0
"""A deadline for anything at all to happen: a Spark driver that starts on a busy machine is the slowest part."""

CONSUMER_AT: Final = "jfk"
"""Where the consumer is, and which broker is killed under it."""

DOWN: Final = "lga"
"""The destination that is down for a while."""

PARTS: Final = (0.4, 0.65, 0.8, 0.9, 1.0)
"""How much of the flights is published by the end of each part of the story."""


WARM: Final = 0.02
"""How much is published before anything is measured."""


@dataclass(slots=True)
class Outcome:
    """What the players saw.

    Attributes:
        published: by airport, confirmed by its broker.
        watchers: by cluster.
        consumer: of the subscription.
        times: what happened when, seconds since the start, for the report.
    """

    published: dict[str, int]
    watchers: dict[str, Tally]
    consumer: Tally
    times: dict[str, float] = field(default_factory=dict)

    def faults(self) -> list[str]:
        """Everything that must not be, a line each; empty when all is well."""
        lines = []
        for tally in (*self.watchers.values(), self.consumer):
            where = f"the reader in {tally.name}" if tally is not self.consumer else "the consumer"
            if tally.missing:
                lines.append(f"{where} never got {tally.missing:,} flights")
            if tally.unknown:
                lines.append(f"{where} got {tally.unknown:,} messages that are no flights as published")
            if tally.disorder:
                lines.append(f"{where} got {tally.disorder:,} flights out of their origin's order")
            if tally.again > tally.explained:
                lines.append(f"{where} got {tally.again - tally.explained:,} flights twice without a reason")
        return lines


class Story:
    """Tells it.

    Args:
        world: opened: brokers running, the pipeline starting.
        departures: by airport.
        per_second: how fast each airport publishes.
        screen: where it is told.
    """

    def __init__(self, world: World, departures: Mapping[str, Departures], per_second: int, screen: Screen) -> None:
        self.world, self.screen = world, screen
        self.board = Board()
        self._began = time.monotonic()
        flights = {airport: len(one) for airport, one in departures.items()}
        numbers = {
            payload: (airport, number)
            for airport, one in departures.items()
            for number, payload in enumerate(one.payloads)
        }
        self.publishers = {
            airport: Publisher(one, per_second, world.urls[airport], TOPIC, self.board)
            for airport, one in departures.items()
        }
        self.watchers = {
            cluster: Watcher(Tally(cluster, flights, numbers, self.board), world.urls[cluster], TOPIC, self.board)
            for cluster in departures
        }
        self.consumer = Consumer(
            SUBSCRIPTION, Tally("consumer", flights, numbers, self.board), world.urls[CONSUMER_AT], TOPIC, self.board
        )
        self.outcome = Outcome({}, {cluster: one.tally for cluster, one in self.watchers.items()}, self.consumer.tally)
        self._total = sum(flights.values())
        self._allowed = dict.fromkeys(flights, 0)

    def tell(self) -> Outcome:
        """Run all parts; the brokers are left running, the pipeline is not.

        Raises:
            MagnetarError: nothing moved for too long, or a player failed.
        """
        try:
            self.start()
            self.everybody_publishes(PARTS[0], "all is well")
            self.the_consumers_broker_dies(PARTS[1])
            self.a_destination_is_down(PARTS[2])
            self.the_driver_dies(PARTS[3])
            self.everybody_publishes(PARTS[4], "all is well again")
            self.settle()
        finally:
            self.dismiss()
        return self.outcome

    # -------------------------------------------------------------------------------------------------------- the parts

    def start(self) -> None:
        """Wait for the pipeline, let everybody begin, and send the first flights.

        The first micro-batch starts Python workers and compiles queries; it says nothing about replication, so it does
        not count as calm.
        """
        self.world.pipeline.await_ready(self.screen.look)
        self._mark("pipeline ready")
        players: list[Player] = [*self.publishers.values(), *self.watchers.values(), self.consumer]
        for player in players:
            player.start()
        self.screen.bars(self._counts())
        self.screen.step(f"the pipeline is ready; the first {WARM:.0%} of the flights warm it up")
        self._break()
        self._allow(WARM, *self.publishers)
        self._heal()

    def everybody_publishes(self, share: float, mood: str) -> None:
        """A calm part: nothing is broken."""
        self.screen.step(f"all airports publish up to {share:.0%}; {mood}")
        self._allow(share, *self.publishers)
        self._wait(self._published, "publishing")
        self._wait(self._everywhere, "every cluster to have what was published")

    def the_consumers_broker_dies(self, share: float) -> None:
        """SIGKILL under the consumer, half way; the others go on meanwhile."""
        others = [name for name in self.publishers if name != CONSUMER_AT]
        half = self._total // 2
        self._break()
        self._allow(share, *others)
        self._wait(lambda: self.consumer.tally.arrived >= half, f"the consumer to have {half:,} flights")
        self.world.brokers[CONSUMER_AT].kill()
        self.consumer.broker_killed(_now_ms())
        self.screen.step(
            f"broker {CONSUMER_AT} is killed (SIGKILL) under the consumer, which has {self.consumer.tally.arrived:,}"
        )
        self._wait(lambda: self._between(others), f"{' and '.join(others)} to go on without {CONSUMER_AT}")
        self.screen.step(f"{' and '.join(others)} have everything of each other meanwhile; {CONSUMER_AT} starts again")
        self.world.brokers[CONSUMER_AT].start(self.screen.look)
        self.consumer.broker_restarted()
        self._allow(share, CONSUMER_AT)
        self._heal()

    def a_destination_is_down(self, share: float) -> None:
        """An orderly stop; two links towards it wait, the others go on."""
        others = [name for name in self.publishers if name != DOWN]
        self._break()
        self.world.brokers[DOWN].stop()
        self.screen.step(f"broker {DOWN} is down; {' and '.join(others)} publish up to {share:.0%}")
        self._allow(share, *others)
        self._wait(lambda: self._between(others), f"{' and '.join(others)} to go on without {DOWN}")
        self.screen.step(f"{' and '.join(others)} have everything of each other; {DOWN} starts again and catches up")
        self.world.brokers[DOWN].start(self.screen.look)
        self._allow(share, DOWN)
        self._heal()

    def the_driver_dies(self, share: float) -> None:
        """SIGKILL to Spark, with everything it started, in the middle of its work."""
        self._break()
        before = self._arrived()
        self._allow(share, *self.publishers)
        some = self._total * (share - PARTS[2]) / 4
        self._wait(lambda: self._arrived() - before >= some, "some flights of this part to arrive")
        self.world.pipeline.kill()
        self.screen.step("the Spark driver is killed (SIGKILL) in the middle of its work; publishing goes on")
        self._wait(self._published, "publishing without a pipeline")
        self.screen.step("everything is published; the Spark driver starts again")
        self.world.pipeline.start(self.screen.look)
        self._heal()

    def settle(self) -> None:
        """Wait for the consumer, then end the pipeline in good order."""
        self._wait(lambda: not self.consumer.tally.missing, "the consumer to have every flight")
        self._mark("all delivered")
        self.outcome.published = {name: publisher.confirmed for name, publisher in self.publishers.items()}

    def dismiss(self) -> None:
        """Let the players go, then the pipeline."""
        players: list[Player] = [*self.publishers.values(), *self.watchers.values(), self.consumer]
        for player in players:
            player.over.set()
        alive = all(broker.running for broker in self.world.brokers.values())
        for player in players:
            if player.ident is not None and alive:
                player.join(timeout=10)
        if self.world.pipeline.running:
            self.world.pipeline.stop()
        self.screen.look()

    # ------------------------------------------------------------------------------------------------------- conditions

    def _published(self) -> bool:
        return all(publisher.done for publisher in self.publishers.values())

    def _everywhere(self) -> bool:
        """Whether every reader has all that may be published so far."""
        return all(
            watcher.tally.links[airport].arrived >= allowed
            for watcher in self.watchers.values()
            for airport, allowed in self._allowed.items()
        )

    def _between(self, clusters: list[str]) -> bool:
        """Whether these clusters have all that each of them may publish so far."""
        return all(
            self.watchers[cluster].tally.links[airport].arrived >= self._allowed[airport]
            for cluster in clusters
            for airport in clusters
        )

    def _arrived(self) -> int:
        return sum(watcher.tally.arrived for watcher in self.watchers.values())

    # ----------------------------------------------------------------------------------------------------------- helpers

    def _allow(self, share: float, *airports: str) -> None:
        for airport in airports:
            self._allowed[airport] = round(share * len(self.publishers[airport].departures))
            self.publishers[airport].allow(share)

    def _break(self) -> None:
        self.board.trouble(_now_ms())

    def _heal(self) -> None:
        """Wait until what was held up is through: from then on it is calm."""
        self._wait(self._published, "publishing")
        self._wait(self._everywhere, "every cluster to have what was published")
        self.board.healed(_now_ms())
        self.screen.step("every cluster has everything that was published so far")

    def _wait(self, until: Callable[[], bool], what: str) -> None:
        why = self.board.wait(until, patience_s=PATIENCE_S, look=self.screen.look)
        if why is not None:
            raise MagnetarError(
                why or f"nothing moved for {PATIENCE_S:g} s while waiting for {what}: {self._lacking()}"
            )

    def _lacking(self) -> str:
        """Who lacks what, for the one line."""
        parts = [
            f"{cluster} lacks {self._allowed[airport] - link.arrived:,} of {airport}"
            for cluster, watcher in self.watchers.items()
            for airport, link in watcher.tally.links.items()
            if link.arrived < self._allowed[airport]
        ]
        parts += [f"{name} has {one.confirmed:,} confirmed" for name, one in self.publishers.items() if not one.done]
        return ", ".join(parts) or f"the consumer has {self.consumer.tally.arrived:,} of {self._total:,}"

    def _mark(self, what: str) -> None:
        self.outcome.times[what] = round(time.monotonic() - self._began, 1)

    def _counts(self) -> dict[str, Callable[[], tuple[int, int]]]:
        """For the bars."""
        counts: dict[str, Callable[[], tuple[int, int]]] = {}
        for name, publisher in self.publishers.items():
            counts[f"published in {name}"] = lambda one=publisher: (one.confirmed, len(one.departures))  # type: ignore[misc]
        for name, watcher in self.watchers.items():
            counts[f"arrived in {name}"] = lambda one=watcher: (one.tally.arrived, self._total)  # type: ignore[misc]
        counts[f"consumed in {CONSUMER_AT}"] = lambda: (self.consumer.tally.arrived, self._total)
        return counts


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
