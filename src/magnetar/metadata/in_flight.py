"""Changes that are being stored, and the order between them."""

from collections.abc import Callable

from magnetar.metadata.change import Change
from magnetar.metadata.errors import InFlight
from magnetar.metadata.tables import DOCUMENT_PREFIXES


class ChangesInFlight:
    """Keeps two changes apart that touch the same keys; they are as many as requests and events that are being handled."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._waiting: list[Callable[[], None]] = []

    def begin(self, change: Change) -> None:
        """A change is now being stored; `end` must follow.

        Raises:
            InFlight: it touches something that another change in flight touches.
        """
        for other in self._changes:
            clash = (change.keys & (other.keys | other.depends)) | (change.depends & other.keys)
            if clash:
                raise InFlight(f"{_shown(clash)} is being changed by another request; try again")
        self._changes.append(change)

    def is_deleting(self, key: str) -> bool:
        """Whether one of them deletes what is stored there."""
        return any(key in change.deletes for change in self._changes)

    def when_one_ended(self, then: Callable[[], None]) -> None:
        """Call back once, as soon as any of them has ended."""
        self._waiting.append(then)

    def end(self, change: Change) -> None:
        """The store has answered."""
        self._changes = [other for other in self._changes if other is not change]
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()


def _shown(keys: frozenset[str]) -> str:
    """The document that two changes have in common, rather than what is stored with it."""
    return min(keys, key=lambda key: (not key.startswith(DOCUMENT_PREFIXES), key))
