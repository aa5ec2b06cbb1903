"""All checkers. A world gets them from its runner: it knows none of them by name."""

from magnetar_sim.checkers.base import Checker
from magnetar_sim.checkers.convergence import Convergence
from magnetar_sim.checkers.cursors import Cursors
from magnetar_sim.checkers.duplicates import BoundedDuplicates
from magnetar_sim.checkers.failover import PlannedFailover
from magnetar_sim.checkers.forgetting import Forgetting
from magnetar_sim.checkers.forward import Forward
from magnetar_sim.checkers.links import OnceAndInOrder
from magnetar_sim.checkers.monotony import Monotony
from magnetar_sim.checkers.no_invention import NoInvention
from magnetar_sim.checkers.no_loss import NoLoss
from magnetar_sim.checkers.persisted import Persisted
from magnetar_sim.checkers.progress import Progress
from magnetar_sim.checkers.read_updates import ReadUpdatesCount
from magnetar_sim.checkers.schemas import ReadAsWritten

CHECKERS: tuple[type[Checker], ...] = (
    OnceAndInOrder,
    Persisted,
    Cursors,
    NoInvention,
    BoundedDuplicates,
    ReadUpdatesCount,
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
