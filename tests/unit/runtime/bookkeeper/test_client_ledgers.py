"""The errors of the client of BookKeeper, as those of a disk; waits for answers that do not come."""

import asyncio
import errno
import threading

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
from magnetar.runtime.bookkeeper.client_ledgers import _as_disk_errors, _Loop


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


def test_nobody_waits_for_an_answer_when_the_log_is_lost() -> None:
    """ZooKeeper may be away for an hour: a broker whose lease is over has to end before that."""
    lost = [""]
    loop = _Loop(lambda: lost[0])
    cancelled = threading.Event()

    async def silent() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    timer = threading.Timer(0.1, lost.__setitem__, (0, "its lease is over"))
    timer.start()
    with pytest.raises(OSError, match="its lease is over") as caught:
        loop.call(silent())
    assert caught.value.errno == errno.ESTALE
    assert cancelled.wait(20)
    # What ends the client itself is awaited nevertheless.
    assert loop.finish(asyncio.sleep(0.01, "done")) == "done"
    loop.close()
