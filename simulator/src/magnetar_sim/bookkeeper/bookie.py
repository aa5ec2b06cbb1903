"""A bookie as it behaves on the wire and on its disk, for one ledger. docs/design/bookkeeper.md#bookie has what it imitates."""

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from magnetar.bookkeeper.protocol.messages import (
    LAST_ENTRY,
    AddEntry,
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

Reply = Callable[[Response], None]

_LAC = Struct(">q")
_LAC_AT = 16


class _Record(NamedTuple):
    """What waits for the journal.

    Attributes:
        entry: an id; None: a fence, or nothing but the wish to know that the journal was written.
        body: of the entry.
        fence: the ledger is fenced.
        done: sends the answer.
    """

    entry: int | None
    body: bytes
    fence: bool
    done: Callable[[], None] | None


class _Poll(NamedTuple):
    """A reader that waits for the last confirmed entry."""

    previous: int
    piggyback: bool
    reply: Reply


class Bookie:
    """A bookie, and what is done to it.

    Attributes:
        name: under which it is registered.
        up: the process runs.
        hung: it takes requests and does nothing about them.
        read_only, busy, broken: it refuses adds (105, 106), or everything (101).
        limbo: it lost its disk and knows it: it does not say that it never had an entry.
        incarnation: which run of the process this is.
        entries: that can be read now.
        disk: those that outlast the process.
        fenced, fenced_on_disk: the same of the fence.
        key: of the ledger, as the first add or fence had it; None: there was none.
    """

    def __init__(self, name: str, ledger: int, journal: Callable[["Bookie"], None]) -> None:
        self.name = name
        self.up = True
        self.hung = self.read_only = self.busy = self.broken = self.limbo = False
        self.incarnation = 1
        self.entries: dict[int, bytes] = {}
        self.disk: dict[int, bytes] = {}
        self.fenced = self.fenced_on_disk = False
        self.key: bytes | None = None
        self._ledger = ledger
        self._known = False
        self._lac = -1
        self._lac_body: bytes | None = None
        self._start_journal = journal
        self._queue: list[_Record] = []
        self._polls: list[_Poll] = []
        self._waiting: list[tuple[Request, Reply]] = []

    def crash(self) -> None:
        """The process is killed: what is not on disk is gone."""
        self.up = self.hung = False
        self.incarnation += 1
        self.entries = dict(self.disk)
        self.fenced = self.fenced_on_disk
        self._known = bool(self.disk) or self.fenced
        self._lac = max((_LAC.unpack_from(body, _LAC_AT)[0] for body in self.entries.values()), default=-1)
        if self._lac_body is not None:
            # What `WriteLac` brought is in the journal.
            self._known = True
            self._lac = max(self._lac, _LAC.unpack_from(self._lac_body, 8)[0])
        self._queue, self._polls, self._waiting = [], [], []

    def wipe(self, *, knows: bool) -> None:
        """The disk is lost, fences and all.

        Args:
            knows: it comes back with every ledger in limbo and fenced, instead of innocently empty.
        """
        self.disk = {}
        self.key = None
        self._lac_body = None
        self.fenced_on_disk = self.limbo = knows
        self.crash()

    def wake(self) -> None:
        """A hung process continues with all that has come meanwhile."""
        self.hung = False
        waiting, self._waiting = self._waiting, []
        for request, reply in waiting:
            self.receive(request, reply)

    def receive(self, request: Request, reply: Reply) -> None:
        """Take a request; the answer may come later, or never."""
        if self.hung:
            self._waiting.append((request, reply))
        elif not self._key_fits(request):
            entry, code = getattr(request, "entry", LAST_ENTRY), Code.UNAUTHORISED
            added = isinstance(request, AddEntry)
            reply(EntryAdded(self._ledger, entry, code) if added else EntryRead(self._ledger, entry, code, None, None))
        elif isinstance(request, AddEntry):
            self._add(request, reply)
        elif isinstance(request, ReadEntry):
            self._read(request, reply)
        elif isinstance(request, ReadBatch):
            self._read_batch(request, reply)
        elif isinstance(request, ForceLedger):
            self._log(_Record(None, b"", False, lambda: reply(LedgerForced(self._ledger, Code.OK))))
        elif isinstance(request, WriteLac):
            self._known = True
            self._lac_body = request.body
            self._rise(request.lac)
            reply(LacWritten(self._ledger, Code.OK))
        elif isinstance(request, ReadLac):
            last = self.entries[max(self.entries)] if self.entries else None
            code = Code.OK if self._known else self._nothing()
            reply(LacRead(self._ledger, code, self._lac_body, last))
        else:
            raise AssertionError(f"an unexpected request: {request}")

    def written(self) -> None:
        """The journal is on disk, up to what was queued when the write began: everything that waits."""
        queue, self._queue = self._queue, []
        for record in queue:
            if record.entry is not None:
                self.disk[record.entry] = record.body
            if record.fence:
                self.fenced_on_disk = True
        for record in queue:
            if record.done is not None:
                record.done()

    def poll_over(self, reply: Reply) -> None:
        """The time of a long poll is over."""
        for poll in self._polls:
            if poll.reply is reply:
                self._polls.remove(poll)
                self._answer_poll(poll)
                return

    @property
    def memory(self) -> int:
        """Bytes of the entries that it has not answered."""
        waiting = [request.body for request, _ in self._waiting if isinstance(request, AddEntry)]
        return sum(map(len, waiting)) + sum(len(record.body) for record in self._queue)

    def _key_fits(self, request: Request) -> bool:
        """Whether a request that needs the key of the ledger has it. The first one fixes it."""
        if not isinstance(request, AddEntry) and not (isinstance(request, ReadEntry) and request.fence):
            return True
        self.key = self.key or request.master_key
        return self.key == request.master_key

    def _nothing(self) -> Code:
        if self.limbo:
            return Code.UNKNOWN_LEDGER_STATE
        return Code.NO_ENTRY if self._known else Code.NO_LEDGER

    def _log(self, record: _Record) -> None:
        self._queue.append(record)
        if len(self._queue) == 1:
            self._start_journal(self)

    def _add(self, request: AddEntry, reply: Reply) -> None:
        code = Code.OK
        if self.broken:
            code = Code.IO_ERROR
        elif self.busy:
            code = Code.TOO_MANY
        elif self.read_only and not request.high_priority:
            code = Code.READ_ONLY
        elif self.fenced and not request.recovery:
            code = Code.FENCED
        answer = EntryAdded(self._ledger, request.entry, code)
        if code is not Code.OK:
            reply(answer)
            return
        self._known = True
        # It can be read before it is on disk.
        self.entries[request.entry] = request.body
        self._log(_Record(request.entry, request.body, False, lambda: reply(answer)))
        self._rise(_LAC.unpack_from(request.body, _LAC_AT)[0])

    def _read(self, request: ReadEntry, reply: Reply) -> None:
        if self.broken:
            reply(EntryRead(self._ledger, request.entry, Code.IO_ERROR, None, None))
            return
        if request.previous_lac is not None:
            poll = _Poll(request.previous_lac, request.piggyback, reply)
            if self._lac > request.previous_lac or not self._known:
                self._answer_poll(poll)
            else:
                self._polls.append(poll)
            return
        entry = max(self.entries, default=-1) if request.entry == LAST_ENTRY else request.entry
        body = self.entries.get(entry)
        code = Code.OK if body is not None else self._nothing()
        lac = None if request.fence else self._lac
        answer = EntryRead(self._ledger, request.entry, code, body, lac)
        if not request.fence:
            reply(answer)
            return
        self._known = self.fenced = True
        if self.fenced_on_disk:
            reply(answer)
        elif code is Code.OK:
            self._log(_Record(None, b"", True, lambda: reply(answer)))
        else:
            # A negative answer does not wait for the journal.
            self._log(_Record(None, b"", True, None))
            reply(answer)

    def _read_batch(self, request: ReadBatch, reply: Reply) -> None:
        bodies: list[bytes] = []
        while len(bodies) < request.entries_max and (body := self.entries.get(request.first + len(bodies))) is not None:
            if bodies and sum(map(len, bodies)) + len(body) > request.bytes_max:
                break
            bodies.append(body)
        code = Code.IO_ERROR if self.broken else Code.OK if bodies else self._nothing()
        reply(BatchRead(self._ledger, request.first, code, () if self.broken else tuple(bodies)))

    def _rise(self, lac: int) -> None:
        if lac <= self._lac:
            return
        self._lac = lac
        polls, self._polls = self._polls, []
        for poll in polls:
            if lac > poll.previous:
                self._answer_poll(poll)
            else:
                self._polls.append(poll)

    def _answer_poll(self, poll: _Poll) -> None:
        if not self._known:
            poll.reply(EntryRead(self._ledger, LAST_ENTRY, self._nothing(), None, None))
            return
        body = self.entries.get(poll.previous + 1) if poll.piggyback and self._lac > poll.previous else None
        poll.reply(EntryRead(self._ledger, LAST_ENTRY, Code.OK, body, self._lac))
