"""Free TCP ports for brokers that are killed and started again: the demo's, and those of tests and benchmarks."""

import contextlib
import random
import socket
from typing import Final

from magnetar.core.errors import MagnetarError

PORTS: Final = range(15_000, 32_768)
"""Below the ports that systems give to outgoing connections (from 32768 on Linux, from 49152 elsewhere).
Another program could get one of those while a broker that was killed is down."""


def free_ports(count: int) -> list[int]:
    """TCP ports of PORTS that are free now; all different.

    Raises:
        MagnetarError: fewer are free.
    """
    found: list[int] = []
    for number in random.SystemRandom().sample(PORTS, len(PORTS)):
        if len(found) == count:
            return found
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", number))
            found.append(number)
    raise MagnetarError(
        f"of ports {PORTS.start} to {PORTS.stop - 1} only {len(found)} are free, and {count} are needed"
    )
