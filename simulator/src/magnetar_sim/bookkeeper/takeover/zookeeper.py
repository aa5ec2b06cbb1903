"""ZooKeeper as the brokers of one cluster see it: sessions, the node of the owner, the record of the chain, servers that lag."""

import random
from collections.abc import Callable
from typing import Final

from magnetar.runtime.bookkeeper.ledgers import VersionConflict
from magnetar_sim.clock import Clock

SESSION_MS: Final = 4_000
TOUCH_MS: Final = 1_000
"""How often a server reports to the leader of which sessions it has heard. What it has not reported dies with it."""


class ZooKeeper:
    """All nodes of a cluster, and who waits for them.

    Args:
        clock, rng: the world's.

    Attributes:
        data, version: of the record.
        owner: the session whose node says that it serves; -1: there is none.
        lagging: sessions whose server the others do not reach, each with the owner that it still shows.
        lossy: watches may be lost.
    """

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock, self._rng = clock, rng
        self.data, self.version = b"", -1
        self.owner = -1
        self.lagging: dict[int, int] = {}
        self.lossy = False
        self._until_ms: dict[int, int] = {}
        self._watches: list[Callable[[], None]] = []

    # -------------------------------------------------------------------------------------------------------- sessions

    def connect(self) -> int:
        """A new session."""
        session = len(self._until_ms)
        self._until_ms[session] = 0
        self.heard(session)
        self._look(session)
        return session

    def alive(self, session: int) -> bool:
        """Whether it has not ended."""
        return self._until_ms[session] >= 0

    def heard(self, session: int) -> None:
        """The leader learns that a session lives, if its server reaches it."""
        if self.alive(session) and session not in self.lagging:
            at_ms = self._clock.now_ms - int(self._rng.random() * TOUCH_MS)
            self._until_ms[session] = max(self._until_ms[session], at_ms + SESSION_MS)

    def close(self, session: int) -> None:
        """A session ends, and its node goes."""
        if self.alive(session):
            self._until_ms[session] = -1
            if self.owner == session:
                self.owner = -1
                watches, self._watches = self._watches, []
                for watch in watches:
                    if not (self.lossy and self._rng.random() < 0.5):
                        self._clock.after(int(self._rng.random() * self._rng.choice((5, 500))), watch)

    def _look(self, session: int) -> None:
        left_ms = self._until_ms[session] - self._clock.now_ms
        if self._until_ms[session] < 0:
            return
        if left_ms <= 0:
            self.close(session)
        else:
            self._clock.after(left_ms, self._look, session)

    def part(self, session: int, ms: int) -> None:
        """The server of a session reaches the others no longer, for a while; it answers from what it had."""
        if self.alive(session) and session not in self.lagging:
            self.lagging[session] = self.owner
            self._clock.after(ms, self.lagging.pop, session, None)

    def heal(self) -> None:
        """All servers reach each other, and no watch is lost."""
        self.lagging.clear()
        self.lossy = False

    # ----------------------------------------------------------------------------------------------------------- nodes

    def become_owner(self, session: int) -> bool:
        """Make the node of the owner; whether there was none."""
        if self.owner >= 0 or not self.alive(session):
            return False
        self.owner = session
        return True

    def watch(self, changed: Callable[[], None]) -> bool:
        """Whether there is an owner; if so, its end is reported, late or never."""
        if self.owner < 0:
            return False
        self._watches.append(changed)
        return True

    def shown(self, session: int) -> int:
        """The owner, as the server of a session has it."""
        return self.lagging.get(session, self.owner)

    def write(self, data: bytes, version: int) -> int:
        """Compare and set. Raises VersionConflict."""
        if version != self.version:
            raise VersionConflict
        self.data, self.version = data, version + 1
        return self.version
