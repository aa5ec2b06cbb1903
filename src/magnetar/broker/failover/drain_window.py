"""The time for which a fenced subscription waits for acknowledgements of messages that its consumers hold.

A fixed time is wrong in both directions. An application that works off a full client queue on a busy machine needs more
time than one with three messages left, and messages that it could not finish in time are delivered twice. An
application that acknowledges one message per minute, or none, would make all consumers wait for nothing. So the grace
period is a window that is repeated while the acknowledgements that arrived in it show that the rest will arrive in
time.
"""

from typing import Final

GRACE_MS: Final = 1_000
"""Default of the window. Clients send acknowledgements at least every 100 ms; the rest is for the application, which has to
work off what its client holds. It ends at once when everything sent is acknowledged."""

GRACE_MS_MAX: Final = 60_000
"""A ceiling on a requested window: no consumer gets messages during this time."""

GRACE_TOTAL_MS: Final = 10_000
"""All windows together, for consumers that do acknowledge: a third of the time that `magnetar failover` takes by default."""


def worth_waiting(before: int, left: int, window_ms: int, waited_ms: int) -> bool:
    """Whether another window will see the last acknowledgement, at the pace of this one.

    Args:
        before: messages in the consumers' hands when the window began.
        left: when it ended.
        window_ms: its length.
        waited_ms: since the fence.
    """
    came = before - left
    return came > 0 and (GRACE_TOTAL_MS - waited_ms) * came >= left * window_ms
