"""Deletion marks: they prevent links from creating a topic again that was deleted here.

A topic is deleted in one cluster. Its incarnations in other clusters continue, and their links must not create it again
here. An incarnation that began after the deletion is another topic of the same name and is accepted like any other. An
incarnation is a ledger id, and ids of one cluster grow and follow its clock. (The exception is a cluster that lost its disk while
its clock was slow, see docs/decisions/0020-incarnations-that-no-cluster-remembers.md.) So the id that a link sends decides:

    at or below the highest known id of that source here    the deleted one, or an earlier one: refused
    at or below the time of the deletion                    not known here, but it existed already: refused
    above both                                              created after the deletion: accepted

A mark ends when a user here creates the topic again. A topic that a link creates leaves the mark in force, for other
sources, and for delayed tasks of a former incarnation.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from magnetar.core.errors import NameNotValid
from magnetar.core.names import TopicName
from magnetar.metadata.topic_records import DELETED_PREFIX, DeletedMark

WHOLE: Final = -1
"""In place of a partition's number: the topic itself."""


class Deletions:
    """The marks of one broker.

    Args:
        stored: the metadata store's content at start.
    """

    def __init__(self, stored: Mapping[str, bytes]) -> None:
        self._marks: dict[str, dict[int, DeletedMark]] = {}
        for key, data in stored.items():
            if key.startswith(DELETED_PREFIX):
                text = key.removeprefix(DELETED_PREFIX)
                mark = DeletedMark.decode(text, data)
                with suppress(NameNotValid):  # an invalid name: it cannot be created again, and no link can send it
                    self.put(TopicName.parse(text), mark)

    def put(self, name: TopicName, mark: DeletedMark) -> None:
        """A topic, a partition, or a partitioned topic as a whole was deleted (durably)."""
        self._marks.setdefault(str(name.base), {})[name.partition] = mark

    def of(self, name: TopicName) -> list[DeletedMark]:
        """The marks that a topic's links have to pass: its own, and that of its partitioned topic."""
        known = self._marks.get(str(name.base))
        if known is None:
            return []
        return [known[number] for number in {name.partition, WHOLE} if number in known]

    def highest_known_ids(self, name: TopicName) -> dict[str, int]:
        """By source cluster, the highest ledger id there of a topic and its partitions, from their marks."""
        found: dict[str, int] = {}
        for mark in self._marks.get(str(name.base), {}).values():
            for source, ledger in mark.incarnations.items():
                found[source] = max(ledger, found.get(source, -1))
        return found

    def mark_against(self, name: TopicName, source: str, incarnation: int | None) -> DeletedMark | None:
        """The mark that refuses a source's topic; None: it is accepted.

        Args:
            name: the topic.
            source: the source cluster.
            incarnation: its incarnation there; None: not known, as for a restored topic.
        """
        for mark in self.of(name):
            if incarnation is None or incarnation <= max(mark.deleted_ms, mark.incarnations.get(source, -1)):
                return mark
        return None

    def family(self, name: TopicName) -> tuple[str, ...]:
        """Full names with a mark that ends when a topic of that name is made here: of a partitioned one all that it had."""
        known = self._marks.get(str(name.base), {})
        if name.partition >= 0:
            return (str(name),) if name.partition in known else ()
        return tuple(str(name if number == WHOLE else name.with_partition(number)) for number in known)

    def drop(self, texts: Iterable[str]) -> None:
        """Marks that are no more (durably)."""
        for text in texts:
            name = TopicName.parse(text)
            known = self._marks.get(str(name.base), {})
            known.pop(name.partition, None)
            if not known:
                self._marks.pop(str(name.base), None)

    def __iter__(self) -> Iterator[str]:
        """Full names."""
        for base, known in self._marks.items():
            for number in known:
                yield base if number == WHOLE else f"{base}-partition-{number}"


def keys(texts: Iterable[str]) -> tuple[str, ...]:
    """The keys of the marks of some names."""
    return tuple(DELETED_PREFIX + text for text in texts)
