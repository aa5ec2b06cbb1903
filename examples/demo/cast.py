"""The players of a story, and how far they are: one publisher and one reader in each cluster, one consumer."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from examples.demo.flights import Departures
from examples.demo.players import Consumer, Player, Publisher, Watcher
from examples.demo.screen import Count, Screen
from examples.demo.tally import Board, Tally
from magnetar.core.errors import MagnetarError

TOPIC: Final = "persistent://public/default/departures"
SUBSCRIPTION: Final = "boarding"

PATIENCE_S: Final = 90.0
"""A deadline for anything at all to happen: a Spark driver that starts on a busy machine is the slowest part."""


class Cast:
    """All players.

    Args:
        departures: by airport, which is also the name of a cluster.
        per_second: how fast each airport publishes.
        urls: of the clusters, for clients.
        consumer_at: the clusters that the consumer's client connects to, the first one first.
        screen: where the progress is shown.
    """

    def __init__(
        self,
        departures: Mapping[str, Departures],
        per_second: int,
        urls: Mapping[str, str],
        consumer_at: Sequence[str],
        screen: Screen,
    ) -> None:
        self.board = Board()
        self._screen = screen
        flights = {airport: len(one) for airport, one in departures.items()}
        numbers = {
            payload: (airport, number)
            for airport, one in departures.items()
            for number, payload in enumerate(one.payloads)
        }
        self.publishers = {
            airport: Publisher(one, per_second, urls[airport], TOPIC, self.board) for airport, one in departures.items()
        }
        self.watchers = {
            cluster: Watcher(Tally(cluster, flights, numbers, self.board), urls[cluster], TOPIC, self.board)
            for cluster in departures
        }
        first, *others = (urls[cluster] for cluster in consumer_at)
        self.consumer = Consumer(
            SUBSCRIPTION, Tally("consumer", flights, numbers, self.board), first, TOPIC, self.board, *others
        )
        self.total = sum(flights.values())
        self._allowed = dict.fromkeys(flights, 0)

    def begin(self) -> None:
        """Start all players.

        The publishers connect first: the topic's first schema is theirs. The readers bring the next one.
        """
        for publisher in self.publishers.values():
            publisher.start()
        self.wait(lambda: all(one.opened.is_set() for one in self.publishers.values()), "the publishers to connect")
        readers: list[Player] = [*self.watchers.values(), self.consumer]
        for player in readers:
            player.start()
        self._screen.bars(self._counts())

    def dismiss(self, *, join: bool) -> None:
        """Let the players go.

        Args:
            join: wait for them; not if a broker is down, because their clients wait for it.
        """
        players: list[Player] = [*self.publishers.values(), *self.watchers.values(), self.consumer]
        for player in players:
            player.over.set()
        for player in players:
            if player.ident is not None and join:
                player.join(timeout=10)

    # ---------------------------------------------------------------------------------------------------- what they may do

    def allow(self, share: float, *airports: str) -> None:
        """Let airports publish up to this share of their flights."""
        for airport in airports:
            self._allowed[airport] = round(share * len(self.publishers[airport].departures))
            self.publishers[airport].allow(share)

    def trouble(self) -> None:
        """From now on something is broken on purpose: what is published meanwhile does not count as calm."""
        self.board.trouble(_now_ms())

    def heal(self) -> None:
        """Wait until what was held up is through: from then on it is calm."""
        self.wait(self.published, "publishing")
        self.wait(self.everywhere, "every cluster to have what was published")
        self.board.healed(_now_ms())
        self._screen.step("every cluster has everything that was published so far")

    # ----------------------------------------------------------------------------------------------------- how far they are

    def published(self) -> bool:
        """Whether everything that may be published so far is confirmed."""
        return all(publisher.done for publisher in self.publishers.values())

    def everywhere(self) -> bool:
        """Whether every reader has all that may be published so far."""
        return all(
            watcher.tally.links[airport].arrived >= allowed
            for watcher in self.watchers.values()
            for airport, allowed in self._allowed.items()
        )

    def between(self, clusters: Sequence[str]) -> bool:
        """Whether these clusters have all that each of them may publish so far."""
        return all(
            self.watchers[cluster].tally.links[airport].arrived >= self._allowed[airport]
            for cluster in clusters
            for airport in clusters
        )

    def arrived(self) -> int:
        """Different flights that arrived, of all readers together."""
        return sum(watcher.tally.arrived for watcher in self.watchers.values())

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Wait until something is true.

        Raises:
            MagnetarError: a player failed, or nothing moved for too long; then the line says who lacks what.
        """
        why = self.board.wait(until, patience_s=PATIENCE_S, look=self._screen.look)
        if why is not None:
            raise MagnetarError(
                why or f"nothing moved for {PATIENCE_S:g} s while waiting for {what}: {self._lacking()}"
            )

    def _lacking(self) -> str:
        parts = [
            f"{cluster} lacks {self._allowed[airport] - link.arrived:,} of {airport}"
            for cluster, watcher in self.watchers.items()
            for airport, link in watcher.tally.links.items()
            if link.arrived < self._allowed[airport]
        ]
        parts += [f"{name} has {one.confirmed:,} confirmed" for name, one in self.publishers.items() if not one.done]
        return ", ".join(parts) or f"the consumer has {self.consumer.tally.arrived:,} of {self.total:,}"

    def _counts(self) -> dict[str, Count]:
        """For the bars."""
        counts: dict[str, Count] = {}
        for name, publisher in self.publishers.items():
            counts[f"published in {name}"] = lambda one=publisher: (one.confirmed, len(one.departures))  # type: ignore[misc]
        for name, watcher in self.watchers.items():
            counts[f"arrived in {name}"] = lambda one=watcher: (one.tally.arrived, self.total)  # type: ignore[misc]
        counts["consumed"] = lambda: (self.consumer.tally.arrived, self.total)
        return counts


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
