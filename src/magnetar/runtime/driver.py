"""Turns the broker's effects into I/O, and the results of I/O into events.

One driver belongs to one broker and one event loop; everything here runs on that loop's thread except the callbacks of
the log and the store, which schedule their work on it. The broker's machines are only called through `Driver.run`, one event
at a time: so they are single-threaded and need no lock.

The order in which work is handled:

    reports of the log      between any two events: publishers wait for them
    data from sockets       when the event loop has polled the sockets, a limited number of frames of each
    (`runtime.network.server`)
    timers and answers      of readers, the store, computations, and reads from memory: in the order of their arrival, in the
                            part of TURN_S that the other two left, then the sockets are polled again. Entries in the broker's
                            own memory are answered at once while some of that time is left

So a publish waits only for the event that is being handled, not for all the work of a backlog, redeliveries or upkeep.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final, Protocol

from magnetar.broker.broker import Broker
from magnetar.core.errors import MagnetarError
from magnetar.effects.outbox import (
    Close,
    Compute,
    Drop,
    FrameLimit,
    Hold,
    Note,
    Outbox,
    Read,
    Send,
    Store,
    Sync,
    Timer,
    Write,
)
from magnetar.metadata.store import Store as MetadataStore
from magnetar.runtime.clock import Clock
from magnetar.runtime.interpreter.gil_yield import GiveWay
from magnetar.runtime.log.lanes import Lanes
from magnetar.runtime.log_rate_limit import Quiet
from magnetar.storage.bookkeeper.lease import Lease
from magnetar.storage.entries import Append, Location, StoredEntry
from magnetar.storage.topiclog import Span

logger = logging.getLogger("magnetar.broker")

_Event = tuple[Callable[..., None], tuple[Any, ...]]

_OF_CONNECTIONS: Final = frozenset((Close, Hold, FrameLimit))
"""Effects that stay in order with what is sent over a connection."""

READERS: int = 2
"""Threads for reads from disk. A read waits for the disk, not for a processor; two keep it busy."""

TURN_S: Final = 0.0002
"""Time for timers and answers between two polls of the sockets, when a publish may have come; and for a chain of answers to one
event, in which each read of recent entries asks for the next one. An event that is begun is finished; most take about as long."""

RECEIPTS_BYTES_MAX: Final = 4096
"""A hundred receipts, the number that one report has for a producer."""

LEAST_PART: Final = 0.05
"""Timers and answers get at least this share of the time that sockets and reports took. With hundreds of busy sockets, one
event a turn would be too slow."""

GAP_S: Final = 0.00005
"""After this time without an event, the loop has usually polled the sockets. If it was decoding instead, the turn is only
longer."""

REST_S: Final = 0.001
"""An event that comes this long after the last one found the loop at rest: mostly it is the only one, and the loop releases the
interpreter when it waits for the next. To let the log's thread have it before that would be two switches of threads more."""


class Peer(Protocol):
    """A connection as the driver sees it (`runtime.network.server.Connection`)."""

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Write buffers, in order, when the event loop writes."""

    def send_now(self, buffer: bytes | memoryview) -> None:
        """Write a buffer after those written before, at once if the socket takes it."""

    def close(self, reason: str) -> None:
        """Close when all bytes have been written."""

    def hold(self, hold: bool) -> None:
        """Pause or resume reading."""

    def let_in(self, frame_bytes_max: int, command_bytes_max: int, *, link: bool) -> None:
        """Change the largest frame accepted, and how long a link may be silent."""


class Driver:
    """Carries out effects, brings back events.

    Args:
        loop: the event loop whose thread owns the broker.
        broker: the machine.
        outbox: the one that all of the broker's machines share.
        log: the threads that own the log's files; they call `appended`, `append_failed`, `healed`.
        store: the metadata store; answers on a thread of its own.
        clock: wall clock.
        lease: of the broker, by `time.perf_counter`. When it is over, no further event is handled: not even those that came
            while the process was stopped and wait in the sockets.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: Broker,
        outbox: Outbox,
        log: Lanes,
        store: MetadataStore,
        clock: Clock,
        lease: Lease,
    ) -> None:
        self._loop = loop
        self._broker = broker
        self._outbox = outbox
        self._log = log
        self._store = store
        self._clock = clock
        self._lease = lease
        self._peers: dict[int, Peer] = {}
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        self._computer = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._urgent: deque[_Event] = deque()
        self._pending: deque[_Event] = deque()
        self._background: deque[_Event] = deque()
        self._turn_due = False
        self._running = False
        self._end_s = 0.0
        self._spent_s = self._ended_s = 0.0
        self._closed = False
        self.ended = False
        """Whether `end` was called."""
        self._give_way = GiveWay(log.let_by)
        self._failure: BaseException | None = None
        self.stopped = asyncio.Event()
        self.quiet = Quiet(loop.call_later, lambda line: logger.warning("%s", line))

    # ------------------------------------------------------------------------------------------------------ events

    def attach(self, connection: int, peer: Peer) -> None:
        """Make a connection known under the number that the broker knows it by."""
        self._peers[connection] = peer

    def detach(self, connection: int) -> None:
        """Forget a connection; effects for it are dropped from now on."""
        self._peers.pop(connection, None)

    def give_way(self) -> None:
        """Let the log's thread have the interpreter if it waits for it; for work on the loop that is no event of the broker."""
        self._give_way.look()

    def run(self, event: Callable[..., None], *arguments: Any) -> None:
        """Handle one event and carry out its effects; events that arise meanwhile queue after it.

        None after `shut_down`: events of sockets that are being closed would ask for threads that are gone.
        """
        if self._closed:
            return
        self._pending.append((event, arguments))
        if not self._running:
            self._drain()

    def _drain(self) -> None:
        began_s = time.perf_counter()
        if began_s > self._lease.until_s:
            self.end(self._lease.lost(began_s))
            return
        self._running = True
        self._end_s = began_s + self._left_s(began_s)
        rested = began_s - self._ended_s > REST_S
        try:
            while self._urgent or self._pending:
                of_log = bool(self._urgent)
                event, arguments = (self._urgent if of_log else self._pending).popleft()
                self._outbox.now_ms = self._clock.now_ms()
                self._outbox.ahead_ms = self._clock.ahead_ms
                self._outbox.moment_s = time.perf_counter()
                event(*arguments)
                effects = self._outbox.effects
                if effects:
                    self._outbox.effects = []
                    self._perform(effects, at_once=of_log and self._turn_due)
                if not rested:
                    self._give_way.look()
                rested = False
        except Exception as error:  # a bug in a machine: its state can no longer be trusted
            logger.critical(
                "the broker stops: unexpected %s: %s",
                type(error).__name__,
                error,
                exc_info=error,
            )
            self._failure = error
            self.stopped.set()
            raise
        finally:
            self._running = False
            self._ended_s = time.perf_counter()
            self._spent_s += self._ended_s - began_s

    def _left_s(self, now_s: float) -> float:
        """The rest of the time between two polls of the sockets."""
        if now_s - self._ended_s > GAP_S:
            self._spent_s = 0.0
        return max(TURN_S - self._spent_s, self._spent_s * LEAST_PART)

    def appended(self, batch: list[tuple[Append, Location]]) -> None:
        """The log holds these; called on the log's thread."""
        self._tell(self._broker.appended, batch)

    def append_failed(self, batch: list[Append], error: str) -> None:
        """The log does not hold these and never will; called on the log's thread."""
        self._tell(self._broker.append_failed, batch, error)

    def healed(self) -> None:
        """The log takes appends again; called on the log's thread."""
        self._tell(self._broker.healed)

    def _tell(self, event: Callable[..., None], *arguments: Any) -> None:
        """A report; on the log's thread."""
        self._urgent.append((event, arguments))
        self._hop(self._report)

    def _report(self) -> None:
        """The log reported something; if the thread was busy, it has been handled between two events meanwhile."""
        if self._urgent and not self._running and not self._closed:
            self._drain()

    def _call(self, event: Callable[..., None], *arguments: Any) -> None:
        """An answer from another thread."""
        self._background.append((event, arguments))
        self._hop(self._wake)

    def _hop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The loop is closed: the broker is gone, and its durable state stays durable.
            return

    def _in_turn(self, event: Callable[..., None], *arguments: Any) -> None:
        """Queue work that can wait until the sockets were polled."""
        self._background.append((event, arguments))
        self._wake()

    def _wake(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Handle timers, reads and answers for a while; the rest when the loop has polled the sockets. Work that comes meanwhile
        belongs to this turn or the next one: several turns between two polls of the sockets would defeat the limit. Events of
        the sockets and the log since the last turn have used part of the time: a turn after many of them is short.
        """
        now_s = time.perf_counter()
        end_s = now_s + self._left_s(now_s)
        while self._background:
            event, arguments = self._background.popleft()
            self.run(event, *arguments)
            if self._background and time.perf_counter() >= end_s:
                self._loop.call_soon(self._turn)
                break
        else:
            self._turn_due = False
        self._spent_s = 0.0

    # ----------------------------------------------------------------------------------------------------- effects

    def _perform(self, effects: list[Any], *, at_once: bool) -> None:
        """Carry out effects, in order; `at_once`: those of one of the log's reports, while a turn is due.

        All that an event sends over one connection is one write: each costs a system call here and may wake the peer. A report
        of the log for ten topics of one client would otherwise be ten writes.
        """
        sends: dict[int, list[bytes | memoryview]] = {}
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                waiting = sends.get(effect.connection)
                if waiting is None:
                    sends[effect.connection] = [*effect.buffers]
                else:
                    waiting += effect.buffers
            elif kind is Write:
                self._log.submit(effect.append)
            else:
                if sends and kind in _OF_CONNECTIONS:
                    self._send(sends, at_once=at_once)
                    sends = {}
                self._OTHERS[kind](self, effect)
        if sends:
            self._send(sends, at_once=at_once)

    def _send(self, sends: dict[int, list[bytes | memoryview]], *, at_once: bool) -> None:
        """Write to some connections; `at_once`: see `_perform`.

        Receipts are small, few, and clients wait for them: with `at_once` they pass by the transport. Messages go the usual way.
        """
        for connection, buffers in sends.items():
            peer = self._peers.get(connection)
            if peer is None:
                continue
            if at_once and sum(map(len, buffers)) <= RECEIPTS_BYTES_MAX:
                peer.send_now(buffers[0] if len(buffers) == 1 else b"".join(buffers))
            else:
                peer.send(buffers)

    def _close(self, effect: Close) -> None:
        peer = self._peers.get(effect.connection)
        if peer is not None:
            peer.close(effect.reason)

    def _hold(self, effect: Hold) -> None:
        peer = self._peers.get(effect.connection)
        if peer is not None:
            peer.hold(effect.hold)

    def _frame_limit(self, effect: FrameLimit) -> None:
        peer = self._peers.get(effect.connection)
        if peer is not None:
            peer.let_in(effect.frame_bytes_max, effect.command_bytes_max, link=effect.link)

    def _sync(self, effect: Sync) -> None:
        self._log.sync(lambda error: self._synced(effect, error))

    def _synced(self, effect: Sync, error: str) -> None:
        """Queued after the reports of earlier appends; called on the log's thread."""
        self._tell(effect.then, error)

    def _drop(self, effect: Drop) -> None:
        self._log.drop(effect.ledgers)

    def _note(self, effect: Note) -> None:
        if effect.level == "warning":
            self.quiet.warn(effect.text)
            return
        logger.log(
            logging.getLevelNamesMapping().get(effect.level.upper(), logging.INFO),
            "%s",
            effect.text,
        )

    def _timer(self, effect: Timer) -> None:
        delay = max(0, effect.at_ms - self._clock.now_ms()) / 1000
        self._loop.call_later(delay, self._fire, effect)

    def _fire(self, effect: Timer) -> None:
        # The loop's clock may run a little ahead of the wall clock, and the wall clock may have been set back: a machine
        # that is called before its time would find nothing due and never be called again.
        if self._clock.now_ms() < effect.at_ms:
            self._timer(effect)
            return
        self._in_turn(self._due, effect)

    def _due(self, effect: Timer) -> None:
        effect.then(self._outbox.now_ms)

    def _read(self, effect: Read) -> None:
        log = self._broker.log_of(effect.topic)
        if log is None:
            self._pending.append((effect.then, ([], f"topic {effect.topic} is gone")))
            return
        cached, locations = effect.find(log)
        if not locations:
            self._answer(effect, cached)
            return
        self._in_turn(self._read_now, effect, locations)

    def _answer(self, effect: Read, entries: list[StoredEntry]) -> None:
        """Report entries that were read on this thread, now if there is time."""
        if time.perf_counter() < self._end_s:
            self._pending.append((effect.then, (entries, "")))
        else:
            self._in_turn(effect.then, entries, "")

    def _read_now(self, effect: Read, spans: Sequence[Span]) -> None:
        """Read entries here that are in the system's memory: two threads that alternate at each step are slower. The rest is
        for a reader's thread.
        """
        entries = None
        with contextlib.suppress(Exception):  # a bug: the other way of reading has it, too, and reports it
            entries = self._log.read_now(spans)
        if entries is None:
            self._readers.submit(self._read_there, effect, spans)
        else:
            self._answer(effect, entries)

    def _read_there(self, effect: Read, spans: Sequence[Span]) -> None:
        """Read, on a reader's thread."""
        entries: list[StoredEntry] = []
        error = ""
        try:
            entries = self._log.read(spans)
        except (MagnetarError, OSError) as failure:
            error = str(failure) or type(failure).__name__
        except Exception as failure:  # a bug of ours: the caller must not wait for ever
            logger.critical("a read failed: unexpected %s: %s", type(failure).__name__, failure, exc_info=failure)
            error = f"unexpected {type(failure).__name__}: {failure}"
        self._call(effect.then, entries, error)

    def _compute(self, effect: Compute) -> None:
        self._computer.submit(lambda: self._call(effect.then, effect.work()))

    def _save(self, effect: Store) -> None:
        then = effect.then

        def done(error: str) -> None:
            if then is not None:
                self._call(then, error)

        self._store.submit(effect.puts, effect.deletes, done)

    _OTHERS: ClassVar[dict[type, Callable[["Driver", Any], None]]] = {
        Close: _close,
        Hold: _hold,
        FrameLimit: _frame_limit,
        Sync: _sync,
        Drop: _drop,
        Note: _note,
        Timer: _timer,
        Read: _read,
        Store: _save,
        Compute: _compute,
    }

    def end(self, reason: str) -> None:
        """The broker must not serve any longer: handle no event from now on, and send nothing. `stopped` says so to the process.

        Args:
            reason: for the log.
        """
        if self._closed:
            return
        logger.critical("the broker stops: %s", reason)
        self._closed = self.ended = True
        for waiting in (self._urgent, self._pending, self._background):
            waiting.clear()
        self.stopped.set()

    def shut_down(self) -> None:
        """Take no more events and stop the readers' threads; the opener of the log and the store closes them."""
        self._closed = True
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._computer.shutdown(wait=True, cancel_futures=True)
