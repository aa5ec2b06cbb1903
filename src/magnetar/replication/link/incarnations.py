"""The incarnation of each topic in which the links of other clusters are at work."""

from magnetar.replication.link.ports import DestinationHost


class SourceIncarnations:
    """Cluster uuid and topic incarnation, by topic and source, as handshakes and appends since this broker's start showed them.

    Args:
        host: the broker; it is notified when one of them is new.
    """

    def __init__(self, host: DestinationHost) -> None:
        self._host = host
        self._seen: dict[tuple[str, str], tuple[str, int]] = {}

    def seen(self, topic: str, source: str, uuid: str, incarnation: int) -> None:
        """The link of an accepted cluster is at work in a topic."""
        found = self._host.find(topic)
        if found is None:
            return
        before = self._seen.get((topic, source))
        self._seen[topic, source] = (uuid, incarnation)
        if before is None:
            # Ids of ledgers grow, so entries of an earlier incarnation lie below (but for a lost disk and a slow clock, see
            # decision 0020).
            restarted = found.log.watermark(source).ledger < incarnation
            self._host.source_active(topic, source, restarted=restarted)
        elif before != (uuid, incarnation):
            self._host.source_active(topic, source, restarted=True)

    def uuid_of(self, topic: str, source: str) -> str:
        """The uuid of the cluster whose link was seen last in a topic; "" when none was."""
        return self._seen.get((topic, source), ("", 0))[0]

    def of(self, topic: str, source: str) -> int:
        """The incarnation of a topic in a cluster whose link was seen here since the start; 0 when none was."""
        return self._seen.get((topic, source), ("", 0))[1]

    def of_topic(self, topic: str) -> dict[str, int]:
        """The incarnations of a topic in the clusters whose links were seen here since the start."""
        return {source: incarnation for (name, source), (_, incarnation) in self._seen.items() if name == topic}

    def forget(self, topic: str, source: str) -> None:
        """Report this link as active when it is seen next in a topic."""
        self._seen.pop((topic, source), None)

    def removed(self, topic: str) -> None:
        """A topic was deleted here."""
        for key in [key for key in self._seen if key[0] == topic]:
            del self._seen[key]
