"""Faults planted in a real broker's log: its copy of a topic is written over the links' own protocol, as a link that lies.

What comes over GEO_APPEND is judged by positions alone (the chain rule), so that somebody who holds the links' secret can
leave messages out, send them twice, in another order or changed. `verify` has to find every one of them.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.core.ids import NONE, Position
from magnetar.runtime.network.link_client import LinkClient
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from tests.support.brokers import BrokerProcess

KINDS = ("missing", "duplicated", "reordered", "altered")
APPEND_BYTES = 2 << 20
APPEND_ENTRIES = 2000


@dataclass
class Copied:
    """An entry of the source.

    Attributes:
        first, count: its origin indexes.
        data: its bytes.
    """

    first: int
    count: int
    data: bytes


@dataclass
class Planted:
    """What was done: origin indexes of the entries concerned, by kind, and how many messages they are."""

    indexes: dict[str, list[int]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    messages: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    entries: int = 0

    def note(self, kind: str, entry: Copied) -> None:
        """One more."""
        self.indexes[kind].append(entry.first)
        self.messages[kind] += entry.count


def altered(entry: Copied) -> Copied:
    """The same message with one bit changed, and a checksum that fits."""
    described = metadata.parse_metadata(entry.data)
    body = bytearray(entry.data[metadata.split(entry.data) :])
    body[-1] ^= 1
    return Copied(entry.first, entry.count, metadata.build(described, bytes(body)))


def spoilt(entries: Iterator[Copied], total: int, each: int, seed: int, done: Planted) -> Iterator[Copied]:
    """The entries with `each` faults of every kind among `total`, never two at one place."""
    chosen = sorted(random.Random(seed).sample(range(1, total // 4), 4 * each))
    kinds = {place * 4: KINDS[number % 4] for number, place in enumerate(chosen)}
    late: Copied | None = None
    for number, entry in enumerate(entries):
        kind = kinds.get(number)
        if kind is not None:
            done.note(kind, entry)
        if kind == "reordered":
            late = entry
        elif kind == "altered":
            yield altered(entry)
        elif kind != "missing":
            yield entry
            if kind == "duplicated":
                yield entry
        if late is not None and late is not entry:
            yield late
            late = None


class LyingLink:
    """Copies one topic from a cluster to another, with faults."""

    def __init__(self, source: BrokerProcess, target: BrokerProcess, token: Path) -> None:
        secret = token.read_text().strip()
        self._source = LinkClient.connect(f"127.0.0.1:{source.pulsar_port}", secret)
        self._target = LinkClient.connect(f"127.0.0.1:{target.pulsar_port}", secret)
        self._from = source.cluster
        self.incarnation = 0

    def close(self) -> None:
        """Leave both."""
        self._source.close()
        self._target.close()

    def copy(self, topic: str, total: int, *, each: int, seed: int = 1, partitions: int = 0) -> Planted:
        """Copy a topic of `total` entries with `each` faults of every kind.

        Args:
            topic: one partition's name, if there are some.
            total: its entries.
            each: how many of each kind; the topic has to have 16 times as many entries.
            seed: of the places.
            partitions: of the whole topic, for the handshake.
        """
        first, _ = self._source.read(topic, bytes_max=1)
        self.incarnation = first.incarnations[0]
        query = pb.GeoWatermarkQuery(topic=topic, partitions=partitions, incarnation=self.incarnation)
        self._target.watermarks(self._from, self._source.hello.uuid, [query])
        done = Planted()
        batch: list[Copied] = []
        size, last = 0, NONE
        for entry in spoilt(self._entries(topic), total, each, seed, done):
            batch.append(entry)
            size += len(entry.data)
            done.entries += 1
            if size >= APPEND_BYTES or len(batch) >= APPEND_ENTRIES:
                last = self._send(topic, batch, last)
                batch, size = [], 0
        if batch:
            self._send(topic, batch, last)
        while self._target.in_flight:
            self._check(self._target.poll(10_000))
        return done

    def _entries(self, topic: str) -> Iterator[Copied]:
        after = NONE
        while True:
            read, payload = self._source.read(topic, after)
            end, at = Position(read.end.ledger, read.end.entry), 0
            for first, count, length in zip(read.first_indexes, read.counts, read.sizes, strict=True):
                yield Copied(first, count, bytes(payload[at : at + length]))
                at += length
            if end <= after:
                return
            after = end

    def _send(self, topic: str, batch: Sequence[Copied], last: Position) -> Position:
        request = pb.CommandGeoAppend(
            topic=topic, source=self._from, uuid=self._source.hello.uuid, incarnation=self.incarnation, gen=1,
            p=pb.GeoPosition(ledger=last.ledger, entry=last.entry),
        )  # fmt: skip
        for number, entry in enumerate(batch):
            request.ledgers.append(1)
            request.entries.append(last.entry + 1 + number)
            request.first_indexes.append(entry.first)
            request.counts.append(entry.count)
            request.sizes.append(len(entry.data))
        self._target.append_async(request, [entry.data for entry in batch])
        self._check(self._target.poll())
        return Position(1, last.entry + len(batch))

    @staticmethod
    def _check(answers: Sequence[object]) -> None:
        for answer in answers:
            response = answer.response  # type: ignore[attr-defined]
            wrong = response.refused or response.retry or response.blocked or response.duplicates
            assert not wrong and answer.refusal is None, (answer, response)  # type: ignore[attr-defined]
