"""Requests that a bookie has refused because it has too many. A writer and a recovery use it alike."""

from magnetar.bookkeeper.ledgers.metadata import BookieId


class Postponed:
    """Remembers when to send requests again. It has no more of them than are under way.

    Args:
        wait_s: seconds until a request is sent again.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._due: dict[tuple[BookieId, int], float] = {}

    @property
    def wake_at(self) -> float | None:
        """When the first request is due, in seconds; None: there is none."""
        return next(iter(self._due.values()), None)

    def add(self, bookie: BookieId, number: int, now: float) -> None:
        """A bookie has refused the request with this number."""
        # All wait equally long, so the last one added is due last. One that is added again moves to the end.
        self._due.pop((bookie, number), None)
        self._due[bookie, number] = now + self._wait_s

    def take(self, now: float) -> list[tuple[BookieId, int]]:
        """Bookie and number of each request that is due. They are forgotten here."""
        taken = [request for request, due in self._due.items() if due <= now]
        for request in taken:
            del self._due[request]
        return taken

    def clear(self) -> None:
        """Forget all requests."""
        self._due.clear()
