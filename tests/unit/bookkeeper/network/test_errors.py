"""The one line of a ledger that cannot be written: which bookies, and why."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.bookkeeper.ledgers.effects import Ending, Finished
from magnetar.bookkeeper.ledgers.metadata import BookieId
from magnetar.bookkeeper.network.driver import error_of
from magnetar.bookkeeper.network.errors import TooFewBookies
from magnetar.bookkeeper.network.zookeeper import RegisteredBookies

ENSEMBLE = tuple(BookieId(f"{name}:3181") for name in "abc")


def line(ending: Ending, refusing: str, registered: RegisteredBookies) -> str:
    """The error of a ledger on bookies a, b and c. `refusing`: names of those that refuse connections."""

    def problem(bookies: Sequence[BookieId]) -> str:
        return "; ".join(f"bookie {one}: Connection refused" for one in bookies if one[0] in refusing)

    outside = SimpleNamespace(
        connections=SimpleNamespace(problem=problem), zookeeper=SimpleNamespace(bookies=registered)
    )
    metadata = SimpleNamespace(metadata=SimpleNamespace(segments=[SimpleNamespace(ensemble=ENSEMBLE)]))
    error = error_of(7, Finished(ending, cast("Any", metadata)), cast("Any", outside))
    assert isinstance(error, TooFewBookies) == (ending is Ending.NO_BOOKIES)
    return str(error)


REFUSED = "bookie a:3181: Connection refused"
READ_ONLY = "bookie b:3181: it is read-only, as with a full disk"
AWAY = "bookie c:3181: it is not registered in ZooKeeper"


def registered(writable: str, read_only: str = "") -> RegisteredBookies:
    """Bookies by the letters of their names."""
    return RegisteredBookies(
        *(frozenset(BookieId(f"{name}:3181") for name in names) for names in (writable, read_only))
    )


@pytest.mark.parametrize(
    ("refusing", "found", "reasons"),
    [
        ("", registered("abc"), []),
        ("a", registered("abc"), [REFUSED]),
        ("a", registered("d", "ab"), [REFUSED, READ_ONLY, AWAY]),
    ],
)
def test_which_bookies_are_missing(refusing: str, found: RegisteredBookies, reasons: list[str]) -> None:
    expected = "; ".join(["ledger 7: too few bookies can be reached or chosen", *reasons])
    assert line(Ending.NO_BOOKIES, refusing, found) == expected


def test_what_a_bookie_that_answers_nothing_explains() -> None:
    """Nothing, if another client has taken the ledger over."""
    assert line(Ending.UNDECIDABLE, "a", registered("")) == f"ledger 7: {Ending.UNDECIDABLE.value}; {REFUSED}"
    assert line(Ending.FENCED, "a", registered("")) == f"ledger 7: {Ending.FENCED.value}"
