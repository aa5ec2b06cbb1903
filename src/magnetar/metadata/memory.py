"""A metadata store in memory, for tests and the simulator."""

from collections.abc import Callable, Mapping

from magnetar.metadata.store import VersionConflict, Watcher, Watchers


class MemoryStore:
    """Keeps everything in a dict; `submit` is done at once."""

    def __init__(self) -> None:
        self._data: dict[str, tuple[bytes, int]] = {}
        self._version = 0
        self._watchers = Watchers()

    @property
    def version(self) -> int:
        """The version of the last transaction."""
        return self._version

    def load(self) -> dict[str, tuple[bytes, int]]:
        """Everything."""
        return dict(self._data)

    def apply(
        self, puts: Mapping[str, bytes], deletes: tuple[str, ...] = (), expected: Mapping[str, int] | None = None
    ) -> None:
        """Write and delete, all or nothing."""
        for key, version in (expected or {}).items():
            present = self._data[key][1] if key in self._data else 0
            if present != version:
                raise VersionConflict(f"{key} has version {present}, not {version}")
        self._version += 1
        version = self._version
        changes: list[tuple[str, bytes | None, int]] = [
            (key, None, version) for key in deletes if self._data.pop(key, None) is not None
        ]
        for key, value in puts.items():
            self._data[key] = (bytes(value), version)
            changes.append((key, bytes(value), version))
        self._watchers.notify(changes)

    def submit(self, puts: Mapping[str, bytes], deletes: tuple[str, ...], done: Callable[[str], None]) -> None:
        """Write and delete, then call `done`."""
        self.apply(puts, deletes)
        done("")

    def watch(self, prefix: str, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` on changes."""
        return self._watchers.add(prefix, watcher)

    def close(self) -> None:
        """Nothing to let go of."""
