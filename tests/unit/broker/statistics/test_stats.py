"""Statistics of whole brokers: Pulsar's keys and types everywhere, and what links and logs tell of a topic."""

from typing import Any

import pytest

from magnetar.broker.statistics.topic_stats import CLIENTS_A_STEP, Steps, at_once
from magnetar.core.ids import EARLIEST
from magnetar.core.names import NamespaceName
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.support.geosteps import SHARED, consumer
from tests.support.geoworld import TOPIC, Node, World
from tests.support.pulsarstats import INTERNAL, PASSING, faults
from tests.support.pulsarstats import TOPIC as TOPIC_STATS

SECOND: dict[str, Any] = {"retention_interval_ms": 1_000}


def stats(node: Node) -> dict[str, Any]:
    node.run(lambda: None)  # so that it looks at its clock
    return node.control.statistics.topic(TOPIC)


def towards(node: Node, target: str) -> dict[str, Any]:
    return dict(stats(node)["replication"][target])


def two() -> World:
    world = World("ab", limits=SECOND)
    world["a"].create()
    world.advance(3_000)
    return world


def test_what_a_link_moves_is_told_on_both_sides() -> None:
    world = two()
    a, b = world["a"], world["b"]
    b.client()  # the one whose number the world's messenger has
    idle = towards(a, "b")
    assert (idle["msgRateOut"], idle["msgOutCount"], idle["connected"]) == (0, 0, False)
    assert "inboundConnection" not in idle and "outboundConnection" not in idle
    a.publish(*(b"%d" % number for number in range(30)))
    world.advance(1_000)
    out, came = towards(a, "b"), towards(b, "a")
    assert (out["msgRateOut"], out["msgOutCount"]) == (pytest.approx(30, rel=0.01), 30)
    assert (came["msgRateIn"], came["msgInCount"]) == (pytest.approx(30, rel=0.01), 30)
    assert out["msgThroughputOut"] == pytest.approx(out["bytesOutCount"], rel=0.01)
    assert came["msgThroughputIn"] == pytest.approx(came["bytesInCount"], rel=0.01)
    assert out["bytesOutCount"] > 30 * 10 and came["bytesInCount"] > 30 * 10
    assert (out["msgRateIn"], came["msgRateOut"]) == (0, 0)
    assert (came["inboundConnection"], came["inboundConnectedSince"]) == ("test:1", "2023-11-14T22:13:23.000Z")
    world.advance(1_000)
    assert (towards(a, "b")["msgRateOut"], towards(b, "a")["msgRateIn"]) == (0, 0)
    for node in (a, b):
        assert faults(stats(node), TOPIC_STATS, "stats") == []


def test_a_pipeline_is_the_outgoing_connection() -> None:
    world = two()
    a = world["a"]
    client = a.client()
    request = pb.CommandGeoTopics(request_id=1, to="b", pipeline="p", counter=0, wait_ms=0)
    a.run(lambda: a.broker.links.sources["b"].poll(client.number, request, lambda _told: None))
    shown = towards(a, "b")
    assert (shown["connected"], shown["outboundConnection"]) == (True, "test:1")
    assert shown["outboundConnectedSince"] == "2023-11-14T22:13:23.000Z"
    assert set(shown) == set(TOPIC_STATS["replication"]["*"]) - {"inboundConnection", "inboundConnectedSince"}
    internal = a.control.statistics.internal(TOPIC)
    assert internal["cursors"]["pulsar.repl.b"]["waitingReadOp"] is True
    assert internal["waitingCursorsCount"] == 1


def test_cursors_of_the_brokers_own_have_all_keys() -> None:
    world = two()
    node = world["a"]
    node.apply(node.broker.resources.change_policies(NamespaceName.parse("public/default"), deduplication_enabled=True))
    node.publish(b"x", b"y")
    world.advance(1_000)
    internal = node.control.statistics.internal(TOPIC)
    assert set(internal["cursors"]) == {"pulsar.repl.b", "pulsar.dedup"}
    assert faults(internal, INTERNAL, "internal") == []
    last = node.topic.log.last
    for cursor in internal["cursors"].values():
        assert cursor["readPosition"] == f"{last.ledger}:{last.entry + 1}", "behind the last one"


def test_entries_on_their_way_to_the_log_are_pending() -> None:
    world = two()
    node = world["a"]
    node.hold_log = True
    node.publish(b"x", b"y")
    assert node.control.statistics.internal(TOPIC)["pendingAddEntriesCount"] == 2
    node.hold_log = False
    world.work()
    assert node.control.statistics.internal(TOPIC)["pendingAddEntriesCount"] == 0


def test_a_client_that_supports_partial_producers_says_so_of_its_producers() -> None:
    world = two()
    node = world["a"]
    client = node.client()
    flags = pb.FeatureFlags(supports_partial_producer=True)
    other = type(client)(node, 99)
    node.clients[99] = other
    node.run(node.broker.connected, 99, "test:2")
    connect = pb.CommandConnect(client_version="t", protocol_version=20, feature_flags=flags)
    other.send(pb.BaseCommand(type=2, connect=connect))
    for each, name in ((client, "whole"), (other, "partial")):
        command = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name=name)
        each.send(pb.BaseCommand(type=5, producer=command))
    world.settle()
    shown = {one["producerName"]: one["supportsPartialProducer"] for one in stats(node)["publishers"]}
    assert shown == {"whole": False, "partial": True}


def test_chunks_of_what_is_not_stored_are_told() -> None:
    world = two()
    node, topic = world["a"], "non-persistent://public/default/t"
    client = node.client()
    consumer = client.subscribe("s", kind=3, topic=topic)
    client.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=topic, producer_id=9, request_id=9)))
    client.flow(consumer)
    world.settle()
    chunk = pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        uuid="u",
        num_chunks_from_msg=2,
        total_chunk_msg_size=2,
        chunk_id=0,
    )
    client.send(pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=9, sequence_id=0)), build(chunk, b"x"))
    world.advance(1_000)
    shown = node.control.statistics.topic(topic)
    assert faults(shown, PASSING, "stats") == []
    subscription = shown["subscriptions"]["s"]
    ends = [shown["publishers"][0], subscription, subscription["consumers"][0]]
    assert shown["msgChunkPublished"] and all(end["chunkedMessageRate"] > 0 for end in ends)
    assert (subscription["keySharedMode"], subscription["consumers"][0]["keyHashRangeArrays"]) == (
        "AUTO_SPLIT",
        [[0, 65_535]],
    )


def test_the_average_size_is_that_of_the_interval_and_0_in_an_idle_one() -> None:
    world = World("a", limits=SECOND)
    node = world["a"]
    node.create()
    world.advance(1_000)
    seen = []
    for size in (100, 0, 1_000):
        if size:
            node.publish(*(bytes(size) for _ in range(9)))
        world.advance(1_000)
        shown = stats(node)
        seen.append(shown["averageMsgSize"])
        assert seen[-1] == (shown["msgThroughputIn"] / shown["msgRateIn"] if size else 0)
    assert 100 < seen[0] < 200 and seen[1] == 0 and 1_000 < seen[2] < 1_100


def test_the_type_is_none_before_the_first_consumer_and_the_last_ones_afterwards() -> None:
    node = World("a")["a"]
    node.create()
    made = node.control_call(lambda done: node.control.subscriptions.create(TOPIC, "s", EARLIEST, False, {}, done))
    assert made is None

    def kind() -> str:
        return str(stats(node)["subscriptions"]["s"]["type"])

    assert kind() == "None"
    client, number = consumer(node, kind=SHARED, replicated=False)
    assert kind() == "Shared"
    client.send(pb.BaseCommand(type=16, close_consumer=pb.CommandCloseConsumer(consumer_id=number, request_id=7)))
    assert kind() == "Shared"
    node.restart()
    assert kind() == "None"


def test_a_broker_is_named_by_its_admin_interface() -> None:
    node = World("ab")["b"]
    node.create()
    passing = "non-persistent://public/default/t"
    consumer(node, topic=passing)
    assert stats(node)["ownerBroker"] == node.control.statistics.topic(passing)["ownerBroker"] == "127.0.0.1:8081"


@pytest.mark.parametrize("topic", [TOPIC, "non-persistent://public/default/passing"])
def test_statistics_of_many_clients_are_made_in_steps_while_clients_go(topic: str) -> None:
    node = World("a")["a"]
    node.create()
    clients = [node.client() for _ in range(6)]
    for client in clients:
        for number in range(15):
            client.send(
                pb.BaseCommand(
                    type=4,
                    subscribe=pb.CommandSubscribe(
                        topic=topic, subscription="s", subType=1, consumer_id=number, request_id=number
                    ),
                )
            )
            producer = pb.CommandProducer(topic=topic, producer_id=number, request_id=100 + number)
            client.send(pb.BaseCommand(type=5, producer=producer))
    node.world.settle()
    whole = node.control.statistics.topic(topic)
    assert len(whole["publishers"]) == len(whole["subscriptions"]["s"]["consumers"]) == 90
    count = 0

    def while_one_goes() -> Steps:
        nonlocal count
        steps = node.control.statistics.topic_steps(topic)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return dict(end.value)
            count += 1
            if count == 2:
                node.run(node.broker.disconnected, clients[-1].number)
            yield

    seen = at_once(while_one_goes())
    assert count >= 2 * 75 // CLIENTS_A_STEP
    assert 75 <= len(seen["subscriptions"]["s"]["consumers"]) <= 90
    assert len(seen["publishers"]) == 75
    bare = at_once(node.control.statistics.topic_steps(topic, publishers=False, consumers=False))
    assert bare["publishers"] == bare["subscriptions"]["s"]["consumers"] == []
    assert bare.keys() == whole.keys()
