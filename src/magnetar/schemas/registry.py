"""The schemas of all topics of one cluster, over keys of the metadata store.

A schema id is the name of a topic without its partition: all partitions share it. Every stored schema and every
deletion gets the next version number; a number is used once until the topic itself is deleted.

    key       schemas/<topic>/<version, 19 digits>
    value     `Record` in JSON

The order of a change, which makes it safe without a lock and leaves nothing half done:

    addition = registry.prepare(id, definition, ...)      validated; None when it is there already
    ... stored durably: one key ...
    registry.apply(addition)                              or nothing, when the store refused

Only one change of an id is in progress at a time (`broker.topics.schemas` queues the others), so the validation holds
until the store has answered: the second client finds the schema of the first and gets its version.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from magnetar.core.errors import StorageError
from magnetar.core.names import TopicName
from magnetar.schemas.compatibility import Identity, Strategy, check, check_consumer, check_new, identity, shape_of
from magnetar.schemas.errors import SchemaInvalid, SchemasFull
from magnetar.schemas.history import History
from magnetar.schemas.types import Definition, SchemaType, check_sizes

SCHEMA_PREFIX: Final = "schemas/"

VERSION_DIGITS: Final = 19
"""The digits of the largest version, so that keys sort as versions do."""

SCHEMA_BYTES_MAX: Final = 256 * 1024
"""A ceiling on one definition. The largest hand-written ones have some 100 kB; a definition is kept in memory and
parsed on the broker's thread.
"""

VERSIONS_MAX: Final = 10_000
"""A ceiling on versions of one topic: ten times what a topic is to be fast with; more is a producer that makes up schemas."""

TOPIC_BYTES_MAX: Final = 64 * 1024 * 1024
"""A ceiling on all definitions of one topic: they are in memory."""


BYTES_MAX: Final = 512 * 1024 * 1024
"""A ceiling on all definitions of a cluster: they are in memory. Two million of the usual size."""

HISTORY_BYTES_MAX: Final = 16 * 1024 * 1024
"""A ceiling on the combined history of one topic: some 20,000 different fields. Only transitive strategies need it."""

HISTORIES_BYTES_MAX: Final = 128 * 1024 * 1024
"""The same for all topics: histories that were not used for longest are dropped and built again when needed."""

FOLD_VERSIONS_MIN: Final = 64
"""From this many versions on, the history is built at the start (0.1 ms per version), not when the first new schema
arrives, because that schema, and the whole broker, would wait for it. Fewer versions take less than 10 ms.
"""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version of a topic: a schema, or the deletion of all schemas before.

    Attributes:
        type: `SchemaType`'s number.
        data: the definition.
        properties, name: from the client.
        time_ms: when it was registered.
        user: role of the producer or consumer that registered it, or "" for REST; only for display.
        deleted: a tombstone: earlier schemas can only be read by number from now on.
        foreign: messages from other clusters were written with it; it can be read by number and is never in force.
    """

    type: Annotated[int, Meta(ge=0)] = 0
    data: bytes = b""
    properties: dict[str, str] = {}
    name: str = ""
    time_ms: int = 0
    user: str = ""
    deleted: bool = False
    foreign: bool = False

    def definition(self) -> Definition:
        """The schema itself."""
        return Definition(SchemaType(self.type), self.data, self.properties, self.name)


class Addition(NamedTuple):
    """A change that is being stored.

    Attributes:
        id: schema id of the topic.
        version: its version number.
        record: the record to store.
    """

    id: str
    version: int
    record: Record

    @property
    def puts(self) -> dict[str, bytes]:
        """The keys and values to store."""
        return {schema_key(self.id, self.version): msgspec.json.encode(self.record)}


def schema_id(topic: TopicName) -> str:
    """The topic under which a topic's schemas are registered: for a partition, the partitioned topic. As in Pulsar, a
    non-persistent topic has the schemas of the persistent topic with its name, which are the ones that the admin
    interface manages.
    """
    return str(topic.base if topic.persistent else topic.base._replace(domain="persistent"))


def schema_key(id_: str, version: int) -> str:
    """The key of a version in the store."""
    return f"{SCHEMA_PREFIX}{id_}/{version:0{VERSION_DIGITS}d}"


def _numbering(first: Record) -> int:
    """The name of the numbering that begins with a record: a digest; not 0, and within a signed word."""
    digest = sha256(msgspec.msgpack.encode(first)).digest()
    return int.from_bytes(digest[:7], "big") + 1


class TopicSchemas:
    """The registered schemas of one topic."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self.next = 0
        self.bytes = 0
        self.numbering = 0
        self._floor = 0
        self._live: list[tuple[int, Definition]] = []
        self._history: History | None = None
        self._identities: dict[Identity, int] = {}
        self._readable: dict[Identity, int] = {}

    def put(self, version: int, record: Record) -> None:
        """Take a stored record in; ascending.

        Raises:
            SchemaInvalid: its definition is not valid for its type.
        """
        if record.deleted:
            self._floor = version + 1
            self._identities.clear()
            self._live, self._history = [], None
        else:
            definition = record.definition()
            who = identity(definition, stored=True)
            self._readable[who] = version
            if not record.foreign:
                self._identities.setdefault(who, version)
                self._live.append((version, definition))
                if self._history is not None:
                    self._history.add(version, definition.type, shape_of(definition))
                    if self._history.bytes > HISTORY_BYTES_MAX:
                        self._history = None
        if version == 0:
            self.numbering = _numbering(record)
        self.records[version] = record
        self.next = version + 1
        self.bytes += len(record.data)

    def find(self, wanted: Identity) -> int | None:
        """The version of a schema that is in force, or None."""
        return self._identities.get(wanted)

    def readable(self, wanted: Identity) -> int | None:
        """The version of a schema that can be read by number, in force if there is one, else deleted or foreign; or None."""
        found = self._identities.get(wanted)
        return self._readable.get(wanted) if found is None else found

    @property
    def live(self) -> Sequence[tuple[int, Definition]]:
        """(version, schema) of those in force: since the last deletion, ascending; not to be changed."""
        return self._live

    def fold(self) -> History:
        """The combined history of the schemas in force; kept until `unfold`.

        Raises:
            SchemasFull: they have more different fields than a history may have.
        """
        if self._history is None:
            history = History()
            for version, definition in self._live:
                history.add(version, definition.type, shape_of(definition))
                if history.bytes > HISTORY_BYTES_MAX:
                    raise SchemasFull(
                        f"its {len(self._live)} schemas have too many different fields ({HISTORY_BYTES_MAX} bytes) for a "
                        "transitive strategy: delete them, or choose another strategy"
                    )
            self._history = history
        return self._history

    def unfold(self) -> None:
        """Forget the combined history."""
        self._history = None

    @property
    def folded_bytes(self) -> int:
        """The memory of the combined history."""
        return self._history.bytes if self._history is not None else 0

    def suspects(self, new: Definition, strategy: Strategy) -> list[tuple[int, Definition]]:
        """The schemas in force that a transitive strategy has to check before a new one may be added."""
        found = self.fold().suspects(new, shape_of(new), backward=strategy.backward, forward=strategy.forward)
        return [(version, self.records[version].definition()) for version in found]

    @property
    def latest(self) -> int | None:
        """The newest version in force; None when there is none."""
        return self._live[-1][0] if self._live else None

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert sorted(self.records) == list(range(self.next)), "a number was skipped or lost"
        assert all(self._floor <= version < self.next for version in self._identities.values())
        assert self.bytes == sum(len(record.data) for record in self.records.values())
        assert not any(self.records[version].deleted for version in range(self._floor, self.next))
        mine = [version for version in range(self._floor, self.next) if not self.records[version].foreign]
        assert [version for version, _ in self._live] == mine


class Registry:
    """The schemas of one cluster.

    Args:
        schema_bytes_max: ceiling on one definition.
        versions_max: ceiling on the versions of a topic.
        topic_bytes_max: ceiling on all definitions of a topic.
        bytes_max: ceiling on all definitions.
    """

    def __init__(
        self,
        *,
        schema_bytes_max: int = SCHEMA_BYTES_MAX,
        versions_max: int = VERSIONS_MAX,
        topic_bytes_max: int = TOPIC_BYTES_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self.schema_bytes_max = schema_bytes_max
        self._versions_max = versions_max
        self._topic_bytes_max = topic_bytes_max
        self._bytes_max = bytes_max
        self._topics: dict[str, TopicSchemas] = {}
        self._bytes = 0
        self._folded: dict[str, int] = {}
        """Topics with a combined history and its memory, the least recently used first."""

    @classmethod
    def load(
        cls, stored: Mapping[str, bytes], *, versions_max: int = VERSIONS_MAX, bytes_max: int = BYTES_MAX
    ) -> "Registry":
        """Load from the store; other keys are ignored.

        Raises:
            StorageError: a value is damaged; names its key.
        """
        registry = cls(versions_max=versions_max, bytes_max=bytes_max)
        for key in sorted(key for key in stored if key.startswith(SCHEMA_PREFIX)):
            id_, _, number = key.removeprefix(SCHEMA_PREFIX).rpartition("/")
            try:
                record = msgspec.json.decode(stored[key], type=Record)
                registry._topics.setdefault(id_, TopicSchemas()).put(int(number), record)
            except (msgspec.DecodeError, ValueError, SchemaInvalid) as error:
                raise StorageError(f"the stored value of {key} is damaged: {error}") from error
        for id_, found in registry._topics.items():
            registry._bytes += found.bytes
            if len(found.live) >= FOLD_VERSIONS_MIN and sum(registry._folded.values()) < HISTORIES_BYTES_MAX:
                with contextlib.suppress(SchemasFull):
                    found.fold()
                registry._keep_folded(id_, found)
        return registry

    def _keep_folded(self, id_: str, found: TopicSchemas) -> None:
        """Note that the combined history of a topic was used or has changed; others are dropped to make room."""
        self._folded.pop(id_, None)
        if found.folded_bytes:
            self._folded[id_] = found.folded_bytes
        while len(self._folded) > 1 and sum(self._folded.values()) > HISTORIES_BYTES_MAX:
            oldest = next(iter(self._folded))
            del self._folded[oldest]
            self._topics[oldest].unfold()

    # ------------------------------------------------------------------------------------------------------- looking

    def __iter__(self) -> Iterator[str]:
        """Ids of topics that have schemas, or had."""
        return iter(self._topics)

    def live(self, id_: str) -> Sequence[tuple[int, Definition]]:
        """(version, schema) of a topic's schemas in force, ascending; not to be changed."""
        found = self._topics.get(id_)
        return found.live if found else ()

    def check(self, id_: str, new: Definition, strategy: Strategy, *, elsewhere: bool = False) -> None:
        """Whether a schema that a topic does not have may be added.

        Args:
            elsewhere: it was registered in another cluster: whether Java's clients can read it was judged there, or never.

        Raises:
            SchemaInvalid, SchemaIncompatible, SchemasFull.
        """
        if not elsewhere:
            check_new(new)
        found = self._topics.get(id_)
        if found is None:
            return
        suspects = found.suspects(new, strategy) if strategy.transitive else None
        self._keep_folded(id_, found)
        check(new, found.live, strategy, suspects)

    def check_consumer(self, id_: str, own: Definition, strategy: Strategy) -> None:
        """Whether a consumer may subscribe with a schema of its own.

        Raises:
            SchemaInvalid, SchemaIncompatible.
        """
        known = self.find(id_, own) is not None
        if strategy is Strategy.ALWAYS_INCOMPATIBLE or (strategy.transitive and strategy.backward):
            if not known:
                self.check(id_, own, strategy)
            return
        check_consumer(own, self.live(id_), strategy)

    def has_schema(self, id_: str) -> bool:
        """Whether a topic has a schema in force."""
        found = self._topics.get(id_)
        return found is not None and found.latest is not None

    def latest(self, id_: str) -> tuple[int, Record] | None:
        """The newest schema in force, or None."""
        found = self._topics.get(id_)
        if found is None or found.latest is None:
            return None
        return found.latest, found.records[found.latest]

    def at(self, id_: str, version: int) -> Record | None:
        """The schema that has a number, also one that was deleted since: messages written with it are still there."""
        found = self._topics.get(id_)
        record = found.records.get(version) if found else None
        return None if record is None or record.deleted else record

    def every(self, id_: str) -> list[tuple[int, Record]]:
        """(version, record) of all schemas that can be read by number, ascending."""
        found = self._topics.get(id_)
        return [(version, record) for version, record in found.records.items() if not record.deleted] if found else []

    def find(self, id_: str, definition: Definition) -> int | None:
        """The version that an equal schema has, if it is in force.

        Raises:
            SchemaInvalid.
        """
        check_sizes(definition, self.schema_bytes_max)
        wanted = identity(definition)
        found = self._topics.get(id_)
        return found.find(wanted) if found else None

    def readable(self, id_: str, definition: Definition) -> int | None:
        """The version under which an equal schema can be read, also if it is not in force.

        Raises:
            SchemaInvalid.
        """
        check_sizes(definition, self.schema_bytes_max)
        wanted = identity(definition)
        found = self._topics.get(id_)
        return found.readable(wanted) if found else None

    def numbering(self, id_: str) -> int:
        """The numbering that a topic's versions belong to (docs/design/schemas.md#numbering); 0: it has no schemas.

        It distinguishes the present versions from those before its schemas were deleted by force. The first record names it: that
        record stays as long as the numbers count on, deletions included.
        """
        found = self._topics.get(id_)
        return found.numbering if found else 0

    # ------------------------------------------------------------------------------------------------------ changing

    def prepare(
        self,
        id_: str,
        definition: Definition,
        strategy: Strategy,
        *,
        now_ms: int,
        user: str = "",
        foreign: bool = False,
        elsewhere: bool = False,
    ) -> Addition | int:
        """The change to store so that a topic has a schema; its version, if the topic has it already.

        Args:
            foreign: for reading only: it need not be compatible with the others.
            elsewhere: see `check`.

        Raises:
            SchemaInvalid, SchemaIncompatible, SchemasFull.
        """
        present = self.find(id_, definition)
        if present is not None:
            return present
        if not foreign:
            self.check(id_, definition, strategy, elsewhere=elsewhere)
        found = self._topics.get(id_) or TopicSchemas()
        if found.next >= self._versions_max:
            raise SchemasFull(f"{id_} has {found.next} schema versions, the most allowed")
        if found.bytes + len(definition.data) > self._topic_bytes_max:
            raise SchemasFull(f"the schemas of {id_} would exceed {self._topic_bytes_max} bytes together")
        if self._bytes + len(definition.data) > self._bytes_max:
            raise SchemasFull(
                f"all schemas of this cluster would exceed {self._bytes_max} bytes together (schemas_bytes_max)"
            )
        record = Record(
            int(definition.type),
            definition.data,
            definition.properties,
            definition.name,
            now_ms,
            user=user,
            foreign=foreign,
        )
        return Addition(id_, found.next, record)

    def prepare_deletion(self, id_: str, *, now_ms: int) -> Addition | None:
        """The change to store so that a topic's schemas are no longer in force; None if none are."""
        found = self._topics.get(id_)
        if found is None or found.latest is None:
            return None
        return Addition(id_, found.next, Record(time_ms=now_ms, deleted=True))

    def apply(self, addition: Addition) -> None:
        """A change is durable."""
        found = self._topics.setdefault(addition.id, TopicSchemas())
        found.put(addition.version, addition.record)
        self._bytes += len(addition.record.data)
        self._keep_folded(addition.id, found)

    def newest(self, id_: str) -> int | None:
        """The last number that was given, also to a deletion; None when a topic has, and had, no schema."""
        found = self._topics.get(id_)
        return found.next - 1 if found and found.next else None

    def keys(self, id_: str) -> list[str]:
        """Everything stored for a topic."""
        found = self._topics.get(id_)
        return [schema_key(id_, version) for version in found.records] if found else []

    def forget(self, id_: str) -> None:
        """Forget a topic whose schemas were removed from the store; later schemas of it are numbered from 0."""
        found = self._topics.pop(id_, None)
        self._folded.pop(id_, None)
        if found is not None:
            self._bytes -= found.bytes

    def figures(self) -> tuple[int, int, int]:
        """Topics that have schemas, or had; their numbers, deletions included; bytes of their definitions."""
        every = self._topics.values()
        return len(self._topics), sum(len(one.records) for one in every), sum(one.bytes for one in every)

    def validate(self) -> None:
        """Check what must hold after every step."""
        for found in self._topics.values():
            found.validate()
        assert self._bytes == sum(found.bytes for found in self._topics.values())
        assert all(self._topics[id_].folded_bytes == size for id_, size in self._folded.items())
