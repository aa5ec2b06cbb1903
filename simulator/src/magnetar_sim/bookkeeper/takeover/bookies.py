"""BookKeeper as the log of a broker sees it: ledgers on three of four bookies, fences, and bookies that do not answer.

What the client of BookKeeper promises is taken for granted here; worlds of its own test it (`magnetar_sim.bookkeeper`).
"""

import random
from dataclasses import dataclass, field
from typing import Final

BOOKIES: Final = 4
ENSEMBLE: Final = 3
ACK_QUORUM: Final = 2


@dataclass
class Ledger:
    """One ledger.

    Attributes:
        name: of its file.
        ensemble: the bookies that have it.
        payloads: of its entries.
        ends: bytes of all payloads up to each entry.
        copies: the bookies that have each entry.
        confirmed: entries that an ack quorum has.
        fenced: its writer is refused.
        closed: it has ended.
        deleted: it is gone.
        failed: an append failed, so its writer does not close it.
    """

    name: str
    ensemble: tuple[int, ...]
    payloads: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    copies: list[set[int]] = field(default_factory=list)
    confirmed: int = 0
    fenced: bool = False
    closed: bool = False
    deleted: bool = False
    failed: bool = False

    def add(self, payload: bytes, copies: set[int]) -> None:
        """Another entry, on these bookies."""
        self.payloads.append(payload)
        self.ends.append((self.ends[-1] if self.ends else 0) + len(payload))
        self.copies.append(copies)

    def end_at(self, entries: int) -> None:
        """It ends after so many entries."""
        del self.payloads[entries:], self.ends[entries:], self.copies[entries:]
        self.confirmed = entries
        self.fenced = self.closed = True


class TooFew(Exception):
    """Too few bookies answer."""


class Bookies:
    """All ledgers of a cluster.

    Args:
        rng: the world's.

    Attributes:
        silent: bookies that do not answer.
        checked: reads are those of a check of the world, which every bookie answers.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.checked = False
        self.ledgers: dict[int, Ledger] = {}
        self.silent: set[int] = set()

    def create(self, name: str) -> int:
        """A new one. Raises TooFew."""
        able = [bookie for bookie in range(BOOKIES) if bookie not in self.silent]
        if len(able) < ENSEMBLE:
            raise TooFew
        number = len(self.ledgers)
        self.ledgers[number] = Ledger(name, tuple(self._rng.sample(able, ENSEMBLE)))
        return number

    def append(self, number: int, payloads: list[bytes]) -> bool:
        """Entries reach the bookies that answer: whether they are confirmed."""
        ledger = self.ledgers[number]
        able = {bookie for bookie in ledger.ensemble if bookie not in self.silent}
        if ledger.fenced:
            return False
        for payload in payloads:
            ledger.add(payload, set(able))
        if len(able) < ACK_QUORUM:
            return False
        ledger.confirmed = len(ledger.payloads)
        return True

    def append_some(self, number: int, payloads: list[bytes]) -> None:
        """A writer fails: a part of the entries is on some bookies, and no one knows on which."""
        ledger = self.ledgers[number]
        if ledger.fenced:
            return
        for payload in payloads[: self._rng.randint(0, len(payloads))]:
            copies = {bookie for bookie in ledger.ensemble if self._rng.random() < 0.5} - self.silent
            if not copies:
                return
            ledger.add(payload, copies)

    def recover(self, number: int) -> Ledger:
        """Fence it, and decide how it ends: with the last entry that a bookie has that answers. Raises TooFew.

        Entries that may not have been confirmed are written to the others, too.
        """
        ledger = self.ledgers[number]
        if ledger.closed:
            return ledger
        able = {bookie for bookie in ledger.ensemble if bookie not in self.silent}
        if len(able) <= ENSEMBLE - ACK_QUORUM:
            raise TooFew
        seen = ledger.confirmed
        while seen < len(ledger.payloads) and ledger.copies[seen] & able:
            seen += 1
        for entry in range(ledger.confirmed):
            assert ledger.copies[entry] & able, "a confirmed entry is on no bookie"
        for copies in ledger.copies[ledger.confirmed : seen]:
            copies.update(able)
        ledger.end_at(seen)
        return ledger

    def readable(self, number: int, entry: int) -> bool:
        """Whether a bookie has it that answers. What the silent ones have is not lost."""
        copies = self.ledgers[number].copies[entry]
        return bool(copies if self.checked else copies - self.silent)

    def wiped(self, bookie: int) -> None:
        """Its disk is lost, and it does not answer until all it had was copied."""
        self.silent.add(bookie)
        for ledger in self.ledgers.values():
            for copies in ledger.copies:
                copies.discard(bookie)

    def replicated(self, bookie: int) -> None:
        """BookKeeper's repair: what a bookie had is copied to another one. For that it fences ledgers that are open."""
        self.silent.discard(bookie)
        for number, ledger in self.ledgers.items():
            if bookie in ledger.ensemble and not ledger.deleted:
                self.recover(number)
                for copies in ledger.copies:
                    copies |= set(ledger.ensemble)
