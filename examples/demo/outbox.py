"""The demo's second story: a program that sends its whole outbox again, elsewhere, and a namespace that is the same everywhere.

Bookings have idempotency keys, by a policy of their namespace. The namespace and its policies are made in one cluster and are in
the others by themselves; while one of them is down a policy is changed, and it has that when it is back.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from examples.demo.players import client
from examples.demo.world import KEEP_ALL
from magnetar.admin.client import AdminClient
from magnetar.core.errors import MagnetarError

NAMESPACE: Final = "public/bookings"
TOPIC: Final = f"persistent://{NAMESPACE}/outbox"
KEY: Final = "booking"
BOOKINGS: Final = 200
TTL_S: Final = 86_400
"""What is changed while a cluster is down: messages without a subscription expire after a day."""

READ_MS: Final = 10_000
"""A reader's patience with a message that is there."""


@dataclass(slots=True)
class Booked:
    """What came of it.

    Attributes:
        sent: messages that the program sent, both times together.
        held: by cluster, the bookings that its topic holds, with repetitions.
        everywhere_ms: from the namespace's creation in one cluster until all had it with its policy.
        ttl_s: by cluster, the policy that was changed while one of them was down.
        agree: whether all clusters say that their metadata is the same.
    """

    sent: int = 0
    held: dict[str, list[str]] = field(default_factory=dict)
    everywhere_ms: int = 0
    ttl_s: dict[str, int | None] = field(default_factory=dict)
    agree: bool = False

    def faults(self) -> list[str]:
        """Everything that must not be, a line each."""
        lines = []
        for cluster, bookings in self.held.items():
            missing, again = BOOKINGS - len(set(bookings)), len(bookings) - len(set(bookings))
            if missing or again:
                lines.append(f"{cluster} lacks {missing} bookings and holds {again} twice")
        lines += [
            f"{cluster} has message TTL {ttl} of {NAMESPACE}, not {TTL_S} s"
            for cluster, ttl in self.ttl_s.items()
            if ttl != TTL_S
        ]
        if not self.agree:
            lines.append("the clusters do not agree about their metadata")
        return lines


class Outbox:
    """Tells it.

    Args:
        urls, admin_urls: by cluster.
        wait: waits until something is true; the text says what for.
    """

    def __init__(
        self,
        urls: Mapping[str, str],
        admin_urls: Mapping[str, str],
        wait: Callable[[Callable[[], bool], str], None],
    ) -> None:
        self._urls = urls
        self._admin = {cluster: AdminClient(url) for cluster, url in admin_urls.items()}
        self._wait = wait
        self.booked = Booked()

    def make(self, cluster: str) -> None:
        """A namespace whose messages have keys, made in one cluster; the others have it by themselves."""
        began = time.monotonic()
        admin = self._admin[cluster]
        admin.put(f"/admin/v2/namespaces/{NAMESPACE}", {"replication_clusters": sorted(self._urls)})
        admin.post(f"/admin/v2/namespaces/{NAMESPACE}/retention", KEEP_ALL)
        admin.post(f"/geo/v1/namespaces/{NAMESPACE}/idempotency", {"property": KEY})

        def everywhere() -> bool:
            return all((self._policies(one) or {}).get("idempotency") for one in self._urls)

        self._wait(everywhere, f"{NAMESPACE} to be in every cluster")
        self.booked.everywhere_ms = round((time.monotonic() - began) * 1000)

    def send(self, cluster: str) -> None:
        """Send the whole outbox to a cluster; all of it is confirmed when this returns."""
        sender = client(self._urls[cluster])
        try:
            producer = sender.create_producer(TOPIC, batching_max_publish_delay_ms=1)
            for number in range(BOOKINGS):
                producer.send_async(
                    f"booking {number}".encode(), lambda _result, _id: None, properties={KEY: str(number)}
                )
            producer.flush()
            self.booked.sent += BOOKINGS
        finally:
            sender.close()

    def crossed(self, cluster: str) -> None:
        """Wait until a cluster holds the whole outbox: from then on it knows the keys."""
        path = f"/admin/v2/{TOPIC.replace('://', '/')}/stats"

        def has() -> bool:
            try:
                return int(self._admin[cluster].get(path)["idempotency"]["keys"]) >= BOOKINGS
            except (MagnetarError, KeyError):
                return False

        self._wait(has, f"the bookings to be in {cluster}")

    def change(self, cluster: str) -> None:
        """Change a policy in one cluster."""
        self._admin[cluster].post(f"/admin/v2/namespaces/{NAMESPACE}/messageTTL", TTL_S)

    def judge(self) -> Booked:
        """What every cluster holds in the end."""

        def agree() -> bool:
            states = [admin.get("/geo/v1/metadata") for admin in self._admin.values()]
            self.booked.ttl_s = {one: (self._policies(one) or {}).get("message_ttl_in_seconds") for one in self._urls}
            self.booked.agree = len({state["digest"] for state in states}) == 1
            return self.booked.agree and set(self.booked.ttl_s.values()) == {TTL_S}

        self._wait(agree, "the clusters to agree about their metadata")
        for cluster in self._urls:
            self.crossed(cluster)
            self.booked.held[cluster] = self._read(cluster)
        return self.booked

    def _policies(self, cluster: str) -> dict[str, Any] | None:
        try:
            return dict(self._admin[cluster].get(f"/admin/v2/namespaces/{NAMESPACE}"))
        except MagnetarError:
            return None

    def _read(self, cluster: str) -> list[str]:
        import pulsar

        reading = client(self._urls[cluster])
        try:
            reader = reading.create_reader(TOPIC, pulsar.MessageId.earliest)
            found = []
            while reader.has_message_available():
                found.append(reader.read_next(READ_MS).properties()[KEY])
            return found
        finally:
            reading.close()
