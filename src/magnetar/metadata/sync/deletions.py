"""Deleted documents that a cluster still has to announce to the others.

    announced   listed in every snapshot, until no cluster can restore the document
    buried      every cluster has confirmed the deletion: it is remembered, and no longer announced
    forgotten   the oldest of too many buried deletions

A deletion is confirmed when this cluster has listed it in a snapshot of its own, and has seen the same deletion or something
newer in a snapshot of every other cluster (docs/design/metadata.md#deletions).
"""

from collections.abc import Iterable


class Deletions:
    """Deletions of one cluster, by path.

    Attributes:
        dead: paths with a record that says "deleted", buried ones included.
        buried: those of them that are no longer announced, in the order in which they were buried.
    """

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.buried: dict[str, None] = {}
        self._listed: set[str] = set()
        self._confirmed: dict[str, set[str]] = {}

    @property
    def announced(self) -> int:
        """The number of deletions that are not buried yet."""
        return len(self.dead - self.buried.keys())

    def known(self, path: str, *, exists: bool) -> None:
        """A record says that a document exists, or that it was deleted."""
        if exists:
            self.dead.discard(path)
        else:
            self.dead.add(path)

    def changed(self, path: str) -> None:
        """Note that a document has a new record: confirmations of the former one no longer count."""
        self.buried.pop(path, None)
        self._listed.discard(path)
        self._confirmed.pop(path, None)

    def listed(self, path: str) -> None:
        """A snapshot of this cluster that lists a deletion is durable."""
        self._listed.add(path)

    def confirmed(self, path: str, cluster: str) -> None:
        """A snapshot of another cluster lists the same deletion, or something newer."""
        self._confirmed.setdefault(path, set()).add(cluster)

    def unconfirmed(self, path: str, others: Iterable[str]) -> set[str]:
        """The clusters among `others` that have not confirmed a deletion."""
        return set(others) - self._confirmed.get(path, set())

    def candidates(self) -> list[str]:
        """Deletions that this cluster has listed and not buried, sorted."""
        return sorted((self._listed & self.dead) - self.buried.keys())

    def bury(self, path: str) -> None:
        """Every cluster has confirmed a deletion."""
        self.buried[path] = None
        self._confirmed.pop(path, None)

    def announce_again(self, path: str, members: Iterable[str]) -> None:
        """Another cluster does not know of a buried deletion: list it once more. That all have confirmed it still holds."""
        if path in self.buried:
            del self.buried[path]
            self._listed.discard(path)
            self._confirmed[path] = set(members)

    def forget(self, path: str) -> None:
        """Forget a document that has no record."""
        self.dead.discard(path)
        self.changed(path)
