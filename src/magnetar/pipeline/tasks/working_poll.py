"""Waits for the sources that a writer reads itself, while the writer does its other work."""

from collections.abc import Callable, Iterable, Mapping

from magnetar.pipeline.tasks.channel_poll import Pollable

Ready = Callable[[bool, bool], None]
"""The call, with (readable, writable), for a connection that is ready."""

Work = Callable[[float, Mapping[Pollable, Ready]], None]
"""Works, and waits for these connections as well, for a number of seconds at most; returns as soon as anything is ready."""


class WorkingPoll:
    """A `Poll` (`pipeline.tasks.channel_poll`).

    Args:
        work: the writer's.
    """

    def __init__(self, work: Work) -> None:
        self._work = work

    def wait(self, pollables: Iterable[Pollable], timeout: float) -> list[tuple[Pollable, bool, bool]]:
        """See `ChannelPoll.wait`; also returns, with nothing, when something else was ready."""
        ready: list[tuple[Pollable, bool, bool]] = []

        def noting(one: Pollable) -> Ready:
            return lambda readable, writable: ready.append((one, readable, writable))

        self._work(timeout, {one: noting(one) for one in pollables})
        return ready

    def close(self) -> None:
        """There is nothing to close: the writer has a selector of its own."""
