"""The supervisor over small real children: ready lines, restarts, failures, and an orderly end."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cli.processes.supervisor import LINE_BYTES_MAX, Backoff, Child, Spec, Supervisor
from magnetar.core.errors import MagnetarError

RUNS = "import signal, sys; print('I am ready', flush=True); signal.pause()"
"""A child that becomes ready and runs until SIGTERM."""

AT_ONCE = Backoff(first_s=0.0, most_s=0.0)


def spec(name: str, code: str, **more: object) -> Spec:
    return Spec(name, [sys.executable, "-c", code], "ready", **more)  # type: ignore[arg-type]


class World:
    """What the supervisor said; ends it when a condition on its lines comes true."""

    def __init__(self, end: Callable[[list[str]], bool] = lambda _lines: False) -> None:
        self.lines: list[str] = []
        self.readies = 0
        self._end = end

    def say(self, line: str) -> None:
        self.lines.append(line)
        if self._end(self.lines):
            os.kill(os.getpid(), signal.SIGINT)

    def ready(self, children: list[Child]) -> None:
        self.readies += 1
        self.say("all ready")


def test_ready_then_a_clean_end() -> None:
    world = World(lambda lines: "all ready" in lines)
    supervisor = Supervisor([spec("one", RUNS), spec("two", RUNS)], world.say, on_ready=world.ready)
    assert supervisor.run() == 0
    assert world.readies == 1
    assert [child.state for child in supervisor.children] == ["ended", "ended"]
    assert all(child.process is None for child in supervisor.children)


def test_what_was_there_before_is_restored() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    world = World(lambda lines: "all ready" in lines)
    Supervisor([spec("one", RUNS)], world.say, on_ready=world.ready).run()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_start_that_fails_is_the_childs_own_line() -> None:
    code = "import sys; sys.stderr.write('magnetar: port 6650 is in use\\n'); sys.exit(1)"
    world = World()
    with pytest.raises(MagnetarError, match=r"^broker x did not start: port 6650 is in use$"):
        Supervisor([spec("broker y", RUNS), spec("broker x", code)], world.say).run()


def test_the_others_are_ended_when_one_does_not_start(tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    ends = (
        "import signal, sys, pathlib\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(mark)!r}).touch(), sys.exit(0)))\n"
        "print('ready', flush=True)\nsignal.pause()"
    )
    fails = f"import sys, os\nwhile not os.path.exists({str(tmp_path / 'go')!r}): pass\nsys.exit(3)"
    world = World()

    def ready_line(line: str) -> None:
        world.say(line)

    supervisor = Supervisor([spec("good", ends), spec("bad", fails)], ready_line)
    original = supervisor._line

    def seen(child: Child, line: str, error: bool) -> None:
        original(child, line, error)
        (tmp_path / "go").touch()

    supervisor._line = seen  # type: ignore[method-assign]
    with pytest.raises(MagnetarError, match="bad did not start: exit code 3"):
        supervisor.run()
    assert mark.exists()


def test_a_child_that_dies_comes_back() -> None:
    dies = "import os, signal; print('ready', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    world = World(lambda lines: sum("is back" in line for line in lines) >= 2)
    supervisor = Supervisor([spec("one", dies)], world.say, backoff=AT_ONCE)
    assert supervisor.run() == 0
    assert sum("one ended: killed by SIGKILL; restarting in 0.0 s" in line for line in world.lines) >= 2


def test_no_restart() -> None:
    dies = "print('ready', flush=True)"
    world = World()
    assert Supervisor([spec("one", dies)], world.say, restart=False).run() == 1
    assert world.lines == ["one ended: exit code 0; not restarted (--no-restart)"]


def test_the_pipeline_waits_for_the_brokers_and_need_not_start() -> None:
    fails = "import sys; sys.stderr.write('magnetar: no Java\\n'); sys.exit(1)"
    world = World(lambda lines: any(line.startswith("pipeline ended") for line in lines))
    specs = [spec("pipeline", fails, group=1, essential=False), spec("broker", RUNS)]
    assert Supervisor(specs, world.say, on_ready=world.ready).run() == 0
    assert world.lines[0] == "all ready"
    assert world.lines[1].startswith("pipeline ended: no Java; restarting in ")


def test_groups_end_in_reverse_order(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def code(name: str) -> str:
        return (
            "import signal, sys\n"
            f"def end(*_):\n    open({str(log)!r}, 'a').write('{name} ')\n    sys.exit(0)\n"
            "signal.signal(signal.SIGTERM, end)\nprint('ready', flush=True)\nsignal.pause()"
        )

    world = World(lambda lines: "all ready" in lines)
    specs = [spec("broker", code("broker")), spec("pipeline", code("pipeline"), group=1)]
    assert Supervisor(specs, world.say, on_ready=world.ready).run() == 0
    assert log.read_text() == "pipeline broker "


def standby(name: str, code: str) -> Spec:
    return spec(name, code, standby="I wait")


def test_a_child_on_standby_has_started(tmp_path: Path) -> None:
    """The next group does not wait until it is ready. When it is, that is a line."""
    go = tmp_path / "go"
    os.mkfifo(go)
    waits = f"print('I wait', flush=True)\nopen({str(go)!r}).read()\n{RUNS}"
    world = World(lambda lines: "b serves" in lines)

    def ready(children: list[Child]) -> None:
        world.ready(children)
        assert {child.spec.name: child.state for child in children} == {"a": "ready", "b": "standby", "next": "waiting"}

    def say(line: str) -> None:
        world.say(line)
        if line == "I am ready":
            go.write_text("go")

    specs = [standby("a", RUNS), standby("b", waits), spec("next", RUNS, group=1, essential=False)]
    assert Supervisor(specs, say, on_ready=ready).run() == 0
    assert world.lines == ["b waits", "all ready", "I am ready", "b serves"]


def test_a_child_that_loses_its_role_waits_when_it_is_back(tmp_path: Path) -> None:
    """A broker that may no longer serve ends with exit code 1."""
    mark = tmp_path / "mark"
    code = (
        f"import pathlib, signal, sys\nmark = pathlib.Path({str(mark)!r})\n"
        "if mark.exists():\n    print('I wait', flush=True)\n    signal.pause()\n"
        "mark.touch()\nprint('ready', flush=True)\nsys.exit(1)"
    )
    world = World(lambda lines: "a waits" in lines)
    assert Supervisor([standby("a", code)], world.say, backoff=AT_ONCE).run() == 0
    assert world.lines == ["a ended: exit code 1; restarting in 0.0 s", "a waits"]


def test_who_waits_ends_before_who_serves(tmp_path: Path) -> None:
    """Else it would take over for a moment."""
    log = tmp_path / "log"

    def code(name: str, line: str) -> str:
        return (
            "import signal, sys\n"
            f"def end(*_):\n    open({str(log)!r}, 'a').write('{name} ')\n    sys.exit(0)\n"
            f"signal.signal(signal.SIGTERM, end)\nprint('{line}', flush=True)\nsignal.pause()"
        )

    world = World(lambda lines: "all ready" in lines)
    specs = [standby("serves", code("serves", "ready")), standby("waits", code("waits", "I wait"))]
    assert Supervisor(specs, world.say, on_ready=world.ready).run() == 0
    assert log.read_text() == "waits serves "


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_goes_ends_them_unless_told_otherwise(ignored: bool) -> None:
    """As Ctrl-C does; not under nohup."""
    world = World()
    talks = (
        "import signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n"
        "print('ready', flush=True)\n"
        "signal.sigwait({signal.SIGUSR1})\n"
        "print('still here', flush=True)\n"
        "signal.pause()"
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else lambda *_: None)
    sent: list[int] = []

    def say(line: str) -> None:
        world.lines.append(line)
        sent.append(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    def ready(children: list[Child]) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        if ignored:
            assert children[0].process is not None
            children[0].process.send_signal(signal.SIGUSR1)

    try:
        supervisor = Supervisor([spec("one", talks)], say, on_ready=ready)
        assert supervisor.run() == 0
    finally:
        kept = signal.signal(signal.SIGHUP, before)
    assert sent == ([signal.SIGINT] if ignored else [])
    assert (kept is signal.SIG_IGN) == ignored
    assert [child.state for child in supervisor.children] == ["ended"]


def test_a_second_signal_kills() -> None:
    stubborn = (
        "import signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('I stay', flush=True))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    world = World(lambda lines: lines[-1] in {"all ready", "I stay"})
    supervisor = Supervisor([spec("one", stubborn)], world.say, on_ready=world.ready)
    assert supervisor.run() == 0
    assert world.lines == ["all ready", "I stay", "one is killed"]


def test_lines_come_whole_and_with_their_prefix() -> None:
    code = (
        "print('a\\nb', end='', flush=True)\nprint('ä', flush=True)\n"
        f"print('x' * {LINE_BYTES_MAX + 10})\nprint('ready')"
    )
    world = World()
    Supervisor([spec("one", code, prefix="p: ")], world.say, restart=False).run()
    assert world.lines[:2] == ["p: a", "p: bä"]
    long = [line.removeprefix("p: ") for line in world.lines if line.startswith("p: x")]
    assert "".join(long) == "x" * (LINE_BYTES_MAX + 10)


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(MagnetarError, match="one cannot be started: No such file"):
        Supervisor([Spec("one", ["/nowhere/magnetar"], "ready")], World().say).run()


def test_no_descriptor_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for _ in range(3):
        world = World(lambda lines: "all ready" in lines)
        Supervisor([spec("one", RUNS)], world.say, on_ready=world.ready).run()
    after = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    assert after <= before
    assert threading.active_count() >= 1


@given(st.integers(1, 10_000), st.floats(0, 1), st.floats(0.001, 10), st.floats(10, 100))
def test_backoff_grows_within_its_bounds(ends: int, chance: float, first: float, most: float) -> None:
    backoff = Backoff(first, most)
    delay = backoff.delay(ends, chance)
    assert first / 2 <= delay <= most
    assert backoff.delay(ends + 1, chance) >= delay
    assert backoff.delay(ends, 1.0) == min(most, first * 2.0 ** min(ends - 1, 32))
