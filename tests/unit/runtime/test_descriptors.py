"""The process's limit of open files."""

import resource
import sys
from collections.abc import Iterator

import pytest

from magnetar.runtime.descriptors import raise_file_limit


@pytest.fixture
def lowered() -> Iterator[int]:
    """The soft limit is below the hard one, which is returned."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_it_is_raised_to_what_is_allowed(lowered: int) -> None:
    raise_file_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (lowered, lowered)
    raise_file_limit()


def test_where_there_is_no_limit_or_it_cannot_be_raised_nothing_happens(
    lowered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refused)
    raise_file_limit()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "resource", None)
    raise_file_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (lowered - 1, lowered)
