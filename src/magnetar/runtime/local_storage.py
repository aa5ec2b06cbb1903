"""Opens the storage of a broker on its own disk: the data folder with the log, and the metadata store."""

import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from magnetar.broker.catalog.deletion_proofs import Loss
from magnetar.core.config import Config
from magnetar.core.errors import StorageError
from magnetar.metadata.topic_records import LAST_LEDGER_KEY, TOPIC_PREFIX
from magnetar.runtime.broker_storage import BrokerStorage, LogReports, prove_deletions
from magnetar.runtime.log.discard import Discarder
from magnetar.runtime.log.files import OsFiles
from magnetar.runtime.log.folder import DataFolder
from magnetar.runtime.log.folder_check import (
    LEDGER_FILE,
    MARK_FILE,
    begin_mark,
    check_log,
    check_store,
    check_uuid,
    store_address,
)
from magnetar.runtime.log.lanes import Lanes
from magnetar.runtime.log.reserve import Reserve
from magnetar.runtime.stores.mark import StoreMark
from magnetar.runtime.stores.opening import open_store
from magnetar.storage.bookkeeper.lease import Lease
from magnetar.storage.ledgerfile import LedgerFile
from magnetar.storage.recovery import Recovered

logger = logging.getLogger("magnetar.broker")

LOSSES_TOLD_MAX: Final = 1_000
"""A ceiling on lines about what is missing in the log."""


def close_ledgers(ledgers: LedgerFile) -> None:
    """Close the ledger file, with the last records of the log written durably."""
    try:
        ledgers.close()
    except OSError as error:
        logger.warning("the file of ledgers cannot be synced: %s", error.strerror or error)


def start_log(log: Lanes, reserve: Reserve, check: Callable[[Recovered], None] | None = None) -> Recovered:
    """Start the log; on a full disk with space from the reserve, because the log may contain entries that retention can
    delete.

    Raises:
        StorageError: it cannot be read, or no new segment can be made.
    """
    while True:
        try:
            return log.start() if check is None else log.start(check)
        except StorageError as error:
            full = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENOSPC
            if not full or not reserve.give():
                raise


def check_together(stored: Mapping[str, bytes], recovered: Recovered, store: str, folder: Path) -> None:
    """Refuse a metadata store without any trace of topics together with a log that has messages.

    Topics that are not in the store were deleted, and their messages are removed: with a wrong store that would be all.
    A store whose topics were all deleted has the last ledger that they had.

    Raises:
        StorageError: names the locations of both.
    """
    known = LAST_LEDGER_KEY in stored or any(key.startswith(TOPIC_PREFIX) for key in stored)
    if recovered.topics and not known:
        raise StorageError(
            f"the metadata store ({store_address(store, folder)}) knows no topic, and {folder / 'log'} holds messages of "
            f"{len(recovered.topics)}, such as {min(recovered.topics)[0]}: they would be deleted. Give the broker the store that "
            "belongs to them ([metadata] store, a backup), or, to start again without them, move the folder away"
        )


def open_local(config: Config, cluster: str, reports: LogReports, stack: contextlib.ExitStack) -> BrokerStorage:
    """Open the data folder and the store, recover, and check that they belong together.

    Args:
        config: the whole configuration.
        cluster: whose broker.
        reports: gets the reports of the log.
        stack: gets what is to be done at the end.

    Raises:
        StorageError: it cannot be opened, in one line.
    """
    store_key = config.metadata.store
    folder = DataFolder.open(config.cluster_dir(cluster), cluster=cluster)
    stack.callback(folder.close)
    reserve = Reserve(folder.path / "reserve")
    mark = StoreMark(folder.path / MARK_FILE)
    stack.callback(mark.close)
    store = open_store(
        store_key,
        cluster,
        folder.path,
        reserve,
        zookeeper=config.metadata.zookeeper,
        lost=folder.lock.lost,
        on_commit=mark.keep,
    )
    stack.callback(store.close)
    stored = {key: value for key, (value, _version) in store.load().items()}
    ledgers = LedgerFile(OsFiles(), folder.path / LEDGER_FILE, threading.Lock())
    discarder = Discarder()
    stack.callback(discarder.close)
    log = Lanes(
        OsFiles(folder.lock.lost),
        folder.path / "log",
        config.broker,
        on_appended=reports.appended,
        on_failed=reports.append_failed,
        on_healed=reports.healed,
        discard=discarder.discard,
        ledgers=ledgers,
    )
    losses: list[Loss] = []
    dropped: list[int] = []

    def check(found: Recovered) -> None:
        check_together(stored, found, store_key, folder.path)
        check_store(mark, stored, store.version, store_address(store_key, folder.path), cluster)
        check_uuid(folder.uuid, stored, store_key, folder.path, cluster)
        losses[:], dropped[:] = check_log(found, ledgers, stored, folder.path / "log", cluster)

    recovered = start_log(log, reserve, check)
    stack.callback(close_ledgers, ledgers)
    stack.callback(log.stop)
    log.forget(dropped)
    prove_deletions(store, stored, recovered)
    begin_mark(mark, store, stored)
    for loss in losses[:LOSSES_TOLD_MAX]:
        logger.error("%s; see magnetar recover %s", loss, cluster)
    if len(losses) > LOSSES_TOLD_MAX:
        logger.error("and %d more ledgers miss entries", len(losses) - LOSSES_TOLD_MAX)
    lost_entries = sum(loss.entries for loss in losses)
    return BrokerStorage(folder.uuid, log, store, stored, recovered, lost_entries, folder.lock.lost, Lease.endless())
