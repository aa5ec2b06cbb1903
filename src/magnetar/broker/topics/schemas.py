"""The schemas of a broker's topics: checking the schemas of producers and consumers, and registering new ones durably.

All changes of one topic's schemas go through one queue: the next is checked when the one before is stored or refused.
So two producers that send the same new schema at once get one version, and a failed store leaves no trace: the registry
changes after the store, never before.

A client                    is                                                        (docs/design/pulsar.md#schema-check)
producer with a schema      registered, if it is new and compatible and automatic updates are allowed
producer without one        accepted, unless the topic has a schema and the validation is enforced
consumer with a schema      checked; registered on a topic that is unused and empty
consumer without one        accepted
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from magnetar.broker.context import BrokerContext
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError
from magnetar.core.names import NamespaceName, TopicName
from magnetar.effects.outbox import Store
from magnetar.metadata.change import Change
from magnetar.metadata.keys import NAMESPACE_PREFIX, PARTITIONED_PREFIX, SYSTEM
from magnetar.schemas.compatibility import DEFAULT_STRATEGY, Strategy
from magnetar.schemas.errors import SchemaIncompatible, SchemaInvalid, SchemasFull
from magnetar.schemas.registry import Addition, Record, Registry, schema_id
from magnetar.schemas.types import SCHEMALESS, Definition, SchemaType, type_of
from magnetar.schemas.versions import decode_version, encode_version
from magnetar.wire import pulsar_pb2 as pb

PENDING_MAX: Final = 10_000
"""A ceiling on changes of one topic's schemas that wait for the store: as many as producers may be on a topic at once."""

EVENTS: Final = (
    "registered",
    "deleted",
    "refused_incompatible",
    "refused_invalid",
    "refused_full",
    "refused_without_schema",
    "refused_by_store",
)
"""The events that are counted, for producers, consumers, links and administrators together."""

Registered = Callable[[int | None, MagnetarError | None], None]
"""Called once: the version (None after a deletion of nothing), or why there is none."""

Answered = Callable[[bytes, BrokerError | None], None]
"""Called once, with the version bytes for the client (b"": none), or the reason of the refusal."""


class SchemaTopic(Protocol):
    """A topic, persistent or not, that a client wants to join."""

    text: str

    @property
    def name(self) -> TopicName:
        """Fully qualified."""

    def in_use(self) -> bool:
        """Whether the topic is used, so that a first schema comes too late (docs/design/pulsar.md#schema-check)."""


class _Job(NamedTuple):
    """One change of a topic's schemas, judged when its turn comes."""

    prepare: Callable[[], Addition | int | None]
    then: Registered


class Rules(NamedTuple):
    """The rules for the schemas of a topic.

    Attributes:
        strategy: the compatibility strategy.
        auto_update: whether producers may register new ones.
        enforced: whether producers must have one if the topic has one.
        system: it is one of the broker's own topics, which accept any schema.
    """

    strategy: Strategy
    auto_update: bool
    enforced: bool
    system: bool = False


def definition_of(schema: pb.Schema) -> Definition | None:
    """A schema as it came over the wire; None for types that say that there is none.

    Raises:
        SchemaInvalid: its type is not known.
    """
    kind = type_of(schema.type)
    if kind in SCHEMALESS:
        return None
    properties = {pair.key: pair.value for pair in schema.properties}
    return Definition(kind, schema.schema_data, properties, schema.name)


def schema_message(record: Record) -> pb.Schema:
    """A stored schema as it travels."""
    made = pb.Schema(name=record.name, schema_data=record.data, type=record.type)
    for key, value in record.properties.items():
        made.properties.add(key=key, value=value)
    return made


def refusal(topic: str, error: MagnetarError) -> BrokerError:
    """An error of the registry as the protocol says it, in one line."""
    code = ErrorCode.METADATA
    if isinstance(error, BrokerError):
        return error
    if isinstance(error, SchemaInvalid | SchemaIncompatible):
        code = ErrorCode.INCOMPATIBLE_SCHEMA
    elif isinstance(error, SchemasFull):
        code = ErrorCode.NOT_ALLOWED
    return BrokerError(code, f"{topic}: {error}")


class Schemas:
    """The schemas of one broker.

    Args:
        context: of the broker.
        topics: all of the broker's.
        geo_replicated: whether messages of a topic come and go over links.
        forgotten: called with the id of schemas that are there no more.
        stored: the metadata store at the start.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Mapping[str, Topic],
        stored: Mapping[str, bytes],
        *,
        geo_replicated: Callable[[TopicName], bool],
        forgotten: Callable[[str], None],
    ) -> None:
        self._outbox = context.outbox
        self._resources = context.resources
        self._topics = topics
        self._geo_replicated = geo_replicated
        self._on_forgotten = forgotten
        config = context.config
        self.registry = Registry.load(
            stored, versions_max=config.schema_versions_per_topic_max, bytes_max=config.schemas_bytes_max
        )
        self._queues: dict[str, deque[_Job]] = {}
        self._storing: dict[str, Addition] = {}
        self._going: Counter[str] = Counter()
        self.events: Counter[str] = Counter(dict.fromkeys(EVENTS, 0))
        """Counts of events since the start, for metrics."""

    # --------------------------------------------------------------------------------------------------------- rules

    def rules(self, topic: TopicName) -> Rules:
        """The rules for a topic: its namespace's policies, else Pulsar's defaults. The broker's own topics accept any
        schema.
        """
        if topic.namespace_name == SYSTEM or topic.local.startswith("__"):
            return Rules(Strategy.ALWAYS_COMPATIBLE, True, False, system=True)
        strategy, auto_update, enforced = self._resources.schema_rules(topic)
        chosen = Strategy(strategy)
        return Rules(DEFAULT_STRATEGY if chosen is Strategy.UNDEFINED else chosen, auto_update, enforced)

    # ------------------------------------------------------------------------------------------------------- clients

    def for_producer(self, topic: SchemaTopic, schema: pb.Schema | None, then: Answered) -> None:
        """Check or register a producer's schema; gives the version for its messages."""
        id_, rules = schema_id(topic.name), self.rules(topic.name)
        try:
            definition = definition_of(schema) if schema is not None else None
            if schema is not None and schema.type == SchemaType.AUTO_CONSUME:
                raise SchemaInvalid("a producer cannot have schema type AUTO_CONSUME")
        except SchemaInvalid as error:
            then(b"", refusal(topic.text, self._counted(error)))
            return
        if definition is not None:
            self._brought(topic, definition, rules, then)
        elif rules.enforced and self.registry.has_schema(id_):
            self.events["refused_without_schema"] += 1
            source = self._resources.policy_source("schema-validation", topic.name)
            reason = f"the topic has a schema, and {source} says that producers must have one: bring one"
            then(b"", BrokerError(ErrorCode.INCOMPATIBLE_SCHEMA, f"{topic.text}: {reason}"))
        else:
            then(b"", None)

    def get_or_create(self, topic: SchemaTopic, schema: pb.Schema, then: Answered) -> None:
        """GET_OR_CREATE_SCHEMA of a producer: the same as for a schema in PRODUCER."""
        try:
            definition = definition_of(schema)
        except SchemaInvalid as error:
            then(b"", refusal(topic.text, self._counted(error)))
            return
        if definition is None:
            then(b"", None)
        else:
            self._brought(topic, definition, self.rules(topic.name), then)

    def for_consumer(self, topic: SchemaTopic, command: pb.CommandSubscribe, then: Answered) -> None:
        """Check a consumer's schema; on an unused topic, register it."""
        try:
            definition = definition_of(command.schema) if command.HasField("schema") else None
            if definition is None:
                then(b"", None)
                return
            id_, rules = schema_id(topic.name), self.rules(topic.name)
            if self.registry.has_schema(id_) or topic.in_use():
                self._check_consumer(topic, definition, rules)
                then(b"", None)
                return
        except (SchemaInvalid, SchemaIncompatible, SchemasFull) as error:
            then(b"", refusal(topic.text, self._counted(error)))
            return
        self._brought(topic, definition, rules, then)

    def _check_consumer(self, topic: SchemaTopic, definition: Definition, rules: Rules) -> None:
        id_ = schema_id(topic.name)
        self.registry.find(id_, definition)  # checks it
        if self.registry.has_schema(id_):
            self.registry.check_consumer(id_, definition, rules.strategy)
        elif not self._geo_replicated(topic.name):
            # If messages arrive over links, the first schema may still be on its way: no decision is possible yet.
            raise SchemaIncompatible(
                "the topic is in use without a schema (BYTES); so a consumer's schema does not become the topic's"
            )

    def _brought(self, topic: SchemaTopic, definition: Definition, rules: Rules, then: Answered) -> None:
        id_ = schema_id(topic.name)

        def prepare() -> Addition | int | None:
            if not rules.auto_update and self.registry.find(id_, definition) is None:
                raise SchemaIncompatible(
                    "the schema is not registered, and automatic updates are off (is_allow_auto_update_schema)"
                )
            return self._prepare(id_, definition, rules.strategy)

        def registered(version: int | None, error: MagnetarError | None) -> None:
            if version is None:
                then(b"", refusal(topic.text, error or MagnetarError("the schema was not registered")))
            else:
                then(encode_version(version), None)

        self._submit(id_, _Job(prepare, registered))

    def get(self, topic: TopicName, asked: bytes | None) -> tuple[bytes, Record]:
        """GET_SCHEMA: by the version bytes of a message, or (None) the newest.

        GET_OR_CREATE_SCHEMA answers with no bytes for the schema BYTES. Go's client writes these into its messages, and
        its consumers ask for the schema of that version; the answer is BYTES again.

        Returns:
            The version's bytes, and the schema.

        Raises:
            BrokerError: TOPIC_NOT_FOUND, also for a version that was never assigned; INCOMPATIBLE_SCHEMA for bytes that
                are not a version.
        """
        id_ = schema_id(topic)
        if asked is None:
            newest = self.registry.latest(id_)
            if newest is None:
                raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"no schema is registered for {id_}")
            return encode_version(newest[0]), newest[1]
        if not asked:
            return b"", Record()
        try:
            version = decode_version(asked)
        except SchemaInvalid as error:
            raise refusal(id_, error) from None
        record = self.registry.at(id_, version)
        if record is None:
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"{id_} has no schema version {version}")
        return encode_version(version), record

    # -------------------------------------------------------------------------------------------------- registration

    def register(self, topic: TopicName, definition: Definition, then: Registered) -> None:
        """Register a schema for an administrator: automatic updates need not be allowed."""
        id_, strategy = schema_id(topic), self.rules(topic).strategy
        self._submit(id_, _Job(lambda: self._prepare(id_, definition, strategy), then))

    def bring(self, topic: TopicName, definition: Definition, then: Registered, *, back: bool = False) -> None:
        """Get or create the schema of messages from another cluster.

        One that can only be read (it was deleted here) is sufficient: it is not put in force again. If the policy is
        `foreign`, a new one can only be read too: producers' schemas are not compared with it. `back`: so is one that
        would be refused.
        """
        id_ = schema_id(topic)

        def prepare() -> Addition | int:
            present, rules = self.registry.readable(id_, definition), self.rules(topic)
            if present is not None:
                return present
            resources = self._resources
            foreign = resources.schema_replication(topic) == "foreign"
            try:
                if not (foreign or rules.system or resources.schema_update_over_links(topic)):
                    raise SchemaIncompatible(
                        "automatic updates are off (is_allow_auto_update_schema; to switch them on for links only: magnetar "
                        f"namespaces set {topic.namespace_name} schema-auto-update-over-links on)"
                    )
                return self._prepare(id_, definition, rules.strategy, foreign=foreign, elsewhere=True)
            except SchemaIncompatible:
                if not back:
                    raise
                return self._prepare(id_, definition, rules.strategy, foreign=True)

        self._submit(id_, _Job(prepare, then))

    def delete(self, topic: TopicName, *, force: bool, then: Registered) -> None:
        """Take a topic's schemas out of force; `force`: forget them, and number from 0 again.

        Without force old versions can still be read by number, for messages written with them are still there.
        """
        id_ = schema_id(topic)
        if force:
            self._submit(id_, _Job(lambda: None, lambda _version, error: self._forget(id_, error, then)))
        else:
            self._submit(id_, _Job(lambda: self.registry.prepare_deletion(id_, now_ms=self._outbox.now_ms), then))

    def _forget(self, id_: str, error: MagnetarError | None, then: Registered) -> None:
        if error is not None:
            then(None, error)
            return
        keys = tuple(self.registry.keys(id_))
        newest = self.registry.newest(id_)
        if not keys:
            then(None, None)
            return
        self._going[id_] += 1

        def stored(problem: str) -> None:
            self._gone(id_)
            if problem:
                then(None, _store_error(problem))
                return
            self._forgotten(id_)
            then(newest, None)

        self._outbox.put(Store({}, keys, stored))

    def _prepare(
        self,
        id_: str,
        definition: Definition,
        strategy: Strategy,
        *,
        foreign: bool = False,
        elsewhere: bool = False,
    ) -> Addition | int:
        now_ms = self._outbox.now_ms
        return self.registry.prepare(id_, definition, strategy, now_ms=now_ms, foreign=foreign, elsewhere=elsewhere)

    def _submit(self, id_: str, job: _Job) -> None:
        queue = self._queues.get(id_)
        if queue is None:
            self._queues[id_] = deque((job,))
            self._next(id_)
        elif len(queue) >= PENDING_MAX:
            # Clients over the C++ client take TooManyRequests for a final refusal, which this is not: they try again.
            job.then(
                None, BrokerError(ErrorCode.SERVICE_NOT_READY, f"{PENDING_MAX} schema changes of {id_} wait already")
            )
        else:
            queue.append(job)

    def _next(self, id_: str) -> None:
        """Take changes from a topic's queue until one has to be stored."""
        queue = self._queues[id_]
        while queue:
            job = queue.popleft()
            try:
                if id_ in self._going:
                    raise BrokerError(ErrorCode.SERVICE_NOT_READY, f"the schemas of {id_} are being deleted")
                result = job.prepare()
            except MagnetarError as error:
                job.then(None, self._counted(error))
                continue
            if isinstance(result, Addition):
                self._store(result, job.then)
                return
            job.then(result, None)
        del self._queues[id_]

    def _store(self, addition: Addition, then: Registered) -> None:
        self._storing[addition.id] = addition

        def stored(problem: str) -> None:
            del self._storing[addition.id]
            if not problem:
                self.registry.apply(addition)
                self.events["deleted" if addition.record.deleted else "registered"] += 1
                then(addition.version, None)
            else:
                self.events["refused_by_store"] += 1
                then(None, _store_error(problem))
            self._next(addition.id)

        self._outbox.put(Store(addition.puts, (), stored))

    # ------------------------------------------------------------------------------------------- topics that go away

    def deletion(self, topic: Topic) -> tuple[str, ...]:
        """A topic is about to be deleted: keys that go with it. `deleted` must follow.

        A partition leaves them alone: they belong to the partitioned topic, and go with its metadata (`following`).
        """
        id_ = schema_id(topic.name)
        if not self._alone(topic, id_):
            return ()
        return self._leaving(id_)

    def deleted(self, topic: Topic, *, failed: bool) -> None:
        """A topic was deleted, or was not."""
        id_ = schema_id(topic.name)
        if self._alone(topic, id_):
            self._left(id_, failed=failed)

    def _alone(self, topic: Topic, id_: str) -> bool:
        """Whether no other topic of the broker has the same schemas."""
        if topic.text == id_:
            return True
        if self._resources.partitions(topic.name.base) is not None or id_ in self._topics:
            return False
        prefix = f"{id_}-partition-"
        return not any(other.startswith(prefix) and other != topic.text for other in self._topics)

    def _leaving(self, id_: str) -> tuple[str, ...]:
        self._going[id_] += 1
        under_way = self._storing.get(id_)
        return (*self.registry.keys(id_), *(under_way.puts if under_way else ()))

    def _left(self, id_: str, *, failed: bool) -> None:
        self._gone(id_)
        if not failed:
            self._forgotten(id_)

    def _forgotten(self, id_: str) -> None:
        self.registry.forget(id_)
        self._on_forgotten(id_)

    def _gone(self, id_: str) -> None:
        self._going[id_] -= 1
        if self._going[id_] <= 0:
            del self._going[id_]

    def following(self, change: Change) -> tuple[str, ...]:
        """Keys that go with the namespaces and partitioned topics that a change deletes; `followed` must come next."""
        return tuple(key for id_ in self._of(change) for key in self._leaving(id_))

    def followed(self, change: Change, *, failed: bool) -> None:
        """The change was stored, or refused."""
        for id_ in self._of(change):
            if id_ in self._going:
                self._left(id_, failed=failed)

    def _of(self, change: Change) -> list[str]:
        found: list[str] = []
        for key in change.deletes:
            if key.startswith(PARTITIONED_PREFIX):
                found.append(key.removeprefix(PARTITIONED_PREFIX))
            elif key.startswith(NAMESPACE_PREFIX):
                found += self.topics(NamespaceName.parse(key.removeprefix(NAMESPACE_PREFIX)))
        return found

    def topics(self, namespace: NamespaceName) -> list[str]:
        """Names of topics of a namespace that have schemas, or had; sorted."""
        prefix = f"persistent://{namespace}/"
        return sorted(id_ for id_ in {*self.registry, *self._storing} if id_.startswith(prefix))

    def _counted(self, error: MagnetarError) -> MagnetarError:
        """The same error, counted."""
        for kind, name in ((SchemaIncompatible, "incompatible"), (SchemaInvalid, "invalid"), (SchemasFull, "full")):
            if isinstance(error, kind):
                self.events[f"refused_{name}"] += 1
        return error

    def stats(self) -> dict[str, int]:
        """Figures of all topics: the present state, and counts since the start."""
        topics, versions, size = self.registry.figures()
        return {"topics": topics, "versions": versions, "bytes": size, **self.events}

    def validate(self) -> None:
        """Check what must hold after every event."""
        self.registry.validate()
        assert set(self._storing) <= set(self._queues), "a change is being stored and its topic has no queue"


def _store_error(problem: str) -> BrokerError:
    return BrokerError(ErrorCode.METADATA, f"the metadata store refused: {problem}")
