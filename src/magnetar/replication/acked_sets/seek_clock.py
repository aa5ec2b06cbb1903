"""The clock that orders seeks: a hybrid clock (`core.hybrid_clock`) whose times, in ms, name epochs.

When the clock of another cluster is far ahead, this clock follows it, with a warning. A metadata event of such a clock is parked
or refused (docs/design/metadata.md#ahead-of-the-clock), a marker is not: a parked marker would hold back the later
acknowledgements in the same log for as long as that clock is wrong, and the clusters would disagree about what is consumed.
Following is harmless, since the time of an epoch is only compared: a seek made here after the marker arrived is later, whatever
its date. The one loss is that a seek made in a cluster that does *not* know the epoch yet loses against it, hence the warning.
Only a time that leaves no room for later ones is ignored (`wire.acksets.believable`).
"""

from typing import Final

from magnetar.core.hybrid_clock import HybridClock
from magnetar.wire.acksets import Epoch

AHEAD_MS_MAX: Final = 60_000
"""A clock of another cluster that is further ahead is worth a warning: ten times what a badly kept clock is off by."""


class SeekClock:
    """The clock of one topic. Stored states and replayed markers restore it, both through `see`.

    Attributes:
        ahead: how often a time was seen that was too far ahead.
    """

    def __init__(self) -> None:
        self._clock = HybridClock()
        self.ahead = 0

    @property
    def time_ms(self) -> int:
        """The latest that was given or seen."""
        return self._clock.latest

    def next_epoch(self, now_ms: int, cluster: str, incarnation: int) -> Epoch:
        """The epoch of a seek made now: later than all before.

        Args:
            now_ms: wall clock.
            cluster: where the seek is made.
            incarnation: of the topic there. A clock may repeat a time after a lost disk; the incarnation distinguishes the two.
        """
        return Epoch(1, self._clock.next(now_ms), cluster, incarnation)

    def see(self, time_ms: int) -> None:
        """A time that was given elsewhere, or here before a restart."""
        self._clock.see(time_ms)

    def see_epoch(self, epoch: Epoch, now_ms: int) -> str:
        """An epoch of another cluster; what to warn of, "" for nothing."""
        self.see(epoch.time_ms)
        ahead_ms = epoch.time_ms - now_ms
        if ahead_ms <= AHEAD_MS_MAX:
            return ""
        self.ahead += 1
        return (
            f"a seek in {epoch.cluster} is {ahead_ms // 1000} s ahead of the clock here: earlier seeks of other clusters "
            "lose against it; compare the clocks of both clusters"
        )
