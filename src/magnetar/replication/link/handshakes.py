"""The handshake of links that lead here (GEO_WATERMARKS): who comes, which topics exist from now on, what is persisted of each.

The counter is raised whenever a watermark may have gone *back*; as long as it stands still, a source need not compare
anything.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from magnetar.core.errors import NameNotValid, ProtocolError
from magnetar.core.ids import LEDGER_MAX, NONE, Position
from magnetar.core.names import PARTITIONS_MAX, TopicName, check_cluster
from magnetar.effects.outbox import Outbox
from magnetar.replication.link.identity import SILENCE_MS, Peers, Standing
from magnetar.replication.link.reading import place
from magnetar.replication.link.refusals import Asked, Refusals
from magnetar.storage.entries import Append, NewEntry
from magnetar.storage.topiclog import TopicLog
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import Mark, read_marks
from magnetar.wire.idempotency_keys import Found

_COUNTER_SHIFT: Final = 20

WatermarksReply = Callable[[pb.CommandGeoWatermarksResponse], None]


class KeysAhead(Protocol):
    """A topic's idempotency keys (`broker.publish.idempotency.topic.TopicIdempotency`): what links bring is searched for
    them, too.
    """

    def long_at(self, entries: Sequence[NewEntry], found: Found | None) -> int:
        """Which of some entries is the first that takes too long to be opened on the event loop; their number if none is.

        `found`: what was found in the first one off the loop; None: nothing yet.
        """
        ...

    def open_ahead(self, entry: NewEntry, then: Callable[[Found], None]) -> None:
        """Open an entry off the event loop, in its turn."""
        ...

    def known_ahead(self, found: Found | None) -> None:
        """What was found in the first entry of the append that comes now; None: it is over."""
        ...


class DestinationTopic(Protocol):
    """A topic here (`broker.topics.topic.Topic`)."""

    log: TopicLog

    @property
    def idempotency(self) -> KeysAhead | None:
        """Its idempotency keys; None: it has none."""
        ...

    @property
    def terminated(self) -> bool:
        """Whether it takes no messages any more. Markers it does: its subscriptions go on."""
        ...

    def append(
        self,
        entries: list[NewEntry],
        token: Callable[[Append, str], None],
        *,
        durable: bool | None = None,
        marker: bool = False,
    ) -> Append:
        """Send entries on their way; `token(append, error)` tells the outcome. Raises BrokerError when it cannot be now.

        `marker`: they are nothing but markers.
        """
        ...


class DestinationHost(Protocol):
    """The broker, as links see it."""

    def find(self, topic: str) -> DestinationTopic | None:
        """A topic that exists here."""
        ...

    def refuses(self, topic: TopicName, source: str, incarnation: int | None = None, partitions: int = 0) -> str:
        """Why entries of a cluster may not come into a topic: namespace missing, cluster not allowed, topic deleted here.

        `incarnation`: of the topic there (None: not known); `partitions`: of the topic that it is a partition of, there.
        One line with the command to run; "" when they may.
        """
        ...

    def reconcile(self, topic: TopicName, source: str, partitions: int) -> str:
        """What to do about a topic (not one partition) that has `partitions` at a source, and another form here.

        One line with the command to run.
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


class Handshakes:
    """The part of a destination that greets.

    Args:
        outbox: the broker's.
        cluster, uuid: this one.
        host: the broker.
        boot: clock at this broker's start, ms; never the same twice.
        silence_ms: see `identity.Peers`.

    Attributes:
        on_heard: told of a topic, a source cluster, and whether its link began anew, when that is news.
        on_retained: told of a topic that is here, and what origins retain of their own as a link's source knows it.
    """

    def __init__(
        self, outbox: Outbox, *, cluster: str, uuid: str, host: DestinationHost, boot: int, silence_ms: int = SILENCE_MS
    ) -> None:
        self.cluster, self.uuid = cluster, uuid
        self.counter = boot << _COUNTER_SHIFT
        self.peers = Peers(outbox, silence_ms)
        self._host = host
        self._heard: dict[tuple[str, str], tuple[str, int]] = {}
        self.refusals = Refusals(outbox, boot, self._refused)
        self.on_heard: Callable[[str, str, bool], None] = _nobody
        self.on_retained: Callable[[str, tuple[Mark, ...]], None] = lambda _topic, _marks: None

    @staticmethod
    def name_of(text: str) -> TopicName:
        """A topic that a link names.

        Raises:
            ProtocolError: it is no full name of a persistent topic.
        """
        try:
            name = TopicName.parse(text)
        except NameNotValid as error:
            raise ProtocolError(f"a link names no topic: {error}") from None
        if not name.persistent or str(name) != text:
            raise ProtocolError(f"a link names {text!r}: only full names of persistent topics are replicated")
        return name

    def _refused(self, asked: Asked) -> bool:
        """Whether a topic that was refused still is."""
        topic, source, incarnation, partitions = asked
        name = TopicName.parse(topic)
        refused = bool(self._host.refuses(name, source, incarnation, partitions))
        return refused or self._conflict(name, source, partitions) is not None

    def watermarks(
        self, request: pb.CommandGeoWatermarks, reply: WatermarksReply, *, narrow: str = "", connection: int = 0
    ) -> None:
        """GEO_WATERMARKS. `reply` is called once, when what has to be made or stored for it is durable; or, when nothing but news
        is asked for, when there is some.

        Args:
            request, reply: of the link.
            connection: of the link.
            narrow: its role, if that may replicate some topics only: nobody is believed for what it says of a cluster.

        Raises:
            ProtocolError: names or numbers that cannot be.
        """
        names = {query.topic: self._checked(query) for query in request.topics}
        self._check_source(request.source)
        if request.source == self.cluster:
            reply(self._answer(request, {}, self._itself(request.source, request.uuid)))
            return
        standing = self.peers.standing(request.source, request.uuid, heard=not narrow)
        if narrow and standing in (Standing.NEW, Standing.HEIR):
            reason = (
                f"role {narrow} may not say that {request.uuid} is {request.source}: let a link whose role may replicate "
                f"everything (replicate_roles) greet {self.cluster} first"
            )
            reply(self._answer(request, {}, reason))
        elif standing is Standing.HEIR and not self._all_above(request):
            # Its next messages would be taken for the old one's. It has to leave those positions behind first
            # (docs/design/links.md#ledger-ids-grow).
            reason = (
                f"{request.uuid} is to be {request.source} from now on, but begins below what is known of the old one"
            )
            reply(self._answer(request, {}, reason, foreign=True))
        elif standing in (Standing.RIVAL, Standing.FORMER):
            reply(self._answer(request, {}, self.peers.explain(request.source, request.uuid)))
        elif standing is Standing.KNOWN and request.wait_ms and not request.topics:
            wait_ms, known = request.wait_ms, request.news
            self.refusals.hold(connection, known, wait_ms, lambda: reply(self._answer(request, {})))
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
        name = self.name_of(query.topic)
        read_marks(query.retained)
        if query.incarnation > LEDGER_MAX:
            raise ProtocolError(
                f"{query.topic} cannot have the incarnation {query.incarnation}: {LEDGER_MAX} is the most"
            )
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
            reason = self._host.refuses(name, request.source, query.incarnation, query.partitions)
            if reason:
                trouble[query.topic] = ("policy", reason)
            elif (conflict := self._conflict(name, request.source, query.partitions)) is not None:
                trouble[query.topic] = ("partitions", conflict)
            elif self._host.find(query.topic) is None or self._too_few(name, query.partitions):
                base = name.base if query.partitions else name
                missing.setdefault(base, (query.partitions, []))[1].append(query.topic)
        for query in request.topics:
            if query.topic in trouble:
                self.refusals.note((query.topic, request.source, query.incarnation, query.partitions))
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

    def lives(self, topic: str) -> dict[str, int]:
        """The incarnations of a topic in the clusters whose links were heard here since the start."""
        return {source: life for (name, source), (_, life) in self._heard.items() if name == topic}

    def forget_heard(self, topic: str, source: str) -> None:
        """Tell again when this link is next at work in a topic."""
        self._heard.pop((topic, source), None)

    def incarnation_of(self, topic: str, source: str) -> int:
        """The incarnation of a topic in a cluster whose link was heard here since the start; 0 when none was."""
        return self._heard.get((topic, source), ("", 0))[1]

    def _too_few(self, name: TopicName, partitions: int) -> bool:
        return bool(partitions) and (self._host.partitions(name.base) or 0) < partitions

    def _conflict(self, name: TopicName, source: str, partitions: int) -> str | None:
        """Partitioned there and not here, or the other way round. More partitions here are none: counts only grow.

        A partition whose topic is not partitioned there was made by an earlier version. Where it does not exist, it is not made.
        """
        if name.partition >= 0 and not partitions and self._host.find(str(name)) is None:
            return (
                f"{name.base} is not partitioned at the source: its {str(name).removeprefix(f'{name.base}-')} is not made in "
                f"{self.cluster}; give it its partitions there, or delete what is left of them"
            )
        here = self._host.partitions(name.base if partitions else name)
        if here is None or (here > 0) == (partitions > 0):
            return None
        counts = [f"{count} partitions" if count else "no partitions" for count in (partitions, here)]
        topic = name.base if partitions else name
        return (
            f"{topic} has {counts[0]} at the source and {counts[1]} in {self.cluster}; "
            f"{self._host.reconcile(topic, source, partitions)}"
        )

    def _answer(
        self,
        request: pb.CommandGeoWatermarks,
        trouble: dict[str, tuple[str, str]],
        identity: str = "",
        *,
        foreign: bool = False,
    ) -> pb.CommandGeoWatermarksResponse:
        response = pb.CommandGeoWatermarksResponse(
            request_id=request.request_id, counter=self.counter, uuid=self.uuid, news=self.refusals.news
        )
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
            told.incarnation = found.log.incarnation if found is not None else 0
            if query.topic in trouble:
                told.blocked, told.reason = trouble[query.topic]
            elif found is None and not identity:
                told.blocked, told.reason = "policy", f"{query.topic} was deleted in {self.cluster} just now"
        return response


def _nobody(_topic: str, _source: str, _anew: bool) -> None:
    """Nobody asks."""
