"""The metadata of one ledger in a store with compare-and-set, as ZooKeeper has them."""

from collections.abc import Callable

from magnetar.bookkeeper.ledgers.metadata import LedgerMetadata, Versioned


class Store:
    """One node.

    Args:
        first: what was created.
        changed: is called with each new content.
    """

    def __init__(self, first: LedgerMetadata, changed: Callable[[LedgerMetadata], None]) -> None:
        self.history = [Versioned(first, 0)]
        self._changed = changed

    @property
    def now(self) -> Versioned:
        """The newest content."""
        return self.history[-1]

    @property
    def before(self) -> Versioned:
        """The content before the last change, as a server has it that lags."""
        return self.history[-2 if len(self.history) > 1 else -1]

    def update(self, metadata: LedgerMetadata, version: int) -> int | None:
        """Compare and set: the new version, or None if another one is stored."""
        if version != self.now.version:
            return None
        self.history.append(Versioned(metadata, version + 1))
        self._changed(metadata)
        return version + 1
