"""The command as a process of its own whose output nobody reads, cannot be written, or is not there at all."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.cli.shared.output import Output
from tests.unit.cli.conftest import FakeBroker

COMMAND = [sys.executable, "-m", "magnetar"]


def run(words: list[str | Path], stdout: int, folder: Path) -> tuple[int, str]:
    """Exit code and standard error."""
    done = subprocess.run(
        [*COMMAND, *words], stdout=stdout, stderr=subprocess.PIPE, cwd=folder, check=False, timeout=60
    )
    return done.returncode, done.stderr.decode()


@pytest.fixture
def unread() -> int:
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("words", [["tenants", "list"], ["tenants", "list", "--json"], ["--help"]])
def test_a_reader_that_is_gone_is_no_error(unread: int, words: list[str], fake: FakeBroker, tmp_path: Path) -> None:
    fake.answer("GET /admin/v2/tenants", ["public"])
    fake.answer("GET /admin/v2/tenants/public", {"allowedClusters": ["a"], "adminRoles": []})
    given = [*words, "--admin-url", fake.url] if words[0] == "tenants" else words
    assert run(given, unread, tmp_path) == (0, "")


def test_a_command_that_nobody_reads_does_all_of_it_and_has_its_own_exit_code(
    unread: int, pair: tuple[Path, FakeBroker, FakeBroker], tmp_path: Path
) -> None:
    path, a, b = pair
    a.answer("DELETE /admin/v2/tenants/shop")
    code, told = run(["tenants", "delete", "shop", "--everywhere", "-c", path], unread, tmp_path)
    assert code == 1 and told.startswith("magnetar: b: no answer planned")
    b.answer("DELETE /admin/v2/tenants/shop")
    assert run(["tenants", "delete", "shop", "--everywhere", "-c", path], unread, tmp_path) == (0, "")
    assert len(a.changes) == len(b.changes) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_a_disk_that_is_full_is_one_line(json: list[str], fake: FakeBroker, tmp_path: Path) -> None:
    fake.answer("GET /admin/v2/tenants", [])
    with Path("/dev/full").open("wb") as full:
        code, told = run(["tenants", "list", "--admin-url", fake.url, *json], full.fileno(), tmp_path)
    assert (code, told) == (1, "magnetar: the output could not be written: No space left on device\n")


@pytest.mark.parametrize("closed", ["<&- >&-", ">&-", "<&- >&- 2>&-"])
def test_a_process_without_descriptors(closed: str, fake: FakeBroker, tmp_path: Path) -> None:
    fake.answer("GET /admin/v2/tenants", [])
    command = f"{sys.executable} -m magnetar tenants list --admin-url {fake.url} {closed}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, cwd=tmp_path, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert fake.requests == [("GET /admin/v2/tenants", None)]


def test_names_of_files_may_be_any_bytes(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "tokens", "create-secret-key", "--output", b"\xff.key"],
        capture_output=True,
        cwd=tmp_path,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"wrote \\udcff.key: ")


def test_a_pipe_that_is_full_and_does_not_wait_is_waited_for(tmp_path: Path) -> None:
    """Whoever else has the pipe open may have said that it does not wait."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    code = "from magnetar.cli.shared import output; out = output.install(); print('x' * 1_000_000); raise SystemExit(out.end(0))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=writing, cwd=tmp_path)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        assert len(file.read()) == 1_000_001
    assert process.wait(60) == 0


def test_unread_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_descriptor: int, _data: object) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    output = Output()
    assert not output.unread
    monkeypatch.setattr(os, "write", broken)
    made: Callable[[bytes], int] = output._out.write
    assert (made(b"abc"), made(b"d"), output.unread, output.end(0)) == (3, 1, True, 0)
