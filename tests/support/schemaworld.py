"""Schemas in the worlds of links: versions that differ, are refused, forgotten, asked for and never answered.

On top of `linkworld.World`: both clusters have the real registry and its rules, B stores what links bring with its own slow and
failing store, messengers pass questions on to A now, later, twice, without success, or die with them. Each message knows
which definition it was written with; what B stores must name the same one there, or none where no cluster can know.
"""

import json
import random
from collections.abc import Callable
from typing import Any, ClassVar

from magnetar.broker.context import BrokerContext
from magnetar.broker.links.schemas import LinkSchemas
from magnetar.broker.topics.schemas import Schemas, schema_message
from magnetar.core.names import TopicName
from magnetar.core.settings import BrokerConfig
from magnetar.replication.link.schemas import Brought, SchemaTranslator, Translation
from magnetar.schemas.compatibility import Strategy
from magnetar.schemas.registry import Registry, schema_id
from magnetar.schemas.types import Definition, SchemaType
from magnetar.storage.entries import Append
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build, inspect
from tests.support import linkworld
from tests.support.linkworld import TOPIC, Node, Task, Violation, World, uid_kind

NAME = TopicName.parse(TOPIC)
ID = schema_id(NAME)
POOL = [
    Definition(
        SchemaType.AVRO,
        json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": "int", **more}]}).encode(),
    )
    for name, more in [("a", {}), ("b", {}), ("c", {"default": 0}), ("d", {"default": 0}), ("e", {"default": 1})]
] + [Definition(SchemaType.STRING)]


class Rules:
    """The policies of a namespace, as `metadata.resources` has them."""

    def __init__(self) -> None:
        self.strategy, self.auto_update, self.replication = "FULL", True, "block"

    def schema_rules(self, _topic: TopicName) -> tuple[str, bool, bool]:
        return self.strategy, self.auto_update, False

    def schema_update_over_links(self, _topic: TopicName) -> bool:
        return self.auto_update

    def schema_replication(self, _topic: TopicName) -> str:
        return self.replication


class SchemaWorld(World):
    """A link a -> b whose messages carry versions.

    Args:
        rng, trace: as `World`.
        translator: of B; a planted bug is one that leaves a rule out.
    """

    def __init__(
        self,
        rng: random.Random,
        trace: list[str] | None = None,
        translator: type[SchemaTranslator] = SchemaTranslator,
    ) -> None:
        self.rules = Rules()
        self.translator_class = translator
        self.source_registry = Registry()
        self.trace = trace
        self.rng = rng
        self.clock_of_schemas = 0
        self.written_with: dict[int, bytes | None] = {}
        self.loose: set[int] = set()
        self.questions: list[tuple[int, pb.CommandGeoSchemasWanted]] = []
        self.calm = False
        for _ in range(3):
            self.register_a()
        super().__init__(rng, trace)

    # ------------------------------------------------------------------------------------------------------ the source

    def publish(self) -> None:
        """As ever; the entries carry versions."""
        original = linkworld.entry_bytes

        def stamped(uid: int, kind: int, count: int) -> tuple[bytes, int]:
            data, flags = original(uid, kind, count)
            version, definition = self.pick()
            self.written_with[uid] = definition
            if version is None:
                return data, flags
            seen = inspect(data, message_bytes_max=1 << 20)
            seen.metadata.schema_version = version
            return build(seen.metadata, data[seen.metadata_end :]), flags

        linkworld.entry_bytes = stamped
        try:
            super().publish()
        finally:
            linkworld.entry_bytes = original

    def pick(self) -> tuple[bytes | None, bytes | None]:
        """Version bytes of a producer, and the definition that they stand for."""
        choice = self.rng.random()
        if choice < 0.1:
            return None, None
        if choice < 0.15:
            return self.rng.choice((b"", b"\x01", b"\xff" * 8, bytes(7))), None
        numbers = [number for number in range(20) if self.source_registry.at(ID, number) is not None]
        if choice < 0.2 or not numbers:
            return (50).to_bytes(8, "big"), None
        number = self.rng.choice(numbers[-3:])
        record = self.source_registry.at(ID, number)
        assert record is not None
        return number.to_bytes(8, "big"), record.data if record.type != SchemaType.STRING else b"STRING"

    def register_a(self) -> None:
        self.clock_of_schemas += 1
        made = self.source_registry.prepare(
            ID, self.rng.choice(POOL), Strategy.ALWAYS_COMPATIBLE, now_ms=self.clock_of_schemas
        )
        if not isinstance(made, int) and made.version < 20:
            self.source_registry.apply(made)
            self.say(f"A has schema {made.version}")

    def delete_a(self) -> None:
        made = self.source_registry.prepare_deletion(ID, now_ms=self.clock_of_schemas)
        if made is not None and made.version < 20:
            self.source_registry.apply(made)
            self.say("A deletes its schemas")

    def forget_a(self) -> None:
        """By force: what was published before cannot be explained any more."""
        self.source_registry.forget(ID)
        self.loose |= set(self.written_with)
        self.say("A forgets its schemas")
        self.register_a()

    def task(self, state: pb.GeoTopicState, response: pb.CommandGeoReadResponse, data: list[bytes]) -> Task:
        made = super().task(state, response, data)
        self.numberings[id(made.frames)] = (made.frames, self.source_registry.numbering(ID))
        return made

    @property
    def numberings(self) -> dict[int, tuple[Any, int]]:
        """The numbering that the versions in each task's entries belong to, as GEO_READ answered."""
        return self.__dict__.setdefault("_numberings", {})

    def schema_numbering(self, task: Task) -> int:
        return self.numberings[id(task.frames)][1]

    # ------------------------------------------------------------------------------------------------- the destination

    def boot_b(self) -> None:
        context = BrokerContext(
            self.b.outbox,
            BrokerConfig(),
            self.rules,  # type: ignore[arg-type]  # what schemas ask of resources is there
            "b",
            self.b.uuid,
            admin_url="http://127.0.0.1:8080",
        )
        self.schemas = Schemas(
            context,
            {},
            self.b.meta,
            geo_replicated=lambda _name: True,
            forgotten=self.forgotten,
        )
        self.host = LinkSchemas(context, self.schemas)
        self.questions = []
        super().boot_b()
        made = self.destination.schemas
        self.destination.schemas = self.translator_class(made._outbox, made.cluster, self.host, made._stamp)

    def forgotten(self, id_: str) -> None:
        self.destination.schemas.forgotten(id_)

    def register_b(self) -> None:
        self.schemas.register(NAME, self.rng.choice(POOL), lambda _version, _error: None)
        self.b.pump()

    def delete_b(self) -> None:
        self.schemas.delete(NAME, force=False, then=lambda _version, _error: None)
        self.b.pump()
        self.say("B deletes its schemas")

    def forget_schemas_b(self) -> None:
        self.schemas.delete(NAME, force=True, then=lambda _version, _error: None)
        self.b.pump()
        self.say("B forgets its schemas")

    def change_rules(self) -> None:
        self.rules.strategy = self.rng.choice(("FULL", "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE", "BACKWARD"))
        self.rules.auto_update = self.rng.random() < 0.8
        self.rules.replication = self.rng.choice(("block", "block", "foreign"))
        self.say(f"B's rules: {self.rules.strategy} {self.rules.auto_update} {self.rules.replication}")

    def written(self, node: Node, append: Append) -> None:
        """B is about to store what came: who reads it here must decode it with what it was written with."""
        super().written(node, append)
        if node is self.b:
            for entry in append.entries:
                if entry.origin == "a":
                    self.check_version(entry.data)

    def check_version(self, data: bytes) -> None:
        uid, _ = uid_kind(data)
        meant = self.written_with[uid]
        metadata = inspect(data, message_bytes_max=1 << 20).metadata
        if not metadata.HasField("schema_version"):
            if meant is not None and uid not in self.loose:
                raise Violation(f"message {uid} lost its schema version")
            return
        record = self.schemas.registry.at(ID, int.from_bytes(metadata.schema_version, "big"))
        if record is None:
            raise Violation(f"message {uid} names version {metadata.schema_version.hex()}, which was never given here")
        here = record.data if record.type != SchemaType.STRING else b"STRING"
        if here != meant and uid not in self.loose:
            raise Violation(f"message {uid} was written with {meant!r} and is read with {here!r}")

    # ------------------------------------------------------------------------------------------------------ messengers

    def ask_schemas(self, wanted: pb.CommandGeoSchemasWanted) -> None:
        self.questions.append((self.session, wanted))

    def answer_question(self) -> None:
        """One question reaches A and its answer B: late, twice, or as an excuse; or the connection dies with it."""
        if not self.questions:
            return
        at = self.rng.randrange(len(self.questions))
        session, wanted = self.questions[at]
        fate = 1.0 if self.calm else self.rng.random()
        if fate < 0.08:
            self.destination.disconnected(self.session)
            self.session += 1
            self.questions = []
            self.b.pump()
            self.say("the connection dies")
            return
        if fate > 0.2:
            del self.questions[at]
        brought = pb.CommandGeoSchemasBrought(ticket=wanted.ticket)
        if 0.2 < fate < 0.3:
            brought.reason = "A cannot be asked"
        else:
            self.explain(wanted, brought)
        if session == self.session:
            self.destination.schemas.brought(session, brought)
            self.b.pump()

    def explain(self, wanted: pb.CommandGeoSchemasWanted, brought: pb.CommandGeoSchemasBrought) -> None:
        alive = wanted.schema_numbering == self.source_registry.numbering(ID)
        for version in wanted.versions:
            record = self.source_registry.at(ID, version) if alive else None
            if record is None:
                brought.missing.append(version)
            elif self.calm or self.rng.random() < 0.9:
                brought.found.add(version=version, schema=schema_message(record))

    def actions(self) -> list[tuple[float, Callable[[], Any]]]:
        r = self.rng
        force = r.choice((0, 0.5, 2))
        return [
            *super().actions(),
            (r.choice((4, 12)), self.answer_question),
            (1.5, self.register_a),
            (0.2, self.delete_a),
            (force, self.forget_a),
            (0.7, self.register_b),
            (0.2, self.delete_b),
            (force, self.forget_schemas_b),
            (0.5, self.change_rules),
            (0.4, lambda: self.b.store(1, "store failed")),
        ]

    def heal(self) -> None:
        self.calm = True
        self.rules.strategy, self.rules.auto_update = "ALWAYS_COMPATIBLE", True
        super().heal()

    def settle(self) -> None:
        for _ in range(12 if self.calm else 0):
            super().settle()
            for _ in range(len(self.questions)):
                self.answer_question()
        super().settle()

    def check(self) -> None:
        super().check()
        self.schemas.validate()


# ----------------------------------------------------------------------------------------------------------- planted bugs


class AnyLife(SchemaTranslator):
    """Numbers that begin again are taken for the old ones."""

    @staticmethod
    def _table_key(translation: Translation) -> tuple[str, str, str, int]:
        return translation.key[1], translation.uuid, schema_id(translation.name), 0


class KeepsForgotten(SchemaTranslator):
    """Pairs outlive the numbers that were forgotten here."""

    def forgotten(self, id_: str) -> None:
        return


class MissingForEver(SchemaTranslator):
    """What the source could not explain once is never asked again."""

    _never: ClassVar[dict[int, set[int]]] = {}

    def translation(self, topic: str, name: TopicName, source: str, uuid: str, numbering: int) -> Translation:
        made = super().translation(topic, name, source, uuid, numbering)
        made.missing = self._never.setdefault(id(self), set())
        return made


class TooEarly(SchemaTranslator):
    """A number is used when its registration was begun, not when it is durable."""

    def _bring(self, parked: Any, schema: pb.GeoSchema) -> None:
        registry = self._host._schemas.registry  # type: ignore[union-attr]
        found = registry._topics.get(ID)
        self._remember(parked.translation, schema.version, found.next if found else 0)
        self._host.bring(parked.translation.name, "a", schema, lambda _brought: None)  # type: ignore[union-attr]
        self._one_done(parked)


class TroubleIsNoTrouble(SchemaTranslator):
    """What could not be stored here is taken for what cannot be explained."""

    def _bring(self, parked: Any, schema: pb.GeoSchema) -> None:
        translation = parked.translation

        def came(brought: Brought) -> None:
            if brought.version is None and brought.refusal is None:
                translation.missing.add(schema.version)
            elif brought.refusal is not None:
                translation.refused[schema.version] = brought.refusal
            else:
                self._remember(translation, schema.version, brought.version or 0)
            self._one_done(parked)

        assert self._host is not None
        self._host.bring(translation.name, "a", schema, came)


BUGS: dict[str, type[SchemaTranslator]] = {
    one.__name__: one for one in (AnyLife, KeepsForgotten, MissingForEver, TooEarly, TroubleIsNoTrouble)
}


def run_world(
    seed: int, translator: type[SchemaTranslator] = SchemaTranslator, steps: int = 150
) -> tuple[str, list[str]]:
    """What went wrong in a seed's world ("" for nothing), and its trace."""
    trace: list[str] = []
    rng = random.Random(f"schemas {seed}")
    try:
        SchemaWorld(rng, trace, translator).run(steps)
    except AssertionError as error:
        return str(error) or "an assertion", trace
    return "", trace
