"""Which ledgers may go, by clocks that were wrong."""

from magnetar.storage.ledger import Ledger
from magnetar.storage.retention import Retention, deletable

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR


def ledgers(*stored_ms: int) -> list[Ledger]:
    """Ledgers of one entry each, the last of them stored at these times."""
    made = []
    for number, time_ms in enumerate(stored_ms):
        ledger = Ledger(number, time_ms)
        ledger.add(0, 100, 0, 1, time_ms, time_ms, marker=False)
        made.append(ledger)
    return made


def test_ledgers_go_by_their_age() -> None:
    closed = ledgers(0, HOUR, 2 * HOUR)
    kept = Retention(HOUR, -1)
    assert deletable(closed, 300, None, HOUR - 1, kept) == []
    assert deletable(closed, 300, None, HOUR, kept) == [0]
    assert deletable(closed, 300, None, 2 * HOUR + 1, kept) == [0, 1]


def test_a_ledger_of_the_future_is_as_old_as_those_behind_it() -> None:
    """The clock was a year ahead for a while: until then nothing of the topic would be deleted."""
    closed = ledgers(YEAR, YEAR + 1, HOUR, 2 * HOUR)
    kept = Retention(HOUR, -1)
    assert deletable(closed, 400, None, 2 * HOUR - 1, kept) == []
    assert deletable(closed, 400, None, 2 * HOUR, kept) == [0, 1, 2]
    assert deletable(ledgers(HOUR, YEAR), 200, None, 2 * HOUR, kept) == [0]


def test_no_age_and_no_size_is_for_ever() -> None:
    assert deletable(ledgers(0, 1), 200, None, YEAR, Retention(-1, -1)) == []
