"""Markers on their way from the machine of a topic into its log."""

from collections.abc import Callable, Collection
from typing import Final

from magnetar.core.ids import NONE, Position
from magnetar.replication.marker_host import MarkerHost
from magnetar.wire.markers import Marker, build_marker

FAILED: Final = "the storage failed"

Done = Callable[[Position, str], None]


class MarkerAppender:
    """Appends the markers of one topic, and answers for each when it is durable.

    Args:
        host: the topic.
        after: called when a write has been answered: a step that waited for it may continue.

    Attributes:
        blocked: the host takes no markers now; it is tried again when something is stored or the storage has healed.
    """

    def __init__(self, host: MarkerHost, after: Callable[[], None]) -> None:
        self._host = host
        self._after = after
        self.blocked = False
        self._under_way: dict[int, Done] = {}
        self._number = 0

    def write(self, marker: Marker, replicate_to: Collection[str], done: Done) -> bool:
        """Append a marker.

        Args:
            marker: its content.
            replicate_to: clusters that it may go to; empty for all.
            done: called once, with its position when it is durable, or with what went wrong.

        Returns:
            False when nothing can be written now; `done` is not called then.
        """
        if self.blocked:
            return False
        self._number += 1
        number = self._number

        def then(position: Position, error: str) -> None:
            waiting = self._under_way.pop(number, None)
            if waiting is not None:
                waiting(position, error)
                self._after()

        self._under_way[number] = done
        names = sorted(replicate_to)
        if not self._host.append_marker(build_marker(marker, self._host.now_ms, names), names, then):
            self._under_way.pop(number, None)
            self.blocked = True
            return False
        return True

    def unblock(self) -> None:
        """The host may take markers again."""
        self.blocked = False

    def healed(self) -> None:
        """The storage takes writes again: markers that were not reported as durable were lost."""
        self.blocked = False
        lost, self._under_way = self._under_way, {}
        for done in lost.values():
            done(NONE, FAILED)
