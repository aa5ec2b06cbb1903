"""The connections of a link's tasks: workers keep theirs from task to task, and answer a destination's questions for schemas."""

import random
from collections.abc import Callable
from typing import Final

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import Frame
from magnetar_sim.cluster import Clusters
from magnetar_sim.connections.link_peer import LinkEvents, Peer
from magnetar_sim.connections.net import Network
from magnetar_sim.context import WorldContext

WORKER_ENDS: Final = 0.2
"""How often a task is the last of its worker: the next one opens a connection of its own."""

SCHEMA_PATIENCE_MS: Final = 2_000
"""How long a destination's question for schemas waits for the source."""


class Workers:
    """The workers of one link.

    Args:
        context: of the world.
        rng: decides how long workers live.
        net: what connections are made over.
        clusters: by their names.
        events: what brokers answer is reported to it.
        source, target: of the link.
        site: where the pipeline is.
        source_peer: a connection to the source, for questions for schemas.
    """

    def __init__(
        self,
        context: WorldContext,
        rng: random.Random,
        net: Network,
        clusters: Clusters,
        events: LinkEvents,
        source: str,
        target: str,
        site: str,
        source_peer: Callable[[], Peer | None],
    ) -> None:
        self._context, self._rng, self._net, self._clusters, self._events = context, rng, net, clusters, events
        self._source, self._target, self._site, self._source_peer = source, target, site, source_peer
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
        return Peer(self._net, self._events, self._source, self._clusters[cluster], self._site, lost, self.wanted)

    def arrives_late(self, cluster: str, late_ms: int, kind: int, name: str, body: Callable[[int], object]) -> None:
        """A command is stuck in a connection that was given up: it arrives all the same, if the broker is still the same one.

        It comes over a new connection, so it must be one of which the connection does not matter.
        """
        life = self._clusters[cluster].life

        def arrive() -> None:
            if self._clusters[cluster].life == life:
                peer = self.peer(cluster, _unused)
                peer.ask(kind, name, body, _unheard)
                peer.close()

        self._context.clock.after(late_ms, arrive)

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

        self._context.count("schema wanted")
        self._context.clock.after(
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
            peer.take(_unused)
            self._spare.append(peer)


def _unused() -> None:
    """A connection that no task uses may end."""


def _unheard(_frame: Frame) -> None:
    """An answer that comes to a connection that was given up."""
