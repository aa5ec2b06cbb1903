"""`make soak`'s way of running tests: time is a limit, not a failure, and a failure says how to see it again."""

import importlib.util
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.brokers import eventually

PASSES = "def test_it() -> None:\n    assert True\n"
FAILS = "def test_it() -> None:\n    assert False\n"
HANGS = """
import threading
from pathlib import Path


def test_it() -> None:
    try:
        Path(__file__).with_name("began").touch()
        threading.Event().wait()
    finally:
        Path(__file__).with_name("cleared").touch()
"""


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    """tools/soak.py as a module."""
    spec = importlib.util.spec_from_file_location("soak", Path(__file__).parents[3] / "tools" / "soak.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def group(soak: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """One group of one test."""
    file = folder / "test_one.py"
    file.write_text(text)
    monkeypatch.setattr(soak, "GROUPS", {"one": str(file)})


def test_what_passes_is_told(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group(soak, monkeypatch, tmp_path, PASSES)
    soak.one_group("one", 1, 7, 100)
    assert "round 1: one: passed" in capsys.readouterr().out


def test_what_fails_says_how_to_see_it_again(soak: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    group(soak, monkeypatch, tmp_path, FAILS)
    with pytest.raises(
        SystemExit, match=r"one failed in round 3; .*MAGNETAR_KILL_ROUNDS=40 MAGNETAR_KILL_SEED=7 .*test_one"
    ):
        soak.one_group("one", 3, 7, 100)


@pytest.fixture(params=["in front", "in the background"])
def interrupts(request: pytest.FixtureRequest) -> Iterator[None]:
    """As a shell starts a program: in the background it ignores interrupts, and so does what it starts."""
    before = signal.getsignal(signal.SIGINT)
    if request.param == "in the background":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_time_that_is_up_is_no_failure_and_what_runs_clears_away(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group(soak, monkeypatch, tmp_path, HANGS)
    real = soak.subprocess.Popen

    class Impatient(real):  # type: ignore[valid-type,misc]
        def wait(self, timeout: float | None = None) -> int:
            if not (tmp_path / "began").exists():
                eventually((tmp_path / "began").exists, within_s=100)
                raise soak.subprocess.TimeoutExpired(self.args, 0)
            return int(super().wait(timeout))

    monkeypatch.setattr(soak.subprocess, "Popen", Impatient)
    soak.one_group("one", 1, 7, 0)
    assert (tmp_path / "cleared").exists()
    assert "nothing failed until the time was up" in capsys.readouterr().out
