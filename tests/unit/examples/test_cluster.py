"""The story of a cluster of two brokers: its configuration, its judgement, its tables. The story itself runs in tests/peers."""

import time
from pathlib import Path

import pytest
from examples.cluster.command import summary, verdict
from examples.cluster.story import BROKER_KILLED, NOT_STORED, Outcome, Takeover, unexplained
from examples.cluster.world import BROKERS, CLUSTER, OTHER, World
from examples.demo.flights import Departures
from examples.demo.players import Publisher
from examples.demo.reasons import Again, Delivery
from examples.demo.tally import Board, Tally

from magnetar.core import config


def again(*orders: int) -> list[Again]:
    """Second deliveries of flights that were acknowledged after so many others."""
    return [Again(Delivery(order, 1), 2) for order in orders]


@pytest.mark.parametrize(
    ("orders", "takeovers", "count"),
    [
        ([], [], 0),
        ([5], [], 1),  # no takeover
        ([5], [Takeover(0, 5)], 0),
        ([4], [Takeover(0, 5)], 1),  # its acknowledgement was stored
        ([7, 8], [Takeover(1, 0)], 1),  # the first one came before the takeover
        ([5, 50], [Takeover(0, 5), Takeover(1, 60)], 1),  # the last takeover counts
        ([5, 60], [Takeover(0, 5), Takeover(1, 60)], 0),
    ],
)
def test_second_deliveries_without_a_reason(orders: list[int], takeovers: list[Takeover], count: int) -> None:
    assert unexplained(again(*orders), takeovers) == count


def test_the_configuration(tmp_path: Path) -> None:
    world = World(tmp_path, "local[2,4]")
    found = config.load(world.config)
    assert list(found.clusters) == [CLUSTER, OTHER]
    assert found.clusters[CLUSTER].service_url == world.urls[CLUSTER]
    assert found.clusters[OTHER].service_url == world.urls[OTHER]
    assert [broker.name for broker in found.clusters[CLUSTER].brokers] == list(BROKERS)
    assert (world.serving, world.waiting) == BROKERS


def outcome(seen: int, *, consumer: int = 2) -> Outcome:
    """Two flights of one cluster, of which a reader got so many."""
    board = Board()
    numbers = {b"0": (CLUSTER, 0), b"1": (CLUSTER, 1)}
    tallies = {}
    for name, count in ((OTHER, seen), ("consumer", consumer)):
        tallies[name] = Tally(name, {CLUSTER: 2}, numbers, board)
        for number in range(count):
            tallies[name].arrive(str(number).encode(), 0)
    return Outcome({CLUSTER: 2}, {OTHER: tallies[OTHER]}, tallies["consumer"], {BROKER_KILLED: 4.5})


def verified(messages: int) -> dict[str, object]:
    """What `magnetar verify` says of one cluster without faults."""
    row = {"cluster": OTHER, "messages": messages, "missing": 0, "duplicated": 0, "reordered": 0, "altered": 0}
    return {"messages": 2, "clean": True, "clusters": [row]}


def test_all_is_well() -> None:
    result = summary(outcome(2), verified(2))
    assert (result["ok"], result["lost"], result["faults"]) == (True, 0, [])
    assert result["links"][0]["link"] == f"{CLUSTER}:{OTHER}"
    assert {"of_the_whole": f"longest time without a confirmation, {BROKER_KILLED}", "figure": "4.50 s"} in verdict(
        outcome(2)
    )


def test_a_flight_is_missing() -> None:
    result = summary(outcome(1), verified(1))
    assert (result["ok"], result["lost"]) == (False, 1)
    assert result["faults"] == [
        f"the reader in {OTHER} never got 1 flights",
        f"verify: {OTHER} holds 1 messages, 2 were published",
    ]


def test_a_flight_comes_twice() -> None:
    found = outcome(2)
    found.consumer.arrive(b"1", 0)
    assert found.faults() == ["the consumer got 1 flights twice without a reason"]
    found.consumer.reasons[NOT_STORED] = 1
    assert found.faults() == []
    assert {"of_the_whole": f"of these, {NOT_STORED}", "figure": 1} in verdict(found)


def test_the_longest_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    publisher = Publisher(Departures(CLUSTER, [b"0"], ["k"]), 1, "pulsar://x", "t", Board())
    for at_s, watch in ((100.0, True), (101.0, False), (104.0, False), (104.5, False), (200.0, True), (200.2, False)):
        now_s[0] = at_s
        if watch:
            publisher.watch()
        else:
            publisher._confirm("Ok", None)
        if at_s == 104.5:
            assert publisher.pause_s == 3.0
    assert publisher.pause_s == pytest.approx(0.2)
