"""The destination side of all links that lead here.

    handshake  GEO_WATERMARKS: who are you; your topics exist here from now on; this is what is persisted of each
    append     GEO_APPEND: identity, policy, chain rule, every entry checked and stamped with where it came from; answered
               when the disk has it, and a duplicate when the disk has the first copy (FINDINGS A4)
    failure    a failed append: everything in flight for that topic is answered `retry`, the pushed watermark falls back

The watermarks themselves live in the topic's log, which moves them with the entries. The change counter is raised
whenever one of them may have gone *back* (start, failed append, deleted topic); as long as it stands still, a source need
not compare anything. It begins at the boot time, so that two starts never share a number.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from magnetar.broker.effects import Outbox
from magnetar.core.errors import BrokerError, NameNotValid, ProtocolError
from magnetar.core.ids import NONE, Position
from magnetar.core.names import PARTITIONS_MAX, TopicName, check_cluster
from magnetar.geo import chain
from magnetar.geo.identity import SILENCE_MS, Peers, Standing
from magnetar.geo.incoming import Obstacle, Stamp, check_lists, prepare
from magnetar.geo.reading import place
from magnetar.storage.entries import Append, NewEntry
from magnetar.storage.topiclog import TopicLog
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import Mark, read_marks

PENDING_BYTES_MAX: Final = 64 << 20
"""Back-pressure: more bytes of links than this on their way to the disk, and links are asked to wait."""

THROTTLE_MS: Final = 50
"""How long they are asked to wait: a few group commits."""

MESSAGE_BYTES_MAX: Final = 5 << 20
_COUNTER_SHIFT: Final = 20

AppendReply = Callable[[pb.CommandGeoAppendResponse], None]
WatermarksReply = Callable[[pb.CommandGeoWatermarksResponse], None]


class DestinationTopic(Protocol):
    """A topic here (`broker.topic.Topic`)."""

    log: TopicLog

    def append(
        self, entries: list[NewEntry], token: Callable[[Append, str], None], *, durable: bool | None = None
    ) -> Append:
        """Send entries on their way; `token(append, error)` tells the outcome. Raises BrokerError when it cannot be now."""
        ...


class DestinationHost(Protocol):
    """The broker, as links see it."""

    def find(self, topic: str) -> DestinationTopic | None:
        """A topic that exists here."""
        ...

    def refuses(self, topic: TopicName, source: str) -> str:
        """Why entries of a cluster may not come into a topic: namespace missing, cluster not allowed, topic deleted here.

        One line with the command to run; "" when they may.
        """
        ...

    def partitions(self, topic: TopicName) -> int | None:
        """Partitions of a topic (not of one partition): 0 if it is not partitioned, None if there is no such topic."""
        ...

    def create(self, topic: TopicName, partitions: int, then: Callable[[str], None]) -> None:
        """Make a topic (0 partitions), or a partitioned one with all its partitions, or grow it; whatever exists stays.

        Auto-creation settings do not matter. `then("")` when it is durable. Handshakes overlap: calls for a topic that is
        just being made must join it, for a second record stored over the first would forget its watermarks.
        """
        ...


@dataclass(slots=True)
class _Waiting:
    """An append that is answered when `position` is persisted."""

    connection: int
    position: Position
    response: pb.CommandGeoAppendResponse
    reply: AppendReply


class LinkDestination:
    """All incoming links.

    Args:
        outbox: the broker's.
        cluster, uuid: this one.
        host: the broker.
        boot: clock at this broker's start, ms; never the same twice.
        message_bytes_max, silence_ms, pending_bytes_max: limits.

    Attributes:
        on_heard: told of a topic, a source cluster, and whether its link began anew, when that is news.
        on_retained: told of a topic that is here, and what origins retain of their own as a link's source knows it.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        cluster: str,
        uuid: str,
        host: DestinationHost,
        boot: int,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        silence_ms: int = SILENCE_MS,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        self.cluster, self.uuid = cluster, uuid
        self.counter = boot << _COUNTER_SHIFT
        self.peers = Peers(outbox, silence_ms)
        self.pending_bytes = 0
        self.incoming: dict[str, dict[str, int]] = {}
        self._outbox = outbox
        self._host = host
        self._message_bytes_max = message_bytes_max
        self._pending_bytes_max = pending_bytes_max
        self._stamps: dict[str, Stamp] = {}
        self._waiting: dict[tuple[str, str], list[_Waiting]] = {}
        self._heard: dict[tuple[str, str], tuple[str, int]] = {}
        self._flying: dict[tuple[str, str], list[Position]] = {}
        self.on_heard: Callable[[str, str, bool], None] = _nobody
        self.on_retained: Callable[[str, tuple[Mark, ...]], None] = lambda _topic, _marks: None

    def load(self, stored: Mapping[str, bytes]) -> None:
        """Take the metadata store's content at start."""
        self.peers.load(stored)

    # ----------------------------------------------------------------------------------------------------------- append

    def append(self, connection: int, request: pb.CommandGeoAppend, payload: bytes, reply: AppendReply) -> None:
        """GEO_APPEND. `reply` is called once, now or when the disk has answered.

        Raises:
            ProtocolError: the peer is no link of ours: lists that do not fit, positions out of order, forged entries.
        """
        positions = check_lists(request, len(payload))
        response = pb.CommandGeoAppendResponse(request_id=request.request_id)
        topic = self._host.find(request.topic)
        log = topic.log if topic is not None else None
        before = self._heard.get((request.topic, request.source))
        persisted = log.watermark(request.source) if log is not None else NONE
        response.persisted.ledger, response.persisted.entry = persisted
        if self._kept_out(request, response):
            reply(response)
            return
        if topic is not None and before != (request.uuid, request.incarnation):
            self._hear(request.topic, request.source, request.uuid, request.incarnation)
        if topic is None or log is None:
            # What it had, if anything, is lost: the handshake makes it anew and tells the source so.
            response.refused = True
            reply(response)
            return
        verdict = chain.judge(log.watermark_staged(request.source), place(request.p), positions)
        response.duplicates = verdict.duplicates
        if verdict.refused:
            response.refused = True
            reply(response)
            return
        end = positions[-1]
        if verdict.first_new is not None:
            entries, obstacle = self._prepare(request, payload, positions, verdict.first_new)
            if obstacle is not None:
                end = positions[verdict.first_new + len(entries) - 1] if verdict.first_new + len(entries) else NONE
                self._blocked_by(response, obstacle)
            if entries and not self._store(topic, request, entries, response):
                reply(response)
                return
        if end <= log.watermark(request.source):
            reply(response)
            return
        key = (request.topic, request.source)
        self._waiting.setdefault(key, []).append(_Waiting(connection, end, response, reply))

    def _kept_out(self, request: pb.CommandGeoAppend, response: pb.CommandGeoAppendResponse) -> bool:
        """Identity, policy and room, which do not depend on the entries."""
        standing = self.peers.standing(request.source, request.uuid)
        if standing in (Standing.RIVAL, Standing.FORMER):
            response.blocked, response.reason = "identity", self.peers.explain(request.source, request.uuid)
            return True
        if standing is not Standing.KNOWN:
            response.retry, response.reason = (
                True,
                f"cluster {request.source} ({request.uuid}) has to shake hands first",
            )
            return True
        reason = self._host.refuses(self._name(request.topic), request.source)
        if reason:
            response.blocked, response.reason = "policy", reason
            return True
        if self.pending_bytes >= self._pending_bytes_max:
            response.retry, response.throttle_ms = True, THROTTLE_MS
            response.reason = f"{self.pending_bytes} bytes of links are on their way to the disk"
            return True
        return False

    @staticmethod
    def _name(text: str) -> TopicName:
        try:
            name = TopicName.parse(text)
        except NameNotValid as error:
            raise ProtocolError(f"a link names no topic: {error}") from None
        if not name.persistent or str(name) != text:
            raise ProtocolError(f"a link names {text!r}: only full names of persistent topics are replicated")
        return name

    def _prepare(
        self, request: pb.CommandGeoAppend, payload: bytes, positions: list[Position], first: int
    ) -> tuple[list[NewEntry], Obstacle | None]:
        stamp = self._stamps.get(request.source)
        if stamp is None:
            if request.source == self.cluster:
                raise ProtocolError(f"a link from {self.cluster} to itself")
            try:
                stamp = self._stamps[request.source] = Stamp(check_cluster(request.source))
            except NameNotValid as error:
                raise ProtocolError(str(error)) from None
        return prepare(request, payload, positions, first, stamp, self._message_bytes_max)

    def _blocked_by(self, response: pb.CommandGeoAppendResponse, obstacle: Obstacle) -> None:
        response.blocked, response.reason = obstacle.kind, obstacle.reason
        response.position.ledger, response.position.entry = obstacle.position

    def _store(
        self,
        topic: DestinationTopic,
        request: pb.CommandGeoAppend,
        entries: list[NewEntry],
        response: pb.CommandGeoAppendResponse,
    ) -> bool:
        name, source = request.topic, request.source
        size = sum(len(entry.data) for entry in entries)
        flying, last = self._flying.setdefault((name, source), []), entries[-1].source

        def outcome(append: Append, error: str) -> None:
            self.pending_bytes -= size
            flying.remove(last)
            if error:
                self._failed(name, error)
            else:
                told = self.incoming.setdefault(source, {"entries": 0, "messages": 0, "bytes": 0})
                told["entries"] += len(entries)
                told["messages"] += sum(entry.count for entry in entries)
                told["bytes"] += size
                self._persisted(name, source, topic.log.watermark(source))

        try:
            topic.append(entries, outcome, durable=True)
        except BrokerError as error:
            response.ClearField("blocked")
            response.ClearField("position")
            response.retry, response.reason = True, error.message
            return False
        self.pending_bytes += size
        flying.append(last)
        return True

    def _persisted(self, topic: str, source: str, watermark: Position) -> None:
        """Answer what is durable now."""
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
        self.counter += 1
        found = self._host.find(topic)
        for key in [key for key in self._waiting if key[0] == topic]:
            persisted = found.log.watermark(key[1]) if found is not None else NONE
            for one in self._waiting.pop(key):
                one.response.persisted.ledger, one.response.persisted.entry = persisted
                one.response.ClearField("blocked")
                one.response.ClearField("position")
                one.response.retry, one.response.reason = True, error
                one.reply(one.response)

    def disconnected(self, connection: int) -> None:
        """A connection is gone: nobody waits for its answers. What it sent is stored all the same."""
        for key in list(self._waiting):
            left = [one for one in self._waiting[key] if one.connection != connection]
            if left:
                self._waiting[key] = left
            else:
                del self._waiting[key]

    def removed(self, topic: str) -> None:
        """A topic was deleted here: its watermarks went with it."""
        self._failed(topic, f"topic {topic} was deleted")
        for table in (self._heard, self._flying):
            for key in [key for key in table if key[0] == topic]:
                del table[key]

    # -------------------------------------------------------------------------------------------------------- handshake

    def watermarks(self, request: pb.CommandGeoWatermarks, reply: WatermarksReply) -> None:
        """GEO_WATERMARKS. `reply` is called once, when what has to be made or stored for it is durable.

        Raises:
            ProtocolError: names or numbers that cannot be.
        """
        names = {query.topic: self._checked(query) for query in request.topics}
        self._check_source(request.source)
        if request.source == self.cluster:
            reply(self._answer(request, {}, self._itself(request.source, request.uuid)))
            return
        standing = self.peers.standing(request.source, request.uuid)
        if standing is Standing.HEIR and not self._all_above(request):
            # Its next messages would be taken for the old one's. It has to leave those positions behind first (A8).
            reason = (
                f"{request.uuid} is to be {request.source} from now on, but begins below what is known of the old one"
            )
            reply(self._answer(request, {}, reason, foreign=True))
        elif standing in (Standing.RIVAL, Standing.FORMER):
            reply(self._answer(request, {}, self.peers.explain(request.source, request.uuid)))
        elif standing is Standing.KNOWN:
            self._make_topics(request, names, reply)
        elif standing is Standing.STORING:
            reply(
                self._answer(request, {}, f"cluster {request.source} is just being taken down in the books: ask again")
            )
        else:

            def believed(error: str) -> None:
                if error:
                    reply(self._answer(request, {}, f"cannot store who {request.source} is: {error}"))
                else:
                    self._make_topics(request, names, reply)

            self.peers.believe(request.source, request.uuid, believed)

    def _check_source(self, source: str) -> None:
        try:
            check_cluster(source)
        except NameNotValid as error:
            raise ProtocolError(str(error)) from None

    def _itself(self, source: str, uuid: str) -> str:
        """One line about a link from a cluster of this one's name, which is this one or another."""
        if uuid == self.uuid:
            return f"this link leads from {source} back to itself: the address of its target in clusters.toml is that of {source}"
        return (
            f"two clusters are called {source}: {self.uuid}, which this link leads to, and {uuid}: "
            "stop one of them, or give it another name"
        )

    def _checked(self, query: pb.GeoWatermarkQuery) -> TopicName:
        name = self._name(query.topic)
        read_marks(query.retained)
        if query.partitions > PARTITIONS_MAX or (query.partitions and not 0 <= name.partition < query.partitions):
            raise ProtocolError(f"{query.topic} cannot be one of {query.partitions} partitions")
        return name

    def _all_above(self, request: pb.CommandGeoWatermarks) -> bool:
        """Whether everything that the new one will send lies above what is known here under its name.

        One that names no topic has shown nothing yet, and is not believed for it.
        """
        if not request.topics:
            return False
        for query in request.topics:
            found = self._host.find(query.topic)
            known = found.log.watermark(request.source) if found is not None else NONE
            start = max(place(query.start), Position(query.incarnation, -1))
            if known != NONE and start < known:
                return False
        return True

    def _make_topics(
        self, request: pb.CommandGeoWatermarks, names: dict[str, TopicName], reply: WatermarksReply
    ) -> None:
        trouble: dict[str, tuple[str, str]] = {}
        missing: dict[TopicName, tuple[int, list[str]]] = {}
        for query in request.topics:
            name = names[query.topic]
            reason = self._host.refuses(name, request.source)
            if reason:
                trouble[query.topic] = ("policy", reason)
            elif (conflict := self._conflict(name, query.partitions)) is not None:
                trouble[query.topic] = ("partitions", conflict)
            elif self._host.find(query.topic) is None or self._too_few(name, query.partitions):
                base = name.base if query.partitions else name
                missing.setdefault(base, (query.partitions, []))[1].append(query.topic)
        left = len(missing) + 1

        def made(topics: list[str], error: str) -> None:
            nonlocal left
            left -= 1
            if error:
                trouble.update((topic, ("policy", f"the topic cannot be made here: {error}")) for topic in topics)
            if not left:
                for query in request.topics:
                    if query.topic not in trouble:
                        self._hear(query.topic, request.source, request.uuid, query.incarnation)
                        if query.retained:
                            self.on_retained(query.topic, read_marks(query.retained))
                reply(self._answer(request, trouble))

        for base, (partitions, topics) in missing.items():
            self._host.create(base, partitions, lambda error, topics=topics: made(topics, error))  # type: ignore[misc]
        made([], "")

    def _hear(self, topic: str, source: str, uuid: str, incarnation: int) -> None:
        """A believed cluster's link is at work in a topic: somebody may want to know whose, and whether it began anew."""
        found = self._host.find(topic)
        if found is None:
            return
        before = self._heard.get((topic, source))
        self._heard[topic, source] = (uuid, incarnation)
        if before is None:
            self.on_heard(topic, source, found.log.watermark(source).ledger < incarnation)  # ids of ledgers grow
        elif before != (uuid, incarnation):
            self.on_heard(topic, source, True)

    def forget_heard(self, topic: str, source: str) -> None:
        """Tell again when this link is next at work in a topic."""
        self._heard.pop((topic, source), None)

    def incarnation_of(self, topic: str, source: str) -> int:
        """The incarnation of a topic in a cluster whose link was heard here since the start; 0 when none was."""
        return self._heard.get((topic, source), ("", 0))[1]

    def _too_few(self, name: TopicName, partitions: int) -> bool:
        return bool(partitions) and (self._host.partitions(name.base) or 0) < partitions

    def _conflict(self, name: TopicName, partitions: int) -> str | None:
        """Partitioned there and not here, or the other way round. More partitions here are none: counts only grow."""
        here = self._host.partitions(name.base if partitions else name)
        if here is None or (here > 0) == (partitions > 0):
            return None
        counts = [f"{count} partitions" if count else "no partitions" for count in (partitions, here)]
        return f"{name.base if partitions else name} has {counts[0]} at the source and {counts[1]} in {self.cluster}"

    def _answer(
        self,
        request: pb.CommandGeoWatermarks,
        trouble: dict[str, tuple[str, str]],
        identity: str = "",
        *,
        foreign: bool = False,
    ) -> pb.CommandGeoWatermarksResponse:
        response = pb.CommandGeoWatermarksResponse(request_id=request.request_id, counter=self.counter, uuid=self.uuid)
        if identity:
            response.blocked, response.reason = "identity", identity
        for query in request.topics:
            told = response.topics.add()
            told.topic = query.topic
            told.foreign = foreign
            found = self._host.find(query.topic)
            told.persisted.ledger, told.persisted.entry = (
                found.log.watermark(request.source) if found is not None else NONE
            )
            if query.topic in trouble:
                told.blocked, told.reason = trouble[query.topic]
            elif found is None and not identity:
                told.blocked, told.reason = "policy", f"{query.topic} was deleted in {self.cluster} just now"
        return response

    # ----------------------------------------------------------------------------------------------------------- status

    def status(self) -> dict[str, dict[str, Any]]:
        """Per source cluster: uuid, since, last seen, what came since this broker's start."""
        nothing = {"entries": 0, "messages": 0, "bytes": 0}
        return {
            source: {"uuid": uuid, "since_ms": since, "seen_ms": seen, **self.incoming.get(source, nothing)}
            for source, (uuid, since, seen) in self.peers.known().items()
        }

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self.pending_bytes >= 0
        for (topic, source), waiting in self._waiting.items():
            found = self._host.find(topic)
            if found is None:
                continue  # it is being deleted: `removed` will answer them
            # Not the staged watermark: of one failure that is told in several events, the log falls back in the first.
            persisted, end = found.log.watermark(source), max(self._flying.get((topic, source), ()), default=NONE)
            for one in waiting:
                assert persisted < one.position <= end, f"{topic}: an answer for {one.position} will never come"


def _nobody(_topic: str, _source: str, _anew: bool) -> None:
    """Nobody asks."""
