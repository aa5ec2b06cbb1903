"""A simulator that finds nothing proves nothing: rules of the real code, left out one at a time, have to be noticed.

`python -m magnetar.sim --find BUG` looks for the first seed that notices one.
"""

import pytest

from magnetar.sim.bugs import BUGS, KNOWN
from magnetar.sim.runner import run_many, run_world

SEARCH = 100
"""Seeds searched when a known one no longer notices, because the real code or the world draws chance differently."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", KNOWN)
def test_planted_bug_is_found(bug: str) -> None:
    mode = BUGS[bug].mode
    if run_world(KNOWN[bug], mode, bug=bug).why:
        assert not run_world(KNOWN[bug], mode, without=bug).why, "without the bug the same world is fine"
        return
    found = [one.seed for one in run_many(range(SEARCH), mode, bug=bug, first=True) if one.why]
    assert found, f"{bug}: a rule is missing and nothing notices"


def test_every_bug_is_accounted_for() -> None:
    assert KNOWN.keys() <= BUGS.keys()
