"""Which topics a query reads, where brokers cannot be reached."""

import pytest

from magnetar.spark import topics
from magnetar.spark.connection import Access, Down


def test_a_broker_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup may lead to an address that Spark cannot reach; that is what the query has to end with."""

    class Unreachable:
        def __init__(self, *_arguments: object) -> None:
            raise Down("pulsar://broker.inside:6650: refused")

    monkeypatch.setattr(topics, "Reader", Unreachable)
    with pytest.raises(Down, match=r"broker\.inside"):
        topics.Ends(topics.Client(Access("pulsar://127.0.0.1:1"))).last(["persistent://public/default/t"])
