"""The lease of the broker that serves: how long it may serve without an answer of ZooKeeper.

Fences keep a former owner of a log from storing anything. They do not keep it from sending messages and from answering questions.
So an owner serves only while ZooKeeper has confirmed its node a short time ago (docs/design/cluster.md#lease).
"""

import math
from typing import Final

LEASE_PART: Final = 2 / 3
"""Part of a session after whose end the owner stops, counted from the sending of the last question that was answered."""

CHECKS: Final = 10
"""Times in a session at which the owner asks for its node."""


class Lease:
    """One broker's right to serve. Times are seconds of a clock that also counts while the process is stopped.

    One thread changes it; any thread may read it.

    Args:
        session_s: of ZooKeeper: the time from an owner's silence until another broker may take over.
        node: the path of the owner's node, for reports.

    Attributes:
        until_s: the broker serves until then; it has to compare this with the time before it handles anything.
    """

    def __init__(self, session_s: float, node: str) -> None:
        self.until_s = -math.inf
        self._session_s = session_s
        self._node = node
        self._lost = "it has not become the owner"

    @classmethod
    def endless(cls) -> "Lease":
        """The lease of a broker that no other one takes over from."""
        lease = cls(math.inf, "")
        lease.taken(0.0)
        return lease

    @property
    def pause_s(self) -> float:
        """Time between two questions."""
        return self._session_s / CHECKS

    def taken(self, asked_s: float) -> None:
        """The broker has become the owner.

        Args:
            asked_s: when the request was sent that made the node.
        """
        self._lost = ""
        self.until_s = asked_s + LEASE_PART * self._session_s

    def confirmed(self, asked_s: float, *, own: bool) -> None:
        """ZooKeeper has answered a question for the node.

        Args:
            asked_s: when the question was sent. The answer may be late, and the server counts the session from what it heard.
            own: whether the node is there and is that of this broker's session.
        """
        if self.lost(asked_s):
            return
        if own:
            self.until_s = asked_s + LEASE_PART * self._session_s
        else:
            self._end("its session of ZooKeeper is over, and another broker may own the log")

    def give_up(self) -> None:
        """The broker serves no longer."""
        if not self._lost:
            self._end("it has given up the log")

    def lost(self, now_s: float) -> str:
        """The reason why this broker must not serve; empty: it may."""
        if not self._lost and now_s > self.until_s:
            self._end(
                f"ZooKeeper has not confirmed for {LEASE_PART * self._session_s:.1f} s that {self._node} is its own"
            )
        return self._lost

    def _end(self, reason: str) -> None:
        self._lost = reason
        self.until_s = -math.inf
