"""A scripted server of Pulsar's protocol, for tests of clients: it answers what the test tells it to."""

import contextlib
import socket
import threading
from collections.abc import Callable

from magnetar.core.errors import ProtocolError
from magnetar.wire.frame import Frame
from magnetar.wire.frames import FrameDecoder

Say = Callable[..., None]
Script = Callable[[Frame, "Peer"], None]


class Peer:
    """Listens on a free port; each frame of each connection goes to `script`, on a thread of its own.

    Args:
        script: called with the frame and this peer; answers by `send`, ends the connection by `hang_up`.
        frame_bytes_max: of the decoder.
    """

    def __init__(self, script: Script, *, frame_bytes_max: int = 1 << 26) -> None:
        self.frames: list[Frame] = []
        self.errors: list[str] = []
        self._script = script
        self._frame_bytes_max = frame_bytes_max
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._local = threading.local()
        self._connections: list[socket.socket] = []
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        self._local.connection = connection
        decoder = FrameDecoder(self._frame_bytes_max)
        try:
            while data := connection.recv(1 << 16):
                for frame in decoder.feed(data):
                    self.frames.append(frame)
                    self._script(frame, self)
        except ProtocolError as error:
            self.errors.append(str(error))
        except OSError:
            pass
        finally:
            connection.close()

    def send(self, *buffers: bytes) -> None:
        """To the connection whose frame is being handled."""
        for buffer in buffers:
            self._local.connection.sendall(buffer)

    def hang_up(self) -> None:
        """End the connection whose frame is being handled."""
        self._local.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End everything and wait for it."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()
