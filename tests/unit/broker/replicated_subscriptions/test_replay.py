"""The replay of markers when reads fail."""

from magnetar.broker.replicated_subscriptions.replay import PATIENCE_MS, RETRY_MS, Replay
from magnetar.core.ids import NONE, Position
from magnetar.effects.outbox import Note, Outbox, Read, Timer
from magnetar.storage.entries import EntryFlags, Location, NewEntry, StoredEntry
from magnetar.storage.topiclog import EntryCache, LedgerIds, Retention, TopicLog

MARKER = int(EntryFlags.MARKER)


class Rig:
    """A log of three markers with messages between them, and the replay of it."""

    def __init__(self) -> None:
        self.outbox = Outbox(now_ms=1_000)
        self.log = TopicLog("t", 7, LedgerIds(7), EntryCache(0), ledger_entries_max=20)
        new = [NewEntry(b"", MARKER if not number % 40 else 0, 0 if not number % 40 else 1, 1) for number in range(81)]
        self.entries: list[StoredEntry] = []
        for begin in range(0, len(new), 20):
            append = self.log.stage(new[begin : begin + 20], 1)
            self.log.confirm(append, Location(0, 0))
            self.entries += append.entries
        self.markers = [entry for entry in self.entries if entry.flags & MARKER]
        self.given: list[StoredEntry] = []
        self.done = 0
        self.replay = Replay(self.outbox, self.log, NONE, self.given.extend, self._ended)
        self.replay.start()

    def _ended(self) -> None:
        self.done += 1

    def answer(self, error: str = "") -> Position:
        """Answer the read that is under way."""
        (read,) = [effect for effect in self._drain() if isinstance(effect, Read)]
        found = [entry for entry in self.entries if entry.position >= read.start][: read.entries_max]
        read.then([] if error else found, error)
        return read.start

    def wait(self) -> None:
        """Let the timer come, which has to be there."""
        (timer,) = [effect for effect in self.outbox.effects if isinstance(effect, Timer)]
        self._drain()
        self.outbox.now_ms = timer.at_ms
        timer.then(timer.at_ms)

    def notes(self) -> list[str]:
        """Lines for the log that were not looked at yet."""
        return [effect.text for effect in self.outbox.effects if isinstance(effect, Note)]

    def _drain(self) -> list[object]:
        effects = list(self.outbox.effects)
        self.outbox.effects.clear()
        return effects


def test_a_read_that_fails_once_costs_no_marker() -> None:
    rig = Rig()
    rig.answer()
    assert rig.answer("bookies are away") == rig.markers[1].position
    assert "cannot be read yet: bookies are away; trying again for 30 s" in rig.notes()[0]
    rig.wait()
    assert rig.outbox.now_ms == 1_000 + RETRY_MS
    assert rig.answer() == rig.markers[1].position
    rig.answer()
    assert rig.given == rig.markers
    assert (rig.done, rig.replay.lost) == (1, 0)


def test_a_damaged_marker_is_left_out_in_the_end_and_a_second_one_at_once() -> None:
    rig = Rig()
    rig.answer("damaged")
    for _ in range(PATIENCE_MS // RETRY_MS):
        assert not rig.done
        rig.wait()
        rig.answer("damaged")
    assert any("is left out: damaged" in text for text in rig.notes())
    rig.answer("damaged")
    rig.answer()
    assert rig.given == rig.markers[2:]
    assert (rig.done, rig.replay.lost) == (1, 2)


def test_a_marker_that_retention_deleted_meanwhile_is_not_waited_for() -> None:
    rig = Rig()
    rig.answer()
    trim = rig.log.trim(rig.log.last, 2, Retention(0, 0))
    assert trim is not None
    rig.log.forget(trim)
    rig.answer("gone")
    rig.answer()
    assert (rig.done, rig.replay.lost) == (1, 0)
