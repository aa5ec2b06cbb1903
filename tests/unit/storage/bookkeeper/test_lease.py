"""How long a broker may serve."""

import math

from magnetar.storage.bookkeeper.lease import Lease

SESSION_S = 6.0
LEASE_S = 4.0


def test_a_lease_begins_with_the_question() -> None:
    lease = Lease(SESSION_S, "/owner")
    assert lease.lost(0.0) == "it has not become the owner"
    lease.taken(10.0)
    assert lease.lost(14.0) == ""
    lease.confirmed(13.0, own=True)
    assert lease.until_s == 13.0 + LEASE_S
    assert lease.lost(17.0) == ""
    assert lease.lost(17.1) == "ZooKeeper has not confirmed for 4.0 s that /owner is its own"


def test_an_answer_that_comes_too_late_brings_no_lease_back() -> None:
    lease = Lease(SESSION_S, "/owner")
    lease.taken(10.0)
    lease.confirmed(14.1, own=True)
    assert lease.until_s == -math.inf
    assert "not confirmed" in lease.lost(14.1)


def test_a_late_answer_counts_from_its_question() -> None:
    lease = Lease(SESSION_S, "/owner")
    lease.taken(10.0)
    lease.confirmed(11.0, own=True)  # it comes long after that
    assert lease.lost(15.1) != ""


def test_the_node_of_another_session_ends_it() -> None:
    lease = Lease(SESSION_S, "/owner")
    lease.taken(10.0)
    lease.confirmed(11.0, own=False)
    assert lease.lost(11.0) == "its session of ZooKeeper is over, and another broker may own the log"
    assert lease.until_s == -math.inf


def test_what_is_given_up_stays_so() -> None:
    lease = Lease(SESSION_S, "/owner")
    lease.taken(10.0)
    lease.give_up()
    lease.confirmed(10.5, own=True)
    assert lease.lost(10.5) == "it has given up the log"
    assert lease.until_s == -math.inf


def test_a_broker_without_rivals_has_no_end() -> None:
    assert Lease.endless().lost(1e12) == ""
