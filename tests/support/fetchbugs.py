"""The planted bugs of long batches: each is one rule left out of the session or of its driver, and must be found by the world.

They are patches of the real functions, those of the session the same as in the simulator's worlds
(docs/decisions/0045-planted-bugs-are-patches-and-sets-have-two-forms.md).
"""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from magnetar.replication.link.fetching import FetchSession
from magnetar_sim.planted.long_batches import (
    SESSION,
    add_part_without_p,
    begin_behind_sent,
    fetch_for_the_superseded,
)
from tests.support.fetchworld import FetchWorld
from tests.support.linkbugs import run_world

_fetch = FetchSession.fetch


def _fetch_over_any_connection(session: FetchSession, _connection: int, request: Any, reply: Any, refusal: Any) -> None:
    _fetch(session, 1, request, reply, refusal)


class AnyGrant(FetchWorld):
    """A commit counts whatever its grant: also one from before the destination's loss."""

    patches: ClassVar[dict[str, Callable[..., Any]]] = {f"{SESSION}.counts": lambda *_: True}


class NoRevocation(FetchWorld):
    """The driver compares while a grant holds."""

    revokes = False
    boost: ClassVar[dict[str, float]] = {"old_disk_b": 6, "take_said": 0.5, "drive": 2, "recreate_a": 0, "crash_a": 0.2}


class BeginsBehindSent(FetchWorld):
    """Another reader goes on behind what the former one was handed out."""

    patches: ClassVar[dict[str, Callable[..., Any]]] = {f"{SESSION}._begin": begin_behind_sent}


class SupersededIsAnswered(FetchWorld):
    """A superseded reader gets entries as the present one does."""

    patches: ClassVar[dict[str, Callable[..., Any]]] = {f"{SESSION}.fetch": fetch_for_the_superseded}


class NoP(FetchWorld):
    """Another reader is not told what the first entries come after."""

    patches: ClassVar[dict[str, Callable[..., Any]]] = {f"{SESSION}._add_part": add_part_without_p}


class AnyConnection(FetchWorld):
    """A reader with another connection goes on behind the answers that it lost with the first one."""

    patches: ClassVar[dict[str, Callable[..., Any]]] = {f"{SESSION}.fetch": _fetch_over_any_connection}


FETCH_BUGS: dict[str, type[FetchWorld]] = {
    "any_grant": AnyGrant,
    "no_revocation": NoRevocation,
    "begins_behind_sent": BeginsBehindSent,
    "superseded_is_answered": SupersededIsAnswered,
    "no_p": NoP,
    "any_connection": AnyConnection,
}

FETCH_KNOWN: dict[str, int] = {
    "any_grant": 15, "no_revocation": 752, "begins_behind_sent": 7, "superseded_is_answered": 226, "no_p": 80,
    "any_connection": 268,
}  # fmt: skip
"""A seed that finds each bug in `FETCH_BUG_STEPS` steps, from a search over 0, 1, 2, …"""

FETCH_BUG_STEPS = 120


def find_fetch_bug(name: str, seeds: Iterable[int]) -> int | None:
    """The first of some seeds that finds a planted bug."""
    return next((seed for seed in seeds if run_world(seed, FETCH_BUGS[name], FETCH_BUG_STEPS)[0]), None)
