"""The bytes of an entry as bookies store it: 32 bytes of header, digest, payload.

Source: docs/design/bookkeeper.md#entry.
"""

from struct import Struct
from typing import NamedTuple

from magnetar.bookkeeper.ledgers.metadata import DigestType
from magnetar.bookkeeper.protocol.digests import digest_of, master_key
from magnetar.bookkeeper.protocol.messages import LAST_ENTRY

_HEADER = Struct(">qqqq")
_LAC_HEADER = Struct(">qq")


class DamagedEntry(Exception):
    """The bytes are not the entry that was asked for; another bookie may have it."""


class Stored(NamedTuple):
    """The content of an entry.

    Attributes:
        lac: the last entry that was confirmed when this one was written; -1: none.
        length: bytes of the payload of all entries of the ledger up to this one, this one included.
        payload: of this entry.
    """

    lac: int
    length: int
    payload: bytes


class EntryCodec:
    """Makes and reads the stored entries of one ledger."""

    def __init__(self, ledger: int, digest: DigestType, password: bytes) -> None:
        """Take the values of the ledger's metadata."""
        self.ledger = ledger
        self.master_key = master_key(password)
        self._name = digest.name
        made = digest_of(digest, password)
        self._compute = made.compute
        self._digest_bytes = made.size
        self._start = _HEADER.size + made.size

    @property
    def overhead(self) -> int:
        """Bytes of a stored entry in addition to its payload."""
        return self._start

    def pack(self, entry: int, lac: int, length: int, payload: bytes) -> bytes:
        """The stored entry; see `Stored` for `lac` and `length`."""
        header = _HEADER.pack(self.ledger, entry, lac, length)
        return b"".join((header, self._compute(header, payload), payload))

    def unpack(self, entry: int, body: bytes) -> Stored:
        """Verify and read a stored entry; `LAST_ENTRY` accepts any entry of the ledger.

        Raises:
            DamagedEntry: it is too short, its digest does not fit, or it is another entry. With the digest DUMMY, damage in the
                payload, `lac` or `length` is not noticed.
        """
        start = self._start
        if len(body) < start:
            raise DamagedEntry(
                f"ledger {self.ledger}, entry {entry}: {len(body)} bytes; with {self._name} it has at least {start}"
            )
        header = body[: _HEADER.size]
        payload = body[start:]
        if self._compute(header, payload) != body[_HEADER.size : start]:
            raise DamagedEntry(f"ledger {self.ledger}, entry {entry}: the {self._name} digest does not fit the entry")
        ledger, found, lac, length = _HEADER.unpack(header)
        if ledger != self.ledger or (found != entry and entry != LAST_ENTRY):
            raise DamagedEntry(
                f"ledger {self.ledger}, entry {entry}: the bookie sent entry {found} of ledger {ledger} instead"
            )
        return Stored(lac, length, payload)

    def pack_lac(self, lac: int) -> bytes:
        """The body of `WriteLac`."""
        header = _LAC_HEADER.pack(self.ledger, lac)
        return header + self._compute(header, b"")

    def unpack_lac(self, body: bytes) -> int:
        """The last confirmed entry that `LacRead.lac_body` names.

        Raises:
            DamagedEntry: the length or digest does not fit, or it is of another ledger.
        """
        header = body[: _LAC_HEADER.size]
        if len(body) != _LAC_HEADER.size + self._digest_bytes or self._compute(header, b"") != body[_LAC_HEADER.size :]:
            raise DamagedEntry(f"ledger {self.ledger}: {len(body)} bytes are no last confirmed entry with {self._name}")
        ledger, lac = _LAC_HEADER.unpack(header)
        if ledger != self.ledger:
            raise DamagedEntry(f"ledger {self.ledger}: the bookie sent the last confirmed entry of ledger {ledger}")
        return int(lac)
