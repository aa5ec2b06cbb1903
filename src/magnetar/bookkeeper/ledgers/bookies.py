"""Which bookies a ledger may use: registered ones that take entries, those that failed lately only when there are no others."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from magnetar.bookkeeper.ledgers.metadata import BookieId

QUARANTINE_S: Final = 1800.0
"""Seconds for which a bookie that has failed is chosen only when there are no others. A bookie that restarts answers its port
before it can serve, and one with a slow disk works now and then; Java uses the same 30 minutes."""

QUARANTINED_MAX: Final = 10_000
"""Bookies whose failure is remembered, since bookies may get new names with every start. The oldest failures are forgotten."""


class NotEnoughBookies(Exception):
    """There are too few bookies for an ensemble."""


class Bookies:
    """The bookies of a cluster, shared by all ledgers of a client.

    Args:
        draw: returns a number from 0 to its argument - 1. All chance comes from it.
        quarantine_s: see `QUARANTINE_S`.
    """

    def __init__(self, draw: Callable[[int], int], quarantine_s: float = QUARANTINE_S) -> None:
        self._draw = draw
        self._quarantine_s = quarantine_s
        self._writable: tuple[BookieId, ...] = ()
        self._failed_at: dict[BookieId, float] = {}

    def registered(self, writable: Iterable[BookieId], read_only: Iterable[BookieId] = ()) -> None:
        """Replace what is known of the registrations. A bookie that is registered as both takes no entries."""
        self._writable = tuple(sorted(set(writable) - set(read_only)))

    def writable(self, bookie: BookieId) -> bool:
        """Whether a bookie is registered and takes entries; it may be in quarantine."""
        return bookie in self._writable

    def failed(self, bookie: BookieId, now: float) -> None:
        """A bookie did not do what it was asked."""
        # The latest failure stands last, so the first key is the oldest.
        self._failed_at.pop(bookie, None)
        self._failed_at[bookie] = now
        if len(self._failed_at) > QUARANTINED_MAX:
            del self._failed_at[next(iter(self._failed_at))]

    def quarantined(self, bookie: BookieId, now: float) -> bool:
        """Whether a bookie has failed lately."""
        failed_at = self._failed_at.get(bookie)
        return failed_at is not None and now < failed_at + self._quarantine_s

    def choose(self, count: int, now: float, exclude: Collection[BookieId] = ()) -> tuple[BookieId, ...]:
        """Up to `count` different bookies, by chance; those in quarantine come last, the oldest failure first."""
        sound = [one for one in self._writable if one not in exclude and not self.quarantined(one, now)]
        chosen = [sound.pop(self._draw(len(sound))) for _ in range(min(count, len(sound)))]
        if len(chosen) < count:
            suspect = [one for one in self._writable if one not in exclude and one not in chosen]
            suspect.sort(key=self._failed_at.__getitem__)
            chosen += suspect[: count - len(chosen)]
        return tuple(chosen)

    def ensemble(self, size: int, now: float) -> tuple[BookieId, ...]:
        """The bookies of a new ledger.

        Raises:
            NotEnoughBookies: fewer are registered.
        """
        chosen = self.choose(size, now)
        if len(chosen) < size:
            raise NotEnoughBookies(f"{len(chosen)} bookies take entries: an ensemble of {size} needs as many")
        return chosen

    def replacements(self, ensemble: Sequence[BookieId], missing: Collection[int], now: float) -> dict[int, BookieId]:
        """Bookies in exchange for those at some indexes of an ensemble, as many as there are.

        No bookie of the ensemble is chosen, so the new ensemble has none twice.

        Args:
            ensemble: the present one.
            missing: indexes.
            now: seconds.
        """
        return dict(zip(sorted(missing), self.choose(len(missing), now, ensemble), strict=False))
