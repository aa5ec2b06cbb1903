"""Ledger ids: one sequence for the whole broker, never the same number twice."""


class LedgerIds:
    """Gives every ledger of a broker its id, never the same one twice, also after deletions and after a lost disk.

    Args:
        last: the highest id known; -1 on an empty disk.
    """

    def __init__(self, last: int = -1) -> None:
        self.last = last
        self._write_epoch = 0

    def allocate(self, now_ms: int) -> int:
        """The next id: max(last known + 1, clock), so that a wiped cluster starts above what its peers know.

        See docs/design/links.md#ledger-ids-grow.
        """
        self.last = max(self.last + 1, now_ms)
        return self.last

    def raise_to(self, ledger: int) -> None:
        """Ids up to here are taken."""
        self.last = max(self.last, ledger)

    def next_write_epoch(self) -> int:
        """A number above all that were given in this run of the broker, see `Append.write_epoch`."""
        self._write_epoch += 1
        return self._write_epoch
