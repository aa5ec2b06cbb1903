"""The storage of a broker while it runs: its log, its metadata store, and what both had at the start."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from magnetar.broker.catalog.deletion_proofs import begin_proving
from magnetar.metadata.store import Store
from magnetar.runtime.log.lanes import Lanes
from magnetar.storage.bookkeeper.lease import Lease
from magnetar.storage.entries import Append, Location
from magnetar.storage.recovery import Recovered


class GivenUp(Exception):
    """The broker was asked to stop while it waited for its storage."""


class LogReports(Protocol):
    """Gets the reports of the log, on its threads (`runtime.driver.Driver`)."""

    def appended(self, batch: list[tuple[Append, Location]]) -> None:
        """The log holds these."""

    def append_failed(self, batch: list[Append], error: str) -> None:
        """The log does not hold these and never will."""

    def healed(self) -> None:
        """The log takes appends again."""


@dataclass(frozen=True, slots=True)
class BrokerStorage:
    """The storage of one broker while it runs.

    Attributes:
        uuid: the identity of the cluster.
        log: started.
        store: open.
        stored: the content of the store.
        recovered: the content of the log.
        lost_entries: number of entries that the log should have and does not have.
        lost: says why the storage is no longer this broker's, or "": then nothing is written from then on.
        lease: how long the broker may serve.
    """

    uuid: str
    log: Lanes
    store: Store
    stored: dict[str, bytes]
    recovered: Recovered
    lost_entries: int
    lost: Callable[[], str]
    lease: Lease


def prove_deletions(store: Store, stored: dict[str, bytes], recovered: Recovered) -> None:
    """Store the proofs of deletions, if the store is older than they are or new (`broker.catalog.deletion_proofs`).

    Args:
        store: open.
        stored: its content; gets what is stored.
        recovered: the content of the log.

    Raises:
        StorageError: it cannot be stored.
    """
    for piece in begin_proving(stored, recovered.topics):
        store.apply(piece.puts)
        stored |= piece.puts
