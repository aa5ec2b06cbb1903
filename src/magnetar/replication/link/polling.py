"""Reports the changes on a link since a pipeline asked last: a counter, long polls, and an advisory lease.

Every change of a topic takes the next number of the link's counter; an answer holds the topics with a higher number than
the pipeline knows. Numbers begin at the broker's boot time, so that a counter of an earlier start is never taken for one of
this start (a pipeline also sends the boot time to which its counter belongs).

The lease only keeps a second pipeline from doing the same work: it is advice, and the chain rule does not need it. It belongs to
the pipeline that asked first, until that one is silent for its time; a poll that is being held open is not silence. There is one
of the whole link, for pipelines that may replicate everything, and one for each role that may replicate some topics only: such a
role takes nothing from others, whatever name of a pipeline it gives.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from magnetar.effects.outbox import Outbox, Timer

SETTLE_MS: Final = 5
"""News is collected this long before polls are answered: an answer per message would cost more than the message."""

QUIET_MS: Final = 1_000
"""News of topics that a fetch session has is collected for longer: the session has the entries, and what is left are figures."""

LEASE_MS: Final = 10_000
"""A pipeline that does not say how long it wants the lease gets it for this long."""

LEFT_MS: Final = 1_000
"""Rest of a lease when its holder's connection closes: enough to connect again, and a successor need not wait long."""

LEASE_MS_MAX: Final = 60_000
"""A ceiling: a pipeline that died must not keep a stand-by waiting for longer."""

GONE_MAX: Final = 20_000
"""Topics that are gone and are remembered, so that pipelines learn of it: some 6 MB. A pipeline asks 40 times a second; one that
missed more than these has to ask for everything."""

_COUNTER_SHIFT: Final = 20
"""A million changes for each millisecond since the last start, before counters of two starts could meet."""


class Changes:
    """Which topics changed when.

    Args:
        boot: clock in ms when this broker started; not 0.

    Attributes:
        counter: of the latest change.
        urgent: of the latest change of which news should not be collected for long.
        forgotten: of the latest deletion that is forgotten. The changes up to it are not known.
    """

    def __init__(self, boot: int) -> None:
        self.boot = boot
        self.base = boot << _COUNTER_SHIFT
        self.counter = self.urgent = self.base + 1
        self.forgotten = 0
        self._order: OrderedDict[str, int] = OrderedDict()
        self._gone: deque[tuple[str, int]] = deque()
        """Topics with the counters of their deletions, the oldest first. Some were created again since."""

    def touch(self, topic: str, *, quiet: bool = False) -> int:
        """This topic changed; `quiet`: news of it may be collected for `QUIET_MS`."""
        self.counter += 1
        if not quiet:
            self.urgent = self.counter
        self._order[topic] = self.counter
        self._order.move_to_end(topic)
        return self.counter

    def removed(self, topic: str, asked: int) -> None:
        """This topic is gone.

        Args:
            topic: its name.
            asked: the lowest counter of a poll that is held open: that one will be answered with all later changes.
        """
        self._gone.append((topic, self.touch(topic)))
        while len(self._gone) > GONE_MAX and self._gone[0][1] <= asked:
            name, counter = self._gone.popleft()
            if self._order.get(name) == counter:  # else it is there again, or went a second time
                del self._order[name]
                self.forgotten = counter

    def bump(self) -> None:
        """Something of the whole link changed."""
        self.counter += 1
        self.urgent = self.counter

    def known(self, counter: int, boot: int) -> int:
        """The counter from which a pipeline may continue: 0 (everything) when its own is not of this start."""
        foreign = boot not in (0, self.boot) or not self.base < counter <= self.counter
        return 0 if foreign else counter

    def since(self, counter: int) -> Iterator[str]:
        """Topics that changed after, the latest first; `counter`: at least `forgotten`."""
        for topic in reversed(self._order):
            if self._order[topic] <= counter:
                return
            yield topic


@dataclass(slots=True)
class _Waiter:
    known: int
    until_ms: int
    pipeline: str
    answer: Callable[[], None]
    lease: "Lease"


class Polls:
    """Polls that are held open until there is news; at most one for a connection.

    Args:
        outbox: the broker's.
        changes: of the link.
    """

    def __init__(self, outbox: Outbox, changes: Changes) -> None:
        self._outbox = outbox
        self._changes = changes
        self._waiting: dict[int, _Waiter] = {}
        self._settle_ms = 0
        self._alarm_ms = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def oldest(self) -> int:
        """The lowest counter that a poll which is held open began with; the latest one if there is no poll."""
        return min((waiter.known for waiter in self._waiting.values()), default=self._changes.counter)

    def hold(
        self, connection: int, known: int, until_ms: int, pipeline: str, answer: Callable[[], None], lease: "Lease"
    ) -> None:
        """Call `answer` at the next news after `known`, at the latest at `until_ms`; `lease`: the one that the asker is about."""
        before = self._waiting.pop(connection, None)
        if before is not None:
            before.answer()
        self._waiting[connection] = _Waiter(known, until_ms, pipeline, answer, lease)
        lease.held(pipeline, True)
        self._set_alarm()
        if known < self._changes.counter:
            self.news(quiet=known >= self._changes.urgent)

    def cancel(self, connection: int) -> None:
        """The connection is gone."""
        waiter = self._waiting.pop(connection, None)
        if waiter is not None:
            self._let_go(waiter)

    def news(self, *, quiet: bool = False) -> None:
        """Something changed: answer soon; `quiet`: after `QUIET_MS`."""
        if not self._waiting:
            return
        due_ms = self._outbox.now_ms + (QUIET_MS if quiet else SETTLE_MS)
        if not self._settle_ms or due_ms < self._settle_ms:
            self._settle_ms = due_ms
            self._outbox.put(Timer(due_ms, self._settled))

    def _settled(self, now_ms: int) -> None:
        if self._settle_ms and now_ms >= self._settle_ms:  # else something more urgent came, and was answered
            self._settle_ms = 0
            self._release(lambda waiter: waiter.known < self._changes.counter)

    def _set_alarm(self) -> None:
        # One timer for the earliest poll, not one for each: polls are many, and nearly all end before their time.
        until = min(waiter.until_ms for waiter in self._waiting.values())
        if not self._alarm_ms or until < self._alarm_ms:
            self._alarm_ms = until
            self._outbox.put(Timer(until, self._alarm))

    def _alarm(self, now_ms: int) -> None:
        if now_ms >= self._alarm_ms:
            self._alarm_ms = 0
        self._release(lambda waiter: waiter.until_ms <= now_ms)
        if self._waiting:
            self._set_alarm()

    def _release(self, due: Callable[[_Waiter], bool]) -> None:
        ready = [connection for connection, waiter in self._waiting.items() if due(waiter)]
        for connection in ready:
            waiter = self._waiting.pop(connection)
            self._let_go(waiter)
            waiter.answer()

    def _let_go(self, waiter: _Waiter) -> None:
        same = (waiter.pipeline, waiter.lease)
        if not any((other.pipeline, other.lease) == same for other in self._waiting.values()):
            waiter.lease.held(waiter.pipeline, False)


class Lease:
    """The lease of a link: the pipeline that works on it.

    Args:
        outbox: the broker's, for the clock.

    Attributes:
        holder: the pipeline.
        connection: over which it asked last; -1 when there was none.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.holder = ""
        self.connection = -1
        self.until_ms = 0
        self.length_ms = LEASE_MS
        self._open = False

    @property
    def live(self) -> bool:
        """Whether some pipeline has it."""
        return bool(self.holder) and (self._open or self.until_ms > self._outbox.now_ms)

    def ask(self, pipeline: str, lease_ms: int) -> bool:
        """Take it or keep it, unless another has it. A nameless asker takes nothing.

        Returns:
            Whether the asker may work.
        """
        if not pipeline:
            return not self.live
        if self.live and self.holder != pipeline:
            return False
        if self.holder != pipeline:
            self.holder, self._open = pipeline, False
        self.length_ms = min(lease_ms or LEASE_MS, LEASE_MS_MAX)
        self.until_ms = self._outbox.now_ms + self.length_ms
        return True

    def left(self) -> None:
        """The connection over which it was asked for last is gone: a killed pipeline does not come back for it.

        One that only lost its connection is back well within the moment that it still has.
        """
        self._open = False
        self.until_ms = min(self.until_ms, self._outbox.now_ms + LEFT_MS)

    def held(self, pipeline: str, is_open: bool) -> None:
        """A poll of this pipeline began or ended; while one is open, its time does not run."""
        if pipeline and pipeline == self.holder:
            self._open = is_open
            self.until_ms = self._outbox.now_ms + self.length_ms


class Leases:
    """The leases of one link.

    Args:
        outbox: the broker's, for the clock.

    Attributes:
        whole: of pipelines that may replicate everything.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.whole = Lease(outbox)
        self._narrow: dict[str, Lease] = {}
        """By role, of pipelines that may replicate some topics only."""

    def of(self, narrow: str) -> Lease:
        """The lease of a role that may replicate some topics only; with "", the one of the whole link."""
        if not narrow:
            return self.whole
        if narrow not in self._narrow:
            self._narrow = {role: lease for role, lease in self._narrow.items() if lease.live}
            self._narrow[narrow] = Lease(self._outbox)
        return self._narrow[narrow]

    def disconnected(self, connection: int) -> None:
        """A connection is gone, and with it, soon, its leases."""
        for lease in (self.whole, *self._narrow.values()):
            if lease.connection == connection:
                lease.left()
