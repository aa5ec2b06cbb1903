"""The fork server and its client: a forked process is as one that the interpreter was started for. Nothing is left of either."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.spark_session import forks as driver
from magnetar.spark_session import session
from magnetar.spark_session.fork_client import LENGTH_BYTES, request_of
from magnetar.spark_session.fork_server import Request, parse, receive

pytestmark = pytest.mark.spark

DEADLINE_S = 120

MODULE = """
import os, sys
ids = os.getpid(), os.getppid()
print(sys.argv[1:], os.environ.get("GIVEN"), os.getcwd(), *ids, __name__, "pyarrow" in sys.modules, flush=True)
print(sys.stdin.readline().strip(), file=sys.stderr)
sys.stdin.read()
"""

parts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
names = st.text(st.characters(exclude_characters="\0=", exclude_categories=["Cs"]), min_size=1)


@given(st.lists(parts), st.dictionaries(names, parts), parts)
def test_a_request_arrives_as_it_was_sent(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    words = ["-m", "module", *arguments]
    encoded = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    text = request_of(words, os.fsencode(folder), encoded)
    assert int.from_bytes(text[:LENGTH_BYTES], "big") == len(text) - LENGTH_BYTES
    assert parse(text[LENGTH_BYTES:]) == Request(folder, words, environment)


@pytest.mark.parametrize(
    "text",
    [b"", b"/", b"/\0x", b"/\x001\0-m", b"/\x002\0-c\0print()"],
    ids=["empty", "a folder", "no number", "no module", "code"],
)
def test_what_is_no_request_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def test_a_client_without_streams_or_with_too_long_a_request_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(request_of(["-m", "module"], b"/", {}))
        with pytest.raises(ValueError, match="0 streams"):
            receive(ours)
    ours, theirs = socket.socketpair()
    before = len(os.listdir("/proc/self/fd"))
    with ours, theirs:
        socket.send_fds(theirs, [b"\xff\xff\xff\xff"], [0, 1, 2])
        with pytest.raises(ValueError, match="3 streams and 4294967299 bytes"):
            receive(ours)
    assert len(os.listdir("/proc/self/fd")) < before, "what it sent is closed"


@pytest.fixture
def server() -> driver.Forks:
    """That of this process, which the tests of Spark share."""
    started = driver.forks()
    assert started is not None
    return started


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A folder with the module `forked_here`."""
    (tmp_path / "forked_here.py").write_text(MODULE)
    return tmp_path


def run(program: Path, folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start `forked_here` by a program in place of the interpreter."""
    return subprocess.Popen(
        [program, "-m", "forked_here", *arguments], text=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "GIVEN": "a value", "PYTHONUNBUFFERED": "YES"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_forked_process_has_what_it_was_given_and_ends_its_client(server: driver.Forks, module: Path) -> None:
    client = run(server.program, module, "one", "two words")
    assert client.stdout is not None
    words, rest = client.stdout.readline().split(" a value ")
    assert words == "['one', 'two words']"
    folder, pid, parent, name, imported = rest.split()
    assert (folder, name, imported) == (str(module), "__main__", "True")
    assert int(parent) == server.server.pid
    assert int(pid) != client.pid
    shown = [word for word in psutil.Process(int(pid)).cmdline() if word]
    assert shown == [sys.executable, "-m", "forked_here", "one", "two words"]
    _, errors = client.communicate("a line\n", timeout=DEADLINE_S)
    assert errors == "a line\n"
    assert client.returncode == 0


def test_sigterm_to_the_client_ends_the_forked_process(server: driver.Forks, module: Path) -> None:
    client = run(server.program, module)
    assert client.stdout is not None
    forked = psutil.Process(int(client.stdout.readline().split()[-4]))
    client.terminate()
    assert client.wait(DEADLINE_S) == 0
    forked.wait(DEADLINE_S)
    client.communicate()


def test_what_is_no_module_is_the_interpreters(server: driver.Forks) -> None:
    done = subprocess.run(
        [server.program, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True, timeout=DEADLINE_S
    )
    assert done.stdout == "42\n"


def test_a_server_ends_with_its_driver_and_without_one_the_interpreter_runs(module: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="magnetar-forks-test-"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        process = driver.start(folder, listener)
    process.communicate(timeout=DEADLINE_S)  # closes its standard input
    assert process.returncode == 0
    assert not folder.exists()
    program = module / "python"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} -I -S {driver.CLIENT} {folder}/socket {sys.executable} "$@"\n'
    )
    program.chmod(0o700)
    client = run(program, module, "one")
    out, errors = client.communicate("a line\n", timeout=DEADLINE_S)
    assert out.startswith(f"['one'] a value {module} {client.pid} {os.getpid()} __main__ False"), "by itself"
    assert errors == "a line\n"


def test_a_local_spark_alone_gets_the_client(
    server: driver.Forks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("PYSPARK_PYTHON", "PYTHONPATH", "PYTHONWARNINGS", "SPARK_HOME"):
        monkeypatch.setenv(name, "")  # to be restored afterwards
    monkeypatch.delenv("SPARK_HOME")

    def python(master: str, own: str | None = None) -> str:
        return session._environment(master, tmp_path / "log", own, "")["spark.pyspark.python"]

    for master in ("local", "local[2]", "local[4,4]", "local[*]"):
        assert python(master) == str(server.program)
    for master in ("local-cluster[2,1,1024]", "spark://127.0.0.1:7077", "yarn"):
        assert python(master) == sys.executable
    assert python("local[2]", "/usr/bin/python3") == "/usr/bin/python3"
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert python("local[2]") == sys.executable
