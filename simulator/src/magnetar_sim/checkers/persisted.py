"""Receipts of links: what a destination answers to be persisted is on its disk (`Truth.receipted` is the same for producers).

An answer below what is there costs a repetition; on an answer above it, the source may delete
(docs/design/links.md#persisted-answers), or go back to a place from which the destination lacks something
(docs/design/links.md#handshake).
"""

from magnetar.core.ids import NONE, Position
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.positions import position_from_proto
from magnetar_sim.checkers.base import Checker
from magnetar_sim.connections.link_peer import Peer
from magnetar_sim.memory.records import Violation


class Persisted(Checker):
    """See the module."""

    def answered(self, cluster: str, peer: Peer, frame: Frame) -> None:
        """An answer to an append, or to a handshake."""
        kind = frame.command.type
        if kind == pb.GEO_APPEND_RESPONSE:
            answer = frame.command.geo_append_response
            topic = peer.appends.pop(answer.request_id, "")
            self._look(cluster, topic, peer.source, position_from_proto(answer.persisted))
        elif kind == pb.GEO_WATERMARKS_RESPONSE:
            for mark in frame.command.geo_watermarks_response.topics:
                self._look(cluster, mark.topic, peer.source, position_from_proto(mark.persisted))

    def _look(self, cluster: str, topic: str, source: str, persisted: Position) -> None:
        copy = self.world.truth.copies.get((cluster, topic))
        durable = copy.sources.get(source, NONE) if copy is not None else NONE
        if persisted > durable:
            raise Violation(f"{cluster} says that it has {source}'s log up to {persisted}, and has it up to {durable}")
