"""The program that Spark runs in place of the Python interpreter: it has the fork server do the work, and lasts as long.

    python -I -S fork_client.py SOCKET PYTHON -m MODULE [ARGUMENT...]

Java watches, signals and writes to the process that it has started, which is this one. The client hands its standard streams,
arguments, environment and folder to the fork server (`fork_server`). The forked process answers with its id and
has the streams from then on. The client passes SIGTERM on and ends when that process ends. Without a server it becomes the
interpreter itself: that takes more memory and time, and everything works.

Only modules that are part of the interpreter are imported, and no `site`: there is one client for each forked process.
"""

import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

LENGTH_BYTES = 4
"""A big-endian length comes before a request. The answer is a process id of the same size."""


def request_of(words: list[str], folder: bytes, environment: dict[bytes, bytes]) -> bytes:
    """The description of a process for the server, with its length first. NUL separates: no part can have it."""
    parts = [folder, str(len(words)).encode(), *map(os.fsencode, words)]
    parts += [name + b"=" + value for name, value in environment.items()]
    text = b"\0".join(parts)
    return len(text).to_bytes(LENGTH_BYTES, "big") + text


def hand_over(path: str, words: list[str]) -> "tuple[socket, int] | None":
    """The connection that ends with the forked process, and its id; None: there is no server."""
    connection = socket(AF_UNIX, SOCK_STREAM)
    try:
        connection.connect(path)
        request = request_of(words, os.getcwdb(), dict(os.environb))  # noqa: PTH109 - `pathlib` is large
        streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
        sent = connection.sendmsg([request], [(SOL_SOCKET, SCM_RIGHTS, streams)])
        connection.sendall(request[sent:])
        answer = connection.recv(LENGTH_BYTES)  # from one write of four bytes to a local socket: never a part of it
    except OSError:
        return None
    return (connection, int.from_bytes(answer, "big")) if answer else None


def main(path: str, python: str, words: list[str]) -> None:
    """Have these words run as the arguments of the interpreter."""
    # Nothing but modules is asked of the server. Java runs the rest for an answer, such as the version.
    found = hand_over(path, words) if words[:1] == ["-m"] else None
    if found is None:
        os.execv(python, [python, *words])  # noqa: S606 - this process becomes it
    import _signal  # type: ignore[import-not-found]  # part of the interpreter; `signal` would import `enum`

    connection, pid = found

    def pass_on(number: int, _frame: object) -> None:
        os.kill(pid, number)

    _signal.signal(_signal.SIGTERM, pass_on)
    for number in range(3):
        os.close(number)  # the other process has them, and Java is to see their end when that one ends
    connection.recv(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
