"""The process from which all Python processes of a local Spark are forked, with everything imported that they use.

    python -u -m magnetar.spark_session.fork_server FOLDER LISTENER ROOM

Spark starts a Python process for each kind of work: one that forks workers of tasks for each size of buffers, one for each of
the five steps of planning and committing, and one for each source of a stream. Each of them imported PySpark, and most of them
pyarrow and pandas. That took 23 to 80 MB that no two of them shared, and 0.3 s of processor time or more. Here they share it.

Spark runs `fork_client` in place of the interpreter, which connects to LISTENER (the number of a listening socket, inherited).
Each connection is one process to be forked: it gets the client's streams, environment and folder, and runs its module. The
server ends, and removes FOLDER, when its standard input ends, with the driver. ROOM is not read: see `show_as`.
"""

import ctypes
import importlib
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from magnetar.spark_session.daemon import MODULES
from magnetar.spark_session.fork_client import LENGTH_BYTES
from magnetar.spark_session.worker import settle

PLANNING: Final = (
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
)
"""Main modules of the processes that plan and commit. They import little that tasks (`MODULES`) do not."""

REQUEST_BYTES_MAX: Final = 4 << 20
"""The longest request: the kernel lets a process have arguments and environment of 2 MiB by default."""

REQUEST_S: Final = 5.0
"""How long a client may take to send its request, which is in its memory when it connects. Others wait meanwhile."""

_ARGUMENTS: Final = slice(45, 47)
"""Where /proc/self/stat has the addresses of the arguments' begin and end, after the name of the program (proc_pid_stat(5))."""


class Request(NamedTuple):
    """One process to be forked.

    Attributes:
        folder: its working directory.
        words: its arguments: `-m`, a module and the module's arguments.
        environment: all of it.
    """

    folder: str
    words: list[str]
    environment: dict[str, str]


def parse(text: bytes) -> Request:
    """The parts of what `fork_client.request_of` made, without the length.

    Raises:
        ValueError: it is something else.
    """
    folder, count, *rest = map(os.fsdecode, text.split(b"\0"))
    words = rest[: int(count)]
    if len(words) < 2 or words[0] != "-m":
        raise ValueError(f"-m MODULE should be first, not {words[:2]}")
    pairs = [one.partition("=") for one in rest[int(count) :]]
    return Request(folder, words, {name: value for name, _, value in pairs})


def receive(connection: socket.socket) -> tuple[Request, list[int]]:
    """A client's request and its three standard streams.

    Raises:
        OSError, ValueError: it was no client of ours, or it went away.
    """
    connection.settimeout(REQUEST_S)
    text, streams, _, _ = socket.recv_fds(connection, 64 << 10, 3)
    try:
        size = LENGTH_BYTES + int.from_bytes(text[:LENGTH_BYTES], "big")
        if len(streams) != 3 or size > REQUEST_BYTES_MAX:
            raise ValueError(f"{len(streams)} streams and {size} bytes: 3 and {REQUEST_BYTES_MAX} at most are right")
        while len(text) < size:
            more = connection.recv(size - len(text))
            if not more:
                raise ValueError("the client went away")
            text += more
        return parse(text[LENGTH_BYTES:]), streams
    except (OSError, ValueError):
        for number in streams:
            os.close(number)
        raise


def show_as(words: list[str]) -> None:
    """Let `ps` show these arguments in place of the fork server's, as far as those have room. Linux only."""
    with suppress(OSError, ValueError):
        after = Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()
        start, end = map(int, after[_ARGUMENTS])
        if 0 < start < end:
            text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
            ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def become(request: Request, streams: list[int], connection: socket.socket) -> None:
    """Run a module as if an interpreter had been started for it; this process was forked for that."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    places = request.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [place for place in places if place and place not in sys.path]
    _, module, *arguments = request.words
    show_as([sys.executable, *request.words])
    connection.settimeout(None)
    connection.sendall(os.getpid().to_bytes(LENGTH_BYTES, "big"))
    os.register_at_fork(
        after_in_child=connection.close
    )  # it stands for this process, not for those that this one forks
    sys.argv = [module, *arguments]
    # It was imported before, and is run a second time as the main module.
    warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning, "runpy")
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class ForkServer:
    """Forks a process for each client.

    Args:
        listener: a listening Unix socket, which only this user can reach.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener

    def serve(self, until: int) -> None:
        """Fork what clients ask for, until this file descriptor ends."""
        poll = select.poll()
        poll.register(until, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        while True:
            ready = {number for number, _ in poll.poll()}
            if until in ready and not os.read(until, 1):
                return
            if self._listener.fileno() in ready:
                connection, _ = self._listener.accept()
                with connection:
                    self._fork(connection)

    def _fork(self, connection: socket.socket) -> None:
        try:
            request, streams = receive(connection)
        except (OSError, ValueError) as error:
            sys.stderr.write(f"magnetar: fork server: {error}\n")
            return
        try:
            if os.fork() == 0:
                self._run(request, streams, connection)
        except OSError as error:  # no memory, too many processes: the client tries it itself
            sys.stderr.write(f"magnetar: fork server: {error.strerror}\n")
        finally:
            for stream in streams:
                os.close(stream)

    def _run(self, request: Request, streams: list[int], connection: socket.socket) -> NoReturn:
        code = 1
        try:
            self._listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            become(request, streams, connection)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 - this process is to end here, whatever its module raised
            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code & 0xFF)


def main(folder: str, listener: str) -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in all that PySpark's Java starts
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the exit codes of forked processes are not read
    try:
        for module in (*MODULES, *PLANNING):
            with suppress(ModuleNotFoundError):  # as in `daemon`
                importlib.import_module(module)
        settle()
        ForkServer(socket.socket(fileno=int(listener))).serve(0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
