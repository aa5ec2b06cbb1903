"""What every checker is: an observer that knows the whole world. And what several of them ask."""

from typing import TYPE_CHECKING

from magnetar.core.ids import Position
from magnetar_sim.observers import Observer
from magnetar_sim.world import World

if TYPE_CHECKING:
    from magnetar.replication.link.link_topic import LinkTopic


class Checker(Observer):
    """Watches one promise; raises `Violation` when it is broken.

    Args:
        world: what it watches.
    """

    def __init__(self, world: World) -> None:
        self.world, self.context, self.acks = world, world.context, world.acks


def unsendable(state: "LinkTopic") -> Position:
    """What is at or below a watermark of an earlier life of a link's source cannot be sent, and is declared.

    See docs/design/links.md#ledger-ids-grow.
    """
    floor, cursor, rewinding = state.floor, state.cursor, state.rewinding
    if cursor.c > floor and cursor.c > state.log.last:
        floor = cursor.c
    if rewinding is not None and rewinding.c > cursor.c and rewinding.c > floor:
        floor = rewinding.c  # a jump on its way to the store
    return floor
