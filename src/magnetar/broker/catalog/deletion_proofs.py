"""Proofs in the metadata store that a topic was deleted, for as long as the log may still have entries of that
incarnation.

A segment has entries of many topics, so the rest of a deleted topic is found at every start until the last of its
segments is deleted. A store that went back in time (an older copy, a lost or cut write-ahead log) or is damaged does
not know some topics in the log either. Only the proof distinguishes the two cases: it is stored in the transaction that
deletes the topic. Entries without a proof are kept.

    deletions/<incarnation>           of one topic; the value is its name
    deletions/from-<incarnation>      of many: JSON, the first incarnation and the distances to the next ones

Stores of versions without proofs have no `broker/deletions`. There, once, the highest incarnation decides: the store
has known every topic up to it.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from magnetar.broker.catalog.former_names import by_present_name, former_names
from magnetar.core.errors import StorageError
from magnetar.core.ids import NONE
from magnetar.effects.outbox import Note, Outbox, Store
from magnetar.effects.store_batches import Piece, cut
from magnetar.metadata.topic_records import LAST_LEDGER_KEY, TOPIC_PREFIX, TopicRecord
from magnetar.storage.recovery import Recovered
from magnetar.storage.topiclog import RecoveredTopic

if TYPE_CHECKING:
    from magnetar.broker.topics.topic import Topic

DELETION_PREFIX: Final = "deletions/"
PROVES_KEY: Final = "broker/deletions"
"""There since this store has a proof of every deletion."""

SINGLE_MAX: Final = 256
"""The number of proofs that are joined in one value: 5 bytes each instead of a hundred."""

CHUNKS_MAX: Final = 4_096
"""A ceiling on joined proofs, for a million topics, 5 MB. Entries of a topic whose proof was given up are kept and
reported.
"""

_FROM: Final = "from-"
_CHUNK: Final = msgspec.json.Decoder(list[int])


class Unknown(msgspec.Struct, frozen=True):
    """An incarnation in the log for which the store has neither a topic nor a proof of deletion.

    Attributes:
        topic: full name.
        incarnation: the topic's incarnation.
        messages, bytes: its messages and bytes in the log.
    """

    topic: str
    incarnation: int
    messages: int
    bytes: int


def deletion_key(incarnation: int) -> str:
    """The key of one proof."""
    return f"{DELETION_PREFIX}{incarnation}"


def proven(stored: Mapping[str, bytes]) -> dict[int, str]:
    """Incarnations that were deleted, each with the key that says so.

    Raises:
        StorageError: a proof is damaged.
    """
    found: dict[int, str] = {}
    for key, value in stored.items():
        if not key.startswith(DELETION_PREFIX):
            continue
        name = key.removeprefix(DELETION_PREFIX)
        try:
            if not name.startswith(_FROM):
                found[int(name)] = key
                continue
            at = 0
            for distance in _CHUNK.decode(value):
                at += distance
                found[at] = key
        except (ValueError, msgspec.DecodeError) as error:
            raise StorageError(f"the stored record {key} is damaged: {error}") from error
    return found


def chunk(incarnations: Iterable[int]) -> tuple[str, bytes]:
    """Key and value that prove many at once; not empty."""
    ascending = sorted(incarnations)
    distances = [after - before for before, after in zip([0, *ascending], ascending, strict=False)]
    return f"{DELETION_PREFIX}{_FROM}{ascending[0]}", msgspec.json.encode(distances)


def current(stored: Mapping[str, bytes], topic: str, incarnation: int) -> bool:
    """Whether the store knows this incarnation of a topic as the one that exists."""
    data = stored.get(TOPIC_PREFIX + topic)
    return data is not None and TopicRecord.decode(topic, data).incarnation == incarnation


def sort_out(
    stored: Mapping[str, bytes], recovered: Mapping[tuple[str, int], RecoveredTopic]
) -> tuple[list[int], list[Unknown]]:
    """The contents of a log that the store does not list as existing.

    Returns:
        Ledgers that were certainly deleted; incarnations that may have been lost, by the name of their topic.

    Raises:
        StorageError: a record is damaged.
    """
    proofs = proven(stored)
    known_up_to = _known_up_to(stored)
    dead: list[int] = []
    unknown: list[Unknown] = []
    for (topic, incarnation), found in by_present_name(stored, recovered).items():
        if current(stored, topic, incarnation) or not found.ledgers:
            continue
        if incarnation in proofs or incarnation <= known_up_to:
            dead += found.ledger_ids()
        else:
            ledgers = found.ledgers.values()
            messages = sum(ledger.messages_in(0, ledger.entries) for ledger in ledgers)
            unknown.append(Unknown(topic, incarnation, messages, sum(ledger.bytes for ledger in ledgers)))
    return dead, sorted(unknown, key=lambda each: (each.topic, each.incarnation))


def _known_up_to(stored: Mapping[str, bytes]) -> int:
    """Up to this incarnation, a topic that is not in a store without proofs was deleted."""
    return -1 if PROVES_KEY in stored else int(stored.get(LAST_LEDGER_KEY, b"-1"))


def begin_proving(stored: Mapping[str, bytes], recovered: Iterable[tuple[str, int]]) -> list[Piece]:
    """The writes that convert a store without proofs to one with them, in this order; none if it has them.

    Args:
        stored: the metadata store's content.
        recovered: (topic, incarnation) of the log's contents.

    Raises:
        StorageError: a record is damaged.
    """
    if PROVES_KEY in stored:
        return []
    up_to = _known_up_to(stored)
    former = former_names(stored)
    dead = sorted(
        {
            incarnation
            for topic, incarnation in recovered
            if incarnation <= up_to and not current(stored, topic, incarnation) and (topic, incarnation) not in former
        }
    )
    chunks = [chunk(dead[at : at + SINGLE_MAX]) for at in range(0, len(dead), SINGLE_MAX)]
    return [*cut(Piece((), {key: value}) for key, value in chunks), Piece((), {PROVES_KEY: b"1"})]


class Loss(msgspec.Struct, frozen=True):
    """Entries of a ledger that were stored and are not in the log.

    Attributes:
        topic: full name.
        ledger: which of its ledgers.
        entries: how many are missing.
        stored: how many there were.
    """

    topic: str
    ledger: int
    entries: int
    stored: int

    def __str__(self) -> str:
        return (
            f"topic {self.topic}: {self.entries} of {self.stored} stored entries of ledger {self.ledger} are not in the log: a "
            "segment is missing, cut or damaged"
        )


def missing(stored: Mapping[str, bytes], recovered: Recovered) -> tuple[list[Loss], list[int]]:
    """Compare the expected contents of the log with the real ones.

    Returns:
        Missing entries of topics that exist or are unknown, by topic and ledger; and ledgers that were certainly
        dropped and that the ledger file still names.

    Raises:
        StorageError: a record is damaged.
    """
    proofs = proven(stored)
    losses: list[Loss] = []
    dropped: list[int] = []
    records: dict[str, TopicRecord | None] = {}
    for ledger, known in recovered.known.items():
        if known.topic not in records:
            data = stored.get(TOPIC_PREFIX + known.topic)
            records[known.topic] = None if data is None else TopicRecord.decode(known.topic, data)
        record = records[known.topic]
        if record is not None and record.incarnation == known.incarnation:
            dead = ledger < record.first_ledger
        else:
            dead = known.incarnation in proofs
        if dead:
            dropped.append(ledger)
            continue
        topic = recovered.topics.get((known.topic, known.incarnation))
        found = None if topic is None else topic.ledgers.get(ledger)
        lost = known.entries - (0 if found is None else found.entries - found.missing)
        if lost > 0:
            losses.append(Loss(known.topic, ledger, lost, known.entries))
    return sorted(losses, key=lambda each: (each.topic, each.ledger)), dropped


class Proofs:
    """The proofs of one broker.

    Args:
        outbox: the broker's.
        cluster: the broker's cluster, for the command in a message.
        stored: the metadata store's content at start.
        recovered: the log's contents.

    Attributes:
        dead: ledgers that were certainly deleted, found at the start.
        unknown: contents of the log that the store does not know, found at the start. They are kept.
    """

    def __init__(
        self,
        outbox: Outbox,
        cluster: str,
        stored: Mapping[str, bytes],
        recovered: Mapping[tuple[str, int], RecoveredTopic],
    ) -> None:
        self._outbox = outbox
        self.dead, self.unknown = sort_out(stored, recovered)
        self._single: set[int] = set()
        self._chunks: list[str] = []
        self._joining = False
        self._load(stored, {incarnation for _, incarnation in recovered})
        for each in self.unknown:
            self._outbox.put(
                Note(
                    "error",
                    f"topic {each.topic} (incarnation {each.incarnation}, {each.messages} messages) is in the log, and the "
                    f"metadata store knows neither it nor its deletion: it is kept; see magnetar recover {cluster}",
                )
            )

    def _load(self, stored: Mapping[str, bytes], held: Collection[int]) -> None:
        """Load the proofs; those whose topics have nothing left in the log are dropped."""
        proofs = proven(stored)
        needed = sorted(proofs.keys() & held)
        keys = set(proofs.values())
        puts: dict[str, bytes] = {}
        deletes: list[str] = []
        if len(needed) == len(proofs):
            self._single = {incarnation for incarnation, key in proofs.items() if key == deletion_key(incarnation)}
            self._chunks = sorted(keys - {deletion_key(incarnation) for incarnation in self._single})
        else:
            for at in range(0, len(needed), SINGLE_MAX):
                key, value = chunk(needed[at : at + SINGLE_MAX])
                puts[key] = value
                self._chunks.append(key)
            deletes = sorted(keys - puts.keys())
        pieces = [Piece((), {key: value}) for key, value in puts.items()]
        for part in cut(pieces + [Piece((), {}, (key,)) for key in deletes]):
            self._outbox.put(Store(dict(part.puts), part.deletes, None))

    def deletion(self, topic: "Topic") -> dict[str, bytes]:
        """The writes for the proof, stored in the transaction that deletes the topic."""
        if topic.log.last == NONE:
            return {}  # nothing of it was ever confirmed, so the log has nothing to delete
        return {deletion_key(topic.record.incarnation): topic.text.encode()}

    def deleted(self, topic: "Topic") -> None:
        """The proof is durable."""
        if topic.log.last == NONE:
            return
        self._single.add(topic.record.incarnation)
        if len(self._single) >= SINGLE_MAX and not self._joining:
            self._join()

    def _join(self) -> None:
        joined = set(self._single)
        key, value = chunk(joined)
        given_up = self._chunks[: max(0, len(self._chunks) + 1 - CHUNKS_MAX)]
        self._joining = True

        def stored(error: str) -> None:
            self._joining = False
            if not error:
                self._single -= joined
                self._chunks = [*self._chunks[len(given_up) :], key]

        self._outbox.put(Store({key: value}, (*map(deletion_key, joined), *given_up), stored))
