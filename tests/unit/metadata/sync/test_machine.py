"""The machine of one cluster among others: clocks that are wrong, old events, the same moment in three clusters."""

from typing import Any

import msgspec
import pytest

from magnetar.metadata.errors import PreconditionFailed
from magnetar.metadata.sync.machine import Synchroniser
from magnetar.metadata.sync.updates import Batch, Update

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR
NOW = 1_700_000_000_000
TENANT = "tenants/t"
NS = "namespaces/t/n"


class Cluster:
    """A machine with a store and a clock of its own."""

    def __init__(self, name: str, names: str, skew: int = 0) -> None:
        self.name, self.names, self.skew = name, names, skew
        self.documents: dict[str, bytes] = {}
        self.needed: dict[str, str] = {}
        self.machine = Synchroniser(name, self, ahead_ms_max=60_000)

    def members(self) -> frozenset[str]:
        return frozenset(self.names)

    def known(self, cluster: str) -> bool:
        return cluster in self.names

    def local(self, path: str) -> bytes | None:
        return self.documents.get(path)

    def keeps(self, path: str) -> str:
        return self.needed.get(path, "")

    def refuses_document(self, path: str) -> bool:
        return False

    def commit(self, update: Update, now: int) -> None:
        self.documents |= update.puts
        for path in update.deletes:
            self.documents.pop(path, None)
        self.machine.commit(update, now + self.skew)
        self.machine.validate()

    def change(self, now: int, path: str, **fields: Any) -> list[bytes]:
        """A change made here; the events that tell it."""
        data = msgspec.json.encode(fields) if fields else None
        update = self.machine.local({path: data}, now + self.skew)
        if data is None:
            self.documents.pop(path, None)
        else:
            self.documents[path] = data
        self.commit(update, now)
        return self.machine.changes(update.to_publish, now + self.skew)

    def hear(self, now: int, origin: str, *messages: bytes) -> None:
        """Events of another cluster."""
        batch = Batch()
        for message in messages:
            self.machine.read(batch, message, origin)
        self.commit(self.machine.merge(batch, now + self.skew), now)

    def tell_all(self, now: int) -> list[bytes]:
        snapshot = self.machine.snapshot(now + self.skew)
        self.machine.listed(snapshot)
        return snapshot.messages

    def shown(self, path: str, field: str) -> Any:
        return msgspec.json.decode(self.documents[path]).get(field) if path in self.documents else None


def clusters(names: str = "abc", **skews: int) -> dict[str, Cluster]:
    found = {name: Cluster(name, names, skews.get(name, 0)) for name in names}
    told = found["a"].change(NOW - HOUR, TENANT, allowedClusters=["a"], adminRoles=[])
    told += found["a"].change(NOW - HOUR, NS, replication_clusters=["a"])
    for name in names[1:]:
        found[name].hear(NOW, "a", *told)
    return found


def everybody(found: dict[str, Cluster], now: int) -> None:
    """Everybody tells everything to everybody."""
    for one in found.values():
        told = one.tell_all(now)
        for other in found.values():
            if other is not one:
                other.hear(now, one.name, *told)


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_the_same_field_in_the_same_millisecond_in_three_clusters(order: str) -> None:
    """The cluster whose name sorts first wins, whoever hears of whom first; what else each of them set stays."""
    found = clusters()
    other = {"a": "max_producers_per_topic", "b": "max_consumers_per_topic", "c": "max_subscriptions_per_topic"}
    told = {
        name: found[name].change(
            NOW, NS, replication_clusters=["a"], message_ttl_in_seconds=number, **{other[name]: number}
        )
        for number, name in enumerate("abc", 1)
    }
    for to in "abc":
        for name in order:
            if name != to:
                found[to].hear(NOW, name, *told[name])
    for cluster in found.values():
        assert cluster.shown(NS, "message_ttl_in_seconds") == 1
        assert [cluster.shown(NS, other[name]) for name in "abc"] == [1, 2, 3]
    assert len({cluster.machine.digest for cluster in found.values()}) == 1


def test_what_comes_of_a_clock_an_hour_ahead_waits_and_does_not_win_for_ever() -> None:
    found = clusters(c=HOUR)
    a, b, c = found.values()
    early = c.change(NOW, NS, replication_clusters=["a"], message_ttl_in_seconds=3)
    for cluster in (a, b):
        cluster.hear(NOW, "c", *early)
        assert cluster.shown(NS, "message_ttl_in_seconds") is None
        assert list(cluster.machine.ahead) == [NS]
    # The others go on, with this document, too.
    told = a.change(NOW, NS, replication_clusters=["a"], message_ttl_in_seconds=1)
    for cluster in (b, c):
        cluster.hear(NOW, "a", *told)
    assert [one.shown(NS, "message_ttl_in_seconds") for one in (a, b, c)] == [1, 1, 3]
    # c hears from most of the others that its clock is off, and refuses to make it worse.
    c.hear(NOW, "a", a.machine.beacon(NOW))
    c.change(NOW, TENANT, allowedClusters=["a", "c"], adminRoles=[])
    c.hear(NOW, "b", b.machine.beacon(NOW))
    with pytest.raises(
        PreconditionFailed, match=r"the clock of cluster c is 3,600 s ahead of that of a, b; set it right"
    ):
        c.change(NOW, NS, replication_clusters=["a"])
    # Its clock is set right. It knows of its own early change, and still cannot make another before the time has come.
    c.skew = 0
    with pytest.raises(PreconditionFailed, match="s behind the newest change that is known here"):
        c.change(NOW, NS, replication_clusters=["a"])
    later = NOW + HOUR + 60_000
    for cluster in (a, b):
        cluster.commit(cluster.machine.release(later), later)
        assert cluster.shown(NS, "message_ttl_in_seconds") == 3, "nothing is dropped because of a clock"
    told = b.change(later, NS, replication_clusters=["a"], message_ttl_in_seconds=7)
    for cluster in (a, c):
        cluster.hear(later, "b", *told)
    everybody(found, later)
    assert [one.shown(NS, "message_ttl_in_seconds") for one in found.values()] == [7, 7, 7]
    assert not a.machine.ahead
    assert len({one.machine.digest for one in found.values()}) == 1


def test_a_clock_an_hour_behind_still_has_the_last_word_about_what_it_has_seen() -> None:
    found = clusters(c=-50_000)
    a, b, c = found.values()
    told = a.change(NOW, NS, replication_clusters=["a"], message_ttl_in_seconds=1)
    c.hear(NOW, "a", *told)
    told += c.change(NOW, NS, replication_clusters=["a"], message_ttl_in_seconds=3)
    b.hear(NOW, "a", told[0])
    for cluster in (a, b):
        cluster.hear(NOW, "c", told[1])
    assert [one.shown(NS, "message_ttl_in_seconds") for one in found.values()] == [3, 3, 3]
    # An hour is too much: nobody could tell any more what came after what.
    c.skew = -HOUR
    with pytest.raises(PreconditionFailed, match="the clock of cluster c is 3,600 s behind the newest change"):
        c.change(NOW, NS, replication_clusters=["a"])


def test_events_of_years_ago_bring_nothing_back() -> None:
    found = clusters()
    a, b, c = found.values()
    ancient = a.change(NOW, NS, replication_clusters=["a"], message_ttl_in_seconds=1) + a.tell_all(NOW)
    everybody(found, NOW)
    for path in (NS, TENANT):
        told = a.change(NOW + 1_000, path)
        for cluster in (b, c):
            cluster.hear(NOW + 1_000, "a", *told)
    for now in (NOW + 2_000, NOW + 3_000):
        everybody(found, now)
        for cluster in found.values():
            cluster.commit(cluster.machine.collect(), now)
    assert [cluster.machine.dead for cluster in found.values()] == [0, 0, 0], "everybody has confirmed the deletions"
    now = NOW + 5 * YEAR
    for cluster in (b, c):
        cluster.hear(now, "a", *ancient)
        assert NS not in cluster.documents
        assert TENANT not in cluster.documents
        assert cluster.machine.dead == 2, "it is told once more: somebody does not know"
    everybody(found, now)
    assert all(NS not in cluster.documents and TENANT not in cluster.documents for cluster in found.values())
    assert len({cluster.machine.digest for cluster in found.values()}) == 1


def test_somebody_who_claims_that_our_clock_is_wrong_must_know_our_changes() -> None:
    """A forged `ahead` for a time that this cluster never gave out stops nobody from working."""
    found = clusters("ab")
    a, b = found.values()
    beacon = msgspec.json.decode(b.machine.beacon(NOW))
    beacon["ahead"] = {"a": 10 * YEAR}
    a.hear(NOW, "b", msgspec.json.encode(beacon))
    assert a.change(NOW, NS, replication_clusters=["a"], message_ttl_in_seconds=1)


def test_what_has_waited_long_enough_is_not_hidden_by_what_still_waits() -> None:
    found = clusters(b=100_000, c=HOUR)
    a, b, c = found.values()
    a.hear(NOW, "b", *b.change(NOW, NS, replication_clusters=["a"], message_ttl_in_seconds=2))
    assert a.shown(NS, "message_ttl_in_seconds") is None
    later = NOW + 90_000
    a.hear(later, "c", *c.change(NOW, NS, replication_clusters=["a"], message_ttl_in_seconds=3))
    assert a.shown(NS, "message_ttl_in_seconds") == 2
    a.commit(a.machine.release(NOW + HOUR), NOW + HOUR)
    assert a.shown(NS, "message_ttl_in_seconds") == 3


def test_a_deletion_does_not_rest_while_a_newer_one_waits_for_the_clock() -> None:
    """Who forgot it would take the life that both ended for a living one."""
    found = clusters("ab", b=HOUR)
    a, b = found.values()
    a.machine.buried_max = 0
    b.hear(NOW, "a", *a.tell_all(NOW))
    a.change(NOW, NS)
    b.change(NOW, NS)
    a.tell_all(NOW)
    told = b.tell_all(NOW)
    a.hear(NOW, "b", *told)
    a.commit(a.machine.collect(), NOW)
    a.hear(NOW, "b", *told)
    assert NS not in a.documents
    assert NS in a.machine.records


def test_a_parent_that_comes_back_shows_its_other_children_again() -> None:
    """Found by the simulator (58259): b deletes a tenant, c keeps it for its topics' sake; a change within it is a new life."""
    found = clusters()
    b, c = found["b"], found["c"]
    other = "namespaces/t/m"
    c.change(NOW, other, replication_clusters=["a"])
    c.needed[NS] = "1 topic"
    told = b.change(NOW, NS) + b.change(NOW, TENANT)
    c.hear(NOW, "b", *told)
    assert (NS in c.documents, other in c.documents) == (True, False)
    c.change(NOW + 1, "topicpolicies/persistent://t/n/x", messageTtlInSeconds=7)
    assert c.shown(other, "replication_clusters") == ["a"]


def test_a_life_that_ended_ahead_of_the_clock_is_not_begun() -> None:
    """Found by the simulator (58076): whoever heard first of the deletion saw an empty document until its clock got there."""
    topic = "partitioned/persistent://t/n/p"
    found = clusters("ab")
    a, b = found.values()
    a.change(NOW, topic, partitions=3)
    told = a.change(NOW + HOUR, topic)
    b.hear(NOW, "a", *told)
    assert not b.machine.due
    assert b.machine.topic(topic) is None
    assert b.machine.next_release_ms() == NOW + HOUR - 60_000 + 1
    b.commit(b.machine.release(NOW + HOUR), NOW + HOUR)
    assert not b.machine.ahead
    assert b.machine.records[topic] == a.machine.records[topic]
