"""A connection to a broker at any distance, in simulated time: no socket carries anything, and no time passes."""

import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from magnetar.pipeline.tasks.link_channel import LinkChannel
from magnetar.pipeline.tasks.pace import Pace
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import Response


class Served(NamedTuple):
    """The broker's answer, and how long it works on it."""

    command: pb.BaseCommand
    payload: bytes | memoryview = b""
    took_s: float = 0.0


class FarChannel(LinkChannel):
    """The connection, and the clock of whoever uses it.

    Args:
        round_trip_s: of the way.
        serve: answers a request, in the order in which they come.
        reads_follow: whether the broker is one of this version.

    Attributes:
        now: the simulated clock, in seconds; it goes on with each `pump`.
        most: requests that were under way at most.
        answered: requests.
    """

    def __init__(
        self, round_trip_s: float, serve: Callable[[pb.BaseCommand], Served], *, reads_follow: bool = True
    ) -> None:
        self._ready, other = socket.socketpair()  # always readable: nobody sleeps
        other.close()
        self._serve = serve
        self.round_trip_s = round_trip_s
        self.hello = pb.GeoHello(version=1, cluster="far", uuid="u", reads_follow=reads_follow)
        self.now = self._free_s = self.progress_at = 0.0
        self.pace = Pace(0.0)
        self.most = self.answered = self._number = 0
        self._under_way: deque[tuple[int, float, Served]] = deque()

    def clock(self) -> float:
        """The simulated time."""
        return self.now

    def fileno(self) -> int:
        return self._ready.fileno()

    @property
    def connected(self) -> bool:
        return False  # its answers come with the selector

    @property
    def wants_write(self) -> bool:
        return True

    def request(self, command: pb.BaseCommand, buffers: Sequence[bytes | memoryview] = ()) -> int:
        self._number += 1
        command.ListFields()[1][1].request_id = self._number
        served = self._serve(command)
        self._free_s = max(self._free_s, self.now + self.round_trip_s / 2) + served.took_s
        self._under_way.append((self._number, self._free_s + self.round_trip_s / 2, served))
        self.most = max(self.most, len(self._under_way))
        return self._number

    def pump(self, readable: bool, writable: bool) -> list[Response]:  # type: ignore[override]
        """The time of the next answer comes, or half a second passes."""
        if not self._under_way or self._under_way[0][1] > self.now + 0.5:
            self.now += 0.5
            return []
        number, self.now, served = self._under_way.popleft()
        self.progress_at = self.now
        self.answered += 1
        return [Response(number, served.command, memoryview(served.payload))]

    def close(self) -> None:
        self._ready.close()
