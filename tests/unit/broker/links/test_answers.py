"""Who hears first that the log holds something: publishers, then consumers, then links."""

from magnetar.core.ids import NONE, Position
from magnetar.storage.entries import NewEntry
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_to_proto
from tests.support.geosteps import consumer
from tests.support.geoworld import TOPIC, Client, Node, World

OTHER = "persistent://public/default/other"


def _link(node: Node) -> Client:
    """A link of cluster a, after its handshake about the topic."""
    link = node.client(auth_method_name="magnetar-link", auth_data=node.link_token)
    hello = pb.CommandGeoWatermarks(request_id=1, source="a", uuid="uuid-a", counter=0)
    hello.topics.add(topic=TOPIC, incarnation=5, partitions=0)
    link.send(pb.BaseCommand(type=pb.GEO_WATERMARKS, geo_watermarks=hello))
    node.world.settle()
    return link


def _append(link: Client, data: bytes, entry: int) -> None:
    built = metadata.build(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), data)
    p = Position(9, entry - 1) if entry else NONE
    request = pb.CommandGeoAppend(
        request_id=2 + entry, topic=TOPIC, source="a", uuid="uuid-a", incarnation=5, gen=1, p=position_to_proto(p),
        ledgers=[9], entries=[entry], first_indexes=[entry], counts=[1], sizes=[len(built)],
    )  # fmt: skip
    link.send(pb.BaseCommand(type=pb.GEO_APPEND, geo_append=request), built)


def test_a_link_is_answered_after_the_messages_are_sent() -> None:
    """The answer waited for nothing, and the consumer waited for it: 0.1 to 0.2 ms of each message's way."""
    world = World("ab")
    world.cut = {("a", "b"), ("b", "a")}
    node = world["b"]
    node.create()
    node.create(OTHER)
    world.settle()
    reader, number = consumer(node)
    link = _link(node)
    _append(link, b"the first one", 0)
    world.settle()
    order: list[str] = []
    data = metadata.build(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"published")
    published = NewEntry(data, 0, 1, 1)
    for client, name in ((reader, "consumer"), (link, "link")):

        def got(buffers: list[bytes], client: Client = client, name: str = name) -> None:
            order.append(name)
            Client.got(client, buffers)

        client.got = got  # type: ignore[assignment,method-assign]
    _append(link, b"over the link", 1)
    node.run(node.broker.topics[OTHER].append, [published], lambda *_: order.append("publisher"))
    world.settle()
    assert order == ["publisher", "consumer", "link"]
    assert [message.data for message in reader.take(number)] == [b"the first one", b"over the link"]
    answer = link.answered(3)
    assert answer is not None
    persisted = answer.geo_append_response.persisted
    assert Position(persisted.ledger, persisted.entry) == Position(9, 1)
