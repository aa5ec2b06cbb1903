"""The interfaces of BookKeeper and ZooKeeper that the log needs. All calls block; any thread may make them.

Errors are OSErrors, as those of a disk: the log treats both alike. EIO says that an entry is lost, as a disk says it of a sector:
recovery takes that for damage, and serves the rest. It is for what all bookies have answered. Everything else has another
number, such as ETIMEDOUT, because another attempt may succeed.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class LedgerEntry(NamedTuple):
    """An entry of a ledger.

    Attributes:
        payload: its bytes.
        end: bytes of the payloads of all entries up to this one, and with it.
    """

    payload: bytes
    end: int


class Readable(Protocol):
    """A ledger that can be read.

    Attributes:
        id: of the ledger.
    """

    id: int

    def read(self, first: int, last: int) -> list[LedgerEntry]:
        """Some of the entries `first` to `last`, from `first` on; at least one.

        Raises:
            OSError: the first one cannot be read; EIO: it never can be again.
        """


class Writable(Readable, Protocol):
    """A ledger that this process writes. Each entry that `read` is asked for has been confirmed."""

    def submit(self, payloads: Sequence[bytes]) -> None:
        """Add entries, in order, without waiting until they are confirmed.

        Raises:
            OSError: the ledger takes no more entries; what was submitted before may be stored or not.
        """

    def wait(self) -> None:
        """Wait until everything submitted is confirmed: durable on an ack quorum of bookies, and readable.

        Raises:
            OSError: what was submitted may be stored or not, and the ledger takes no more entries.
        """

    def landed(self, known: int) -> int:
        """How many calls of `submit` are confirmed, without waiting. They are confirmed in order.

        Raises:
            OSError: not more than `known`, and no more will be: what was submitted may be stored or not.
        """

    def watch(self, woken: Callable[[], None]) -> None:
        """Call this from now on, on any thread, when `landed` has another answer."""

    def close(self) -> None:
        """End the ledger after its last confirmed entry. A ledger that failed is not closed: that could cut off entries.

        Raises:
            OSError: it may be closed or not.
        """


class Closed(Readable, Protocol):
    """A ledger that no process writes.

    Attributes:
        entries: how many it has.
        size: bytes of all their payloads.
    """

    entries: int
    size: int


class Ledgers(Protocol):
    """The ledgers of one BookKeeper."""

    def create(self, name: str) -> Writable:
        """A new ledger; its metadata contain the name of its file.

        Raises:
            OSError: there are not enough bookies, or the metadata cannot be written.
        """

    def open(self, ledger: int) -> Closed:
        """A ledger for reading. If it is not closed it is recovered first: from then on its former writer is refused.

        Raises:
            FileNotFoundError: there is no such ledger.
            OSError: too few bookies answer to say how it ends.
        """

    def open_all(self, ledgers: Sequence[int]) -> Sequence[Closed]:
        """Open several ledgers, as `open` does, many at the same time. When this returns, each is closed.

        Raises:
            FileNotFoundError, OSError: see `open`; of the others some may be open.
        """

    def delete(self, ledger: int) -> None:
        """Delete a ledger; no error if it is gone.

        Raises:
            OSError: it may be deleted or not.
        """

    def free_bytes(self) -> int:
        """Bytes that the log can still store, counted once however many copies the bookies keep.

        Raises:
            OSError: no bookie answers.
        """


class VersionConflict(Exception):
    """The record has another version than the change names."""


class ChainRecord(Protocol):
    """The record of a chain in ZooKeeper."""

    def read(self) -> tuple[bytes, int]:
        """Its content and version; no bytes and version -1 if there is none.

        Raises:
            OSError: ZooKeeper does not answer.
        """

    def write(self, data: bytes, version: int) -> int:
        """Replace the content if it has this version (-1: create it); returns the new version.

        Raises:
            VersionConflict: it has another version. That may be one's own change, whose answer was lost.
            OSError: it may be written or not.
        """
