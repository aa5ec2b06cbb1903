"""A validated change of the resources, on its way to the metadata store."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Change:
    """The writes of one administrative request, all or nothing.

    Made by `Resources`, which validated it against its state; it has no effect before `Resources.apply`.

    Attributes:
        puts: key -> value to be stored.
        deletes: keys to be deleted.
        depends: keys whose value the validation relied on; none of them may be changed at the same time.
        clusters: names of clusters whose entry changes.
        namespaces: `tenant/namespace` names whose policies change, appear or disappear.
        topics: full names of partitioned topics whose metadata changes.
    """

    puts: Mapping[str, bytes] = field(default_factory=dict)
    deletes: tuple[str, ...] = ()
    depends: frozenset[str] = frozenset()
    clusters: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()

    @property
    def keys(self) -> frozenset[str]:
        """Everything it writes."""
        return frozenset(self.puts) | frozenset(self.deletes)

    def merged(self, other: "Change") -> "Change":
        """Both changes as one; `other` wins where they write the same key."""
        puts = {key: value for key, value in self.puts.items() if key not in other.deletes} | dict(other.puts)
        deletes = tuple(key for key in dict.fromkeys(self.deletes + other.deletes) if key not in other.puts)
        return Change(
            puts={key: value for key, value in puts.items() if key not in deletes},
            deletes=deletes,
            depends=self.depends | other.depends,
            clusters=tuple(dict.fromkeys(self.clusters + other.clusters)),
            namespaces=tuple(dict.fromkeys(self.namespaces + other.namespaces)),
            topics=tuple(dict.fromkeys(self.topics + other.topics)),
        )
