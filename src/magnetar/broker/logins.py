"""Failed logins by address: somebody who guesses is made to wait.

    counting --failed_logins_max failures within failed_logins_ms--> waiting --failed_logins_ms--> counting from 0

While an address waits its logins are refused without being looked at: a guess gives no answer, right or wrong. Whoever
shares the address (a NAT, a proxy) waits with it, which is why the limit is not small.
"""

from typing import Final, NamedTuple

ADDRESSES_MAX: Final = 10_000
"""A ceiling on addresses that are remembered; beyond it the one that failed longest ago is forgotten."""


class _Record(NamedTuple):
    failures: int
    since_ms: int
    waits_until_ms: int


class FailedLogins:
    """Counts them.

    Args:
        failures_max: after so many within the window an address waits.
        window_ms: the window, and how long it waits.
    """

    def __init__(self, failures_max: int, window_ms: int) -> None:
        self._failures_max = failures_max
        self._window_ms = window_ms
        self._records: dict[str, _Record] = {}

    def waits_ms(self, address: str, now_ms: int) -> int:
        """How long an address has still to wait; 0: it may try."""
        record = self._records.get(address)
        return max(0, record.waits_until_ms - now_ms) if record is not None else 0

    def failed(self, address: str, now_ms: int) -> bool:
        """A login failed; whether the address has to wait from now on."""
        record = self._records.pop(address, None)
        if record is None or now_ms - record.since_ms >= self._window_ms:
            record = _Record(0, now_ms, 0)
        failures = record.failures + 1
        waits = failures >= self._failures_max
        # Who waits begins anew afterwards: the failures that made it wait are paid for.
        self._records[address] = (
            _Record(0, now_ms + self._window_ms, now_ms + self._window_ms)
            if waits
            else _Record(failures, record.since_ms, 0)
        )
        if len(self._records) > ADDRESSES_MAX:
            del self._records[next(iter(self._records))]
        return waits

    def __len__(self) -> int:
        return len(self._records)


def host_of(address: str) -> str:
    """The address without its port: `1.2.3.4` of `1.2.3.4:5678`."""
    return address.rpartition(":")[0].strip("[]") or address
