"""The filter of a link, as its operator changes it, and what entries it lets through."""

import random

from magnetar_sim.memory.records import FILTERED_1, FILTERED_2, PLAIN, RESTRICTED, Published, uid_of
from magnetar_sim.memory.truth import Truth


class LinkFilter:
    """The filter of one link.

    Args:
        rng: decides how it changes.
        truth: what was published.
        target: of the link.
    """

    def __init__(self, rng: random.Random, truth: Truth, target: str) -> None:
        self._rng, self._truth, self._target = rng, truth, target
        self._filters: list[tuple[int, frozenset[int]]] = [(0, frozenset({PLAIN, FILTERED_1, FILTERED_2, RESTRICTED}))]
        """Kinds that are let through, since which uid."""

    def passes(self, data: bytes) -> bool:
        """Whether a message goes through now."""
        return self._truth.published[uid_of(data)].kind in self._filters[-1][1]

    def _since(self, published: Published) -> list[frozenset[int]]:
        at = max(number for number, (uid, _) in enumerate(self._filters) if uid <= published.uid)
        return [kinds for _, kinds in self._filters[at:]]

    def always(self, published: Published) -> bool:
        """Every task that ever judged an entry had to let it through."""
        named = published.to is None or self._target in published.to
        return named and all(published.kind in kinds for kinds in self._since(published))

    def ever(self, published: Published) -> bool:
        """Some task may have let it through."""
        named = published.to is None or self._target in published.to
        return named and any(published.kind in kinds for kinds in self._since(published))

    def change(self) -> None:
        """The operator changes the link's filter."""
        kinds = self._filters[-1][1] ^ {self._rng.choice((FILTERED_1, FILTERED_2))}
        self._filters.append((self._truth.next_uid, kinds))
