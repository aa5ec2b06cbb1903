"""The requests and responses between a client and a bookie: one class for each, the same ones for v2 and v3.

`protocol/v2.py` and `protocol/v3.py` give them bytes. Ledger and entry ids are signed 64-bit integers.
An entry id of -1 means "none", or "the last one" in a read.
A body is a stored entry: header, digest and payload, see `protocol/entries.py`.

The classes that are made for every entry are named tuples, because a frozen dataclass takes longer to make. Two named tuples are
equal if their values are, whatever their classes, so each of these classes has another number of values.

Source: docs/design/bookkeeper.md#requests.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

LAST_ENTRY = -1
"""As the entry of a read: the last one that the bookie has."""


class Code(IntEnum):
    """How a bookie answers a request. The values are those of v2; `protocol/v3.py` translates those of v3.

    Attributes:
        NO_LEDGER, NO_ENTRY: the bookie does not have it. That is no proof that other bookies do not have it.
        UNAUTHORISED: the master key is not that of the ledger, or the connection is not authenticated.
        FENCED: a recovery of this ledger has begun; its former writer is refused.
        READ_ONLY: the bookie takes no entries, for example because its disk is full.
        TOO_MANY: the bookie has too many requests at once. The request may be sent again; the bookie has not failed.
        UNKNOWN_LEDGER_STATE: the bookie has lost data before and does not know whether it had this entry.
    """

    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORISED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY = 106
    UNKNOWN_LEDGER_STATE = 107


ABSENT: Final = frozenset((Code.NO_ENTRY, Code.NO_LEDGER))
"""The codes that say that a bookie does not have an entry. One that does not know (UNKNOWN_LEDGER_STATE) is not among them."""


class AddEntry(NamedTuple):
    """Store an entry.

    Attributes:
        ledger, entry: ids.
        master_key: 20 bytes, see `protocol/digests.py`.
        body: the stored entry.
        recovery: store it even if the ledger is fenced.
        high_priority: before other requests.
        deferred_sync: answer before the entry is on disk; v3 only.
    """

    ledger: int
    entry: int
    master_key: bytes
    body: bytes
    recovery: bool = False
    high_priority: bool = False
    deferred_sync: bool = False


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """Read an entry.

    Attributes:
        ledger, entry: ids; the entry may be `LAST_ENTRY`.
        fence: refuse the ledger's writer from now on. It needs the master key.
        master_key: 20 bytes, or none for a read that does not fence.
        high_priority: before other requests.
        previous_lac: a long poll: the bookie waits until it knows a larger last confirmed entry; v3 only.
        timeout_ms: of the long poll, in milliseconds.
        piggyback: of the long poll: send the entry after `previous_lac`, too.
    """

    ledger: int
    entry: int
    fence: bool = False
    master_key: bytes = b""
    high_priority: bool = False
    previous_lac: int | None = None
    timeout_ms: int = 0
    piggyback: bool = False


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Read successive entries; v2 only.

    Attributes:
        ledger, first: ids.
        entries_max: entries in the answer at most; 0: no limit.
        bytes_max: bytes of the answer's frame at most; the first entry comes whatever its size.
    """

    ledger: int
    first: int
    entries_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class ForceLedger:
    """Answer when everything that the bookie accepted of the ledger before is on disk; v3 only."""

    ledger: int


@dataclass(frozen=True, slots=True)
class ReadLac:
    """Read the last confirmed entry that the bookie knows; v3 only."""

    ledger: int


@dataclass(frozen=True, slots=True)
class WriteLac:
    """Store the last confirmed entry, for readers of a ledger whose writer has nothing to add; v3 only.

    Attributes:
        ledger, lac: ids.
        master_key: 20 bytes.
        body: see `EntryCodec.pack_lac`.
    """

    ledger: int
    lac: int
    master_key: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class GetBookieInfo:
    """Ask for the size of the bookie's disks; v3 only."""


@dataclass(frozen=True, slots=True)
class Authenticate:
    """One message of an authentication, before all other requests of a connection.

    Attributes:
        plugin: the name of the method.
        payload: defined by the plugin.
    """

    plugin: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class StartTls:
    """Ask for TLS on this connection, as its first request; v3 only. The handshake begins after the answer."""


Request: TypeAlias = (
    AddEntry | ReadEntry | ReadBatch | ForceLedger | ReadLac | WriteLac | GetBookieInfo | Authenticate | StartTls
)


class EntryAdded(NamedTuple):
    """The answer to `AddEntry`."""

    ledger: int
    entry: int
    code: Code


class EntryRead(NamedTuple):
    """The answer to `ReadEntry`.

    Attributes:
        ledger, entry: as asked, so `LAST_ENTRY` stays `LAST_ENTRY`. Only the answer to a long poll names the entry of its body.
        code: see `Code`.
        body: the stored entry; None if there is none, as after a long poll that knows nothing new.
        max_lac: the largest last confirmed entry that the bookie knows; None if it does not say it, as in v2.
    """

    ledger: int
    entry: int
    code: Code
    body: bytes | None
    max_lac: int | None


@dataclass(frozen=True, slots=True)
class BatchRead:
    """The answer to `ReadBatch`.

    Attributes:
        ledger, first: as asked.
        code: see `Code`.
        bodies: stored entries with the ids `first`, `first` + 1 and so on; fewer than asked for is no error.
    """

    ledger: int
    first: int
    code: Code
    bodies: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class LedgerForced:
    """The answer to `ForceLedger`."""

    ledger: int
    code: Code


@dataclass(frozen=True, slots=True)
class LacRead:
    """The answer to `ReadLac`.

    Attributes:
        ledger: as asked.
        code: see `Code`.
        lac_body: what the last `WriteLac` stored; None: nothing.
        last_entry_body: the last stored entry that the bookie has; None: none.
    """

    ledger: int
    code: Code
    lac_body: bytes | None
    last_entry_body: bytes | None


@dataclass(frozen=True, slots=True)
class LacWritten:
    """The answer to `WriteLac`."""

    ledger: int
    code: Code


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """The answer to `GetBookieInfo`.

    Attributes:
        code: see `Code`.
        total_bytes, free_bytes: of all ledger disks together.
    """

    code: Code
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The answer to `Authenticate`: the next message of the authentication, if `code` is OK.

    Attributes:
        plugin: the name of the method; `AuthDisabledPlugin` if the bookie asks for no authentication.
        payload: defined by the plugin.
        code: UNAUTHORISED: the bookie refuses this client.
    """

    plugin: str
    payload: bytes
    code: Code = Code.OK


@dataclass(frozen=True, slots=True)
class TlsStarted:
    """The answer to `StartTls`; if `code` is OK, the client begins the handshake."""

    code: Code


Response: TypeAlias = (
    EntryAdded | EntryRead | BatchRead | LedgerForced | LacRead | LacWritten | BookieInfo | Authenticated | TlsStarted
)
