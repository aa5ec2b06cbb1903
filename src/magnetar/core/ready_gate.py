"""A gate for what has to wait until something is ready."""

from collections.abc import Callable


class ReadyGate:
    """Keeps callbacks until they may be called. Whether they may is the owner's state; the gate has none of its own.

    Args:
        is_open: whether nothing has to wait.
    """

    def __init__(self, is_open: Callable[[], bool]) -> None:
        self._is_open = is_open
        self._waiting: list[Callable[[], None]] = []

    def when_open(self, then: Callable[[], None]) -> None:
        """Call `then` when the gate is open, at once if it is."""
        if self._is_open():
            then()
        else:
            self._waiting.append(then)

    def release(self) -> None:
        """The gate was opened: call what waits, in order."""
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert not self._waiting or not self._is_open(), "something waits at an open gate"
