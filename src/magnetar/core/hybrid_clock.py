"""A hybrid logical clock (Kulkarni et al., 2014): its times follow the wall clock and keep causal order."""


class HybridClock:
    """Gives times that are never earlier than the wall clock's reading and always later than every time that the clock
    has seen.

    A change that is made after seeing another one therefore has the later time, however wrong a wall clock is. The clock does
    not care about the unit, as long as all its times have the same one. After a restart it has to be shown every time that
    is stored.

    Args:
        latest: times are above this one.

    Attributes:
        latest: the newest time that was given or seen.
    """

    __slots__ = ("latest",)

    def __init__(self, latest: int = 0) -> None:
        self.latest = latest

    def see(self, time: int) -> None:
        """Be above this time from now on."""
        if time > self.latest:
            self.latest = time

    def next(self, now: int) -> int:
        """The time of what happens now; never the same twice.

        Args:
            now: the wall clock's reading.
        """
        self.latest = max(now, self.latest + 1)
        return self.latest

    def ahead(self, now: int) -> int:
        """The time by which the newest known time is ahead of the wall clock's reading; 0 if it is not ahead."""
        return max(0, self.latest - now)
