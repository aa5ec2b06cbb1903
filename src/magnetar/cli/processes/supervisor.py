"""The supervisor of `magnetar up`: child processes, their lines, restarts with backoff, a clean end.

One thread, one selector. It waits for lines of children, ends of children (the end of their output), signals and the
time of the next restart; it never polls.

Rules:

- A child has one of five states: `waiting` (for its turn or for its restart), `starting` (its ready line has not come),
  `standby` (it waits until another process ends, and is ready then: a broker while another one of its cluster serves), `ready`,
  `ended` (not started again). A child on standby has started, so others do not wait for its ready line.
- A child of the first group that ends before it has started once makes the whole start fail: the cause (a port in use, a
  folder of another version) does not disappear without a user's action, and its own line reports it.
- A child that ends later is started again after `Backoff.delay`, unless restarts are switched off.
- The end goes in groups, last group first: the pipeline before the brokers that it writes to. In a group, those that are not
  ready end first: a broker on standby would take over when the one that serves ends.
"""

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

from magnetar.core.backoff import pause
from magnetar.core.errors import MagnetarError

LINE_BYTES_MAX: Final = 64 * 1024
"""A ceiling: a child that writes without line ends must not fill our memory; longer lines are shown in pieces."""

STOP_S: Final = 30.0
"""The time that a child has to end after SIGTERM (a broker makes cursors durable, Spark ends its batch)."""

_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait before a child is started again.

    Attributes:
        first_s: after its first end.
        most_s: the longest wait; a child that cannot run costs one start in this time.
        calm_s: a child that ran for this time counts as healthy: the wait begins at `first_s` again.
    """

    first_s: float = 0.5
    most_s: float = 30.0
    calm_s: float = 60.0

    def delay(self, ends: int, chance: float) -> float:
        """Seconds before the next start: doubling, bounded, and between half and all of it by `chance` (0..1).

        Args:
            ends: how often it ended in a row, from 1 on.
            chance: random, so that children that died together do not start together.
        """
        return pause(ends, self.first_s, self.most_s) * (0.5 + chance / 2)


@dataclass(frozen=True, slots=True)
class Spec:
    """A child to be kept running.

    Attributes:
        name: for lines about it.
        command: argument list.
        ready: text in the stdout line that says it is ready.
        standby: text in the stdout line that says it waits until another process ends; "": it never does.
        group: started when the group before it is ready; ended before it.
        prefix: put before each of its lines.
        essential: whether everything fails when it ends before it has started once.
    """

    name: str
    command: Sequence[str]
    ready: str
    group: int = 0
    prefix: str = ""
    essential: bool = True
    standby: str = ""


@dataclass(slots=True)
class Child:
    """One child process and what is known of it; see the module for its states.

    `has_started`: it was ready or on standby once.
    """

    spec: Spec
    state: str = "waiting"
    process: subprocess.Popen[bytes] | None = None
    ready_line: str = ""
    last_error: str = ""
    ends: int = 0
    has_started: bool = False
    started_at: float = 0.0
    start_at: float | None = None
    buffers: dict[int, bytes] = field(default_factory=dict)


class Supervisor:
    """Keeps children running until a signal comes.

    Args:
        specs: the children.
        say: gets one line for the user at a time.
        on_ready: called once, when every essential child has started (and again never).
        restart: whether a child that ends is started again.
        backoff: the waits before restarts.
        random: for the jitter.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        specs: Sequence[Spec],
        say: Callable[[str], None],
        *,
        on_ready: Callable[[list[Child]], None] = lambda _children: None,
        restart: bool = True,
        backoff: Backoff | None = None,
        random: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.children = [Child(spec) for spec in specs]
        self._say = say
        self._on_ready = on_ready
        self._said_ready = False
        self._restart = restart
        self._backoff = backoff or Backoff()
        self._random = random or Random()  # noqa: S311 - jitter, no secret
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._signals = 0

    def run(self) -> int:
        """Run until SIGINT, SIGTERM or SIGHUP, or until no child is left.

        Returns:
            0 after a signal, 1 when every child has ended without one.

        Raises:
            MagnetarError: an essential child could not start; its own line.
        """
        with self._wake_on_signals():
            try:
                while not self._signals:
                    self._start_due()
                    if all(child.state == "ended" for child in self.children):
                        return 1
                    self._wait(self._next_start())
                return 0
            finally:
                self._stop()
                self._selector.close()

    # ---------------------------------------------------------------------------------------------------------- starting

    def _start_due(self) -> None:
        """Start the children whose time has come."""
        now = self._clock()
        for child in self.children:
            due = child.start_at is None or child.start_at <= now
            if child.state == "waiting" and due and self._group_ready(child.spec.group):
                self._start(child, now)

    def _group_ready(self, group: int) -> bool:
        """Whether every child of the groups before has started once (later ends delay no group)."""
        return all(other.has_started or other.state == "ended" for other in self.children if other.spec.group < group)

    def _start(self, child: Child, now: float) -> None:
        child.started_at, child.start_at, child.last_error = now, None, ""
        try:
            child.process = subprocess.Popen(
                list(child.spec.command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C of a terminal goes to its whole process group: only we shall get it, and end them in order.
                start_new_session=True,
                preexec_fn=end_with_parent(),  # noqa: PLW1509 - one thread
            )
        except OSError as error:
            raise MagnetarError(f"{child.spec.name} cannot be started: {error.strerror or error}") from None
        child.state = "starting"
        for stream in (child.process.stdout, child.process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            child.buffers[stream.fileno()] = b""
            self._selector.register(stream, selectors.EVENT_READ, child)

    def _next_start(self) -> float | None:
        """Seconds until the next restart; None when none is planned."""
        planned = [child.start_at for child in self.children if child.state == "waiting" and child.start_at is not None]
        return max(0.0, min(planned) - self._clock()) if planned else None

    # ----------------------------------------------------------------------------------------------------------- events

    def _wait(self, timeout_s: float | None) -> None:
        """Wait for something to happen, and handle it."""
        for key, _ in self._selector.select(timeout_s):
            child = key.data
            if child is None:
                os.read(key.fd, 4096)  # a signal's number; its handler has noted it
            else:
                self._read(child, key.fd)

    def _read(self, child: Child, descriptor: int) -> None:
        assert child.process is not None
        try:
            data = os.read(descriptor, LINE_BYTES_MAX)
        except BlockingIOError:
            return
        lines = (child.buffers[descriptor] + data).split(b"\n")
        rest = lines.pop()
        if not data or len(rest) >= LINE_BYTES_MAX:
            lines, rest = [*lines, *([rest] if rest else [])], b""
        child.buffers[descriptor] = rest
        assert child.process.stdout is not None
        for line in lines:
            self._line(child, line.decode("utf-8", "replace").rstrip("\r"), descriptor != child.process.stdout.fileno())
        if not data:
            self._closed(child, descriptor)

    def _line(self, child: Child, line: str, error: bool) -> None:
        """One line that a child wrote."""
        if error:
            child.last_error = line or child.last_error
            # A start that fails is reported once, with the end of the child.
            if child.state != "starting" or not line.startswith("magnetar: "):
                sys.stderr.write(f"{child.spec.prefix}{line}\n")
                sys.stderr.flush()
            return
        if child.state == "starting" and child.spec.standby and child.spec.standby in line:
            child.state = "standby"
            self._say(f"{child.spec.name} waits")
            self._note_start(child)
            return
        if child.state in {"starting", "standby"} and child.spec.ready in line:
            if child.state == "standby":
                self._say(f"{child.spec.name} serves")
            elif child.has_started:
                self._say(f"{child.spec.name} is back")
            elif not child.spec.essential:
                self._say(f"{child.spec.prefix}{line}")
            child.state, child.ready_line = "ready", line
            self._note_start(child)
            return
        self._say(f"{child.spec.prefix}{line}")

    def _note_start(self, child: Child) -> None:
        child.has_started = True
        if not self._said_ready and all(child.has_started for child in self.children if child.spec.essential):
            self._said_ready = True
            self._on_ready(self.children)

    def _closed(self, child: Child, descriptor: int) -> None:
        """A child closed one of its outputs; when both are closed it has ended (or is ended)."""
        process = child.process
        assert process is not None
        self._selector.unregister(descriptor)
        del child.buffers[descriptor]
        if child.buffers:
            return
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        try:
            code = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            _kill(process)
            code = process.wait()
        child.process = None
        self._ended(child, code)

    def _ended(self, child: Child, code: int) -> None:
        """Decide what follows from a child's end."""
        if self._signals:
            child.state = "ended"
            return
        why = _why(child, code)
        if child.spec.essential and not child.has_started:
            child.state = "ended"
            raise MagnetarError(f"{child.spec.name} did not start: {why}")
        if not self._restart:
            child.state = "ended"
            self._say(f"{child.spec.name} ended: {why}; not restarted (--no-restart)")
            return
        now = self._clock()
        child.ends = 1 if now - child.started_at >= self._backoff.calm_s else child.ends + 1
        delay = self._backoff.delay(child.ends, self._random.random())
        child.state, child.start_at = "waiting", now + delay
        self._say(f"{child.spec.name} ended: {why}; restarting in {delay:.1f} s")

    # ----------------------------------------------------------------------------------------------------------- ending

    def _stop(self) -> None:
        """End all children, the last group first."""
        self._signals = max(1, self._signals)
        for group in sorted({child.spec.group for child in self.children}, reverse=True):
            members = [child for child in self.children if child.spec.group == group]
            self._stop_all([child for child in members if child.state != "ready"])
            self._stop_all(members)
        for child in self.children:
            child.state = "ended"

    def _stop_all(self, children: list[Child]) -> None:
        asked = self._signals
        for child in children:
            if child.process is not None:
                child.process.terminate()
        deadline = time.monotonic() + STOP_S
        while any(child.process is not None for child in children):
            left = deadline - time.monotonic()
            if left <= 0 or self._signals > asked:
                # A second Ctrl-C, or out of patience.
                for child in children:
                    if child.process is not None:
                        self._say(
                            f"{child.spec.name} is killed" + ("" if left > 0 else f": it did not end in {STOP_S:g} s")
                        )
                        _kill(child.process)
                deadline, asked = time.monotonic() + STOP_S, self._signals
                continue
            self._wait(left)

    @contextmanager
    def _wake_on_signals(self) -> Iterator[None]:
        """SIGINT, SIGTERM and SIGHUP (a terminal that goes) are counted, and end any wait of the selector."""
        reading, writing = os.pipe()
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)

        def note(_number: int, _frame: object) -> None:
            self._signals += 1

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # by nohup
            numbers.append(signal.SIGHUP)
        kept = {number: signal.signal(number, note) for number in numbers}
        kept_fd = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._selector.register(reading, selectors.EVENT_READ, None)
        try:
            yield
        finally:
            signal.set_wakeup_fd(kept_fd)
            for number, handler in kept.items():
                signal.signal(number, handler)
            os.close(reading)
            os.close(writing)


def _why(child: Child, code: int) -> str:
    """Why a child ended, in a few words: its own last line if it explained itself."""
    if code == 1 and child.last_error.startswith("magnetar: "):
        return child.last_error.removeprefix("magnetar: ")
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a child and all that it started (Spark's driver has a JVM and workers)."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def end_with_parent() -> Callable[[], None] | None:
    """On Linux: a `preexec_fn` that makes the kernel send a child SIGTERM when its parent dies without ending it.

    The kernel watches the parent's *thread*: start such children from a thread that runs as long as they shall.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):  # a C library without it
        return None
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died in between
            os.kill(os.getpid(), signal.SIGTERM)

    return ask
