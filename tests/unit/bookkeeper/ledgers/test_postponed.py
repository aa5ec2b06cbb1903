from magnetar.bookkeeper.ledgers.metadata import BookieId
from magnetar.bookkeeper.ledgers.postponed import Postponed

A, B = BookieId("a"), BookieId("b")


def test_a_request_is_due_after_the_wait_and_only_once() -> None:
    postponed = Postponed(10.0)
    assert postponed.wake_at is None
    postponed.add(A, 1, 0.0)
    postponed.add(B, 2, 1.0)
    assert postponed.wake_at == 10.0
    assert postponed.take(9.0) == []
    assert postponed.take(10.0) == [(A, 1)]
    assert postponed.take(10.0) == []
    assert postponed.wake_at == 11.0
    postponed.clear()
    assert postponed.wake_at is None


def test_a_request_that_is_refused_again_waits_again() -> None:
    postponed = Postponed(10.0)
    postponed.add(A, 1, 0.0)
    postponed.add(B, 2, 1.0)
    postponed.add(A, 1, 2.0)
    assert postponed.wake_at == 11.0
    assert postponed.take(20.0) == [(B, 2), (A, 1)]
