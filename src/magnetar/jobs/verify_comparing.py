"""The second half of `verify`: it compares the clusters' messages of one origin as arrays, 65,536 indexes at a time.

For each index there is a full outer join of the clusters: which of them hold it, how often, with which checksum, after
which others. There is no loop over entries; the results are counts of errors and the first few examples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from magnetar.jobs.verify_listing import ENTRY, Key, Packed, Stretch

DIFFERENT: Final = "different"
"""Messages that are not the same, in all clusters together."""

MISSING: Final = "missing"
MISSING_BEFORE_FIRST: Final = "missing_before_first"
MISSING_AFTER_LAST: Final = "missing_after_last"
DUPLICATED: Final = "duplicated"
REORDERED: Final = "reordered"
ALTERED: Final = "altered"

NOWHERE: Final = (-1, -1)

Array = Any
"""numpy's, whose element types mypy cannot follow through structured arrays."""


class Example(NamedTuple):
    """A message that is wrong; numbers as in the job, -1 where there is none.

    Attributes:
        topic, origin, incarnation, first: its identity.
        messages: in its entry.
        ledger, entry: its position in the cluster at fault.
        copy_cluster, copy_ledger, copy_entry: the copy that counts, for a missing or altered message.
    """

    topic: int
    origin: str
    incarnation: int
    first: int
    messages: int
    ledger: int
    entry: int
    copy_cluster: int = -1
    copy_ledger: int = -1
    copy_entry: int = -1


class Found(NamedTuple):
    """The errors in one stretch, by cluster (-1: all together) and kind, with the first example."""

    cluster: int
    kind: str
    messages: int
    examples: list[Example]


@dataclass(frozen=True)
class Terms:
    """The constants of all comparisons of a job.

    Attributes:
        clusters: names, by number.
        links: (source, target).
        before: for a part (cluster, topic, number), by key: the highest index in the parts before it.
        reach: for a cluster and topic (numbers), by key: the lowest and the highest index held.
        examples_max: most examples of each kind and cluster.
    """

    clusters: tuple[str, ...]
    links: frozenset[tuple[str, str]]
    before: Mapping[tuple[int, int, int], Mapping[Key, int]]
    reach: Mapping[tuple[int, int], Mapping[Key, tuple[int, int]]]
    examples_max: int


@dataclass
class Held:
    """The entries of one cluster with the compared indexes.

    Attributes:
        table: its entries, by index and then in the order of its log.
        fresh: for each entry, whether it is the first with its index.
        at: for each compared index, the row of its first entry in `table`.
        there: for each compared index, whether it is held at all.
    """

    table: Array
    fresh: Array
    at: Array
    there: Array


class Comparison:
    """One origin's stretch of indexes in one topic.

    Args:
        terms: of the job.
        topic, origin, incarnation: whose.
        held: entries of each cluster; those that hold nothing have an empty array.
        limits: the lists of clusters that `only` numbers.
    """

    def __init__(
        self, terms: Terms, topic: int, origin: str, incarnation: int, held: Sequence[Array], limits: Sequence[str]
    ) -> None:
        self._terms, self._topic, self._origin, self._incarnation = terms, topic, origin, incarnation
        self._limits = [frozenset(names.split(",")) for names in limits]
        indexes = np.unique(np.concatenate([one["index"] for one in held]))
        self._indexes = indexes
        self._held = [self._lined_up(table, indexes) for table in held]
        self._count = np.zeros(len(indexes), np.int64)
        self._only = np.full(len(indexes), -1, np.int64)
        for one in self._held:
            first = one.table[one.at[one.there]]
            self._count[one.there] = np.maximum(self._count[one.there], first["count"])
            self._only[one.there] = np.maximum(self._only[one.there], first["only"])
        self._judge, self._true = self._true_sums()
        self._rows: list[Found] = []

    @staticmethod
    def _lined_up(table: Array, indexes: Array) -> Held:
        table = table[np.lexsort((table["entry"], table["ledger"], table["index"]))]
        fresh = np.ones(len(table), np.bool_)
        fresh[1:] = table["index"][1:] != table["index"][:-1]
        at: Array = np.searchsorted(table["index"], indexes)
        there = np.zeros(len(indexes), np.bool_)
        inside = at < len(table)
        there[inside] = table["index"][at[inside]] == indexes[inside]
        return Held(table, fresh, at, there)

    def _true_sums(self) -> tuple[Array, Array]:
        """For each index, the cluster whose copy counts and its checksum: the origin's own copy, else the most frequent
        one.
        """
        size = len(self._indexes)
        sums = np.zeros((len(self._held), size), np.int64)
        there = np.zeros((len(self._held), size), np.bool_)
        for number, one in enumerate(self._held):
            there[number] = one.there
            sums[number][one.there] = one.table["sum"][one.at[one.there]]
        votes = np.zeros(sums.shape, np.int64)
        for other in range(len(self._held)):
            votes += (sums == sums[other]) & there[other]
        votes[~there] = -1
        if self._origin in self._terms.clusters:
            own = self._terms.clusters.index(self._origin)
            votes[own][there[own]] = len(self._held) + 1
        # If votes are equal, the smallest checksum, so that the result does not depend on the order of clusters.
        best = votes.max(axis=0)
        candidates = np.where(votes == best, sums, np.iinfo(np.int64).max)
        judge = candidates.argmin(axis=0)
        return judge, sums[judge, np.arange(size)]

    def found(self) -> list[Found]:
        """The errors, and the number of different messages."""
        self._rows.append(Found(-1, DIFFERENT, int(self._count.sum()), []))
        for cluster, one in enumerate(self._held):
            self._find_missing(cluster, one)
            table, fresh = one.table, one.fresh
            self._tell(cluster, DUPLICATED, table[~fresh])
            # A second copy always comes after later ones: that is reported once, as a duplicate.
            self._tell(cluster, REORDERED, table[fresh & table["behind"]])
            wrong = table["sum"] != self._true[np.searchsorted(self._indexes, table["index"])]
            if wrong.any():
                altered = table[wrong]
                _, first = np.unique(altered["index"], return_index=True)
                self._tell(cluster, ALTERED, altered[first], judged=True)
        return self._rows

    def _expected(self, cluster: int) -> Array:
        """For each index, whether the cluster should hold it."""
        name = self._terms.clusters[cluster]
        if name == self._origin:
            return np.ones(len(self._indexes), np.bool_)
        if (self._origin, name) not in self._terms.links:
            return np.zeros(len(self._indexes), np.bool_)
        open_to = np.array([name in names for names in self._limits] + [True], np.bool_)
        return open_to[self._only]  # -1, the last: everywhere

    def _find_missing(self, cluster: int, one: Held) -> None:
        missing = self._expected(cluster) & ~one.there
        if not missing.any():
            return
        indexes, counts = self._indexes[missing], self._count[missing]
        examples = [
            self._example(index, count, NOWHERE, index)
            for index, count in zip(indexes[: self._terms.examples_max], counts, strict=False)
        ]
        self._row(cluster, MISSING, counts, examples)
        reach = self._terms.reach.get((cluster, self._topic), {}).get((self._origin, self._incarnation))
        if reach is not None:
            self._row(cluster, MISSING_BEFORE_FIRST, counts[indexes < reach[0]], [])
            self._row(cluster, MISSING_AFTER_LAST, counts[indexes > reach[1]], [])

    def _tell(self, cluster: int, kind: str, entries: Array, *, judged: bool = False) -> None:
        """Entries that are wrong; `judged`: examples name the copy that they differ from."""
        if not len(entries):
            return
        shown = entries[: self._terms.examples_max]
        examples = [
            self._example(row["index"], row["count"], (row["ledger"], row["entry"]), row["index"] if judged else None)
            for row in shown
        ]
        counts = self._count[np.searchsorted(self._indexes, entries["index"])]
        self._row(cluster, kind, counts, examples)

    def _row(self, cluster: int, kind: str, counts: Array, examples: list[Example]) -> None:
        if len(counts):
            self._rows.append(Found(cluster, kind, int(counts.sum()), examples))

    def _example(self, index: Any, count: Any, where: tuple[Any, Any], other: Any) -> Example:
        """One message, its position, and the position of the copy that counts (not for a message out of order)."""
        judge, ledger, entry = -1, -1, -1
        if other is not None:
            row = int(np.searchsorted(self._indexes, other))
            judge = int(self._judge[row])
            held = self._held[judge]
            ledger, entry = (int(held.table[name][held.at[row]]) for name in ("ledger", "entry"))
        return Example(
            self._topic, self._origin, self._incarnation, int(index), int(count), int(where[0]), int(where[1]),
            judge, ledger, entry,
        )  # fmt: skip


def compared(terms: Terms, stretch: Stretch, packed: Iterable[Packed]) -> Comparison:
    """The comparison of everything that is held of a stretch."""
    topic, origin, incarnation, _ = stretch
    limits: dict[str, int] = {}
    pieces: list[list[Array]] = [[] for _ in terms.clusters]
    for one in packed:
        entries = np.frombuffer(one.entries, ENTRY).copy()
        numbers = [limits.setdefault(names, len(limits)) for names in one.limits]
        entries["only"] = np.array([*numbers, -1], np.int32)[entries["only"]]
        before = terms.before.get((one.cluster, topic, one.part), {}).get((origin, incarnation), -1)
        entries["behind"] |= entries["index"] < before
        pieces[one.cluster].append(entries)
    held = [np.concatenate(one) if one else np.empty(0, ENTRY) for one in pieces]
    return Comparison(terms, topic, origin, incarnation, held, list(limits))


def compare_with(
    terms: Terms, report: Callable[[int], None]
) -> Callable[[Iterable[tuple[Stretch, Iterable[Packed]]]], Iterable[Found]]:
    """The work of a task: it takes stretches and gives errors; `report(1)` is called after each comparison."""

    def task(stretches: Iterable[tuple[Stretch, Iterable[Packed]]]) -> Iterator[Found]:
        for stretch, packed in stretches:
            yield from compared(terms, stretch, packed).found()
            report(1)

    return task
