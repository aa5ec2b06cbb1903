"""Failed logins, and slow password checks: a source that guesses has to wait, and others do not wait for it.

    counting --failed_logins_max failures within failed_logins_ms--> waiting --failed_logins_ms--> counting from 0

The wait applies to the credentials that are being guessed, not to the address as such, which a NAT or a proxy may
share:

    credentials  counted by                        during the wait
    token        source                            a right one is accepted: a signature cannot be guessed, and checking it
                                                   costs little. Wrong ones are not logged or counted
    password     source and name                   refused without a check: a guess gives no answer, right or wrong
                 source, `SPRAY` times as many     the same, for names that did not log in from there before

A *source* is an IPv4 address, or the first 64 bits of an IPv6 address: a host with one of these has all of them.

Passwords take 50 ms and more to check (bcrypt). They are checked one after the other, with each source in turn, and
each name of a source in turn. A right password is recognised without that until the password file changes.
"""

import ipaddress
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.broker.security.credentials import Identity, PasswordProof
from magnetar.core.errors import BrokerError

ADDRESSES_MAX: Final = 10_000
"""A ceiling on what is remembered of failures; beyond it the one that failed longest ago is forgotten."""

SPRAY: Final = 10
"""The number of wrong passwords of any names from one source is this many times `failed_logins_max`: many users may
share one NAT.
"""

CHECKS_WAITING_MAX: Final = 256
"""A ceiling on passwords that wait to be checked: more would be answered after their clients gave up. The source that has most
makes room."""

PROVEN_MAX: Final = 10_000
"""A ceiling on proofs that are known to be right: as many users as one broker has at a time."""

Outcome = Identity | BrokerError
Waiter = Callable[[Outcome], None]


class _Record(NamedTuple):
    failures: int
    since_ms: int
    waits_until_ms: int


class FailedLogins:
    """Counts failed logins.

    Args:
        failures_max: after this many within the window the source waits.
        window_ms: the window, and the duration of the wait.
    """

    def __init__(self, failures_max: int, window_ms: int) -> None:
        self._failures_max = failures_max
        self._window_ms = window_ms
        self._records: dict[str, _Record] = {}

    def waits_ms(self, who: str, now_ms: int) -> int:
        """The rest of the wait; 0: it is over."""
        record = self._records.get(who)
        return max(0, min(record.waits_until_ms - now_ms, self._window_ms)) if record is not None else 0

    def failed(self, who: str, now_ms: int) -> bool:
        """Count a failed login; returns whether the wait begins."""
        record = self._records.pop(who, None)
        if record is None or abs(now_ms - record.since_ms) >= self._window_ms:
            record = _Record(0, now_ms, 0)
        failures = record.failures + 1
        waits = failures >= self._failures_max
        # After the wait the count begins at 0: the failures that led to it no longer count.
        self._records[who] = (
            _Record(0, now_ms + self._window_ms, now_ms + self._window_ms)
            if waits
            else _Record(failures, record.since_ms, 0)
        )
        if len(self._records) > ADDRESSES_MAX:
            del self._records[next(iter(self._records))]
        return waits

    def __len__(self) -> int:
        return len(self._records)


@dataclass(slots=True, eq=False)
class Check:
    """A password that is to be checked, for all clients that sent it.

    Attributes:
        source, name: of the client that sent it first.
        proof: the name and password.
        waiters: called with the result; with a function that says whether it is still wanted.
    """

    source: str
    name: str
    proof: PasswordProof
    waiters: list[tuple[Waiter, Callable[[], bool]]]


class CheckQueue:
    """Passwords that wait: sources take turns, and so do the names of each.

    Args:
        most: a ceiling.
    """

    def __init__(self, most: int = CHECKS_WAITING_MAX) -> None:
        self._most = most
        self._sources: OrderedDict[str, OrderedDict[str, deque[Check]]] = OrderedDict()
        self._counts: dict[str, int] = {}
        self._by_key: dict[bytes, Check] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    def same(self, key: bytes) -> Check | None:
        """One that waits for the same proof."""
        return self._by_key.get(key)

    def put(self, check: Check) -> Check | None:
        """Queue one; returns the one that has to go for it, if any: the newest of the source that has most. It may be itself."""
        names = self._sources.setdefault(check.source, OrderedDict())
        names.setdefault(check.name, deque()).append(check)
        self._counts[check.source] = self._counts.get(check.source, 0) + 1
        self._by_key[check.proof.key] = check
        if len(self) <= self._most:
            return None
        source = max(self._counts, key=self._counts.__getitem__)
        name = max(self._sources[source], key=lambda name: len(self._sources[source][name]))
        goes = self._sources[source][name].pop()
        self._gone(goes)
        return goes

    def take(self) -> Check | None:
        """The next one."""
        if not self._sources:
            return None
        source, names = next(iter(self._sources.items()))
        name, waiting = next(iter(names.items()))
        check = waiting.popleft()
        self._sources.move_to_end(source)
        names.move_to_end(name)
        self._gone(check)
        return check

    def _gone(self, check: Check) -> None:
        if self._by_key.get(check.proof.key) is check:
            del self._by_key[check.proof.key]
        names = self._sources[check.source]
        if not names[check.name]:
            del names[check.name]
        self._counts[check.source] -= 1
        if not self._counts[check.source]:
            del self._sources[check.source], self._counts[check.source]


class Recent:
    """The latest of something, with a ceiling.

    Args:
        most: the ceiling; beyond it the one that was noted longest ago is forgotten.
    """

    def __init__(self, most: int = PROVEN_MAX) -> None:
        self._most = most
        self._found: OrderedDict[bytes | tuple[str, str], None] = OrderedDict()

    def __contains__(self, item: object) -> bool:
        return item in self._found

    def __len__(self) -> int:
        return len(self._found)

    def note(self, item: bytes | tuple[str, str]) -> None:
        """This is the latest."""
        self._found[item] = None
        self._found.move_to_end(item)
        if len(self._found) > self._most:
            self._found.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._found.clear()


def host_of(address: str) -> str:
    """The address without its port: `1.2.3.4` of `1.2.3.4:5678`."""
    return address.rpartition(":")[0].strip("[]") or address


def source_of(address: str) -> str:
    """The source of an address with its port, by which failures are counted: the address, or the IPv6 network of one
    host.
    """
    host = host_of(address)
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(parsed, ipaddress.IPv4Address):
        return host
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(parsed) >> 64 << 64)}/64"
