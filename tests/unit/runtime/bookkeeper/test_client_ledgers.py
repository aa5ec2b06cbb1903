"""The errors of the client of BookKeeper, as those of a disk."""

import errno

import pytest

from magnetar.bookkeeper.network.errors import (
    BookKeeperError,
    EntryLost,
    EntryUnreadable,
    LedgerFenced,
    NoSuchLedger,
    RecoveryFailed,
    TooFewBookies,
)
from magnetar.runtime.bookkeeper.client_ledgers import _as_disk_errors


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (EntryLost, errno.EIO),
        (EntryUnreadable, errno.ETIMEDOUT),
        (TooFewBookies, errno.ETIMEDOUT),
        (RecoveryFailed, errno.ETIMEDOUT),
        (LedgerFenced, errno.ETIMEDOUT),
        (NoSuchLedger, errno.ENOENT),
    ],
)
def test_only_an_entry_that_is_lost_is_an_unreadable_sector(kind: type[BookKeeperError], number: int) -> None:
    """Recovery serves what is left around an unreadable sector. Everything else may be there at the next attempt."""
    with pytest.raises(OSError, match="why") as caught, _as_disk_errors():
        raise kind("why")
    assert caught.value.errno == number
    assert caught.value.strerror == "why"
