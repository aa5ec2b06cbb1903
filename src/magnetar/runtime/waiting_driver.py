"""Runs the machine of a broker that waits to take over: brings events to it and carries out its effects.

The driver of a broker that serves (`runtime.driver`) shares its thread between sockets and the log. There is no log here, so each
event is carried out at once.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from magnetar.effects.outbox import Close, Compute, Effect, FrameLimit, Hold, Note, Outbox, Send, Timer
from magnetar.runtime.clock import Clock
from magnetar.runtime.driver import Peer
from magnetar.runtime.log_rate_limit import Quiet

logger = logging.getLogger("magnetar.broker")


class WaitingDriver:
    """Carries out effects, brings back events; `runtime.network.events.Events`.

    Args:
        loop: the event loop whose thread owns the machine.
        outbox: of the machine.
        clock: wall clock.

    Attributes:
        stopped: set when the machine failed, so that its state can no longer be trusted.
        quiet: limits warnings.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, outbox: Outbox, clock: Clock) -> None:
        self._loop = loop
        self._outbox = outbox
        self._clock = clock
        self._peers: dict[int, Peer] = {}
        self._pending: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._computer = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._running = False
        self._closed = False
        self.stopped = asyncio.Event()
        self.quiet = Quiet(loop.call_later, lambda line: logger.warning("%s", line))

    def attach(self, connection: int, peer: Peer) -> None:
        """Make a connection known under the number that the machine knows it by."""
        self._peers[connection] = peer

    def detach(self, connection: int) -> None:
        """Forget a connection; effects for it are dropped from now on."""
        self._peers.pop(connection, None)

    def run(self, event: Callable[..., None], *arguments: Any) -> None:
        """Handle one event and carry out its effects; events that arise meanwhile queue after it. None after `shut_down`."""
        if self._closed:
            return
        self._pending.append((event, arguments))
        if self._running:
            return
        self._running = True
        try:
            while self._pending:
                event, arguments = self._pending.popleft()
                self._outbox.now_ms = self._clock.now_ms()
                self._outbox.ahead_ms = self._clock.ahead_ms
                event(*arguments)
                for effect in self._outbox.drain():
                    self._perform(effect)
        except Exception as error:  # a bug in the machine
            logger.critical("the broker stops: unexpected %s: %s", type(error).__name__, error, exc_info=error)
            self.stopped.set()
            raise
        finally:
            self._running = False

    def shut_down(self) -> None:
        """Take no more events."""
        self._closed = True
        self._computer.shutdown(wait=True, cancel_futures=True)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(connection, buffers):
                if (peer := self._peers.get(connection)) is not None:
                    peer.send(buffers)
            case Close(connection, reason):
                if (peer := self._peers.get(connection)) is not None:
                    peer.close(reason)
            case Hold(connection, hold):
                if (peer := self._peers.get(connection)) is not None:
                    peer.hold(hold)
            case FrameLimit(connection, frame_bytes_max, command_bytes_max, link):
                if (peer := self._peers.get(connection)) is not None:
                    peer.let_in(frame_bytes_max, command_bytes_max, link=link)
            case Note(level, text):
                if level == "warning":
                    self.quiet.warn(text)
                else:
                    logger.log(logging.getLevelNamesMapping().get(level.upper(), logging.INFO), "%s", text)
            case Timer():
                self._wake(effect)
            case Compute(work, then):
                self._computer.submit(lambda: self._computed(then, work()))
            case _:
                raise AssertionError(f"a waiting broker asks for {type(effect).__name__}, but it stores nothing")

    def _computed(self, then: Callable[[Any], None], outcome: Any) -> None:
        """On the thread that computes."""
        try:
            self._loop.call_soon_threadsafe(self.run, then, outcome)
        except RuntimeError:
            return  # the loop is closed: no client waits for the answer

    def _wake(self, timer: Timer) -> None:
        self._loop.call_later(max(0, timer.at_ms - self._clock.now_ms()) / 1000, self._due, timer)

    def _due(self, timer: Timer) -> None:
        # The loop's clock may run ahead of the wall clock: a machine that is called too early finds nothing due.
        now_ms = self._clock.now_ms()
        if now_ms < timer.at_ms:
            self._wake(timer)
        else:
            self.run(timer.then, now_ms)
