"""A bookie that stores entries in memory, for `scripted_bookie.ScriptedBookie`."""

from magnetar.bookkeeper.protocol.messages import (
    LAST_ENTRY,
    AddEntry,
    Authenticate,
    Authenticated,
    BatchRead,
    Code,
    EntryAdded,
    EntryRead,
    ForceLedger,
    LacRead,
    LacWritten,
    LedgerForced,
    ReadBatch,
    ReadEntry,
    ReadLac,
    Request,
    Response,
    WriteLac,
)
from tests.support.scripted_bookie import NO_PLUGIN


class Storage:
    """The entries of one bookie. Call it with a request.

    Attributes:
        entries: ledger -> entry -> stored bytes.
        fenced: ledgers.
        code: what adds are answered instead of being done.
        silent: nothing is answered.
    """

    def __init__(self) -> None:
        self.entries: dict[int, dict[int, bytes]] = {}
        self.fenced: set[int] = set()
        self.code = Code.OK
        self.silent = False
        self._lacs: dict[int, bytes] = {}

    def __call__(self, request: Request) -> Response | None:
        """The answer; None: none."""
        if self.silent:
            return None
        match request:
            case Authenticate():
                return Authenticated(NO_PLUGIN, b"")
            case AddEntry(ledger=ledger, entry=entry):
                if self.code is not Code.OK:
                    return EntryAdded(ledger, entry, self.code)
                if ledger in self.fenced and not request.recovery:
                    return EntryAdded(ledger, entry, Code.FENCED)
                self.entries.setdefault(ledger, {})[entry] = request.body
                return EntryAdded(ledger, entry, Code.OK)
            case ReadEntry(ledger=ledger):
                return self._read(request)
            case ReadBatch(ledger=ledger, first=first):
                stored = self.entries.get(ledger, {})
                found = []
                while len(found) < request.entries_max and first + len(found) in stored:
                    found.append(stored[first + len(found)])
                return BatchRead(ledger, first, Code.OK if found else Code.NO_ENTRY, tuple(found))
            case ReadLac(ledger):
                stored = self.entries.get(ledger, {})
                return LacRead(ledger, Code.OK, self._lacs.get(ledger), stored[max(stored)] if stored else None)
            case WriteLac(ledger, _, _, body):
                self._lacs[ledger] = body
                return LacWritten(ledger, Code.OK)
            case ForceLedger(ledger):
                return LedgerForced(ledger, Code.OK)
            case _:
                raise AssertionError(f"unexpected {request}")

    def _read(self, request: ReadEntry) -> Response:
        if request.fence:
            self.fenced.add(request.ledger)
        stored = self.entries.get(request.ledger, {})
        if request.previous_lac is not None:
            # A long poll, answered at once.
            lacs = [int.from_bytes(body[16:24], "big", signed=True) for body in stored.values()]
            if request.ledger in self._lacs:
                lacs.append(int.from_bytes(self._lacs[request.ledger][8:16], "big", signed=True))
            following = stored.get(request.previous_lac + 1)
            return EntryRead(request.ledger, request.entry, Code.OK, following, max(lacs, default=-1))
        entry = max(stored, default=-1) if request.entry == LAST_ENTRY else request.entry
        code = Code.OK if entry in stored else Code.NO_ENTRY
        return EntryRead(request.ledger, request.entry, code, stored.get(entry), None)
