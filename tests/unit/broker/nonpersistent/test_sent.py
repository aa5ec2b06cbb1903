"""Acknowledgements of topics that store nothing are counted in messages, as those of stored messages are."""

from collections.abc import Iterable

import pytest

from magnetar.broker.nonpersistent import sent
from magnetar.broker.nonpersistent.sent import Sent
from magnetar.storage.cursor import words_of
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.support.geosteps import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from tests.support.geoworld import Client, Node, World

PASSING = "non-persistent://public/default/t"


def ids(*entries: int, left: int = 0) -> list[pb.MessageIdData]:
    return [pb.MessageIdData(ledgerId=1, entryId=entry, ack_set=words_of(left)) for entry in entries]


def filled(sizes: Iterable[int]) -> Sent:
    made = Sent()
    for entry, messages in enumerate(sizes):
        made.add(entry, messages)
    return made


def test_each_message_counts_once() -> None:
    told = filled([1, 10, 3])
    assert told.acknowledged(ids(1), cumulative=False) == 10
    assert told.acknowledged(ids(1, 0), cumulative=False) == 1
    assert told.acknowledged(ids(7), cumulative=False) == 0
    assert told.acknowledged(ids(2), cumulative=True) == 3
    assert not told.messages


def test_messages_of_a_batch_and_what_is_in_front_of_it() -> None:
    told = filled([5, 10, 10])
    assert told.acknowledged(ids(1, left=0b11_1111_1100), cumulative=False) == 2
    assert told.acknowledged(ids(1, left=0b11_1111_1100), cumulative=False) == 0
    assert told.acknowledged(ids(1, left=0b11_1111_0000), cumulative=True) == 5 + 2
    assert told.acknowledged(ids(2, left=(1 << 200) - 1), cumulative=False) == 0
    assert told.acknowledged(ids(2), cumulative=True) == 6 + 10


def test_of_very_many_the_sum_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent, "ENTRIES_MAX", 2)
    told = filled([4, 4, 4, 4])
    assert (len(told.messages), told.older) == (2, 8)
    assert told.acknowledged(ids(0), cumulative=False) == 1
    assert told.acknowledged(ids(2), cumulative=True) == 7 + 4
    assert told.acknowledged(ids(0, 1), cumulative=False) == 0
    assert told.acknowledged(ids(3), cumulative=False) == 4


def opened(node: Node, kind: int) -> tuple[Client, int]:
    """Two batches of ten, received by a consumer that has acknowledged nothing."""
    client = node.client()
    number = client.subscribe("s", kind, topic=PASSING)
    client.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=PASSING, producer_id=9, request_id=9)))
    client.flow(number)
    for sequence in range(2):
        batch = pb.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1, num_messages_in_batch=10)
        command = pb.CommandSend(producer_id=9, sequence_id=sequence, num_messages=10)
        client.send(pb.BaseCommand(type=6, send=command), build(batch, b"x"))
    node.world.settle()
    return client, number


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
def test_the_ack_rate_is_of_messages(kind: int) -> None:
    world = World("a", limits={"retention_interval_ms": 1_000})
    node = world["a"]
    client, number = opened(node, kind)
    messages = client.take(number)
    assert len(messages) == 2
    client.ack(number, messages[1], cumulative=kind in (EXCLUSIVE, FAILOVER))
    world.advance(1_000)
    subscription = node.control.statistics.topic(PASSING)["subscriptions"]["s"]
    expected = 20 if kind in (EXCLUSIVE, FAILOVER) else 10
    assert subscription["messageAckRate"] == pytest.approx(expected)
    assert subscription["consumers"][0]["messageAckRate"] == pytest.approx(expected)


def test_who_shares_acknowledges_nothing_cumulatively() -> None:
    world = World("a", limits={"retention_interval_ms": 1_000})
    client, number = opened(world["a"], SHARED)
    client.ack(number, *client.take(number)[1:], cumulative=True)
    world.advance(1_000)
    assert world["a"].control.statistics.topic(PASSING)["subscriptions"]["s"]["messageAckRate"] == 0
