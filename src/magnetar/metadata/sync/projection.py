"""The visible documents of this cluster: the documents of `Resources` that follow from the records.

seen      it exists, and so does its parent
hidden    its parent is missing (docs/design/metadata.md#hidden-children), or it may not exist in this cluster: a
          partitioned topic of a namespace that this cluster does not serve
kept      it was deleted elsewhere, but topics of this cluster need it: nothing is deleted as a side effect. It goes when
          these topics have been deleted by name
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from magnetar.metadata.keys import NAMESPACE_PREFIX, PARTITIONED_PREFIX, TENANT_PREFIX
from magnetar.metadata.sync.documents import Kind, kind_of, parent_of, to_document
from magnetar.metadata.sync.patterns import Exclusions
from magnetar.metadata.sync.records import Record


class SyncContext(Protocol):
    """The cluster, as far as the machine needs it."""

    def members(self) -> frozenset[str]:
        """Clusters that take part, this one included."""

    def known(self, cluster: str) -> bool:
        """Whether there is such a cluster."""

    def local(self, path: str) -> bytes | None:
        """The document as this cluster has it now."""

    def keeps(self, path: str) -> str:
        """Why a deletion is not carried out here, such as "3 topics"; "" if nothing prevents it."""

    def refuses_document(self, path: str) -> bool:
        """Whether a document may not exist here."""


def there(path: str, record: Record | None) -> bool:
    """Whether a document exists, as far as its own record goes."""
    if record is None:
        return False
    kind = kind_of(path)
    return record.any_value if kind is not None and kind.implicit else record.exists


class Projector:
    """Compares the documents that should be visible with those that are.

    Args:
        context: the cluster.
        exclusions: the documents that stay local.

    Attributes:
        projected: paths whose document is there now because of their record.
        children: paths with records, by their parent's.
    """

    def __init__(self, context: SyncContext, exclusions: Exclusions) -> None:
        self._context = context
        self._exclusions = exclusions
        self.projected: set[str] = set()
        self.children: dict[str, set[str]] = {}

    def known(self, path: str) -> None:
        """There is a record of it."""
        parent = parent_of(path)
        if parent:
            self.children.setdefault(parent, set()).add(path)

    def forgotten(self, path: str) -> None:
        """Forget a document that has no record."""
        self.children.get(parent_of(path), set()).discard(path)

    def touched(self, paths: Iterable[str]) -> list[str]:
        """Paths whose documents may change with these, parents first."""
        found: dict[str, None] = {}
        for path in paths:
            found[path] = None
            below = self.children.get(path, ())
            for child in below:
                found[child] = None
                for grandchild in self.children.get(child, ()):
                    found[grandchild] = None
            parent = parent_of(path)
            # A tenant is kept by its namespaces, a namespace by nothing below it but topics.
            if path.startswith(NAMESPACE_PREFIX):
                found[parent] = None
        return sorted(found, key=_depth)

    def seen(self, path: str, of: Callable[[str], Record | None]) -> tuple[bool, bool]:
        """Whether a document is to be there, and whether only because it is kept."""
        wanted = there(path, of(path)) and self._parent_seen(path, of) and not self._context.refuses_document(path)
        if wanted:
            return True, False
        kept = self._kept(path)
        return kept, kept

    def _parent_seen(self, path: str, of: Callable[[str], Record | None]) -> bool:
        parent = parent_of(path)
        if not parent:
            return True
        record = of(parent)
        if record is None:
            return self._context.local(parent) is not None
        if parent.startswith(TENANT_PREFIX):
            return there(parent, record)
        return self.seen(parent, of)[0]

    def _kept(self, path: str) -> bool:
        if path not in self.projected:
            return False
        if path.startswith(TENANT_PREFIX):
            return any(self._kept(child) for child in self.children.get(path, ()))
        return bool(self._context.keeps(path))

    def kept_because(self, path: str) -> str:
        """Why a document is kept."""
        if path.startswith(TENANT_PREFIX):
            names = [child for child in sorted(self.children.get(path, ())) if self._kept(child)]
            return f"namespaces such as {names[0].removeprefix(NAMESPACE_PREFIX)}" if names else ""
        return self._context.keeps(path)

    def difference(
        self, paths: Iterable[str], of: Callable[[str], Record | None]
    ) -> tuple[dict[str, bytes], list[str], set[str]]:
        """The documents to put and to delete for these paths, and the partitioned topics that have to be created or
        grown first.
        """
        puts: dict[str, bytes] = {}
        deletes: list[str] = []
        due: set[str] = set()
        for path in paths:
            kind = kind_of(path)
            record = of(path)
            if kind is None or record is None or self._exclusions.path(path):
                continue
            seen, kept = self.seen(path, of)
            if not seen:
                if path in self.projected:
                    deletes.append(path)
            elif not kept or there(path, record):
                value = self.document(path, kind, record)
                if value is None:
                    continue
                if kind.prefix == PARTITIONED_PREFIX:
                    due.add(path)
                else:
                    puts[path] = value
        return puts, deletes, due

    def document(self, path: str, kind: Kind, record: Record) -> bytes | None:
        """The document to store, with what stays local; None when it is what is stored."""
        data = self._context.local(path)
        current: dict[str, Any] = {} if data is None else kind.read(data)
        wanted = to_document(kind, record.values())
        for name, value in current.items():
            if name in kind.local or self._exclusions.field(path, name):
                wanted[name] = value
        if any(name in kind.grows and current.get(name, 0) > value for name, value in wanted.items()):
            wanted |= {name: current[name] for name in kind.grows if name in current}
        if data is not None and wanted == _filled(kind, current):
            return None
        return kind.write(wanted)


def _filled(kind: Kind, document: Mapping[str, Any]) -> dict[str, Any]:
    """The document without empty maps: the entries of a map are synchronised, not the map."""
    return {name: value for name, value in document.items() if not (name in kind.maps and not value)}


def _depth(path: str) -> tuple[int, str]:
    if path.startswith(NAMESPACE_PREFIX):
        return 1, path
    return (2 if parent_of(path) else 0), path
