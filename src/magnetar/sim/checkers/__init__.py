"""One promise a file. A checker is told what happens, and looks at the brokers when asked to."""

from magnetar.sim.checkers.base import Checker
from magnetar.sim.checkers.links import OnceAndInOrder
from magnetar.sim.checkers.no_invention import NoInvention
from magnetar.sim.checkers.no_loss import NoLoss

__all__ = ["CHECKERS", "Checker", "NoInvention", "NoLoss", "OnceAndInOrder"]

CHECKERS = (OnceAndInOrder, NoInvention, NoLoss)
