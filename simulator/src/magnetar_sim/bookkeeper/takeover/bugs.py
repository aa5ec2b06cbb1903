"""Planted bugs of clusters of several brokers: each leaves out one rule of docs/design/cluster.md; a world has to notice.

Some are in counterparts of what cannot run here. `runtime.bookkeeper.ownership` consists of calls of kazoo (`takeover.process`):
that a question is preceded by a sync, that the lease begins with it, and which clock it is by. The client of BookKeeper recovers
ledgers (`takeover.ledgers`). The driver compares the lease with the clock (`takeover.site`). The order of a clean stop is that of
`magnetar.app` (`cluster`).
"""

import errno
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple

from magnetar.runtime.bookkeeper.ledger_file import LedgerBytes, LedgerFile
from magnetar.runtime.bookkeeper.ledger_files import LedgerFiles
from magnetar.runtime.bookkeeper.ledgers import LedgerEntry
from magnetar.runtime.stores.state_file import StateFile
from magnetar.storage.bookkeeper.chain import Chain
from magnetar.storage.ledgerids import LedgerIds
from magnetar.storage.log import SegmentLog
from magnetar_sim.bookkeeper.takeover.ledgers import SimLedgers, SimReader
from magnetar_sim.bookkeeper.takeover.process import Process
from magnetar_sim.bookkeeper.takeover.site import Site
from magnetar_sim.cluster import Cluster
from magnetar_sim.host.patches import Patches, patched

F: Final = "magnetar.runtime.bookkeeper.ledger_files.LedgerFiles."
B: Final = "magnetar.runtime.bookkeeper.ledger_file."
S: Final = "magnetar.runtime.stores.state_file.StateFile."
L: Final = "magnetar_sim.bookkeeper.takeover.ledgers."
P: Final = "magnetar_sim.bookkeeper.takeover.process.Process."

_create = LedgerFiles.create
_replace = LedgerFiles.replace
_append = StateFile._append
_fail = SegmentLog.fail
_finish = Cluster._finish
_read = SimReader.read


def _assumed(self: LedgerFiles, wanted: Chain) -> bool:
    """After a lost answer the change is taken for made."""
    data, self._version = self._record.read()
    self._check_owner(Chain.decode(data) if data else Chain())
    self._chain = wanted
    return True


def _deleted_at_once(self: LedgerFiles, path: Path) -> LedgerFile:
    """The ledger of a file that could not be added is deleted, although the chain may name it."""
    before = self._chain.deleted
    try:
        return _create(self, path)
    except OSError:
        for ledger in self._chain.deleted[len(before) :]:
            self._delete(ledger)
        raise


def _ledger_first(self: LedgerFiles, path: Path) -> None:
    """The ledger of a file is deleted before the chain names it no longer."""
    name = self._name(path)
    if name in self._chain.files:
        self._forget(self._chain.files[name].ledger)
        self._change(lambda chain: chain.without(name))


def _two_changes(self: LedgerFiles, path: Path, over: Path) -> None:
    """The file that is replaced is removed from the chain by a change of its own, before the other one gets its name."""
    self.unlink(over)
    _replace(self, path, over)


def _fence_is_loss(self: LedgerFiles) -> None:
    """A refused append is taken as a proof that another broker has the log."""
    self._lost = "an append was refused"


def _taken(self: Chain, owner: str) -> Chain:
    """A broker that takes the log does not raise the epoch."""
    return Chain(self.format, max(self.epoch, 1), owner, self.files, self.deleted)


def _close_raises(self: LedgerFile) -> None:
    """That a ledger cannot be ended is an error of the log."""
    if not self._open:
        return
    self._open = False
    try:
        if self._writes:
            self._content.close_writer()
    finally:
        self._released(self._content)


def _unsealed(self: SegmentLog, *, sync_failed: bool) -> None:
    """A segment whose append failed gets no seal."""
    _fail(self, sync_failed=sync_failed)
    self._seals.clear()


def _reported_at_once(_self: StateFile, reason: str) -> str:
    """A transaction of unknown outcome is reported as failed; a new file is written before the next one."""
    return reason


def _append_after_failure(self: StateFile, data: list[bytes]) -> str:
    file: Any = self._file
    if file._content.broken:
        try:
            self._rewrite()
        except OSError as error:
            return str(error)
    return _append(self, data)


def _node_first(self: Cluster, *, flushed: bool) -> None:
    """A broker that stops in good order gives up its node before it closes the log."""
    if flushed and isinstance(self.disk, Site) and self.disk.serving is not None:
        self.disk.zookeeper.close(self.disk.serving.session)
    _finish(self, flushed=flushed)


def _from_answer(self: Process, _asked_s: float, own: bool) -> None:
    """The lease begins with the answer."""
    self.lease.confirmed(self.now_s(), own=own)
    self._site.confirmed(self)
    self._later(int(self.lease.pause_s * 1000), self._ask)


def _newest_only(self: SimLedgers, ledgers: Sequence[int]) -> list[SimReader]:
    """Only the newest ledger is recovered. Of the others those entries are read that are known to be confirmed."""
    return [self.open(one) if one == max(ledgers) else _as_it_is(self, one) for one in ledgers]


def _silence_is_damage(self: SimReader, first: int, last: int) -> list[LedgerEntry]:
    """An entry that cannot be read now is taken for one that is lost."""
    try:
        return _read(self, first, last)
    except OSError as error:
        raise OSError(errno.EIO, str(error.strerror)) from None


def _as_it_is(client: SimLedgers, number: int) -> SimReader:
    reader, ledger = SimReader(client, number), client.bookies.ledgers[number]
    reader.entries = ledger.confirmed
    reader.size = ledger.ends[ledger.confirmed - 1] if ledger.confirmed else 0
    return reader


def _by_clock(self: LedgerIds, now_ms: int) -> int:
    """The ids of a topic's ledgers, and with them its positions, come from the clock of the broker that serves."""
    own = self.__dict__.get("own", -1)
    self.__dict__["own"] = self.last = max(own + 1, now_ms)
    return self.last


def _deleted_while_read(self: LedgerBytes) -> bool:
    """The ledger of a deleted file is deleted although handles are open."""
    self._deleted = True
    return True


class Bug(NamedTuple):
    """A rule that is left out.

    Attributes:
        focus: actions that its worlds have more of.
        patches: what is replaced with what.
    """

    focus: tuple[str, ...]
    patches: Patches


BUGS: Final[dict[str, Bug]] = {
    "owner_not_checked": Bug(("pause_within",), {F + "_check_owner": lambda self, stored: None}),
    "epoch_kept": Bug(("pause_within",), {"magnetar.storage.bookkeeper.chain.Chain.taken": _taken}),
    "change_assumed": Bug(("fail", "kill_within", "roll"), {F + "_reread": _assumed}),
    "deleted_after_lost_answer": Bug(("fail", "roll"), {F + "create": _deleted_at_once}),
    "ledger_before_chain": Bug(("roll", "stop"), {F + "unlink": _ledger_first}),
    "replaced_in_two_changes": Bug(("kill_within", "stop"), {F + "replace": _two_changes}),
    "deleted_while_read": Bug(("slow_read", "roll"), {B + "LedgerBytes.delete": _deleted_while_read}),
    "newest_recovered_only": Bug(("pause", "stop"), {L + "SimLedgers.open_all": _newest_only}),
    "ids_by_clock": Bug(("stop", "roll"), {"magnetar.storage.ledgerids.LedgerIds.allocate": _by_clock}),
    "silence_is_damage": Bug(("all_silent", "stop"), {L + "SimReader.read": _silence_is_damage}),
    "fence_is_loss": Bug(("fence",), {F + "_append_failed": _fence_is_loss}),
    "close_raises": Bug(("fence", "fail"), {B + "LedgerFile.close": _close_raises}),
    "unsealed": Bug(("fail", "stop"), {"magnetar.storage.log.SegmentLog.fail": _unsealed}),
    "sent_is_stored": Bug(("fail", "kill_within"), {B + "LedgerBytes.durable": lambda self: self._end}),
    "reported_at_once": Bug(("fail", "stop"), {S + "_heal": _reported_at_once, S + "_append": _append_after_failure}),
    "log_left_open": Bug(("stop",), {"magnetar.storage.log.SegmentLog.close": lambda self: None}),
    "node_given_up_first": Bug(("stop", "hang", "pause_within"), {"magnetar_sim.cluster.Cluster._finish": _node_first}),
    "whole_session": Bug(("part_server",), {"magnetar.storage.bookkeeper.lease.LEASE_PART": 1.0}),
    "lease_from_answer": Bug(("part_server",), {P + "_answered": _from_answer}),
    "no_sync": Bug(("part_server",), {P + "synced": lambda self: True}),
    "lease_seldom_compared": Bug(
        ("pause",), {"magnetar_sim.bookkeeper.takeover.site.Site.expired": lambda self: ""}
    ),
    "clock_stops": Bug(("pause",), {P + "now_s": lambda self: (self._clock.now_ms - self.slept_ms) / 1000}),
}  # fmt: skip
"""By name."""


def planted(bug: str) -> AbstractContextManager[None]:
    """A world in which a rule is left out, for as long as the block runs; "" for the honest one."""
    return patched(BUGS[bug].patches if bug else {})
