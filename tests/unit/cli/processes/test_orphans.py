"""A command that was started with its parent ends with it, also when that is killed."""

import os
import subprocess
import sys

import psutil
import pytest

from magnetar.cli.processes.orphans import with_parent

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells of a parent's death")

PARENT = """
import os, signal, subprocess, sys
from magnetar.cli.processes.orphans import with_parent
script = "import signal; {prepared}; print('here', flush=True); signal.pause()"
command = with_parent([sys.executable, "-c", script], os.getpid(), signal.{number})
child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
assert child.stdout.readline() == b"here\\n"
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("number", "prepared"),
    [("SIGTERM", "pass"), ("SIGKILL", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")],
)
def test_it_ends_when_its_parent_is_killed(number: str, prepared: str) -> None:
    program = [sys.executable, "-c", PARENT.format(number=number, prepared=prepared)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        child.wait(20)


def test_it_does_not_begin_when_its_parent_is_gone() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    done = subprocess.run(with_parent([sys.executable, "-c", "print(1)"], gone.pid), capture_output=True, check=False)
    assert done.returncode == 1 and done.stdout == b""
    assert done.stderr == f"process {gone.pid} is gone\n".encode()


def test_it_has_its_arguments_and_its_own_name() -> None:
    command = with_parent(
        [sys.executable, "-c", "import sys; print(sys.argv[1:], sys.flags.isolated)", "a b", "-x"], os.getpid()
    )
    assert subprocess.check_output(command, text=True) == "['a b', '-x'] 0\n"
