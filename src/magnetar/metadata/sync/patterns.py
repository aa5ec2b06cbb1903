"""Patterns of paths and fields that stay local: they are neither published nor applied.

    namespaces/acme/*                          everything of these namespaces
    namespaces/acme/*:retention_policies       one policy of them
    clusters/*:peerClusterNames                a field everywhere

`*` matches any characters. A map's entries belong to their map.
"""

import fnmatch
import functools
import re
from collections.abc import Iterable
from typing import Final

from magnetar.metadata.sync.records import Record

PATTERNS_MAX: Final = 100
"""A ceiling: every one is tried on every path."""

CACHED: Final = 100_000
"""Answers that are remembered; as many as there may be documents."""


class Exclusions:
    """The paths, and the fields of paths, that stay local.

    Args:
        patterns: see above.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns = tuple(patterns)
        self._compiled = []
        for pattern in self.patterns:
            path, separator, field = _halves(pattern)
            self._compiled.append((_compiled(path), _compiled(field) if separator else None))
        self._of = functools.lru_cache(CACHED)(self._look)

    def _look(self, path: str) -> tuple[bool, tuple[re.Pattern[str], ...]]:
        fields = []
        for matches, field in self._compiled:
            if matches.fullmatch(path):
                if field is None:
                    return True, ()
                fields.append(field)
        return False, tuple(fields)

    def path(self, path: str) -> bool:
        """Whether all of a document stays local."""
        return bool(self._compiled) and self._of(path)[0]

    def field(self, path: str, name: str) -> bool:
        """Whether a field stays local; `name` may be that of a map's entry."""
        if not self._compiled:
            return False
        whole, fields = self._of(path)
        return whole or any(field.fullmatch(name.partition("/")[0]) for field in fields)

    def shared(self, path: str, record: Record) -> Record:
        """The part of a record that is published and applied."""
        if not self._compiled:
            return record
        whole, fields = self._of(path)
        if whole:
            return Record(None, None, {})
        if not fields:
            return record
        kept = {name: cell for name, cell in record.fields.items() if not self.field(path, name)}
        return record._replace(fields=kept)


def _halves(pattern: str) -> tuple[str, str, str]:
    """Path and field; the colon of `persistent://` belongs to the path."""
    at = pattern.rfind(":")
    if at < 0 or pattern.startswith("//", at + 1):
        return pattern, "", ""
    return pattern[:at], ":", pattern[at + 1 :]


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))
