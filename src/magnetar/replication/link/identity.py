"""Decides which uuid owns a cluster's name (destination side of a link). The uuid is made with the cluster's data folder.

    unknown name                      accepted, durably, before any entry of the cluster is stored
    known uuid                        accepted
    a uuid that had the name before   refused for ever: its messages are superseded
    a new uuid                        a wiped cluster, accepted if the old one was silent for a while *and* all positions that it
                                      will send are above the known ones of the old one; else a second cluster of the same name

The owner of a name matters to all links. So only links that may replicate everything can claim a name, and only they count when
an old uuid is checked for silence; other links are accepted under a known uuid.

The second condition keeps the new cluster's messages from being taken for duplicates of the old one's. A source that gets a
watermark above its own end continues in a ledger above it (docs/design/links.md#ledger-ids-grow); the next handshake then
finds the condition fulfilled.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from magnetar.effects.outbox import Note, Outbox, Store
from magnetar.replication.link.records import PEER_PREFIX, PeerRecord

SILENCE_MS: Final = 10_000
"""How long the old uuid must have been silent. See `BrokerConfig.identity_silence_ms`."""

SUPERSEDED_MAX: Final = 32
"""A ceiling on remembered superseded uuids of a name: a cluster is not wiped that often."""


class Standing(Enum):
    """The relation of a uuid to a cluster's name."""

    KNOWN = "known"
    """It is the cluster of that name."""
    NEW = "new"
    """No cluster had the name before."""
    TAKEOVER = "takeover"
    """Another uuid had the name and is silent: the new one may take it over."""
    CONFLICT = "conflict"
    """Another uuid has the name and is not silent."""
    SUPERSEDED = "superseded"
    """It had the name; another uuid has it now."""
    STORING = "storing"
    """That it has the name is being stored."""


@dataclass(slots=True)
class _Peer:
    record: PeerRecord
    seen_ms: int
    storing: str = ""


class Peers:
    """The clusters that this one is a destination of.

    Args:
        outbox: the broker's.
        silence_ms: see `SILENCE_MS`.
    """

    def __init__(self, outbox: Outbox, silence_ms: int = SILENCE_MS) -> None:
        self._outbox = outbox
        self._silence_ms = silence_ms
        self._peers: dict[str, _Peer] = {}

    def load(self, stored: Mapping[str, bytes]) -> None:
        """Take the metadata store's content at start.

        Raises:
            StorageError: a record is damaged.
        """
        for key, data in stored.items():
            if key.startswith(PEER_PREFIX):
                # How long the old one was silent while this broker was down is unknown: the time runs from now.
                self._peers[key.removeprefix(PEER_PREFIX)] = _Peer(PeerRecord.decode(key, data), self._outbox.now_ms)

    def standing(self, cluster: str, uuid: str, *, trusted: bool = True) -> Standing:
        """Judge a uuid that claims a name.

        Args:
            cluster, uuid: the claim.
            trusted: the link may replicate everything. Only then does a known uuid count as seen.
        """
        peer = self._peers.get(cluster)
        if peer is None:
            return Standing.NEW
        if peer.storing:
            return Standing.STORING if uuid == peer.storing else Standing.CONFLICT
        if uuid == peer.record.uuid:
            if trusted:
                peer.seen_ms = self._outbox.now_ms
            return Standing.KNOWN
        if uuid in peer.record.former:
            return Standing.SUPERSEDED
        if not peer.record.uuid:
            return Standing.NEW
        return Standing.TAKEOVER if self._outbox.now_ms - peer.seen_ms >= self._silence_ms else Standing.CONFLICT

    def explain(self, cluster: str, uuid: str) -> str:
        """One line: both uuids, since when."""
        peer = self._peers[cluster]
        if uuid in peer.record.former:
            return (
                f"{uuid} had the name {cluster} until {peer.record.since_ms} ms; it is {peer.record.uuid} now: "
                "give one of them another name"
            )
        return (
            f"two clusters are called {cluster}: {peer.record.uuid} (since {peer.record.since_ms} ms, heard of "
            f"{self._outbox.now_ms - peer.seen_ms} ms ago) and {uuid}: stop one of them, or give it another name"
        )

    def accept(self, cluster: str, uuid: str, then: Callable[[str], None]) -> None:
        """Store that this uuid owns the name; `then("")` when it is durable."""
        before = self._peers.get(cluster)
        former = [] if before is None or not before.record.uuid else [*before.record.former, before.record.uuid]
        record = PeerRecord(uuid=uuid, since_ms=self._outbox.now_ms, former=former[-SUPERSEDED_MAX:])
        peer = self._peers[cluster] = before or _Peer(PeerRecord(uuid=""), self._outbox.now_ms)
        peer.storing = uuid

        def stored(error: str) -> None:
            peer.storing = ""
            if not error:
                peer.record, peer.seen_ms = record, self._outbox.now_ms
                if former:
                    text = f"cluster {cluster} was created again: it is {uuid} now, {former[-1]} is refused"
                    self._outbox.put(Note("warning", text))
            then(error)

        self._outbox.put(Store({PEER_PREFIX + cluster: record.encode()}, (), stored))

    def known(self) -> dict[str, tuple[str, int, int]]:
        """(uuid, since, last seen in ms) of each cluster that owns its name here."""
        return {
            name: (peer.record.uuid, peer.record.since_ms, peer.seen_ms)
            for name, peer in self._peers.items()
            if peer.record.uuid
        }
