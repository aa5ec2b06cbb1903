"""A simulator that finds nothing proves nothing: rules of the real code, left out one at a time, have to be noticed.

`python -m magnetar_sim --find BUG` looks for the first seed that notices one.
"""

import pytest

from magnetar_sim.planted.bugs import BUGS, KNOWN, planted
from magnetar_sim.planted.exact import patches_of
from magnetar_sim.runner import run_many, run_world
from tests.support.plants import check_fits

SEARCH = 100
"""Seeds searched when no known one notices any more, because the real code or the world draws chance differently."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", KNOWN)
def test_planted_bug_is_found(bug: str) -> None:
    mode = BUGS[bug].mode
    found = None
    for seed in KNOWN[bug]:
        if why := run_world(seed, mode, bug=bug).why:
            assert not why.startswith("TypeError"), f"the plant does not fit any more: {seed}: {why}"
            found = seed
            break
    else:
        found = next((one.seed for one in run_many(range(SEARCH), mode, bug=bug, first=True) if one.why), None)
    assert found is not None, f"{bug}: a rule is missing and nothing notices"
    assert not run_world(found, mode, without=bug).why, "without the bug the same world is fine"


@pytest.mark.parametrize("bug", BUGS)
def test_every_bug_can_be_planted(bug: str) -> None:
    check_fits(patches_of(BUGS[bug].patches))
    with planted(bug):
        pass


def test_every_bug_has_seeds() -> None:
    assert BUGS.keys() == KNOWN.keys()
    assert all(KNOWN.values())
