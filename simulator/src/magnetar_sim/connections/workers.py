"""The connections of a link's tasks: workers keep theirs from task to task, and answer a destination's questions for schemas."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar_sim.cluster import Clusters
from magnetar_sim.connections.link_peer import LinkEvents, Peer
from magnetar_sim.connections.net import Network
from magnetar_sim.context import WorldContext
from magnetar_sim.memory.truth import Truth

WORKER_ENDS: Final = 0.2
"""How often a task is the last of its worker: the next one opens a connection of its own."""

SCHEMA_PATIENCE_MS: Final = 2_000
"""How long a destination's question for schemas waits for the source."""


@dataclass(frozen=True, slots=True)
class LinkSurroundings:
    """What every link needs of its world.

    Attributes:
        context: of the world.
        net: what connections are made over.
        clusters: by their names.
        truth: what was published.
        events: what brokers answer is reported to it.
    """

    context: WorldContext
    net: Network
    clusters: Clusters
    truth: Truth
    events: LinkEvents


class Workers:
    """The workers of one link, all in one place: near its source or near its target.

    Args:
        around: the world.
        rng: decides where they are, and how long they live.
        source, target: of the link.
        source_peer: a connection to the source, for questions for schemas.
    """

    def __init__(
        self,
        around: LinkSurroundings,
        rng: random.Random,
        source: str,
        target: str,
        source_peer: Callable[[], Peer | None],
    ) -> None:
        self._around, self._rng = around, rng
        self._source, self._target, self._source_peer = source, target, source_peer
        self._site = rng.choice((source, target))
        self._spare: list[Peer] = []

    def lend(self, lost: Callable[[], None]) -> Peer:
        """A connection to the destination for one task: workers keep theirs from task to task, until something goes wrong."""
        while self._spare:
            peer = self._spare.pop()
            if peer.open:
                peer.take(lost)
                return peer
        return self.peer(self._target, lost)

    def peer(self, cluster: str, lost: Callable[[], None]) -> Peer:
        """A new connection to one end of the link; `lost` is called when it is gone."""
        around = self._around
        return Peer(around.net, around.events, self._source, around.clusters[cluster], self._site, lost, self.wanted)

    def arrives_late(self, cluster: str, late_ms: int, kind: int, name: str, body: Callable[[int], object]) -> None:
        """A command is stuck in a connection that was given up: it arrives all the same, if the broker is still the same one.

        It comes over a new connection, so this is only for commands whose connection does not matter.
        """
        clusters = self._around.clusters
        life = clusters[cluster].life

        def arrive() -> None:
            if clusters[cluster].life == life:
                peer = self.peer(cluster, unused)
                peer.ask(kind, name, body, unheard)
                peer.close()

        self._around.context.clock.after(late_ms, arrive)

    def wanted(self, peer: Peer, wanted: pb.CommandGeoSchemasWanted) -> None:
        """A destination asks for schemas: ask the source. After a while without an answer, answer with a reason."""
        answered = False

        def bring(brought: pb.CommandGeoSchemasBrought) -> None:
            nonlocal answered
            if not answered:
                answered = True
                peer.bring(brought)

        def found(frame: Frame) -> None:
            answer = frame.command.geo_schemas_response
            bring(pb.CommandGeoSchemasBrought(ticket=wanted.ticket, found=answer.found, missing=answer.missing))

        context = self._around.context
        context.count("schema wanted")
        context.clock.after(
            SCHEMA_PATIENCE_MS, lambda: bring(pb.CommandGeoSchemasBrought(ticket=wanted.ticket, reason="no answer"))
        )
        if (source := self._source_peer()) is not None and source.open:
            source.ask(
                pb.GEO_SCHEMAS,
                "geo_schemas",
                lambda request_id: pb.CommandGeoSchemas(
                    request_id=request_id,
                    topic=wanted.topic,
                    schema_numbering=wanted.schema_numbering,
                    versions=wanted.versions,
                ),
                found,
            )

    def give_back(self, peer: Peer, *, used_up: bool) -> None:
        """A task is over."""
        if used_up or not peer.open or self._rng.random() < WORKER_ENDS:
            peer.close()
        else:
            peer.take(unused)
            self._spare.append(peer)


def unused() -> None:
    """A connection that is not in use may end: that is noticed when it is needed next, or by the answer that does not come."""


def unheard(_frame: Frame) -> None:
    """An answer that comes to a connection that was given up."""
