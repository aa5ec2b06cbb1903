"""The driver's end of the fork server: it is started once in a process, and Spark gets a program that asks it."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

CLIENT: Final = Path(__file__).with_name("fork_client.py")

SHOWN_BYTES: Final = 160
"""Room for the arguments that a forked process shows in place of the fork server's (`fork_server.show_as`)."""


class Forks(NamedTuple):
    """A fork server that runs.

    Attributes:
        program: for Spark to run in place of the Python interpreter.
        server: the process. It ends, at the latest, when this process does: its standard input is a pipe from here.
    """

    program: Path
    server: "subprocess.Popen[bytes]"


@cache
def forks() -> Forks | None:
    """The fork server of this process; None where there can be none.

    Its standard error is that of this process at the first call. Its folder is among the system's temporary files, since the path
    of a Unix socket may have 107 bytes at most. Only this user may enter it.
    """
    if sys.platform != "linux":
        return None  # elsewhere a process that has threads of the system's libraries may not fork
    folder = Path(tempfile.mkdtemp(prefix="magnetar-forks-"))
    program, path = folder / "python", folder / "socket"
    client = [sys.executable, "-I", "-S", str(CLIENT), str(path), sys.executable]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
    program.chmod(0o700)
    if not os.access(program, os.X_OK):
        shutil.rmtree(folder)  # it is mounted so that programs in it do not run
        return None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        return Forks(program, start(folder, listener))


def start(folder: Path, listener: socket.socket) -> "subprocess.Popen[bytes]":
    """Start a fork server. Clients can connect at once, and are served when it has imported everything.

    Args:
        folder: which the server removes when it ends.
        listener: a listening socket.
    """
    words = ["-u", "-m", "magnetar.spark_session.fork_server", str(folder), str(listener.fileno()), "-" * SHOWN_BYTES]
    # Workers that shuffle have to agree on the hashes of texts. Spark sets this for the processes that it starts.
    hashes = os.environ.get("PYTHONHASHSEED", "0")
    return subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        env={**os.environ, "PYTHONHASHSEED": hashes, "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER"},
        process_group=0,  # a signal to the driver's group, such as Control-C, is not for the server: it removes its folder
    )
