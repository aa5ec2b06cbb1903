"""How late the state of the subscription is in the clusters where its consumer is not.

All clusters are asked the same thing in one loop: how many messages the subscription has acknowledged. When a number was
first seen anywhere, and when each of the others shows it, is its staleness there. The loop adds at most its own period.
"""

import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from examples.demo.tally import Board
from magnetar.admin.client import AdminClient
from magnetar.core.errors import MagnetarError

PERIOD_S: Final = 0.05
"""Between two looks at all clusters."""


class Staleness(threading.Thread):
    """Looks at the subscription in every cluster until over.

    Args:
        admin_urls: by cluster.
        topic, subscription: what to look at.
        board: which times are calm.
    """

    def __init__(self, admin_urls: Mapping[str, str], topic: str, subscription: str, board: Board) -> None:
        super().__init__(name="staleness", daemon=True)
        self.over = threading.Event()
        self.calm: array[int] = array("q")
        """Staleness, ms, one for each acknowledgement and other cluster, of those made while nothing was broken."""
        self.acknowledged: dict[str, int] = dict.fromkeys(admin_urls, 0)
        """By cluster, as last seen."""
        self._clients = {cluster: AdminClient(url) for cluster, url in admin_urls.items()}
        self._path = f"/geo/v1/subscriptions?topic={topic}"
        self._subscription = subscription
        self._board = board
        self._counts: list[int] = []
        self._times: list[int] = []

    def run(self) -> None:
        """Look until over; a cluster that is down shows nothing."""
        while not self.over.wait(PERIOD_S):
            for cluster in self._clients:
                acknowledged = self.ask(cluster)
                if acknowledged is not None:
                    self.see(cluster, acknowledged, time.time_ns() // 1_000_000)

    def ask(self, cluster: str) -> int | None:
        """How many messages the subscription has acknowledged in a cluster; None when it does not answer, or has none."""
        try:
            rows = self._clients[cluster].get(self._path)
        except MagnetarError:
            return None
        found = [row for row in rows if row["subscription"] == self._subscription and "acknowledged" in row]
        return int(found[0]["acknowledged"]) if found else None

    def see(self, cluster: str, acknowledged: int, now_ms: int) -> None:
        """One cluster shows this number of acknowledgements."""
        before = self.acknowledged[cluster]
        self.acknowledged[cluster] = acknowledged
        if not self._counts or acknowledged > self._counts[-1]:
            self._counts.append(acknowledged)
            self._times.append(now_ms)
            return
        at = bisect_left(self._counts, before + 1)
        while before < acknowledged and at < len(self._counts):
            upto = min(acknowledged, self._counts[at])
            if self._board.calm_at(self._times[at]):
                self.calm.extend([now_ms - self._times[at]] * (upto - before))
            before, at = upto, at + 1
