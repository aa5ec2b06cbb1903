"""A wiped cluster takes its own messages back from a peer that holds them (GEO_RESTORE, docs/design/links.md#restore).

A restored message keeps its identity: its origin (this cluster), the incarnation that its topic had before the disk was lost, and
its index. It is stored as an entry from another cluster, so that no link sends it again: the other clusters have it, under the
same identity, and their state about it (above all acknowledged sets) stays valid. Its bytes are those that its producer sent: the
`replicated_from` that the peer's broker had appended is cut off again.

Exactly once, however often a restore is repeated. An entry is stored if its identity meets all three conditions:

    not in the topic's origin index map, not on its way to the disk       the map is part of the log, and as durable as the log
    not among those that retention has deleted since they came back       `TopicRecord.restored`, durable before the deletion
    of an earlier incarnation                                             messages of the present one were never lost

Unlike on a link there is no watermark: a second peer may fill gaps that the first one left, below messages that are here already.
A schema version is translated as over a link: the number that it has at the peer becomes the one it gets here
(`replication.link.schemas`).

In order: each request names the entry before its first one at the peer. That entry has to be here, on its way, or deleted since.
So later entries cannot follow a failed append, and when two restores run at once, each adds only entries that continue what is
here. An answer waits for the disk, the answer to a duplicate for the first copy (docs/design/links.md#persisted-answers).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from magnetar.core.errors import BrokerError, NameNotValid, ProtocolError
from magnetar.core.ids import Identity, Position
from magnetar.core.names import PARTITIONS_MAX, TopicName, check_cluster
from magnetar.effects.outbox import Outbox
from magnetar.replication.holdings import Run, Runs, covers, holdings, merged
from magnetar.replication.link.destination import PENDING_BYTES_MAX, THROTTLE_MS
from magnetar.replication.link.incoming import (
    REPLICATED_FROM,
    Ahead,
    BlockedEntry,
    UnknownSchemaVersion,
    append_ahead,
    check_room,
    refused,
    translated,
    wanted,
)
from magnetar.replication.link.ports import DestinationTopic, TopicHost
from magnetar.replication.link.schemas import Ask, SchemaHost, SchemaTranslator, Translation
from magnetar.storage.entries import Append, EntryFlags, NewEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.idempotency_keys import Found
from magnetar.wire.limits import LINK_METADATA_FIELDS_MAX
from magnetar.wire.metadata import (
    ChecksumError,
    Inspected,
    MessageTooLargeError,
    field_bytes,
    inspect,
    with_appended,
    with_metadata_cut,
)

ENTRIES_MAX: Final = 65_536
"""A ceiling on entries in one frame, as for links."""

FIRST_TICKET: Final = 1 << 40
"""Tickets of links' questions stay below."""

_REPLICATED: Final = int(EntryFlags.REPLICATED)
_MARKER: Final = int(EntryFlags.MARKER)

Key = tuple[int, int]
"""(incarnation, index of the first message) of an entry."""

Reply = Callable[[pb.CommandGeoRestoreResponse], None]


class RestoreHost(TopicHost, Protocol):
    """The broker, as restoring sees it."""

    def forgotten(self, topic: str) -> dict[int, Runs]:
        """By incarnation: messages that came back and that retention has deleted since."""
        ...


@dataclass(slots=True)
class _Waiting:
    connection: int
    number: int
    response: pb.CommandGeoRestoreResponse
    reply: Reply


@dataclass(slots=True)
class _Coming:
    """One GEO_RESTORE with entries; `again` once it had to wait for schemas; `whole`: see `Restorer.restore`."""

    connection: int
    request: pb.CommandGeoRestore
    payload: bytes
    translation: Translation
    response: pb.CommandGeoRestoreResponse
    reply: Reply
    ask: Ask
    whole: bool
    again: bool = False
    ahead: Ahead = field(default_factory=Ahead)


@dataclass(slots=True)
class _Topic:
    """The appends of one topic that are on their way to the disk.

    Attributes:
        number: of the last append that was staged.
        done: of the last one that is durable.
        void: appends up to this one never were.
        staged: entries on their way, with their append's number.
        waiting: answers.
    """

    number: int = 0
    done: int = 0
    void: int = 0
    staged: dict[Key, int] = field(default_factory=dict)
    waiting: list[_Waiting] = field(default_factory=list)


class Restorer:
    """Takes this cluster's messages back.

    Args:
        outbox: the broker's.
        cluster: this one.
        host: the broker.
        schemas: the registry; None: there is none, and schema versions are left out of what comes.
        message_bytes_max, pending_bytes_max: limits, as for links.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        cluster: str,
        host: RestoreHost,
        message_bytes_max: int,
        schemas: SchemaHost | None = None,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        self.cluster = cluster
        self.schemas = SchemaTranslator(outbox, cluster, schemas, first_ticket=FIRST_TICKET)
        self.pending_bytes = 0
        self.messages = self.bytes = 0
        self._outbox = outbox
        self._host = host
        self._suffix = field_bytes(REPLICATED_FROM, cluster.encode())
        self._message_bytes_max = message_bytes_max
        self._pending_bytes_max = pending_bytes_max
        self._topics: dict[str, _Topic] = {}

    # --------------------------------------------------------------------------------------------------------- requests

    def restore(
        self,
        connection: int,
        request: pb.CommandGeoRestore,
        payload: bytes,
        reply: Reply,
        ask: Ask,
        *,
        whole: bool = True,
    ) -> None:
        """GEO_RESTORE. `reply` is called once, now or when the disk or the store has answered; `ask`, for schemas, before that.

        Args:
            connection, request, payload, reply, ask: of the peer's messages.
            whole: the sender may replicate everything. What others let wait for schemas holds up only them.

        Raises:
            ProtocolError: the peer is none of ours: lists that do not fit, forged entries, another cluster's messages.
        """
        name = self._checked(request)
        response = pb.CommandGeoRestoreResponse(request_id=request.request_id)
        reason = self._host.refuses_entries(name, request.peer)
        if reason:
            response.blocked, response.reason = "policy", reason
            reply(response)
        elif not request.ledgers:
            self._open(request, name, response, reply)
        else:
            check_lists(request, len(payload))
            translation = self.schemas.translation(request.topic, name, request.peer, "", request.schema_numbering)
            coming = _Coming(connection, request, payload, translation, response, reply, ask, whole)
            if self._full(coming):
                reply(response)
            elif self.schemas.waits(translation.key):
                self.schemas.behind(
                    connection, translation, len(payload), lambda: self._entries_late(coming), whole=whole
                )
            else:
                self._entries(coming)

    def _checked(self, request: pb.CommandGeoRestore) -> TopicName:
        try:
            name = TopicName.parse(request.topic)
            check_cluster(request.peer)
        except NameNotValid as error:
            raise ProtocolError(f"a restore names no topic or cluster: {error}") from None
        if str(name) != request.topic or not name.persistent:
            raise ProtocolError(f"a restore names {request.topic!r}: only full names of persistent topics are restored")
        if request.cluster != self.cluster:
            raise ProtocolError(f"a restore for {request.cluster!r} reached {self.cluster}: check the addresses")
        if request.peer == self.cluster:
            raise ProtocolError(f"a restore of {self.cluster} from itself")
        if request.partitions > PARTITIONS_MAX or (request.partitions and not 0 <= name.partition < request.partitions):
            raise ProtocolError(f"{request.topic} cannot be one of {request.partitions} partitions")
        return name

    def _open(
        self, request: pb.CommandGeoRestore, name: TopicName, response: pb.CommandGeoRestoreResponse, reply: Reply
    ) -> None:
        """Create the topic if it is missing; answer the messages that are here."""
        partitions = request.partitions
        base = name.base if partitions else name
        here = self._host.partitions(base)
        if here is not None and (here > 0) != (partitions > 0):
            counts = [f"{count} partitions" if count else "no partitions" for count in (partitions, here)]
            response.blocked = "partitions"
            response.reason = (
                f"{base} has {counts[0]} in {request.peer} and {counts[1]} in {self.cluster}; "
                f"{self._host.reconcile(base, request.peer, partitions)}"
            )
            reply(response)
            return

        def made(error: str) -> None:
            if error:
                response.blocked, response.reason = "policy", f"the topic cannot be made here: {error}"
            else:
                self._answer_held(request.topic, response)
            reply(response)

        if self._host.find(request.topic) is None or (here or 0) < partitions:
            self._host.create(base, partitions, made)
        else:
            made("")

    def _answer_held(self, topic: str, response: pb.CommandGeoRestoreResponse) -> None:
        found = self._host.find(topic)
        if found is None:
            response.blocked, response.reason = "policy", f"{topic} was deleted in {self.cluster} just now"
            return
        held: dict[int, list[Run]] = {number: list(runs) for number, runs in self._host.forgotten(topic).items()}
        for one in holdings(found.log, self.cluster, self.cluster):
            held.setdefault(one.incarnation, []).extend(one.runs)
        held[found.log.incarnation] = [(0, 1 << 62)]  # whatever the present incarnation published or will publish
        for number, runs in held.items():
            for first, end in merged(runs):
                response.held_incarnations.append(number)
                response.held_firsts.append(first)
                response.held_ends.append(end)

    def _full(self, coming: _Coming) -> bool:
        """Whether a request has to come again, because too much is on its way; its answer says so."""
        pending = self.schemas.pending(self.pending_bytes, whole=coming.whole)
        if pending < self._pending_bytes_max:
            return False
        response = coming.response
        response.retry, response.throttle_ms = True, THROTTLE_MS
        response.reason = f"{pending} bytes are on their way to the disk"
        return True

    def _entries_late(self, coming: _Coming) -> None:
        """A request that had to wait: its sender can no longer get a ProtocolError, so the answer says what is wrong."""
        try:
            if self._full(coming):
                coming.reply(coming.response)
            else:
                self._entries(coming)
        except ProtocolError as error:
            coming.response.blocked, coming.response.reason = "corrupt", str(error)
            coming.reply(coming.response)

    def _entries(self, coming: _Coming) -> None:
        request, response, reply = coming.request, coming.response, coming.reply
        topic = self._host.find(request.topic)
        if topic is None:
            response.refused, response.reason = True, f"topic {request.topic} is not here: ask for it first"
            reply(response)
            return
        state = self._topics.setdefault(request.topic, _Topic())
        gone = self._host.forgotten(request.topic)
        before = (request.after_incarnation, request.after_index)
        if before[0] and not self._known(topic, state, gone, before, 1):
            response.refused = True
            response.reason = f"{request.topic}: message {before[1]} of {before[0]} has to come first"
            reply(response)
            return
        self.schemas.look(coming.translation)
        entries, unknown = self._new_entries(coming, lambda key, n: self._known(topic, state, gone, key, n))
        self.schemas.note_dropped(coming.translation)
        if entries and topic.terminated:
            # Since its disk was lost. The answer to that command was that no message will come from now on.
            entries, unknown = [], None
            response.blocked = "terminated"
            response.reason = f"{request.topic} was terminated in {self.cluster}: nothing may come behind its end"
        entries, long = coming.ahead.split(topic.idempotency, entries)
        if entries and not self._store(topic, state, coming, entries):
            reply(response)
            return
        if long is not None:
            coming.again = True
            self._open_ahead(topic, coming, long)
            return
        if unknown is not None and not coming.translation.trouble:
            coming.again = True
            versions = wanted(request, coming.payload, unknown, coming.translation)
            size = len(coming.payload)
            self.schemas.park(
                coming.connection,
                coming.translation,
                size,
                versions,
                coming.ask,
                lambda: self._entries_late(coming),
                whole=coming.whole,
            )
            return
        if unknown is not None:
            response.retry, response.reason = True, coming.translation.trouble
        if not state.staged:
            self._drop_idle(request.topic, state)
            reply(response)
        else:  # also for duplicates alone: which of them are on their way is not worth finding out
            state.waiting.append(_Waiting(coming.connection, state.number, response, reply))

    def _known(self, topic: DestinationTopic, state: _Topic, gone: dict[int, Runs], key: Key, count: int) -> bool:
        """Whether an entry is here, on its way, was deleted since it came back, or is of the present incarnation."""
        incarnation, index = key
        if key in state.staged or covers(gone.get(incarnation, ()), index, index + count):
            return True
        if incarnation == topic.log.incarnation:
            return True
        return topic.log.position_of(Identity(self.cluster, incarnation, index)) is not None

    def _new_entries(
        self, coming: _Coming, known: Callable[[Key, int], bool]
    ) -> tuple[list[NewEntry], UnknownSchemaVersion | None]:
        """The entries that are not here, up to one that cannot be stored, or not yet."""
        request, response = coming.request, coming.response
        entries: list[NewEntry] = []
        incarnation, at = request.incarnation, 0
        columns = (request.sizes, request.ledgers, request.entries, request.counts, request.first_indexes)
        for row, (size, ledger, entry, count, index) in enumerate(zip(*columns, strict=True)):
            data = coming.payload[at : at + size]
            at += size
            if known((incarnation, index), count):
                response.duplicates += 0 if coming.again else count
                continue
            made = self._made(coming, data, Position(ledger, entry), count, index)
            if isinstance(made, int):
                return entries, UnknownSchemaVersion(row, made, at - size)
            if isinstance(made, BlockedEntry):
                response.blocked, response.reason = made.kind, made.reason
                break
            entries.append(made)
        return entries, None

    def _made(
        self, coming: _Coming, data: bytes, position: Position, count: int, index: int
    ) -> NewEntry | BlockedEntry | int:
        """An entry of our own; or the obstacle to it; or the schema version that is not known here yet."""
        request = coming.request
        what = f"message {index} of {request.topic} ({request.incarnation}) from {request.peer}"
        try:
            seen = inspect(data, message_bytes_max=self._message_bytes_max, fields_max=LINK_METADATA_FIELDS_MAX)
        except ChecksumError:
            return BlockedEntry("corrupt", f"{what} fails its checksum", position)
        except MessageTooLargeError as error:
            return BlockedEntry("size", f"{what}: {error.message}", position)
        except BrokerError as error:
            raise ProtocolError(f"{what}: {error.message}") from None
        if not seen.flags & _REPLICATED or seen.metadata.replicated_from != self.cluster:
            raise ProtocolError(f"{what} does not say that it came from {self.cluster}")
        if count != seen.count or seen.flags & _MARKER:
            raise ProtocolError(f"{what} has {seen.count} messages, not {count}")
        published: bytes | int = self._as_published(seen)
        if seen.metadata.HasField("schema_version"):
            published = self._translated(coming.translation, seen)
        if isinstance(published, int):
            if published in coming.translation.refused:
                return refused(coming.translation, published, position)
            return published
        return NewEntry(
            published, seen.flags, count, seen.publish_time, self.cluster, request.incarnation, index, position
        )

    def _translated(self, translation: Translation, seen: Inspected) -> bytes | int:
        """Its producer's bytes, with the number that the schema has here now; or the peer's number, if that is not known."""
        suffix = translation.suffixes.get(seen.metadata.schema_version)
        if suffix is not None:
            return with_appended(self._as_published(seen), suffix)
        seen.metadata.ClearField("replicated_from")
        return translated(seen, translation, b"")

    def _as_published(self, seen: Inspected) -> bytes:
        """The producer's own bytes. If the peer appended more after the origin, the entry stays as the peer has it."""
        cut = seen.metadata_end - len(self._suffix)
        if seen.payload[cut : seen.metadata_end] != self._suffix:
            return seen.payload
        return with_metadata_cut(seen.payload, len(self._suffix))

    # ----------------------------------------------------------------------------------------------------------- storing

    def _open_ahead(self, topic: DestinationTopic, coming: _Coming, entry: NewEntry) -> None:
        """A batch is too large to be searched for idempotency keys on the event loop: it waits, and later requests queue."""
        assert topic.idempotency is not None
        size = len(coming.payload)
        go_on = self.schemas.hold(
            coming.connection, coming.translation, size, lambda: self._entries_late(coming), whole=coming.whole
        )

        def opened(found: Found) -> None:
            coming.ahead.found, coming.ahead.at = found, entry.source
            go_on()

        topic.idempotency.open_ahead(entry, opened)

    def _store(
        self,
        topic: DestinationTopic,
        state: _Topic,
        coming: _Coming,
        entries: list[NewEntry],
    ) -> bool:
        response = coming.response
        size = sum(len(entry.data) for entry in entries)
        count = sum(entry.count for entry in entries)
        number = state.number + 1
        keys = [(entry.incarnation, entry.first_index) for entry in entries]
        name = coming.request.topic

        def outcome(_append: Append, error: str) -> None:
            self.pending_bytes -= size
            if number <= state.void:
                return  # given up with an earlier failure
            if error:
                self._failed(name, state, error)
                return
            self.messages, self.bytes = self.messages + count, self.bytes + size
            state.done = number
            for key in keys:
                state.staged.pop(key, None)
            self._answer(name, state)

        try:
            append_ahead(topic, coming.ahead, entries, outcome)
        except BrokerError as error:
            response.ClearField("blocked")
            response.retry, response.reason = True, error.message
            return False
        self.pending_bytes += size
        state.number = number
        state.staged.update((key, number) for key in keys)
        response.stored += count
        return True

    def _answer(self, name: str, state: _Topic) -> None:
        ready = [one for one in state.waiting if one.number <= state.done]
        state.waiting = [one for one in state.waiting if one.number > state.done]
        self._drop_idle(name, state)
        for one in ready:
            one.reply(one.response)

    def _failed(self, name: str, state: _Topic, error: str) -> None:
        """No append that is on its way will be durable; appends after the failure get new numbers."""
        state.void = state.done = state.number
        state.staged.clear()
        waiting, state.waiting = state.waiting, []
        for one in waiting:
            response = pb.CommandGeoRestoreResponse(request_id=one.response.request_id, retry=True, reason=error)
            one.reply(response)

    def _drop_idle(self, name: str, state: _Topic) -> None:
        # A void append may still report: its number must mean something then.
        if not state.staged and not state.waiting and state.void == 0 and self._topics.get(name) is state:
            del self._topics[name]

    def disconnected(self, connection: int) -> None:
        """A connection is gone, and its answers with it. Its appends are stored all the same, except for those that wait."""
        self.schemas.disconnected(connection)
        for state in self._topics.values():
            state.waiting = [one for one in state.waiting if one.connection != connection]

    def removed(self, topic: str) -> None:
        """A topic was deleted here."""
        state = self._topics.pop(topic, None)
        if state is not None:
            self._failed(topic, state, f"topic {topic} was deleted")
        self.schemas.removed(topic)

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self.pending_bytes >= 0
        self.schemas.validate()
        for name, state in self._topics.items():
            assert all(state.done < number <= state.number for number in state.staged.values()), f"{name}: staged"
            assert all(one.number > state.done for one in state.waiting), f"{name}: an answer that will never come"


def check_lists(request: pb.CommandGeoRestore, payload_bytes: int) -> None:
    """Whether a request's lists can be.

    Raises:
        ProtocolError: they do not fit each other or the bytes, or do not ascend.
    """
    count = len(request.ledgers)
    lists = (request.entries, request.first_indexes, request.counts, request.sizes)
    if not 1 <= count <= ENTRIES_MAX or any(len(values) != count for values in lists):
        raise ProtocolError(f"GEO_RESTORE with lists of {count}, {', '.join(str(len(v)) for v in lists)} entries")
    if sum(request.sizes) != payload_bytes:
        raise ProtocolError(f"GEO_RESTORE of {sum(request.sizes)} bytes with {payload_bytes} bytes behind it")
    if not request.incarnation or min(request.ledgers) < 0 or min(request.entries) < 0:
        raise ProtocolError("GEO_RESTORE without incarnation, or with a negative position")
    if not all(1 <= n <= 1 << 16 for n in request.counts):
        raise ProtocolError("GEO_RESTORE with a count out of range")
    check_room("GEO_RESTORE", request)
    last = -1
    for index, number in zip(request.first_indexes, request.counts, strict=True):
        if index <= last or index >= 1 << 62:
            raise ProtocolError("GEO_RESTORE with indexes that do not ascend")
        last = index + number - 1
