"""Paths of BookKeeper in ZooKeeper: the node of each ledger by its id, the node of the layout, the nodes that count ids.

Source: docs/design/bookkeeper.md#paths.
"""

import re
from dataclasses import dataclass
from enum import Enum

ROOT = "/ledgers"
"""The default root."""

LEDGER_ID_MAX = 2**63 - 1

SHORT_ID_END = 2**31 - 1
"""The hierarchical layout gives this id and larger ones a longer path; the short counter ends before it."""


class Layout(Enum):
    """How ids become paths. The value is the name of Java's class, which the node LAYOUT stores."""

    FLAT = "org.apache.bookkeeper.meta.FlatLedgerManagerFactory"
    HIERARCHICAL = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
    LONG_HIERARCHICAL = "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory"


class UnknownLayout(Exception):
    """The node LAYOUT names a layout that this client does not know. The message is one line."""


class NotALedger(Exception):
    """A path that is not that of a ledger."""


_LAYOUT_FORMAT = 2
_MANAGER_VERSION = 1

_FLAT_DIGITS_END = 10**10

_SHORT = re.compile(r"/(\d{2})/(\d{4})/L(\d{4})", re.ASCII)
_LONG = re.compile(r"/(\d{3})/(\d{4})/(\d{4})/(\d{4})/L(\d{4})", re.ASCII)
_FLAT = re.compile(r"/L(\d{10})", re.ASCII)

_LEDGER_PATHS = {
    Layout.FLAT: (_FLAT,),
    Layout.HIERARCHICAL: (_SHORT, _LONG),
    Layout.LONG_HIERARCHICAL: (_LONG,),
}

_CHILDREN = {
    Layout.FLAT: re.compile(r"L\d{10}", re.ASCII),
    Layout.HIERARCHICAL: re.compile(r"\d{2,3}", re.ASCII),
    Layout.LONG_HIERARCHICAL: re.compile(r"\d{3}", re.ASCII),
}


@dataclass(frozen=True, slots=True)
class LedgerPaths:
    """The paths of ledgers.

    Attributes:
        layout: of the cluster.
        root: path of the node that has everything of BookKeeper, without a slash at the end.
    """

    layout: Layout
    root: str = ROOT

    def of(self, ledger: int) -> str:
        """The path of a ledger's node.

        Raises:
            ValueError: the layout has no path for this id.
        """
        if not 0 <= ledger <= LEDGER_ID_MAX:
            raise ValueError(f"{ledger} is no id of a ledger: 0 to {LEDGER_ID_MAX}")
        if self.layout is Layout.FLAT:
            if ledger >= _FLAT_DIGITS_END:
                raise ValueError(f"ledger {ledger}: a flat layout has ids of at most 10 digits")
            return f"{self.root}/L{ledger:010d}"
        if self.layout is Layout.HIERARCHICAL and ledger < SHORT_ID_END:
            digits = f"{ledger:010d}"
            return f"{self.root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
        digits = f"{ledger:019d}"
        return f"{self.root}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"

    def ledger_of(self, path: str) -> int:
        """The id of the ledger that has this path.

        Raises:
            NotALedger: no ledger has it.
        """
        if path.startswith(f"{self.root}/"):
            for pattern in _LEDGER_PATHS[self.layout]:
                found = pattern.fullmatch(path, len(self.root))
                # A long path of a small id is not where that ledger is looked up.
                if found and (ledger := int("".join(found.groups()))) <= LEDGER_ID_MAX and self.of(ledger) == path:
                    return ledger
        raise NotALedger(f"{path!r} is not the path of a ledger below {self.root} in the layout {self.layout.name}")

    def holds_ledgers(self, child: str) -> bool:
        """Test if a child of the root is a ledger or has ledgers below it. Bookies, cookies and counters are children, too."""
        return _CHILDREN[self.layout].fullmatch(child) is not None

    @property
    def id_prefix(self) -> str:
        """Beginning of the path of the sequential nodes that count ids up to `SHORT_ID_END`."""
        return f"{self.root}/idgen/ID-" if self.layout is not Layout.FLAT else f"{self.root}/ID-"

    @property
    def long_ids(self) -> str:
        """Path of the node below which larger ids are counted. While it does not exist, the ids are short."""
        return f"{self.root}/idgen-long"

    def long_id_prefix(self, high: int) -> str:
        """Beginning of the path of the sequential nodes that count the lower half of larger ids.

        Args:
            high: the upper 32 bits; the first is 1, and the next one follows when a counter is exhausted.
        """
        return f"{self.long_ids}/HOB-{high:010d}/ID-"


def counted(path: str) -> int | None:
    """The number that ZooKeeper gave a sequential node; None: the counter is exhausted.

    Raises:
        ValueError: the path has no number at its end.
    """
    found = re.search(r"ID-(-?\d{10})\Z", path, re.ASCII)
    if found is None:
        raise ValueError(f"{path!r} is not the path of a node that gives ids")
    number = int(found[1])
    # ZooKeeper's counter has 32 bits with a sign.
    return number if 0 <= number < SHORT_ID_END else None


def long_id(high: int, low: int) -> int:
    """The id of a ledger of a counter below `LedgerPaths.long_ids`: the upper and the lower 32 bits."""
    return high << 32 | low


def encode_layout(layout: Layout) -> bytes:
    """The bytes of the node LAYOUT."""
    return f"{_LAYOUT_FORMAT}\n{layout.value}:{_MANAGER_VERSION}".encode()


def decode_layout(encoded: bytes) -> Layout:
    """Read the bytes of the node LAYOUT.

    Raises:
        UnknownLayout: it names none of `Layout`.
    """
    for layout in Layout:
        if encoded.strip() == encode_layout(layout):
            return layout
    known = ", ".join(layout.name for layout in Layout)
    raise UnknownLayout(f"the node LAYOUT says {encoded[:120]!r}: this client knows the layouts {known}")
