"""Translates the schema versions that come over links: the destination's half of replicating schemas (PIP-87, PIP-88).

The rules: docs/design/schemas.md.

A version is a number that one cluster gave. An entry from another cluster carries its source's number; here it gets the number
that the same schema has here. Known pairs are looked up in a dictionary, per entry. An unknown number stops its request, and
no other, *before* the entry that carries it (the entries before it are stored):

    GEO_APPEND     entries with an unknown number: the request is parked, and later requests of the topic queue
    ... WANTED     to the sender: the unknown numbers
    ... BROUGHT    from the sender, after it asked the source: schemas (some: the rest is asked for again), numbers that the
                   source cannot explain, or why it cannot answer now
    host.bring     each schema is found or created here, one after the other; refused ones are remembered for this request only
    again          the request is judged as if it came now

For the chain rule a parked request is one that arrives late: nothing of it is stored, nothing is promised, and it is judged again
when it continues. So its sender may still die, be repeated, or be too late. The known pairs are a cache: they are lost at a
restart, and asked for again; a registry that gets a schema twice answers with the same number.

    a pair is known by    source cluster and its uuid, topic (without partition), numbering of its schemas there, the version

The *numbering* is a value that `GEO_READ` answers (docs/design/schemas.md#numbering): numbers begin at 0 again when an operator
deletes a topic's schemas at the source by force. When schemas are deleted here, the pairs are no longer valid: `forgotten`.

An invalid number, or one that the source itself cannot explain, is left out of the entry: consumers then see a message without
a version, never one with a number that means another schema here. That is counted and logged.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from magnetar.core.names import TopicName
from magnetar.effects.outbox import Note, Outbox
from magnetar.schemas.errors import SchemaInvalid
from magnetar.schemas.registry import schema_id
from magnetar.schemas.versions import decode_version, encode_version
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import field_bytes

WANTED_MAX: Final = 32
"""Schemas asked for at once: their registration (a few ms each) must stay well below the half second of silence after which a
pipeline gives a destination up, and their definitions (256 kB each at most) below any frame limit."""

AHEAD_MAX: Final = 1_000
"""Entries after an unknown version that are searched for further ones: some 2 us each, once per question."""

PAIRS_MAX: Final = 500_000
"""A ceiling on remembered pairs, some 150 bytes each; beyond it the topic that was met first is forgotten and asked for again."""

NARROW_SHARE: Final = 4
"""One part in this many of the bytes that may be on their way to the disk is for roles that may replicate some topics only and
have not brought the schemas that they were asked for."""

TOLD_MAX: Final = 10_000
"""A ceiling on (topic, source) of which the log says that versions were left out."""

SCHEMA_VERSION: Final = 16
"""The field of MessageMetadata."""

Key = tuple[str, str]
"""(topic, source cluster)."""

Ask = Callable[[pb.CommandGeoSchemasWanted], None]
Suffixes = dict[bytes, bytes]
"""Version bytes at the source -> the field appended to the metadata here."""


class Refusal(NamedTuple):
    """Why a schema is not allowed here.

    Attributes:
        reason: one line, without the message's position.
        conflict: both sides.
    """

    reason: str
    conflict: pb.GeoSchemaConflict | None = None


class Brought(NamedTuple):
    """The result for a schema that was brought.

    Attributes:
        version: its number here; None: it needs none, or see the others.
        refusal: why it is not allowed here.
        trouble: it could not be stored just now.
    """

    version: int | None = None
    refusal: Refusal | None = None
    trouble: str = ""


class SchemaHost(Protocol):
    """The broker's registry, as links see it."""

    def bring(self, topic: TopicName, source: str, schema: pb.GeoSchema, then: Callable[[Brought], None]) -> None:
        """Get or make a schema of a topic; `then` is called once, now or when it is durable."""
        ...


@dataclass(slots=True)
class Translation:
    """The versions of one request's entries.

    Attributes:
        key, uuid, name, numbering: their source cluster and topic.
        suffixes: the known pairs; shared with other requests.
        missing: numbers that the source cannot explain; for this request only, as the source may give them later.
        refused: numbers whose schema is not allowed here, as of this attempt.
        trouble: why the request has to be tried again later.
        dropped: entries whose version was left out.
    """

    key: Key
    uuid: str
    name: TopicName
    numbering: int
    suffixes: Suffixes = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    refused: dict[int, Refusal] = field(default_factory=dict)
    trouble: str = ""
    dropped: int = 0

    def number(self, version: bytes) -> int | None:
        """The number in these bytes; None when the source cannot explain them."""
        try:
            number = decode_version(version)
        except SchemaInvalid:
            return None
        return None if number in self.missing else number


@dataclass(slots=True)
class _Parked:
    """A request that waits; `ticket` 0: queued after another one; `whole`: of a link that may replicate everything."""

    connection: int
    translation: Translation
    size: int
    again: Callable[[], None]
    whole: bool
    ticket: int = 0
    wanted: frozenset[int] = frozenset()
    left: int = 0


class SchemaTranslator:
    """Requests that wait for schemas, and the pairs that are known.

    Args:
        outbox: the broker's.
        cluster: this one.
        host: the registry; None: there is none, and versions are left out.
        stamp: the field appended after a version (`replicated_from` of the source).
        first_ticket: tickets are above, so that two translators of one connection recognise their own.
    """

    def __init__(
        self,
        outbox: Outbox,
        cluster: str,
        host: SchemaHost | None,
        stamp: Callable[[str], bytes] = lambda _source: b"",
        *,
        first_ticket: int = 0,
    ) -> None:
        self.cluster = cluster
        self.parked_bytes = 0
        self.parked_narrow_bytes = 0
        """Those bytes that came from links that may replicate some topics only: one that brings no schemas delays no others."""
        self.dropped: Counter[str] = Counter()
        """Entries whose version was left out, by source."""
        self.learnt: Counter[str] = Counter()
        """Schemas that were got or made here for a link, by source."""
        self._outbox = outbox
        self._host = host
        self._stamp = stamp
        self._tables: dict[tuple[str, str, str, int], Suffixes] = {}
        self._pairs = 0
        self._queues: dict[Key, deque[_Parked]] = {}
        self._tickets: dict[int, _Parked] = {}
        self._next_ticket = first_ticket
        self._noted: set[Key] = set()

    # ------------------------------------------------------------------------------------------------------- looking

    def translation(self, topic: str, name: TopicName, source: str, uuid: str, numbering: int) -> Translation:
        """For a request that just came."""
        return Translation((topic, source), uuid, name, numbering)

    def look(self, translation: Translation) -> Suffixes:
        """The pairs that are known now; asked for each time that a request is judged."""
        found = self._tables.get(self._table_key(translation))
        translation.suffixes = found if found is not None else {}
        return translation.suffixes

    @staticmethod
    def _table_key(translation: Translation) -> tuple[str, str, str, int]:
        return translation.key[1], translation.uuid, schema_id(translation.name), translation.numbering

    def note_dropped(self, translation: Translation) -> None:
        """Entries are stored without the version that they came with."""
        if not translation.dropped:
            return
        topic, source = translation.key
        self.dropped[source] += translation.dropped
        translation.dropped = 0
        if translation.key not in self._noted and len(self._noted) < TOLD_MAX:
            self._noted.add(translation.key)
            text = (
                f"{topic}: messages from {source} carry schema versions that {source} cannot explain (never assigned, "
                "forgotten by force, or not 8 bytes): they are sent without a version, and consumers decode with their own schema"
            )
            self._outbox.put(Note("warning", text))

    def waits(self, key: Key) -> bool:
        """Whether a request of a topic and source is parked."""
        return key in self._queues

    # ------------------------------------------------------------------------------------------------------- parking

    def pending(self, on_disk: int, *, whole: bool) -> int:
        """How many bytes count against the limit of a sender: those on their way to the disk, and those that wait here.

        What a role with the right to some topics lets wait does not count for a role with the right to everything. Such a role
        need not bring the schemas that it is asked for, and must hold up no others.

        Args:
            on_disk: bytes on their way to the disk.
            whole: the sender may replicate everything.
        """
        narrow = self.parked_narrow_bytes
        others = on_disk + self.parked_bytes - narrow
        return others if whole else max(others + narrow, narrow * NARROW_SHARE)

    def behind(
        self, connection: int, translation: Translation, size: int, again: Callable[[], None], *, whole: bool = True
    ) -> None:
        """A request queues after one that waits."""
        self._queues[translation.key].append(_Parked(connection, translation, size, again, whole))
        self._count(size, whole)

    def _count(self, size: int, whole: bool) -> None:
        self.parked_bytes += size
        if not whole:
            self.parked_narrow_bytes += size

    def park(
        self,
        connection: int,
        translation: Translation,
        size: int,
        versions: Iterable[int],
        ask: Ask,
        again: Callable[[], None],
        *,
        whole: bool = True,
    ) -> None:
        """A request met versions that mean nothing here."""
        self._next_ticket += 1
        wanted = frozenset(versions)
        parked = _Parked(connection, translation, size, again, whole, self._next_ticket, wanted)
        self._tickets[parked.ticket] = parked
        self._queues.setdefault(translation.key, deque()).appendleft(parked)
        self._count(size, whole)
        wanted_here = pb.CommandGeoSchemasWanted(
            ticket=parked.ticket,
            topic=translation.key[0],
            source=translation.key[1],
            schema_numbering=translation.numbering,
        )
        wanted_here.versions.extend(sorted(wanted))
        ask(wanted_here)

    def hold(
        self, connection: int, translation: Translation, size: int, again: Callable[[], None], *, whole: bool = True
    ) -> Callable[[], None]:
        """A request waits for something else than schemas, and later ones queue.

        Returns:
            A function to call once, when the request can continue.
        """
        self._next_ticket += 1
        parked = _Parked(connection, translation, size, again, whole, self._next_ticket, left=1)
        self._tickets[parked.ticket] = parked
        self._queues.setdefault(translation.key, deque()).appendleft(parked)
        self._count(size, whole)
        return lambda: self._one_done(parked)

    def brought(self, connection: int, command: pb.CommandGeoSchemasBrought) -> None:
        """GEO_SCHEMAS_BROUGHT. Schemas that no request waits for are ignored."""
        parked = self._tickets.get(command.ticket)
        if parked is None or parked.connection != connection or parked.left:
            return
        translation = parked.translation
        translation.missing |= parked.wanted & set(command.missing)
        found = {one.version: one for one in command.found if one.version in parked.wanted}
        if command.reason or not (found or translation.missing & parked.wanted):
            translation.trouble = (
                command.reason or f"{translation.key[1]} did not send schema version {min(parked.wanted)}"
            )
        parked.left = len(found) + 1
        for one in sorted(found.values(), key=lambda schema: schema.version):
            self._bring(parked, one)
        self._one_done(parked)

    def _bring(self, parked: _Parked, schema: pb.GeoSchema) -> None:
        translation = parked.translation

        def came(brought: Brought) -> None:
            if brought.refusal is not None:
                translation.refused[schema.version] = brought.refusal
            elif brought.trouble:
                translation.trouble = brought.trouble
            elif brought.version is None:
                translation.missing.add(schema.version)
            else:
                self._remember(translation, schema.version, brought.version)
            self._one_done(parked)

        if self._host is None:
            came(Brought())
        else:
            self._host.bring(translation.name, translation.key[1], schema, came)

    def _remember(self, translation: Translation, there: int, here: int) -> None:
        source = translation.key[1]
        self.learnt[source] += 1
        while self._pairs >= PAIRS_MAX:
            self._pairs -= len(self._tables.pop(next(iter(self._tables))))
        table = self._tables.setdefault(self._table_key(translation), {})
        stamp = self._stamp(source)
        before = len(table)
        # In protobuf the last value of a field wins: a number that is the same in both need not be said again.
        table[encode_version(there)] = (
            stamp if here == there else field_bytes(SCHEMA_VERSION, encode_version(here)) + stamp
        )
        self._pairs += len(table) - before

    def _one_done(self, parked: _Parked) -> None:
        parked.left -= 1
        if parked.left or self._tickets.pop(parked.ticket, None) is None:
            return
        self._go_on(parked.translation.key)

    def _go_on(self, key: Key) -> None:
        """The first of a queue is ready, or gone: judge it and the next ones, until one waits again."""
        queue = self._queues.pop(key, None)
        while queue:
            if queue[0].ticket in self._tickets:
                break
            parked = queue.popleft()
            self._count(-parked.size, parked.whole)
            parked.again()
            if key in self._queues:  # it waits again, or another one does
                self._queues[key].extend(queue)
                return
        if queue:
            self._queues[key] = queue

    # --------------------------------------------------------------------------------------------------------- ending

    def disconnected(self, connection: int) -> None:
        """A connection is gone: its requests that still wait are not stored, and get no answer."""
        self._leave(lambda parked: parked.connection == connection)

    def removed(self, topic: str) -> None:
        """A topic was deleted here: what waits for it is judged now, and refused."""
        for key in [key for key in self._queues if key[0] == topic]:
            for parked in self._queues[key]:
                self._tickets.pop(parked.ticket, None)
            self._go_on(key)

    def _leave(self, who: Callable[[_Parked], bool]) -> None:
        for key in list(self._queues):
            queue = self._queues[key]
            for parked in queue:
                if who(parked):
                    self._tickets.pop(parked.ticket, None)
                    self._count(-parked.size, parked.whole)
            self._queues[key] = deque(parked for parked in queue if not who(parked))
            self._go_on(key)

    def forgotten(self, id_: str) -> None:
        """The schemas of a topic were forgotten here: their numbers may come to mean something else."""
        for key in [key for key in self._tables if key[2] == id_]:
            self._pairs -= len(self._tables.pop(key))

    def validate(self) -> None:
        """Check what must hold after every step."""
        queued = [parked for queue in self._queues.values() for parked in queue]
        assert self.parked_bytes == sum(parked.size for parked in queued) >= 0, "bytes of parked requests"
        narrow = sum(parked.size for parked in queued if not parked.whole)
        assert self.parked_narrow_bytes == narrow, "bytes of parked requests of links of some topics"
        assert self._pairs == sum(map(len, self._tables.values())), "remembered pairs"
        assert {parked.ticket for parked in queued if parked.ticket} == set(self._tickets), "a ticket without a request"
        for key, queue in self._queues.items():
            assert queue, f"{key}: an empty queue"
            assert queue[0].ticket in self._tickets, f"{key}: requests wait for nothing"
