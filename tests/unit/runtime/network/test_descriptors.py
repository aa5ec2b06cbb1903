"""The process's limit of open files."""

import resource
import sys
from collections.abc import Iterator

import pytest

from magnetar.runtime.network.descriptors import BESIDE, fitting, raise_file_limit, too_few


@pytest.fixture
def lowered() -> Iterator[int]:
    """The soft limit is below the hard one, which is returned."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_it_is_raised_to_what_is_allowed(lowered: int) -> None:
    assert raise_file_limit() == lowered
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (lowered, lowered)
    assert raise_file_limit() == lowered


def test_where_there_is_no_limit_or_it_cannot_be_raised_nothing_happens(
    lowered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refused)
    assert raise_file_limit() == lowered - 1
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "resource", None)
    assert raise_file_limit() is None
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (lowered - 1, lowered)


def test_a_limit_below_the_ceilings_of_connections_is_told() -> None:
    assert not too_few(None, 12_048)
    assert not too_few(12_048 + BESIDE, 12_048)
    assert "at most 4096 files may be open" in too_few(4_096, 12_048)
    assert too_few(12_048 + BESIDE - 1, 12_048)


@pytest.mark.parametrize(
    ("limit", "fits"),
    [
        (None, (10_000, 2_048)),
        (12_048 + BESIDE, (10_000, 2_048)),
        (6_024 + BESIDE, (5_000, 1_024)),
        (BESIDE, (1, 1)),
        (1, (1, 1)),
    ],
)
def test_connections_of_one_kind_do_not_take_the_descriptors_of_the_other(
    limit: int | None, fits: tuple[int, int]
) -> None:
    assert fitting(limit, 10_000, 2_048) == fits
