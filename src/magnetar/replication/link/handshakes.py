"""The handshake of links that lead here (GEO_WATERMARKS): identifies the source cluster, creates its topics, and reports the
persisted watermark of each.

A counter is raised whenever a watermark may have moved *back*. While it does not change, a source need not compare watermarks.
It begins at the boot time, so that two starts never share a number.
"""

from collections.abc import Callable
from typing import Final

from magnetar.core.errors import NameNotValid, ProtocolError
from magnetar.core.ids import LEDGER_MAX, NONE, Position
from magnetar.core.names import PARTITIONS_MAX, TopicName, check_cluster
from magnetar.effects.outbox import Outbox
from magnetar.replication.link.identity import Peers, Standing
from magnetar.replication.link.incarnations import SourceIncarnations
from magnetar.replication.link.ports import DestinationHost
from magnetar.replication.link.refusals import Asked, Refusals
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import read_marks
from magnetar.wire.positions import position_from_proto

_COUNTER_SHIFT: Final = 20

WatermarksReply = Callable[[pb.CommandGeoWatermarksResponse], None]


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


class Handshakes:
    """Answers GEO_WATERMARKS.

    Args:
        outbox: the broker's.
        cluster, uuid: this one.
        host: the broker.
        peers: which clusters own their names.
        incarnations: of topics at their sources.
        boot: clock at this broker's start, ms; never the same twice.

    Attributes:
        counter: see the module.
        refusals: topics that were refused.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        cluster: str,
        uuid: str,
        host: DestinationHost,
        peers: Peers,
        incarnations: SourceIncarnations,
        boot: int,
    ) -> None:
        self.counter = boot << _COUNTER_SHIFT
        self.refusals = Refusals(outbox, boot, self._refused)
        self._cluster, self._uuid = cluster, uuid
        self._host = host
        self._peers = peers
        self._incarnations = incarnations

    def watermark_fell(self) -> None:
        """A watermark may have gone back."""
        self.counter += 1

    def _refused(self, asked: Asked) -> bool:
        """Whether a topic that was refused still is."""
        topic, source, incarnation, partitions = asked
        name = TopicName.parse(topic)
        refused = bool(self._host.refuses_entries(name, source, incarnation, partitions))
        return refused or self._conflict(name, source, partitions) is not None

    def watermarks(
        self, request: pb.CommandGeoWatermarks, reply: WatermarksReply, *, narrow: str = "", connection: int = 0
    ) -> None:
        """GEO_WATERMARKS. `reply` is called once, when what has to be made or stored for it is durable; or, when nothing but news
        is asked for, when there is some.

        Args:
            request, reply: of the link.
            connection: of the link.
            narrow: its role, if that may replicate some topics only: it cannot claim a cluster's name.

        Raises:
            ProtocolError: names or numbers that cannot be.
        """
        names = {query.topic: self._checked(query) for query in request.topics}
        self._check_source(request.source)
        if request.source == self._cluster:
            reply(self._answer(request, {}, self._itself(request.source, request.uuid)))
            return
        standing = self._peers.standing(request.source, request.uuid, trusted=not narrow)
        if narrow and standing in (Standing.NEW, Standing.TAKEOVER):
            reason = (
                f"role {narrow} has only `replicate` permissions and cannot introduce uuid {request.uuid} as cluster "
                f"{request.source}: first run a link to {self._cluster} whose role is in replicate_roles"
            )
            reply(self._answer(request, {}, reason))
        elif standing is Standing.TAKEOVER and not self._all_above(request):
            # Its next messages would be taken for the old one's. It has to move above those positions first
            # (docs/design/links.md#ledger-ids-grow).
            reason = (
                f"{request.uuid} wants the name {request.source}, but its positions begin below those known of the former "
                f"{request.source}"
            )
            reply(self._answer(request, {}, reason, foreign=True))
        elif standing in (Standing.CONFLICT, Standing.SUPERSEDED):
            reply(self._answer(request, {}, self._peers.explain(request.source, request.uuid)))
        elif standing is Standing.KNOWN and request.wait_ms and not request.topics:
            wait_ms, known = request.wait_ms, request.news
            self.refusals.hold(connection, known, wait_ms, lambda: reply(self._answer(request, {})))
        elif standing is Standing.KNOWN:
            self._make_topics(request, names, reply)
        elif standing is Standing.STORING:
            reason = f"recording which cluster owns the name {request.source}: retry"
            reply(self._answer(request, {}, reason))
        else:

            def accepted(error: str) -> None:
                if error:
                    reply(
                        self._answer(request, {}, f"cannot store which cluster owns the name {request.source}: {error}")
                    )
                else:
                    self._make_topics(request, names, reply)

            self._peers.accept(request.source, request.uuid, accepted)

    def _check_source(self, source: str) -> None:
        try:
            check_cluster(source)
        except NameNotValid as error:
            raise ProtocolError(str(error)) from None

    def _itself(self, source: str, uuid: str) -> str:
        """One line about a link from a cluster of this one's name, which is this one or another."""
        if uuid == self._uuid:
            return f"this link leads from {source} back to itself: the address of its target in clusters.toml is that of {source}"
        return (
            f"two clusters are called {source}: {self._uuid}, which this link leads to, and {uuid}: "
            "stop one of them, or give it another name"
        )

    def _checked(self, query: pb.GeoWatermarkQuery) -> TopicName:
        name = name_of(query.topic)
        read_marks(query.retained)
        if query.incarnation > LEDGER_MAX:
            raise ProtocolError(
                f"{query.topic} cannot have the incarnation {query.incarnation}: {LEDGER_MAX} is the most"
            )
        if query.partitions > PARTITIONS_MAX or (query.partitions and not 0 <= name.partition < query.partitions):
            raise ProtocolError(f"{query.topic} cannot be one of {query.partitions} partitions")
        return name

    def _all_above(self, request: pb.CommandGeoWatermarks) -> bool:
        """Whether all positions that the new cluster will send are above the known ones under its name.

        One that names no topic has shown nothing yet, and is not accepted for it.
        """
        if not request.topics:
            return False
        for query in request.topics:
            found = self._host.find(query.topic)
            known = found.log.watermark(request.source) if found is not None else NONE
            start = max(position_from_proto(query.start), Position(query.incarnation, -1))
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
            reason = self._host.refuses_entries(name, request.source, query.incarnation, query.partitions)
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
                        self._incarnations.seen(query.topic, request.source, request.uuid, query.incarnation)
                        if query.retained:
                            self._host.learn_retained(query.topic, read_marks(query.retained))
                reply(self._answer(request, trouble))

        for base, (partitions, topics) in missing.items():
            self._host.create(base, partitions, lambda error, topics=topics: made(topics, error))  # type: ignore[misc]
        made([], "")

    def _too_few(self, name: TopicName, partitions: int) -> bool:
        return bool(partitions) and (self._host.partitions(name.base) or 0) < partitions

    def _conflict(self, name: TopicName, source: str, partitions: int) -> str | None:
        """The error when it is partitioned only there, or only here; else None. More partitions here are fine: counts only grow.

        A partition whose topic is not partitioned there was made by an earlier version. Where it does not exist, it is not made.
        """
        if name.partition >= 0 and not partitions and self._host.find(str(name)) is None:
            return (
                f"{name.base} is not partitioned at the source: its {str(name).removeprefix(f'{name.base}-')} is not created in "
                f"{self._cluster}; give it its partitions there, or delete what is left of them"
            )
        here = self._host.partitions(name.base if partitions else name)
        if here is None or (here > 0) == (partitions > 0):
            return None
        counts = [f"{count} partitions" if count else "no partitions" for count in (partitions, here)]
        topic = name.base if partitions else name
        return (
            f"{topic} has {counts[0]} at the source and {counts[1]} in {self._cluster}; "
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
            request_id=request.request_id, counter=self.counter, uuid=self._uuid, news=self.refusals.news
        )
        if identity:
            response.blocked, response.reason = "identity", identity
        for query in request.topics:
            answer = response.topics.add()
            answer.topic = query.topic
            answer.foreign = foreign
            found = self._host.find(query.topic)
            answer.persisted.ledger, answer.persisted.entry = (
                found.log.watermark(request.source) if found is not None else NONE
            )
            answer.incarnation = found.log.incarnation if found is not None else 0
            if query.topic in trouble:
                answer.blocked, answer.reason = trouble[query.topic]
            elif found is None and not identity:
                answer.blocked, answer.reason = "policy", f"{query.topic} was deleted in {self._cluster} just now"
        return response
