"""Entries on their way to the bookies of one ensemble. A writer and a recovery use it alike."""

from collections.abc import Sequence

from magnetar.bookkeeper.ledgers import quorums
from magnetar.bookkeeper.ledgers.effects import Send
from magnetar.bookkeeper.ledgers.metadata import BookieId, LedgerMetadata
from magnetar.bookkeeper.protocol.entries import EntryCodec
from magnetar.bookkeeper.protocol.messages import AddEntry


class _Pending:
    """An entry that is not confirmed.

    Attributes:
        acks: a bit for each index of the ensemble whose bookie has the entry.
        request: to send again.
        length: bytes of the payload of all entries up to this one.
    """

    __slots__ = ("acks", "length", "request")

    def __init__(self, request: AddEntry, length: int) -> None:
        self.acks = 0
        self.request = request
        self.length = length


class Adds:
    """Adds entries, and finds out which ones enough bookies have.

    Args:
        ledger: its id.
        codec: makes stored entries of payloads.
        metadata: of the ledger; the last segment's bookies get the entries.
        lac: the last confirmed entry so far.
        recovery: the ledger is fenced, so say that this is its recovery.

    Attributes:
        lac: the last confirmed entry.
        length: bytes of the payload of all confirmed entries.
        bytes: of the stored entries that are not confirmed.
        ensemble: the bookies that get entries.
        missing: index -> bookie of the ensemble that has failed; it gets nothing until `move` or `readopt`.
    """

    def __init__(
        self, ledger: int, codec: EntryCodec, metadata: LedgerMetadata, *, lac: int = -1, recovery: bool = False
    ) -> None:
        self._ledger = ledger
        self._codec = codec
        self._metadata = metadata
        self._recovery = recovery
        # The entries of a recovery do not say how far it is: another one may close the ledger before them
        # (docs/design/bookkeeper.md#recovery-lac).
        self._header_lac = lac if recovery else None
        self.lac = lac
        self.length = 0
        self.bytes = 0
        self.ensemble = metadata.segments[-1].ensemble
        self.missing: dict[int, BookieId] = {}
        self._next = lac + 1
        self._next_length = 0
        self._pending: dict[int, _Pending] = {}
        self._indexes: dict[BookieId, int] = {}
        self._targets: list[tuple[BookieId, ...]] = []
        self._route()

    def __len__(self) -> int:
        """Entries that are not confirmed."""
        return len(self._pending)

    def __contains__(self, entry: int) -> bool:
        """Whether an entry was added and is not confirmed."""
        return entry in self._pending

    def add(self, payload: bytes, length: int | None = None) -> list[Send]:
        """Send one more entry.

        Args:
            payload: of the entry.
            length: bytes of all payloads up to and with this one; None: those of the entry before and this one.
        """
        entry = self._next
        self._next = entry + 1
        length = self._next_length + len(payload) if length is None else length
        self._next_length = length
        recovery = self._recovery
        lac = self.lac if self._header_lac is None else self._header_lac
        body = self._codec.pack(entry, lac, length, payload)
        request = AddEntry(self._ledger, entry, self._codec.master_key, body, recovery, recovery)
        self._pending[entry] = _Pending(request, length)
        self.bytes += len(body)
        targets = self._targets[entry % len(self._targets)]
        return [Send(targets, entry, request)] if targets else []

    def stored(self, bookie: BookieId, entry: int) -> bool:
        """A bookie has an entry; whether that is the one after `lac`, since no other one lets `confirm` advance."""
        pending = self._pending.get(entry)
        index = self._indexes.get(bookie)
        # A bookie that was replaced and chosen again may answer for an entry that does not belong to its new index.
        if pending is None or index is None or not quorums.stores(self._metadata, index, entry):
            return False
        pending.acks |= 1 << index
        return entry == self.lac + 1

    def confirm(self) -> bool:
        """Advance `lac` over the entries that enough bookies have, in order; whether there are any."""
        before, needed, pending = self.lac, self._metadata.ack_quorum, self._pending
        # No entry is confirmed before all smaller ones: docs/design/bookkeeper.md#confirm-in-order.
        while (head := pending.get(self.lac + 1)) is not None and head.acks.bit_count() >= needed:
            self.lac += 1
            self.length = head.length
            self.bytes -= len(head.request.body)
            del pending[self.lac]
        return self.lac > before

    def lose(self, bookie: BookieId) -> bool:
        """A bookie has failed. False: it is not in the ensemble (any longer), or it is known to have failed."""
        index = self._indexes.get(bookie)
        if index is None or index in self.missing:
            return False
        self.missing[index] = bookie
        self._route()
        return True

    def move(self, ensemble: Sequence[BookieId]) -> list[Send]:
        """Use another ensemble for all entries that are not confirmed, and send them to the bookies that are new."""
        new = [index for index, bookie in enumerate(ensemble) if bookie != self.ensemble[index]]
        self.ensemble = tuple(ensemble)
        return self._resend(new)

    def readopt(self, index: int) -> list[Send]:
        """Use a bookie of the ensemble again that has failed."""
        return self._resend([index])

    def again(self, bookie: BookieId, entry: int) -> list[Send]:
        """Send an entry once more to a bookie that had too much to do; nothing if it is confirmed by now."""
        pending = self._pending.get(entry)
        index = self._indexes.get(bookie)
        if pending is None or index is None or index in self.missing:
            return []
        return [Send((bookie,), entry, pending.request)]

    def writable(self) -> bool:
        """Whether entries can be confirmed although bookies are missing."""
        return quorums.writable_without(self._metadata, self.missing)

    def _resend(self, indexes: Sequence[int]) -> list[Send]:
        for index in indexes:
            self.missing.pop(index, None)
        self._route()
        forgotten = ~sum(1 << index for index in indexes)
        sends = []
        for entry, pending in self._pending.items():
            # Acks of the former bookie do not count, also for entries that had enough: they are not confirmed yet (issue 3005).
            pending.acks &= forgotten
            bookies = tuple(self.ensemble[index] for index in indexes if quorums.stores(self._metadata, index, entry))
            if bookies:
                sends.append(Send(bookies, entry, pending.request))
        return sends

    def _route(self) -> None:
        """Work out which bookies get which entries: it repeats after as many entries as the ensemble has bookies."""
        self._indexes = {bookie: index for index, bookie in enumerate(self.ensemble)}
        self._targets = [
            tuple(self.ensemble[index] for index in self._metadata.write_set(entry) if index not in self.missing)
            for entry in range(len(self.ensemble))
        ]
