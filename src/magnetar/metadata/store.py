"""The interface of the versioned key-value store that has the cursors, topics, tenants and namespaces.

Keys are texts with slashes (`topics/...`, `cursors/...`), values bytes. Every key has a version that grows with each
write of it and is never used again, also after a deletion; 0 means that there is no such key. One `apply` is one
transaction: all of it is durable, or none.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from magnetar.core.errors import MagnetarError

logger = logging.getLogger("magnetar.store")

Watcher = Callable[[str, bytes | None, int], None]
"""Called with a key, its new value (None: deleted) and its version; after it is durable, and before the writer is answered."""


class Watchers:
    """The watchers of one store."""

    def __init__(self) -> None:
        self._known: list[tuple[str, Watcher]] = []

    def add(self, prefix: str, watcher: Watcher) -> Callable[[], None]:
        """Call a watcher for changes under a prefix; the result ends it."""
        item = (prefix, watcher)
        self._known.append(item)
        return lambda: self._known.remove(item) if item in self._known else None

    def notify(self, changes: Iterable[tuple[str, bytes | None, int]]) -> None:
        """Report changes. A watcher that fails is a bug; the others are called all the same."""
        known = list(self._known)
        if not known:
            return
        for key, value, version in changes:
            for prefix, watcher in known:
                if not key.startswith(prefix):
                    continue
                try:
                    watcher(key, value, version)
                except Exception as error:
                    logger.critical("%s changed, and a watcher raised %s", key, type(error).__name__, exc_info=error)


class VersionConflict(MagnetarError):
    """A key does not have the version that the writer expected."""


class Store(Protocol):
    """A metadata store. Every implementation must pass the suite in `tests/support/store_conformance.py`."""

    @property
    def version(self) -> int:
        """The version of the last transaction, 0 if there was none: it grows with each, of any writer."""

    def load(self) -> dict[str, tuple[bytes, int]]:
        """Everything: key -> (value, version).

        Raises:
            StorageError: it cannot be read, or is damaged.
        """

    def apply(
        self, puts: Mapping[str, bytes], deletes: tuple[str, ...] = (), expected: Mapping[str, int] | None = None
    ) -> None:
        """Write and delete, all or nothing, durably; returns when it is done.

        Args:
            puts: key -> new value.
            deletes: keys to delete; no error if one is not there.
            expected: key -> version that it must have now (0: must not be there).

        Raises:
            VersionConflict: nothing was written.
            StorageError: nothing was written.
        """

    def submit(self, puts: Mapping[str, bytes], deletes: tuple[str, ...], done: Callable[[str], None]) -> None:
        """As `apply`, but without waiting; `done` is called later, on a thread of the store, with "" or one line of
        error.
        """

    def watch(self, prefix: str, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` for every change of a key that starts with `prefix`; the result ends it."""

    def close(self) -> None:
        """Finish what was submitted, then let go."""
