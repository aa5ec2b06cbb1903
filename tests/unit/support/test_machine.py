"""What the host takes: read from the kernel's own account of the processors."""

from pathlib import Path

import pytest

from tests.support import machine
from tests.support.machine import Taken


def account(path: Path, *ticks: int) -> None:
    path.write_text(f"cpu  {' '.join(map(str, ticks))}\ncpu0 1 2 3\n")


def test_what_the_host_took_is_a_share_of_what_was_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting, for work or for a disk, is not wanting a processor; guests are among the users already."""
    stat = tmp_path / "stat"
    monkeypatch.setattr(machine, "_STAT", stat)
    account(stat, 100, 10, 50, 9_000, 400, 5, 5, 30, 70, 0)
    taken = Taken()
    account(stat, 160, 20, 70, 19_000, 900, 10, 10, 130, 90, 0)
    assert taken.share() == pytest.approx(100 / (60 + 10 + 20 + 5 + 5 + 100))
    assert Taken().share() == 0


@pytest.mark.parametrize("text", [None, "cpu  1 2 3 4\n"])
def test_a_system_that_does_not_say_took_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    stat = tmp_path / "stat"
    if text is not None:
        stat.write_text(text)
    monkeypatch.setattr(machine, "_STAT", stat)
    assert Taken().share() == 0
