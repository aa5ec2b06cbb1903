"""What every checker is: an observer that knows the whole world."""

from magnetar_sim.observers import Observer
from magnetar_sim.world import World


class Checker(Observer):
    """Watches one promise; raises `Violation` when it is broken.

    Args:
        world: what it watches.
    """

    def __init__(self, world: World) -> None:
        self.world, self.context, self.acks = world, world.context, world.acks
