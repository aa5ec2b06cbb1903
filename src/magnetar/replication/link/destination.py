"""The destination side of all links that lead here.

    handshake  GEO_WATERMARKS, see `replication.link.handshakes`
    append     GEO_APPEND: checks identity, policy, chain rule and every entry, and adds the origin to each entry. It is answered
               when the disk has the entries; a duplicate is answered when the disk has the first copy
               (docs/design/links.md#persisted-answers)
    failure    a failed append: everything in flight for that topic is answered `retry`, the pushed watermark is set back

The watermarks themselves are in the topic's log, which moves them with the entries. They may go *back* at a start, a failed
append and a deleted topic; handshakes show that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.core.errors import BrokerError, NameNotValid, ProtocolError
from magnetar.core.ids import NONE, Position
from magnetar.core.names import TopicName, check_cluster
from magnetar.effects.outbox import Outbox
from magnetar.replication.link import chain
from magnetar.replication.link.handshakes import Handshakes, WatermarksReply, name_of
from magnetar.replication.link.identity import SILENCE_MS, Peers, Standing
from magnetar.replication.link.incarnations import SourceIncarnations
from magnetar.replication.link.incoming import (
    Ahead,
    BlockedEntry,
    Stamp,
    UnknownSchemaVersion,
    append_ahead,
    check_lists,
    markers_before,
    prepare,
    wanted,
)
from magnetar.replication.link.ports import DestinationHost, DestinationTopic
from magnetar.replication.link.schemas import Ask, SchemaHost, SchemaTranslator, Translation
from magnetar.storage.entries import Append, NewEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.idempotency_keys import Found
from magnetar.wire.positions import position_from_proto

PENDING_BYTES_MAX: Final = 64 << 20
"""Back-pressure: more bytes of links than this on their way to the disk, and links are asked to wait."""

THROTTLE_MS: Final = 50
"""How long they are asked to wait: a few group commits."""

MESSAGE_BYTES_MAX: Final = 5 << 20

AppendReply = Callable[[pb.CommandGeoAppendResponse], None]


@dataclass(slots=True)
class _Waiting:
    """An append that is answered when `position` is persisted."""

    connection: int
    position: Position
    response: pb.CommandGeoAppendResponse
    reply: AppendReply


@dataclass(slots=True)
class _Coming:
    """One GEO_APPEND; `duplicates` is None until it was judged for the first time; `whole`: see `append`."""

    connection: int
    request: pb.CommandGeoAppend
    payload: bytes
    positions: list[Position]
    translation: Translation
    reply: AppendReply
    ask: Ask
    whole: bool = True
    duplicates: int | None = None
    ahead: Ahead = field(default_factory=Ahead)


class LinkDestination:
    """All incoming links.

    Args:
        outbox: the broker's.
        cluster, uuid: this one.
        host: the broker.
        boot: clock at this broker's start, ms; never the same twice.
        schemas: the registry; None: there is none, and schema versions are left out of what comes.
        message_bytes_max, silence_ms, pending_bytes_max: limits.

    Attributes:
        peers: which clusters own their names.
        incarnations: of topics at their sources.
        refusals: topics that were refused.
        schemas: requests that wait for schemas, and known schema versions.
        pending_bytes: of links, on their way to the disk.
        incoming: entries, messages and bytes stored since this broker's start, by source cluster.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        cluster: str,
        uuid: str,
        host: DestinationHost,
        boot: int,
        schemas: SchemaHost | None = None,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        silence_ms: int = SILENCE_MS,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        self._cluster = cluster
        self._host = host
        self.peers = Peers(outbox, silence_ms)
        self.incarnations = SourceIncarnations(host)
        self._handshakes = Handshakes(
            outbox, cluster=cluster, uuid=uuid, host=host, peers=self.peers, incarnations=self.incarnations, boot=boot
        )
        self.refusals = self._handshakes.refusals
        self.pending_bytes = 0
        self.incoming: dict[str, dict[str, int]] = {}
        self._message_bytes_max = message_bytes_max
        self._pending_bytes_max = pending_bytes_max
        self._stamps: dict[str, Stamp] = {}
        self._waiting: dict[tuple[str, str], list[_Waiting]] = {}
        self._flying: dict[tuple[str, str], list[Position]] = {}
        self.schemas = SchemaTranslator(outbox, cluster, schemas, lambda source: self._stamps[source].field)

    def load(self, stored: Mapping[str, bytes]) -> None:
        """Take the metadata store's content at start."""
        self.peers.load(stored)

    # -------------------------------------------------------------------------------------------------------- handshake

    @property
    def counter(self) -> int:
        """Raised whenever a watermark may have gone back."""
        return self._handshakes.counter

    def watermarks(
        self, request: pb.CommandGeoWatermarks, reply: WatermarksReply, *, narrow: str = "", connection: int = 0
    ) -> None:
        """GEO_WATERMARKS; see `Handshakes.watermarks`."""
        self._handshakes.watermarks(request, reply, narrow=narrow, connection=connection)

    # ----------------------------------------------------------------------------------------------------------- append

    def append(
        self,
        connection: int,
        request: pb.CommandGeoAppend,
        payload: bytes,
        reply: AppendReply,
        ask: Ask,
        *,
        whole: bool = True,
    ) -> None:
        """GEO_APPEND. `reply` is called once, now or when the disk has answered; `ask`, for schemas, before that.

        Args:
            connection, request, payload, reply, ask: of the link.
            whole: it may replicate everything. Else that it sends does not show that its source is alive.

        Raises:
            ProtocolError: the peer is no link of ours: lists that do not fit, positions out of order, forged entries.
        """
        positions = check_lists(request, len(payload))
        name = name_of(request.topic)
        translation = self.schemas.translation(
            request.topic, name, request.source, request.uuid, request.schema_numbering
        )
        coming = _Coming(connection, request, payload, positions, translation, reply, ask, whole)
        if not self.schemas.waits(translation.key):
            self._judge(coming)
            return
        response = pb.CommandGeoAppendResponse(request_id=request.request_id)
        if self._kept_out(name, coming, response):
            response.persisted.ledger, response.persisted.entry = self._persisted_of(request)
            reply(response)
        else:
            self.schemas.behind(connection, translation, len(payload), lambda: self._judge_late(coming), whole=whole)

    def _judge_late(self, coming: _Coming) -> None:
        """A request that had to wait: its sender can no longer get a ProtocolError, so the answer says what is wrong."""
        try:
            self._judge(coming)
        except ProtocolError as error:
            response = pb.CommandGeoAppendResponse(request_id=coming.request.request_id, blocked="corrupt")
            response.persisted.ledger, response.persisted.entry = self._persisted_of(coming.request)
            response.reason = str(error)
            coming.reply(response)

    def _persisted_of(self, request: pb.CommandGeoAppend) -> Position:
        topic = self._host.find(request.topic)
        return topic.log.watermark(request.source) if topic is not None else NONE

    def _judge(self, coming: _Coming) -> None:
        request, positions = coming.request, coming.positions
        response = pb.CommandGeoAppendResponse(request_id=request.request_id)
        topic = self._host.find(request.topic)
        log = topic.log if topic is not None else None
        persisted = log.watermark(request.source) if log is not None else NONE
        response.persisted.ledger, response.persisted.entry = persisted
        if self._kept_out(coming.translation.name, coming, response):
            coming.reply(response)
            return
        if topic is not None and self.incarnations.uuid_of(request.topic, request.source) != request.uuid:
            # Which of two incarnations is the present one, only a handshake shows: a task of the former may come late.
            self.incarnations.seen(request.topic, request.source, request.uuid, request.incarnation)
        if topic is None or log is None:
            # Its content, if any, is lost: the handshake creates it again, and its answer shows that to the source.
            response.refused = True
            coming.reply(response)
            return
        verdict = chain.judge(log.watermark_pushed(request.source), position_from_proto(request.p), positions)
        if coming.duplicates is None:
            coming.duplicates = verdict.duplicates
        response.duplicates = coming.duplicates
        if verdict.refused:
            response.refused = True
            coming.reply(response)
            return
        end = positions[-1]
        if verdict.first_new is not None:
            entries, obstacle = self._prepare(coming, verdict.first_new)
            if topic.terminated:
                entries, obstacle = markers_before(
                    entries, obstacle, f"{request.topic} was terminated in {self._cluster}"
                )
            entries, long = coming.ahead.split(topic.idempotency, entries)
            stored = self._store(topic, coming, entries, response) if entries else True
            if not stored:
                coming.reply(response)
                return
            if long is not None:
                self._open_ahead(topic, coming, long)
                return
            if isinstance(obstacle, UnknownSchemaVersion):
                if self._has_to_wait(coming, obstacle, response):
                    return
                end = _end(positions, verdict.first_new + len(entries))
            elif obstacle is not None:
                end = _end(positions, verdict.first_new + len(entries))
                self._blocked_by(response, obstacle)
        if end <= log.watermark(request.source):
            coming.reply(response)
            return
        key = (request.topic, request.source)
        self._waiting.setdefault(key, []).append(_Waiting(coming.connection, end, response, coming.reply))

    def _open_ahead(self, topic: DestinationTopic, coming: _Coming, entry: NewEntry) -> None:
        """A batch is too large to be searched for idempotency keys on the event loop: it waits, and later requests queue."""
        assert topic.idempotency is not None
        go_on = self.schemas.hold(
            coming.connection,
            coming.translation,
            len(coming.payload),
            lambda: self._judge_late(coming),
            whole=coming.whole,
        )

        def opened(found: Found) -> None:
            coming.ahead.found, coming.ahead.at = found, entry.source
            go_on()

        topic.idempotency.open_ahead(entry, opened)

    def _has_to_wait(
        self, coming: _Coming, unknown: UnknownSchemaVersion, response: pb.CommandGeoAppendResponse
    ) -> bool:
        """An entry's schema version means nothing here: park the request, unless that was of no use just now."""
        translation = coming.translation
        if translation.trouble:
            response.retry, response.reason = True, translation.trouble
            return False
        versions = wanted(coming.request, coming.payload, unknown, translation)
        size = len(coming.payload)
        self.schemas.park(
            coming.connection,
            translation,
            size,
            versions,
            coming.ask,
            lambda: self._judge_late(coming),
            whole=coming.whole,
        )
        return True

    def _kept_out(self, name: TopicName, coming: _Coming, response: pb.CommandGeoAppendResponse) -> bool:
        """Identity, policy and room, which do not depend on the entries."""
        request = coming.request
        standing = self.peers.standing(request.source, request.uuid, trusted=coming.whole)
        if standing in (Standing.CONFLICT, Standing.SUPERSEDED):
            response.blocked, response.reason = "identity", self.peers.explain(request.source, request.uuid)
            return True
        if standing is not Standing.KNOWN:
            response.retry, response.reason = (
                True,
                f"cluster {request.source} ({request.uuid}) has to shake hands first",
            )
            return True
        reason = self._host.refuses_entries(name, request.source, request.incarnation)
        if reason:
            response.blocked, response.reason = "policy", reason
            return True
        pending = self.schemas.pending(self.pending_bytes, whole=coming.whole)
        if pending >= self._pending_bytes_max:
            response.retry, response.throttle_ms = True, THROTTLE_MS
            response.reason = f"{pending} bytes of links are on their way to the disk"
            return True
        return False

    def _prepare(
        self, coming: _Coming, first: int
    ) -> tuple[list[NewEntry], BlockedEntry | UnknownSchemaVersion | None]:
        request = coming.request
        stamp = self._stamps.get(request.source)
        if stamp is None:
            if request.source == self._cluster:
                raise ProtocolError(f"a link from {self._cluster} to itself")
            try:
                stamp = self._stamps[request.source] = Stamp(check_cluster(request.source))
            except NameNotValid as error:
                raise ProtocolError(str(error)) from None
        self.schemas.look(coming.translation)
        made = prepare(
            request, coming.payload, coming.positions, first, stamp, self._message_bytes_max, coming.translation
        )
        self.schemas.note_dropped(coming.translation)
        return made

    def _blocked_by(self, response: pb.CommandGeoAppendResponse, obstacle: BlockedEntry) -> None:
        response.blocked, response.reason = obstacle.kind, obstacle.reason
        response.position.ledger, response.position.entry = obstacle.position
        if obstacle.conflict is not None:
            response.conflict.CopyFrom(obstacle.conflict)

    def _store(
        self,
        topic: DestinationTopic,
        coming: _Coming,
        entries: list[NewEntry],
        response: pb.CommandGeoAppendResponse,
    ) -> bool:
        name, source = coming.request.topic, coming.request.source
        size = sum(len(entry.data) for entry in entries)
        flying, last = self._flying.setdefault((name, source), []), entries[-1].source

        def outcome(append: Append, error: str) -> None:
            self.pending_bytes -= size
            flying.remove(last)
            if error:
                self._failed(name, error)
            else:
                counters = self.incoming.setdefault(source, {"entries": 0, "messages": 0, "bytes": 0})
                messages = sum(entry.count for entry in entries)
                counters["entries"] += len(entries)
                counters["messages"] += messages
                counters["bytes"] += size
                self._host.stored(name, source, coming.connection, messages, size)
                self._persisted(name, source, topic.log.watermark(source))

        try:
            append_ahead(topic, coming.ahead, entries, outcome, marker=topic.terminated)
        except BrokerError as error:
            _unblock(response)
            response.retry, response.reason = True, error.message
            return False
        self.pending_bytes += size
        flying.append(last)
        return True

    def _persisted(self, topic: str, source: str, watermark: Position) -> None:
        """Answer the appends that are durable now."""
        waiting = self._waiting.get((topic, source))
        if not waiting:
            return
        still = [one for one in waiting if one.position > watermark]
        if still:
            self._waiting[topic, source] = still
        else:
            del self._waiting[topic, source]
        for one in waiting:
            if one.position <= watermark:
                one.response.persisted.ledger, one.response.persisted.entry = watermark
                one.reply(one.response)

    def _failed(self, topic: str, error: str) -> None:
        """Nothing in flight for a topic will be durable: its log fell back already."""
        self._handshakes.watermark_fell()
        found = self._host.find(topic)
        for key in [key for key in self._waiting if key[0] == topic]:
            persisted = found.log.watermark(key[1]) if found is not None else NONE
            for one in self._waiting.pop(key):
                one.response.persisted.ledger, one.response.persisted.entry = persisted
                _unblock(one.response)
                one.response.retry, one.response.reason = True, error
                one.reply(one.response)

    def disconnected(self, connection: int) -> None:
        """A connection is gone, and its answers with it. Its appends are stored all the same, except for those that wait."""
        self.schemas.disconnected(connection)
        self.refusals.disconnected(connection)
        for key in list(self._waiting):
            left = [one for one in self._waiting[key] if one.connection != connection]
            if left:
                self._waiting[key] = left
            else:
                del self._waiting[key]

    def removed(self, topic: str) -> None:
        """A topic was deleted here: its watermarks went with it."""
        self._failed(topic, f"topic {topic} was deleted")
        self.schemas.removed(topic)
        self.incarnations.removed(topic)
        for key in [key for key in self._flying if key[0] == topic]:
            del self._flying[key]

    # ----------------------------------------------------------------------------------------------------------- status

    def status(self) -> dict[str, dict[str, Any]]:
        """Per source cluster: uuid, since, last seen, what came since this broker's start; schemas that were got or made for
        its link, and entries whose schema version their source could not explain.
        """
        nothing = {"entries": 0, "messages": 0, "bytes": 0}
        return {
            source: {
                "uuid": uuid,
                "since_ms": since,
                "seen_ms": seen,
                **self.incoming.get(source, nothing),
                "schemas": self.schemas.learnt[source],
                "schemas_dropped": self.schemas.dropped[source],
            }
            for source, (uuid, since, seen) in self.peers.known().items()
        }

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self.pending_bytes >= 0
        self.schemas.validate()
        for (topic, source), waiting in self._waiting.items():
            found = self._host.find(topic)
            if found is None:
                continue  # it is being deleted: `removed` will answer them
            # Not the staged watermark: of one failure that comes as several events, the log falls back in the first.
            persisted, end = found.log.watermark(source), max(self._flying.get((topic, source), ()), default=NONE)
            for one in waiting:
                assert persisted < one.position <= end, f"{topic}: an answer for {one.position} will never come"


def _end(positions: list[Position], count: int) -> Position:
    """The last of the first `count` positions."""
    return positions[count - 1] if count else NONE


def _unblock(response: pb.CommandGeoAppendResponse) -> None:
    """Drop the obstacle found after an append when the append itself failed: it is not news then."""
    for name in ("blocked", "position", "conflict"):
        response.ClearField(name)
