"""Receipts of links: what a destination says is persisted is on its disk (`World.receipted` is the same for producers).

Whatever it says less than is there costs a repetition; whatever it says more, the source may delete
(docs/design/links.md#persisted-answers), or go back to a place from which the destination lacks something
(docs/design/links.md#handshake).
"""

from typing import TYPE_CHECKING

from magnetar.core.ids import NONE, Position
from magnetar.wire.frames import Frame
from magnetar.wire.positions import position_from_proto
from magnetar_sim.checkers.base import Checker
from magnetar_sim.truth import Violation

if TYPE_CHECKING:
    from magnetar_sim.carrying import Peer
    from magnetar_sim.cluster import Cluster

APPENDED, WATERMARKS = 1005, 1009


class Persisted(Checker):
    """See the module."""

    def told(self, cluster: "Cluster", peer: "Peer", frame: Frame) -> None:
        """An answer to an append, or to a handshake."""
        kind = frame.command.type
        if kind == APPENDED:
            answer = frame.command.geo_append_response
            topic = peer.appends.pop(answer.request_id, "")
            self._look(cluster, topic, peer.source, position_from_proto(answer.persisted))
        elif kind == WATERMARKS:
            for mark in frame.command.geo_watermarks_response.topics:
                self._look(cluster, mark.topic, peer.source, position_from_proto(mark.persisted))

    def _look(self, cluster: "Cluster", topic: str, source: str, persisted: Position) -> None:
        copy = self.world.truth.copies.get((cluster.name, topic))
        durable = copy.sources.get(source, NONE) if copy is not None else NONE
        if persisted > durable:
            raise Violation(
                f"{cluster.name} says that it has {source}'s log up to {persisted}, and has it up to {durable}"
            )
