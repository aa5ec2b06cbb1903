"""The word from the writer of a long batch to its reader that the connections to the destinations are open.

The first question of a reader ends the former batch (`replication.link.fetching`). If the new writer opened its connections only
then, the next messages would wait for them. That takes two round trips: 160 ms where clusters are 80 ms apart, at each turn. So
the reader waits with its first question until the writer is ready. Meanwhile the former batch carries everything.

Rows go from the reader to the writer only. For the other direction the reader listens for a datagram on the loopback address,
and a row (`columns.READY`) brings the port to the writer. Reader and writer are on one host, also on a cluster of several: a
long batch is one Spark task, because its query exchanges no rows between tasks, and one executor starts the processes of a
task. The former batch may run on another host, and so may a copy of the task: each has a port of its own.

If the datagram is lost, the reader waits for `READY_S` at each turn. No message is late for that, because the former batch
carries everything until the first question. It has 1.5 s left when the next one is planned (`turns.LEAD_MS`), and continues for
15 s more if no other one supersedes it (`fetch_read.GRACE_MS`). The first batch, and one after a failure, have no former batch:
their first messages are up to `READY_S` late. The content of a datagram does not matter: a wrong one only makes the reader
begin too early.

At each turn the writer opens one connection to each cluster that is a destination, also where the link is idle, unless its
process has kept one from an earlier batch. Links to one cluster share it, so a turn opens at most one for each cluster.
"""

import socket
from contextlib import suppress
from math import inf
from typing import Final

READY_S: Final = 1.0
"""How long the first questions wait at most: two round trips of 200 ms, twice. A destination that stands still accepts no
connection. If no former batch runs, the other links wait that long for it."""


class ReadyPort:
    """The reader's end.

    Raises:
        OSError: there is no loopback address to listen on.
    """

    wants_write = False
    wake_at = inf

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(("127.0.0.1", 0))
        except OSError:
            self._socket.close()
            raise

    @property
    def number(self) -> int:
        """The port."""
        return int(self._socket.getsockname()[1])

    def fileno(self) -> int:
        """For the selector; -1 once closed."""
        return self._socket.fileno()

    def heard(self) -> bool:
        """Whether a word has come; does not wait."""
        try:
            self._socket.recv(16)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the socket; may be called twice."""
        self._socket.close()


def say_ready(port: int) -> None:
    """The writer is ready. When the word is lost, the reader waits for `READY_S`."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as writer:
        writer.setblocking(False)
        writer.sendto(b"ready", ("127.0.0.1", port))
