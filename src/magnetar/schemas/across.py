"""One topic's schemas in several clusters: a comparison by content, and a forecast of what a new schema would do to the
links.

Versions are numbers of one cluster, so schemas of two clusters are compared by identity. A schema travels with the
first message that is written with it. Until it has arrived it is *on its way*: a client that registers another schema
at the destination first decides which schemas may still follow.

    new in B, old of A not yet in B      B then checks old against new: refused, it stops the link A -> B at that message
    old of A arrives in B, then new      B then checks new against old

`outlook` tries both orders with B's own strategy. So it distinguishes schemas that may be registered now from those
that have to wait.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from magnetar.schemas.compatibility import Identity, Strategy, check, identity
from magnetar.schemas.errors import SchemaIncompatible, SchemaInvalid
from magnetar.schemas.keyvalue import take_apart
from magnetar.schemas.types import STRUCTS, Definition, SchemaType

SUMMARY_CHARACTERS_MAX: Final = 80
"""The longest one-line description of a schema in tables."""

DIGEST_CHARACTERS: Final = 12
"""The length of an identity in tables: enough to distinguish the schemas of a topic."""


class Registration(NamedTuple):
    """The registration of a schema in one cluster.

    Attributes:
        version: its number there.
        state: "", `deleted` or `foreign`.
    """

    version: int
    state: str = ""

    def __str__(self) -> str:
        return f"{self.version} ({self.state})" if self.state else str(self.version)


class Held(NamedTuple):
    """The schemas of one cluster.

    Attributes:
        strategy: the topic's strategy there.
        live: (version, schema) of those in force, ascending.
        others: (version, schema, state) of those that can only be read by number: deleted, or foreign.
    """

    strategy: Strategy
    live: Sequence[tuple[int, Definition]]
    others: Sequence[tuple[int, Definition, str]] = ()

    def identities(self) -> dict[Identity, int]:
        """Version by identity, of those in force."""
        return {identity(definition): version for version, definition in self.live}

    def readable(self) -> dict[Identity, Registration]:
        """All schemas that messages may have been written with, and their registration. The one in force wins over
        others.
        """
        found = {identity(definition): Registration(version, state) for version, definition, state in self.others}
        return found | {key: Registration(version) for key, version in self.identities().items()}


class Row(NamedTuple):
    """One schema with its registrations in all clusters.

    Attributes:
        identity: its identity, the same in all clusters.
        definition: its text in the first cluster that has it.
        registrations: by cluster.
    """

    identity: Identity
    definition: Definition
    registrations: Mapping[str, Registration]

    def lacking(self, clusters: Iterable[str]) -> list[str]:
        """The clusters in which it is not in force although it is in another; none if it is in force nowhere."""
        in_force = {cluster for cluster, registration in self.registrations.items() if not registration.state}
        return [cluster for cluster in clusters if cluster not in in_force] if in_force else []


class Underway(NamedTuple):
    """A schema of one cluster that another one, which a link leads to, does not have.

    Attributes:
        source, version, definition: the schema in the cluster that has it.
        target: the cluster that does not have it.
        problem: why it would be refused there after the new schema, or the new schema after it; "" if both orders work.
    """

    source: str
    version: int
    definition: Definition
    target: str
    problem: str


def rows(held: Mapping[str, Held]) -> list[Row]:
    """All schemas of a topic by content: those with low versions first."""
    found: dict[Identity, tuple[Definition, dict[str, Registration]]] = {}
    for cluster, one in held.items():
        definitions = [(definition) for _, definition, _ in one.others] + [definition for _, definition in one.live]
        written = {identity(definition): definition for definition in definitions}
        for key, registration in one.readable().items():
            found.setdefault(key, (written[key], {}))[1][cluster] = registration
    made = [Row(key, definition, registrations) for key, (definition, registrations) in found.items()]
    return sorted(made, key=lambda row: (min(row.registrations.values()), -len(row.registrations), row.identity))


def underway(
    held: Mapping[str, Held], links: Iterable[tuple[str, str]], new: Definition | None = None
) -> list[Underway]:
    """The schemas that a link still has to bring to its target, each with the conflict that a new schema would make with it.

    Args:
        held: the schemas of each cluster; clusters that did not answer are left out, and so are their links.
        links: (source, target).
        new: a schema that is to be registered in all clusters; None: there is no such schema, and no conflict.

    Returns:
        In the order of the links. The new schema itself is not among them.

    Raises:
        SchemaInvalid: the new one is not a schema.
    """
    known = {cluster: one.readable() for cluster, one in held.items()}
    mine = identity(new) if new is not None else None
    found = []
    for source, target in links:
        if source not in held or target not in held:
            continue
        for version, definition in held[source].live:
            other = identity(definition)
            if other in known[target] or other == mine:
                continue
            problem = "" if new is None or mine in known[target] else _problem(new, definition, held[target])
            found.append(Underway(source, version, definition, target, problem))
    return found


def _problem(new: Definition, coming: Definition, there: Held) -> str:
    """Why two schemas cannot both come to a cluster, in whatever order; "" when they can."""
    later = there.live[-1][0] + 1 if there.live else 0
    try:
        check(coming, there.live, there.strategy)
    except SchemaIncompatible as error:
        return f"it is not accepted there as things are: {error}"
    for first, second, words in (
        (new, coming, "it could not follow the new one"),
        (coming, new, "the new one could not follow it"),
    ):
        try:
            check(first, there.live, there.strategy)
            check(second, [*there.live, (later, first)], there.strategy)
        except SchemaIncompatible as error:
            return f"{words}: {error}"
    return ""


def summary(definition: Definition) -> str:
    """A schema in a few words: a record's name and fields, both parts of a key-value schema, else its type."""
    return _cut(_summary(definition))


def _summary(definition: Definition) -> str:
    if definition.type is SchemaType.KEY_VALUE:
        try:
            both = take_apart(definition)
        except SchemaInvalid:
            return definition.type.name
        return f"{_summary(both.key)} -> {_summary(both.value)}"
    if definition.type not in STRUCTS:
        return "BYTES" if definition.type is SchemaType.NONE else definition.type.name
    try:
        loaded: Any = json.loads(definition.data)
    except (ValueError, RecursionError):
        return definition.type.name
    if not isinstance(loaded, dict) or not isinstance(loaded.get("fields"), list):
        return str(loaded.get("type") if isinstance(loaded, dict) else definition.type.name)
    names = [str(field.get("name")) for field in loaded["fields"] if isinstance(field, dict)]
    return f"{loaded.get('name')}({', '.join(names)})"


def _cut(text: str) -> str:
    return text if len(text) <= SUMMARY_CHARACTERS_MAX else f"{text[: SUMMARY_CHARACTERS_MAX - 3]}..."


def digest(one: Identity) -> str:
    """An identity as people see it."""
    return one.digest.hex()[:DIGEST_CHARACTERS]
