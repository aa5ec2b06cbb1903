"""Positions as link commands carry them."""

from magnetar.core.ids import Position
from magnetar.wire import pulsar_pb2 as pb


def position_to_proto(position: Position) -> pb.GeoPosition:
    """A position for a link command."""
    return pb.GeoPosition(ledger=position.ledger, entry=position.entry)


def position_from_proto(value: pb.GeoPosition) -> Position:
    """A position that a link command carried."""
    return Position(value.ledger, value.entry)
