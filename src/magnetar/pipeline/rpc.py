"""A tiny request/answer protocol over a Unix socket between the driver and the Python workers on its machine.

Spark runs a data source's planning and its commits in processes of their own on the driver's machine; the coordinator runs
in the driver. A request is a MessagePack array `[method, arguments…]`, an answer `[error or "", result]`, each with its
length (4 bytes, big endian) before it. The socket is in a folder that only the user may enter.
"""

import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from magnetar.core.errors import MagnetarError

MESSAGE_BYTES_MAX: Final = 64 << 20
"""A ceiling: a plan of 4,096 ranges is about 1 MB."""

Handler = Callable[..., Any]


class CoordinatorGone(MagnetarError):
    """The driver's coordinator does not answer: it has stopped, or this is not its machine."""


def _read(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        piece = connection.recv(min(size - len(parts), 1 << 20))
        if not piece:
            raise EOFError
        parts += piece
    return bytes(parts)


def _receive(connection: socket.socket) -> Any:
    (size,) = struct.unpack(">I", _read(connection, 4))
    if size > MESSAGE_BYTES_MAX:
        raise EOFError
    return msgspec.msgpack.decode(_read(connection, size))


def _send(connection: socket.socket, value: Any) -> None:
    body = msgspec.msgpack.encode(value)
    connection.sendall(struct.pack(">I", len(body)) + body)


class Server:
    """Answers calls with the given handlers, a thread for each connection (there are a few)."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = handlers
        # In /tmp, not in TMPDIR or the checkpoint folder: a Unix socket's path may have about 100 bytes only.
        self._folder = Path(tempfile.mkdtemp(prefix="magnetar-", dir="/tmp"))
        self.path = str(self._folder / "conductor")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.path)
        self._socket.listen(16)
        self._connections: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="magnetar-rpc", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="magnetar-rpc-call", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while True:
                method, *arguments = _receive(connection)
                handler = self._handlers.get(method)
                if handler is None:
                    _send(connection, [f"no method {method!r}", None])
                    continue
                try:
                    answer = ["", handler(*arguments)]
                except MagnetarError as error:
                    answer = [str(error), None]
                _send(connection, answer)
        except (OSError, EOFError, msgspec.MsgspecError):
            pass  # the worker is gone
        finally:
            self._connections.discard(connection)
            connection.close()

    def close(self) -> None:
        """Stop answering and remove the socket."""
        self._socket.close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        shutil.rmtree(self._folder, ignore_errors=True)


_clients: dict[str, socket.socket] = {}
"""One connection to each coordinator, kept until the worker process ends."""


def request(path: str, method: str, *arguments: Any) -> Any:
    """Call the coordinator.

    Raises:
        CoordinatorGone: it does not answer, or answers with an error.
    """
    for attempt in (0, 1):
        connection = _clients.pop(path, None)
        kept = connection is not None
        try:
            if connection is None:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.connect(path)
            _send(connection, [method, *arguments])
            error, result = _receive(connection)
        except (OSError, EOFError) as failure:
            if connection is not None:
                connection.close()
            if kept and attempt == 0:
                continue
            raise CoordinatorGone(
                f"the pipeline's coordinator at {path} does not answer: {str(failure) or 'it stopped'}"
            ) from None
        _clients[path] = connection
        if error:
            raise CoordinatorGone(error)
        return result
    raise AssertionError("unreachable")
