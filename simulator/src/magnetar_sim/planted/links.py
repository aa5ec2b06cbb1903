"""Planted bugs of links and storage (docs/design/links.md): each is a patch of the real code or of the pipeline."""

from typing import Any

from magnetar.core.ids import LinkCursor, Position
from magnetar.metadata.topic_records import TopicRecord
from magnetar.replication.link import chain
from magnetar.replication.link.chain import Verdict
from magnetar.replication.link.destination import LinkDestination
from magnetar.replication.link.link_topic import LinkTopic
from magnetar.replication.link.source import LinkSource
from magnetar.storage.ledgerids import LedgerIds
from magnetar.storage.topiclog import TopicLog
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_from_proto
from magnetar_sim.connections.pipeline import Link
from magnetar_sim.connections.ranges import Range

_judge, _advance, _load = chain.judge, chain.advance, TopicLog._load
_jumped, _rewound = LinkTopic.jumped, LinkTopic.rewound
_append, _forget, _handshake = LinkDestination.append, TopicRecord.watermark_positions, Link._handshake


def _judge_without_chain(pushed: Position, p: Position, positions: Any) -> Verdict:
    verdict = _judge(pushed, p, positions)
    return Verdict(0, 0, False) if verdict.refused else verdict


def _judge_without_watermark(pushed: Position, p: Position, positions: Any) -> Verdict:
    return Verdict(0, 0, False) if p <= pushed else _judge(pushed, p, positions)


def _advance_of_any_generation(cursor: LinkCursor, commit: LinkCursor) -> LinkCursor | None:
    moved = _advance(cursor._replace(gen=commit.gen), commit)
    return moved._replace(gen=cursor.gen) if moved is not None else None


def _answers_pushed(
    self: LinkDestination, connection: int, request: Any, payload: bytes, reply: Any, ask: Any, **more: Any
) -> None:
    topic = self._host.find(request.topic)
    if topic is not None and self.peers.known().get(request.source, ("",))[0] == request.uuid:
        positions = [Position(*pair) for pair in zip(request.ledgers, request.entries, strict=True)]
        pushed = topic.log.watermark_pushed(request.source)
        if (
            _judge(pushed, position_from_proto(request.p), positions).first_new is None
            and position_from_proto(request.p) <= pushed
        ):
            response = pb.CommandGeoAppendResponse(request_id=request.request_id)
            response.persisted.ledger, response.persisted.entry = pushed
            reply(response)
            return
    _append(self, connection, request, payload, reply, ask, **more)


def _refuses_pushed(
    self: LinkDestination, connection: int, request: Any, payload: bytes, reply: Any, ask: Any, **more: Any
) -> None:
    topic = self._host.find(request.topic)

    def refused(response: Any) -> None:
        if response.refused and topic is not None:
            response.persisted.ledger, response.persisted.entry = topic.log.watermark_pushed(request.source)
        reply(response)

    _append(self, connection, request, payload, refused, ask, **more)


def _rewinds_in_memory(self: LinkSource, state: LinkTopic, target: LinkCursor, stored: Any) -> None:
    durable = state.durable
    state.rewound(target)
    state.durable = durable
    self._topics.changed(state)
    stored("")


def _index_from_log(self: TopicLog, recovered: Any, saved: Any) -> None:
    _load(self, recovered, saved)
    self.next_index = recovered.next_index if recovered is not None else 0


def _next_id(self: LedgerIds, now_ms: int) -> int:
    self.last += 1
    return self.last


def _first_p_is_cursor(self: Range, p: Position) -> Position:
    return self.c if p == self.s else p


def _next_p_is_position(self: Range, position: Position, p: Position, *, sent: bool) -> Position:
    return position


def _last_was_sent(self: Range) -> Position:
    """S of a range that ends with what the filter kept back: without it the next range would begin again, and heal the link."""
    return self.position(len(self.data) - 1) if self.data else self.s


def _handshake_for_work(self: Link) -> None:
    if any(position_from_proto(one.cursor.c) < position_from_proto(one.last) for one in self._topics.values()):
        _handshake(self)
    else:
        self._shaken.update({name: (one.incarnation, one.cursor.gen) for name, one in self._topics.items()})


def _jumped_untouched(self: LinkTopic, target: LinkCursor) -> int:
    """What was stored while the jump was on its way is not counted."""
    before = self.gap, self.index
    _jumped(self, target)
    self.gap, self.index = before
    return 0


def _rewound_with_a_gap(self: LinkTopic, cursor: LinkCursor) -> int:
    """What is sent once more is declared as lost."""
    self.gap += self.index - self._index_at(cursor.c)
    return _rewound(self, cursor)


LINK = "magnetar_sim.connections.pipeline.Link"
RANGE = "magnetar_sim.connections.ranges.Range"
DESTINATION = "magnetar.replication.link.destination.LinkDestination"

LINKS: dict[str, dict[str, Any]] = {
    "no_chain": {"magnetar.replication.link.chain.judge": _judge_without_chain},
    "no_dedup": {"magnetar.replication.link.chain.judge": _judge_without_watermark},
    "p_is_cursor": {f"{RANGE}.first_p": _first_p_is_cursor},
    "p_is_previous_entry": {
        f"{RANGE}.next_p": _next_p_is_position,
        f"{RANGE}.sent_last": property(_last_was_sent),
    },
    "answer_pushed": {f"{DESTINATION}.append": _answers_pushed},
    "refuse_pushed": {f"{DESTINATION}.append": _refuses_pushed},
    "w_from_log_only": {"magnetar.metadata.topic_records.TopicRecord.watermark_positions": lambda _self: {}},
    "reuse_ledgers": {"magnetar.storage.ledgerids.LedgerIds.allocate": _next_id},
    "no_cursor_gen": {"magnetar.replication.link.chain.advance": _advance_of_any_generation},
    "rewind_volatile": {"magnetar.replication.link.source.LinkSource._rewind": _rewinds_in_memory},
    "read_unsynced": {"magnetar.runtime.log.thread.LogThread._split": lambda _self, batch: (batch, [])},
    "idx_from_log": {"magnetar.storage.topiclog.TopicLog._load": _index_from_log},
    "trim_volatile": {"magnetar.replication.link.link_topic.LinkTopic.low": property(lambda self: self.cursor.c)},
    "no_handshake": {f"{LINK}._handshake": _handshake_for_work},
    "any_incarnation": {f"{RANGE}.other_incarnation": lambda *_: False},
    "gap_of_nothing": {"magnetar.replication.link.link_topic.LinkTopic.rewound": _rewound_with_a_gap},
    "gap_not_recounted": {
        "magnetar.replication.link.link_topic.LinkTopic.recount": lambda _self: 0,
        "magnetar.replication.link.link_topic.LinkTopic.jumped": _jumped_untouched,
    },
}
