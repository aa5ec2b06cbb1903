"""Storage whose operations fail on purpose."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Rule = Callable[[str, Path], OSError | None]
"""Asked before an operation, with its kind and what it is about; an error that it returns is raised."""


class Breakable:
    """Storage that asks rules before its operations (`fault`).

    Attributes:
        broken: operations that failed so far.
    """

    def __init__(self) -> None:
        self.broken = 0
        self._rules: list[Rule] = []
        self._blind = 0

    def inject(self, rule: Rule) -> None:
        """Ask this rule, too."""
        self._rules.append(rule)

    def forget(self, rule: Rule) -> None:
        """Do not ask a rule any more."""
        if rule in self._rules:
            self._rules.remove(rule)

    def fail_next(self, operation: str, error: OSError) -> None:
        """The next such operation fails, once."""

        def once(kind: str, _path: Path) -> OSError | None:
            if kind == operation:
                self.forget(once)
                return error
            return None

        self.inject(once)

    def fault(self, operation: str, path: Path) -> OSError | None:
        """The fault for this operation, if any."""
        if self._blind:
            return None
        for rule in list(self._rules):
            if rule not in self._rules:
                continue  # a rule may let time pass, and another operation was what this one waited for
            if (error := rule(operation, path)) is not None:
                self.broken += 1
                return error
        return None

    @contextmanager
    def without_faults(self) -> Iterator[None]:
        """Ask no rules while the block runs: the caller looks from outside."""
        self._blind += 1
        try:
            yield
        finally:
            self._blind -= 1

    def heal(self) -> None:
        """No more faults."""
        self._rules.clear()
