"""Decides how long acknowledgements of a topic are collected before a marker carries them: the speed of its links decides.

    link delivers within 20 ms     INTERVAL_MS_MIN
    slower                         half of its delivery time, so that collecting adds a quarter to the mean way; in long batches
                                   without the distance, because a cluster that is far away is not busy for that reason
    slower still, or not known     `ack_sync_interval_ms`
    no link reads the markers      the time for which the oldest of them has waited, up to INTERVAL_MS_MAX

Markers that are written before `ack_sync_interval_ms` is over are limited for the broker (EARLY_PER_S).
"""

from collections.abc import Mapping
from typing import Final

from magnetar.broker.replicated_subscriptions.progress import Progress
from magnetar.effects.outbox import Outbox
from magnetar.replication.acked_sets import MarkerPacer
from magnetar.replication.link.source import LinkSource

INTERVAL_MS_MIN: Final = 10
"""The shortest time: a marker costs its brokers and the pipeline about a millisecond of processor together."""

INTERVAL_MS_MAX: Final = 10_000
"""The longest time while no link reads: a pipeline that is switched on again finds fresh acknowledgements within this time,
and one that never comes costs six markers a minute."""

EARLY_PER_S: Final = 100
"""Markers that all topics of a broker write each second before `ack_sync_interval_ms` is over. One topic in use can have them
all; of several each gets its part; if there are more than ten, all of them collect for nearly the usual time."""


class AckInterval:
    """The interval of all topics of a broker.

    Args:
        outbox: the broker's, for the clock.
        sources: the links from here, by target.
        usual_ms: `ack_sync_interval_ms`.
    """

    def __init__(self, outbox: Outbox, sources: Mapping[str, LinkSource], usual_ms: int) -> None:
        self._outbox, self._sources, self._usual_ms = outbox, sources, usual_ms
        self._early = MarkerPacer(EARLY_PER_S)

    def next_ms(self, topic: str, progress: Progress) -> int:
        """Returns how long a topic collects from now, after which it writes one marker.

        The fastest link decides, so that a dead cluster does not slow others down.
        """
        now_ms, usual_ms = self._outbox.now_ms, self._usual_ms
        found: list[int] = []
        for source in self._sources.values():
            state = source.topics.get(topic)
            if state is not None and state.wanted:
                since_ms = progress.waiting_since(state.cursor.c)
                # A link that had nothing to read for an hour is not a slow one: the oldest marker's waiting counts.
                waited_ms = now_ms - max(state.read_ms, since_ms) if since_ms else 0
                found.append(waited_ms if waited_ms > usual_ms else self._for(source))
        wanted_ms = min([INTERVAL_MS_MAX, *found]) if found else usual_ms
        if wanted_ms >= usual_ms:
            return wanted_ms
        return self._early.reserve_between(now_ms + wanted_ms, now_ms + usual_ms) - now_ms

    def _for(self, source: LinkSource) -> int:
        """The interval that fits the speed of a link."""
        delivery_ms = source.delivery.without_distance_ms(self._outbox.now_ms)
        return self._usual_ms if delivery_ms < 0 else min(max(delivery_ms // 2, INTERVAL_MS_MIN), self._usual_ms)
