"""The metadata store of one life of a broker: the real file of states, without its thread; and what must be in it later."""

import random
from collections.abc import Callable, Mapping

from magnetar.runtime.stores.state_file import StateFile
from magnetar.runtime.stores.writes import Write
from magnetar_sim.clock import Clock
from magnetar_sim.disk import PowerCut, Reports, Turns
from magnetar_sim.memory.records import Violation

Done = Callable[[str], None]

Pieces = tuple[Mapping[str, bytes], tuple[str, ...]]


class Expected:
    """What the next owner has to find: all that was answered, and perhaps what was not.

    Attributes:
        keys: of all writes that were answered as stored.
        unanswered: the writes that are being stored: all or nothing of each, and none after one that is not.
    """

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}
        self.unanswered: list[Pieces] = []
        self._kept: list[Pieces] = []

    def begun(self, pieces: list[Pieces]) -> None:
        """These are being stored; not if the fate of others is unknown, because the file takes nothing before that is known."""
        self.unanswered = self.unanswered or pieces

    def answered(self, pieces: list[Pieces]) -> None:
        """These are stored."""
        self.unanswered = []
        for puts, deletes in pieces:
            _apply(self.keys, puts, deletes)

    def found(self, stored: Mapping[str, bytes], who: str) -> None:
        """A new owner has read them. Raises Violation: they are others."""
        keys = dict(self.keys)
        kept = [0] if keys == stored else []
        for number, (puts, deletes) in enumerate(self.unanswered, 1):
            _apply(keys, puts, deletes)
            if keys == stored:
                kept.append(number)
        if not kept:
            wrong = [key for key in {*stored, *self.keys} if stored.get(key) != self.keys.get(key)]
            raise Violation(f"{who} finds other states than were stored; first of them: {min(wrong)}")
        # A former owner may learn of its writes after more than one takeover.
        self._kept += self.unanswered[: kept[-1]]
        self.keys, self.unanswered = dict(stored), []

    def late(self, pieces: list[Pieces]) -> None:
        """A former owner learns that its writes are stored. Raises Violation: the new one has not found them."""
        if not all(one in self._kept for one in pieces):
            raise Violation("a former owner stores states after another one has taken the log")


def _apply(keys: dict[str, bytes], puts: Mapping[str, bytes], deletes: tuple[str, ...]) -> None:
    for key in deletes:
        keys.pop(key, None)
    keys.update(puts)


class LedgerStore:
    """`StateStore` (`magnetar_sim.disk`).

    Args:
        clock, rng: the world's.
        states: the file.
        expected: learns what was answered.
        slow_ms: the longest time from a submit to its commit, and from there to its answer.
        reports: makes an event of an answer.
        holds: see `Turns`.
        current: whether this process is the one that has taken the log last.
        lost: why the log is no longer this process's, or "".

    Attributes:
        closing: the broker ends, and no longer waits until the file can be written.
    """

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        states: StateFile,
        expected: Expected,
        slow_ms: int,
        reports: Reports,
        holds: Callable[[], bool],
        current: Callable[[], bool],
        lost: Callable[[], str],
    ) -> None:
        self._rng, self._states, self._slow_ms = rng, states, slow_ms
        self._expected, self._answer = expected, reports.answered
        self._turns = Turns(clock, holds, reports.power_cut)
        self._current, self._lost = current, lost
        self._waiting: list[tuple[Write, Done | None]] = []
        self._due = False
        self._whole = True
        self.closing = False

    @property
    def over(self) -> bool:
        """The life has ended."""
        return self._turns.over

    @property
    def idle(self) -> bool:
        """Nothing waits."""
        return not self._waiting

    def submit(self, puts: dict[str, bytes], deletes: tuple[str, ...], done: Done | None) -> None:
        """See `StateStore`."""
        self._waiting.append((Write(dict(puts), deletes, None, lambda _failure: None), done))
        if not self._due:
            self._due = True
            self._turns.after(int(self._rng.random() * self._slow_ms), self._round)

    def _round(self) -> None:
        self._due = False
        self._commit()

    def _commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        group: list[Pieces] = [(write.puts, write.deletes) for write, _ in waiting]
        if self._current():
            self._expected.begun(group)
        made, failures = self._states.commit([write for write, _ in waiting])
        error = str(next(filter(None, failures), ""))
        if not self._current():
            if made:
                self._expected.late(group)
        elif not error:
            self._expected.answered(group)
        elif not self.closing and not self._lost():
            self._expected.unanswered = []  # it is not stored and never will be
        self._whole = self._whole and not error
        for _, done in waiting:
            if done is not None:
                self._answer(done, error)
        self._states.renew()

    def finish(self) -> bool:
        """See `StateStore`."""
        if self.over:
            return False
        self.closing = True
        try:
            self._commit()
            self._states.close()
        except PowerCut:
            self._whole = False
        self._turns.end()
        return self._whole

    def power_cut(self) -> None:
        """See `StateStore`."""
        self._turns.end()
