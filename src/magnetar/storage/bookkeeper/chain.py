"""The chain of a log on Apache BookKeeper: which ledger holds which file of the log, and which owner may change it.

A chain is one small record in ZooKeeper. Every change names the version of the record that was read before, so a broker whose
log was taken over can no longer change it (docs/design/cluster.md#chain).
"The ledger" of this module is one of BookKeeper's. Ledgers of topics (`storage.ledger`) are something else.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from magnetar.core.errors import StorageError

FORMAT: Final = 1

FILES_MAX: Final = 8_000
"""Files of a chain: a file takes some 60 bytes, and ZooKeeper refuses records above 1 MiB. In segments of 256 MiB they hold a
terabyte."""


class ChainFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the log.

    Attributes:
        ledger: the id of the ledger that holds its bytes.
        cut: the file ends at this offset, although the ledger may hold more; -1: it ends where the ledger ends.
    """

    ledger: int
    cut: int = -1


class Chain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All files of one log.

    Attributes:
        format: of this record.
        epoch: rises whenever an owner takes the log.
        owner: the name of the broker that took it last.
        files: by name, relative to the folder of the log.
        deleted: ledgers of deleted files that may still be there.
    """

    format: int = FORMAT
    epoch: int = 0
    owner: str = ""
    files: dict[str, ChainFile] = {}
    deleted: tuple[int, ...] = ()

    def taken(self, owner: str) -> "Chain":
        """The same files in the hands of another owner, or of the same one after a restart."""
        return msgspec.structs.replace(self, epoch=self.epoch + 1, owner=owner)

    def with_file(self, name: str, ledger: int) -> "Chain":
        """One more file.

        Raises:
            FileExistsError: there is one of this name.
            StorageError: there are `FILES_MAX` files.
        """
        if name in self.files:
            raise FileExistsError(f"the log has a file {name}: ledger {self.files[name].ledger}")
        if len(self.files) >= FILES_MAX:
            raise StorageError(f"the log has {FILES_MAX} files, the most that its record in ZooKeeper can name")
        return msgspec.structs.replace(self, files=self.files | {name: ChainFile(ledger)})

    def without(self, name: str) -> "Chain":
        """One file fewer; the ledger is in `deleted` until it is deleted."""
        rest = dict(self.files)
        gone = rest.pop(name)
        return msgspec.structs.replace(self, files=rest).with_deleted(gone.ledger)

    def with_deleted(self, ledger: int) -> "Chain":
        """One more ledger that no file has, and that may still be there."""
        return msgspec.structs.replace(self, deleted=(*self.deleted, ledger))

    def renamed(self, name: str, over: str) -> "Chain":
        """A file gets another name; a file that had it is deleted."""
        chain = self.without(over) if over in self.files and over != name else self
        rest = dict(chain.files)
        rest[over] = rest.pop(name)
        return msgspec.structs.replace(chain, files=rest)

    def cut(self, name: str, size: int) -> "Chain":
        """A file ends at `size`, or where it ended before if that is less."""
        file = self.files[name]
        size = size if file.cut < 0 else min(size, file.cut)
        return msgspec.structs.replace(self, files=self.files | {name: ChainFile(file.ledger, size)})

    def purged(self, ledgers: Iterable[int]) -> "Chain":
        """These ledgers are gone."""
        gone = set(ledgers)
        return msgspec.structs.replace(self, deleted=tuple(one for one in self.deleted if one not in gone))

    def encode(self) -> bytes:
        """As stored: JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> "Chain":
        """As read.

        Raises:
            StorageError: it is no chain, or one of a later version of Magnetar.
        """
        try:
            chain = msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise StorageError(f"the record of the log's ledgers cannot be read: {error}") from error
        if chain.format != FORMAT:
            raise StorageError(
                f"the record of the log's ledgers has format {chain.format}: this version of Magnetar reads format {FORMAT}"
            )
        return chain
