"""Acknowledgements made here that are in no update yet: how many, and since when."""

from typing import Final, NamedTuple

from magnetar.core.ids import NONE, Position
from magnetar.replication.marker_host import Acked
from magnetar.replication.snapshots.state import State
from magnetar.storage.topiclog import TopicLog

UNREPORTED_MAX: Final = 1_000
"""Acknowledgements remembered that no update has reported; of more every two become one, which only makes times coarser."""


class _Piece(NamedTuple):
    """Acknowledged at about the same time: messages with after < position <= up_to."""

    after: Position
    up_to: Position
    messages: int
    at_ms: int


class Unreported:
    """Acknowledgements of one subscription here that are in no update yet. For statistics; no decision depends on them.

    Args:
        log: of the topic.
        state: of the subscription; how far updates have reported, and how many seeks there were, is read there.
    """

    def __init__(self, log: TopicLog, state: State) -> None:
        self._log = log
        self.state = state
        self._turn, self._reported = state.turn, state.reported
        self._pieces: list[_Piece] = []

    def acknowledged(self, acked: Acked, now_ms: int) -> None:
        """A consumer or operator here acknowledged something."""
        positions = [*acked.entries, *acked.partial]
        afters = [Position(ledger, entry - 1) for ledger, entry in positions]
        if acked.up_to != NONE:
            positions.append(acked.up_to)
            afters.append(acked.after)
        if positions:
            self.add(min(afters), max(positions), acked.messages(self._log), now_ms)

    def add(self, after: Position, up_to: Position, messages: int, now_ms: int) -> None:
        """Messages with after < position <= up_to."""
        self._forget_reported()
        if messages:
            self._pieces.append(_Piece(after, up_to, messages, now_ms))
        if len(self._pieces) > UNREPORTED_MAX:
            # Neighbours, so that the newest stay apart and none grows while acknowledgements continue.
            self._pieces = [
                _Piece(min(a.after, b.after), max(a.up_to, b.up_to), a.messages + b.messages, a.at_ms)
                for a, b in zip(self._pieces[::2], self._pieces[1::2], strict=False)
            ] + self._pieces[len(self._pieces) // 2 * 2 :]

    def _forget_reported(self) -> None:
        """Forget those reported since the last call; after a seek all, as nothing from before is reported from then on."""
        reported, between = self.state.reported, self._log.messages_between
        if self._turn != self.state.turn:
            self._pieces = []
        elif reported > self._reported:
            self._pieces = [
                one
                if one.after >= reported
                else one._replace(after=reported, messages=min(one.messages, between(reported, one.up_to)))
                for one in self._pieces
                if one.up_to > reported
            ]
        self._turn, self._reported = self.state.turn, reported

    def look(self) -> tuple[int, int]:
        """How many messages, at most, and when the first of them was acknowledged; (0, 0) for none."""
        self._forget_reported()
        return sum(one.messages for one in self._pieces), self._pieces[0].at_ms if self._pieces else 0
