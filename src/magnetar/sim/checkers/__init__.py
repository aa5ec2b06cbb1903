"""One promise a file. A checker is told what happens, and looks at the brokers when asked to."""

from magnetar.sim.checkers.base import Checker
from magnetar.sim.checkers.convergence import Convergence
from magnetar.sim.checkers.cursors import Cursors
from magnetar.sim.checkers.duplicates import BoundedDuplicates
from magnetar.sim.checkers.failover import PlannedFailover
from magnetar.sim.checkers.forgetting import Forgetting
from magnetar.sim.checkers.forward import Forward
from magnetar.sim.checkers.links import OnceAndInOrder
from magnetar.sim.checkers.monotony import Monotony
from magnetar.sim.checkers.no_invention import NoInvention
from magnetar.sim.checkers.no_loss import NoLoss
from magnetar.sim.checkers.persisted import Persisted
from magnetar.sim.checkers.progress import Progress
from magnetar.sim.checkers.schemas import ReadAsWritten
from magnetar.sim.checkers.told import ToldStaysTold

CHECKERS: tuple[type[Checker], ...] = (
    OnceAndInOrder,
    Persisted,
    Cursors,
    NoInvention,
    BoundedDuplicates,
    ToldStaysTold,
    PlannedFailover,
    Monotony,
    Forgetting,
    Forward,
    ReadAsWritten,
    Convergence,
    Progress,
    NoLoss,
)
"""In this order they give their verdicts: the last one makes consumers come."""

__all__ = ["CHECKERS", "Checker"]
