"""Planted bugs of long batches (docs/design/pipeline.md#long-batches): patches of the source's session and of the pipeline.

The worlds of single machines (`tests/property/test_fetch_worlds.py`) plant those of the session as well.
"""

from typing import Any

from magnetar.core.ids import Position
from magnetar.pipeline.link_state import LinkState
from magnetar.pipeline.long.grants import Wanted
from magnetar.pipeline.pipeline_state import PipelineState
from magnetar.replication.link.fetching import FetchSession

_begin, _add_part, _fetch = FetchSession._begin, FetchSession._add_part, FetchSession.fetch
_wanted = PipelineState._wanted


def begin_behind_sent(session: FetchSession, *arguments: Any) -> None:
    """Another reader continues after what the former one was handed out."""
    sent = _sent(session)
    _begin(session, *arguments)
    _continue(session, sent)


def _begin_at_plan(session: FetchSession, *arguments: Any) -> None:
    """The next batch begins where a plan would say: behind what was handed out when it was planned."""
    sent, epoch = _sent(session), session._reader.epoch
    _begin(session, *arguments)
    if session._reader.epoch != epoch:
        _continue(session, sent)


def _sent(session: FetchSession) -> dict[str, Position | None]:
    return {topic: granted.sent for topic, granted in session.grants.items()}


def _continue(session: FetchSession, sent: dict[str, Position | None]) -> None:
    for topic, granted in session.grants.items():
        granted.sent = sent[topic]


def add_part_without_p(session: FetchSession, topic: str, granted: Any, read: Any, _p: Any) -> None:
    """The first part for a reader does not say what its entries come after."""
    _add_part(session, topic, granted, read, None)


def fetch_for_the_superseded(session: FetchSession, connection: int, request: Any, reply: Any, refusal: Any) -> None:
    """A superseded reader gets entries as the present one does."""
    present = session._reader
    if request.pipeline == session.pipeline and (request.epoch < present.epoch or request.reader in session._former):
        request.epoch, request.reader, connection = present.epoch, present.number, present.connection
    _fetch(session, connection, request, reply, refusal)


def _may_compare_while_granted(_self: PipelineState, state: LinkState, name: str, now_ms: int) -> bool:
    topic = state.topics[name]
    return topic.retry_at_ms <= now_ms and (not state.flying or bool(state.target_uuid and not topic.planned))


def _wanted_while_compared(self: PipelineState, state: LinkState, name: str, now_ms: int) -> Wanted:
    """A grant is not revoked because its topic has to be compared."""
    topic = state.topics.get(name)
    if topic is not None and name in state.unready and self._carried(state, name):
        return Wanted(0, topic.incarnation, topic.cursor.gen)
    return _wanted(self, state, name, now_ms)


SESSION = "magnetar.replication.link.fetching.FetchSession"
STATE = "magnetar.pipeline.pipeline_state.PipelineState"

LONG_BATCHES: dict[str, dict[str, Any]] = {
    "any_grant": {f"{SESSION}.counts": lambda *_: True},
    "no_revocation": {f"{STATE}._may_compare": _may_compare_while_granted, f"{STATE}._wanted": _wanted_while_compared},
    "begins_behind_sent": {f"{SESSION}._begin": begin_behind_sent},
    "begins_at_plan": {f"{SESSION}._begin": _begin_at_plan},
    "superseded_is_answered": {f"{SESSION}.fetch": fetch_for_the_superseded},
    "no_p": {f"{SESSION}._add_part": add_part_without_p},
}
