"""A TCP proxy that delays every byte: a wide-area link on one machine, where the kernel has no netem.

    python -m tests.support.delaying_proxy --target 127.0.0.1:6650 --one-way 0.04 [--listen 127.0.0.1:0]

prints `ready PORT` and serves until it is terminated. `proxied(...)` starts that process and gives its port. `DelayingProxy` is
the same inside an event loop.

Every direction of every connection delivers each byte `one_way` seconds after the proxy has read it. The proxy accepts a
connection at once, but a real handshake takes one round trip. So the proxy connects to the target one round trip later, and the
first byte of a client arrives when it would on a real path. The end of a stream travels with the same delay as its bytes. Each
direction holds at most `HELD_BYTES`. Beyond that the proxy stops reading, and the sender's own window fills.

One connection carried 378 MB/s with 40 ms in each direction on two processors that others used too.

A broker behind a proxy has to advertise the proxy's address, or clients go around it after their first lookup: `advertised` in
the configuration of a Magnetar broker, `advertisedListeners` and `internalListenerName` in Apache Pulsar's.
"""

import argparse
import asyncio
import contextlib
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Self, cast

import uvloop

HELD_BYTES: Final = 64 << 20
"""Bytes under way in one direction of one connection, at most: 64 MiB carry 200 MB/s over 300 ms. When a far end stalls, this
times the number of directions bounds the memory."""

CONNECTIONS_MAX: Final = 1024
"""Connections at one time; further ones are closed at once. Each needs two descriptors."""

CHUNK_BYTES: Final = 256
"""What one read costs in memory on top of its bytes: so many are counted for each, or single bytes could take far more than
`HELD_BYTES`."""


class Side(asyncio.Protocol):
    """One of the two sockets of a connection: what it reads is held for `one_way` seconds and then written to the other side.

    `opens_at` is the loop's time when a real handshake would be over: what is read before counts as read then. `ended` is called
    when the socket is closed.
    """

    def __init__(self, one_way: float, opens_at: float, ended: Callable[["Side"], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._opens_at = opens_at
        self._one_way = one_way
        self._ended = ended
        self._other: Side | None = None
        self._transport: asyncio.Transport | None = None
        self._held: deque[tuple[float, bytes | None]] = deque()  # when it is due, what; None is the end of the stream
        self.held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reading = True
        self._writable = True
        self._finished = False  # the end of what this side reads has been delivered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none of its subclasses

    def join(self, other: "Side") -> None:
        """The other socket is there: what was read is delivered to it from now on."""
        self._other = other
        self._deliver()

    def data_received(self, data: bytes) -> None:
        """Hold it until it is due."""
        self.held_bytes += len(data) + CHUNK_BYTES
        self._hold(data)
        if self._reading and self.held_bytes >= HELD_BYTES:
            self._reading = False
            assert self._transport is not None
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The end of the stream travels as the bytes do. The socket stays open for the other direction."""
        self._hold(None)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end learns of a lost connection one_way later, behind everything that is under way to it."""
        self._transport = None
        self._writable = True  # what is still to come for this socket is dropped, not kept
        if not self._held or self._held[-1][1] is not None:
            self._hold(None)
        self._ended(self)
        if self._other is not None:
            self._other._deliver()
            self._other._close_when_delivered()

    def pause_writing(self) -> None:
        """This socket's buffer is full: the other side keeps what it holds."""
        self._writable = False

    def resume_writing(self) -> None:
        """There is room in this socket's buffer."""
        self._writable = True
        if self._other is not None:
            self._other._deliver()

    def abort(self) -> None:
        """Close at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.clear()
        self.held_bytes = 0
        if self._transport is not None:
            self._transport.abort()

    def _hold(self, data: bytes | None) -> None:
        self._held.append((max(self._loop.time(), self._opens_at) + self._one_way, data))
        self._wait()

    def _wait(self) -> None:
        if self._timer is None and self._held and self._other is not None and self._other._writable:
            self._timer = self._loop.call_at(self._held[0][0], self._due)

    def _due(self) -> None:
        self._timer = None
        self._deliver()

    def _deliver(self) -> None:
        """Write what is due to the other socket, while that takes it."""
        other = self._other
        if other is None:
            return
        now = self._loop.time()
        while self._held and self._held[0][0] <= now and other._writable:
            _, data = self._held.popleft()
            if data is None:
                self._finished = True
                if other._transport is not None and other._transport.can_write_eof():
                    other._transport.write_eof()
                self._close_when_delivered()
                other._close_when_delivered()
                break
            self.held_bytes -= len(data) + CHUNK_BYTES
            if other._transport is not None:
                other._transport.write(data)
        if not self._reading and self.held_bytes <= HELD_BYTES // 2 and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()
        self._wait()

    def _close_when_delivered(self) -> None:
        """Close this socket when it has got what was held for it, and both directions are over or the other socket is closed."""
        other = self._other
        if self._transport is None or other is None:
            return
        nothing_comes = other._finished
        nothing_is_wanted = self._finished or other._transport is None
        if nothing_comes and nothing_is_wanted:
            self._transport.close()


class DelayingProxy:
    """Listens in the running event loop; every connection goes to one target, each byte `one_way` seconds late.

    Raises OSError from `start` where the address cannot be listened on.
    """

    def __init__(self, target: tuple[str, int], one_way: float, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._target = target
        self._one_way = one_way
        self._listen = listen
        self._server: asyncio.Server | None = None
        self._sides: set[Side] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def held_bytes(self) -> int:
        """Bytes under way in all connections."""
        return sum(side.held_bytes for side in self._sides)

    async def start(self) -> Self:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accepted, *self._listen)
        return self

    async def close(self) -> None:
        """Stop listening and abort every connection."""
        assert self._server is not None
        self._server.close()
        for task in self._connecting:
            task.cancel()
        for side in list(self._sides):
            side.abort()
        await asyncio.gather(*self._connecting, return_exceptions=True)

    async def __aenter__(self) -> Self:
        """Listen."""
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        """Close."""
        await self.close()

    def _accepted(self) -> Side:
        loop = asyncio.get_running_loop()
        opens_at = loop.time() + 2 * self._one_way
        near = self._side(opens_at)
        task = loop.create_task(self._connect(near, opens_at))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return near

    def _side(self, opens_at: float) -> Side:
        side = Side(self._one_way, opens_at, self._sides.discard)
        self._sides.add(side)
        return side

    async def _connect(self, near: Side, opens_at: float) -> None:
        if len(self._sides) > 2 * CONNECTIONS_MAX:
            near.abort()
            return
        loop = asyncio.get_running_loop()
        await asyncio.sleep(opens_at - loop.time())
        try:
            _, far = await loop.create_connection(lambda: self._side(opens_at), *self._target)
        except OSError:
            near.abort()
            return
        near.join(far)
        far.join(near)


@contextlib.contextmanager
def proxied(target_port: int, one_way: float, listen_port: int = 0) -> Iterator[int]:
    """A proxy process in front of a port of this machine; the port where it listens.

    Raises RuntimeError when the process ends before it listens.
    """
    command = [sys.executable, "-m", "tests.support.delaying_proxy", "--one-way", str(one_way)]
    command += ["--target", f"127.0.0.1:{target_port}", "--listen", f"127.0.0.1:{listen_port}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready "):
            raise RuntimeError(f"the proxy to port {target_port} did not start: it printed {line!r}")
        yield int(line.split()[1])
    finally:
        process.terminate()
        process.wait()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


async def _serve(target: tuple[str, int], one_way: float, listen: tuple[str, int]) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with DelayingProxy(target, one_way, listen) as proxy:
        sys.stdout.write(f"ready {proxy.port}\n")
        sys.stdout.flush()
        await stopped.wait()


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=_address, required=True, help="HOST:PORT")
    parser.add_argument("--one-way", type=float, required=True, help="seconds in each direction")
    parser.add_argument("--listen", type=_address, default=("127.0.0.1", 0), help="HOST:PORT; port 0: a free one")
    options = parser.parse_args()
    uvloop.run(_serve(options.target, options.one_way, options.listen))


if __name__ == "__main__":
    main()
