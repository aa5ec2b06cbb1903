"""GEO_READs that follow each other, at a broker: nothing is read twice, nothing is left out, each request is answered once."""

import gc

import pytest

from magnetar.broker.session.read_chains import ANSWERED_MAX, WAITING_MAX
from magnetar.core.ids import NONE, Position
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import LINK_AUTH_METHOD
from magnetar.wire.positions import position_from_proto, position_to_proto
from tests.support.geoworld import Client, World

TOPIC = "persistent://public/default/t"
OTHER = "persistent://public/default/other"


class Reader:
    """A link's peer that reads from a broker; with `held`, entries come from the disk only when the test says so."""

    def __init__(self, *, entries: int = 20) -> None:
        self.world = World("ab", cache_bytes=1)
        self.node = self.world["a"]
        for topic in (TOPIC, OTHER):
            self.node.create(topic)
        self.positions = self.node.publish(*(b"x" * 100 for _ in range(entries)), topic=TOPIC)
        self.client = self.connect()

    def connect(self) -> Client:
        return self.node.client(auth_method_name=LINK_AUTH_METHOD, auth_data=b"t")

    def ask(
        self, number: int, *, follows: int = 0, after: Position = NONE, bytes_max: int = 250, topic: str = TOPIC
    ) -> None:
        command = pb.BaseCommand(type=pb.GEO_READ)
        read = command.geo_read
        read.request_id, read.topic, read.bytes_max, read.follows, read.to = number, topic, bytes_max, follows, "b"
        read.after.CopyFrom(position_to_proto(after))
        self.client.send(command)

    def answers(self) -> list[pb.CommandGeoReadResponse]:
        self.world.advance(1)
        return [one.geo_read_response for one in self.client.answers if one.type == pb.GEO_READ_RESPONSE]


def entries_of(answers: list[pb.CommandGeoReadResponse]) -> list[Position]:
    return [Position(*one) for read in answers for one in zip(read.ledgers, read.entries, strict=True)]


def test_a_broker_says_that_reads_may_follow() -> None:
    reader = Reader()
    (hello,) = [one.connected.geo for one in reader.client.answers if one.type == pb.CONNECTED]
    assert hello.reads_follow


def test_requests_that_follow_are_answered_in_order_each_from_the_end_of_the_last() -> None:
    reader = Reader()
    for number in range(1, 13):
        reader.ask(number, follows=number - 1)
    answers = reader.answers()
    assert [read.request_id for read in answers] == list(range(1, 13))
    assert entries_of(answers) == reader.positions
    assert sum(bool(read.sizes) for read in answers) > 5


def test_a_request_may_follow_one_that_was_answered_long_ago() -> None:
    reader = Reader()
    reader.ask(1)
    first = reader.answers()
    reader.ask(2, follows=1)
    answers = reader.answers()
    assert len(first) == 1
    assert entries_of(answers) == reader.positions[: len(entries_of(answers))]
    assert position_from_proto(answers[1].end) > position_from_proto(answers[0].end)


def test_a_chain_ends_where_there_is_no_more_and_stays_there() -> None:
    """Entries that come later belong to a question that knows the end."""
    reader = Reader(entries=2)
    reader.ask(1, bytes_max=1 << 20)
    reader.ask(2, follows=1)
    assert [len(read.sizes) for read in reader.answers()] == [2, 0]
    reader.node.publish(b"late")
    reader.ask(3, follows=2)
    last = reader.answers()[-1]
    assert (last.request_id, list(last.sizes)) == (3, [])
    assert position_from_proto(last.end) == reader.positions[-1]


def test_a_chain_ends_when_its_topic_goes_away() -> None:
    reader = Reader()
    reader.ask(1)
    reader.ask(2, follows=1)
    broker = reader.node.broker
    reader.node.run(lambda: broker.catalog.delete(broker.topics[TOPIC], force=True, done=lambda _error: None))
    reader.ask(3, follows=2)
    answers = reader.answers()
    assert [read.request_id for read in answers] == [1, 2, 3]
    assert not answers[-1].sizes


def test_an_unknown_request_cannot_be_followed() -> None:
    reader = Reader()
    reader.ask(7, follows=5, after=reader.positions[3])
    (answer,) = reader.answers()
    assert (list(answer.sizes), position_from_proto(answer.end)) == ([], reader.positions[3])
    assert "not known" in answer.message


def test_two_requests_cannot_follow_the_same_one() -> None:
    reader = Reader()
    for number, follows in ((1, 0), (2, 1), (3, 1)):
        reader.ask(number, follows=follows)
    answers = {read.request_id: read for read in reader.answers()}
    assert answers[2].sizes
    assert not answers[3].sizes
    assert len(answers) == 3


def test_the_number_of_requests_that_wait_has_a_limit() -> None:
    reader = Reader(entries=1)
    for number in range(1, WAITING_MAX + 10):
        reader.ask(number, follows=number - 1)
    answers = {read.request_id: read for read in reader.answers()}
    assert len(answers) == WAITING_MAX + 9, "each is answered"
    assert "too many" in answers[WAITING_MAX + 2].message


def test_old_answers_are_forgotten() -> None:
    reader = Reader()
    for number in range(1, ANSWERED_MAX + 3):
        reader.ask(number)
        reader.world.work()
    reader.ask(ANSWERED_MAX + 3, follows=1)
    assert "not known" in reader.answers()[-1].message


@pytest.mark.parametrize("advance", [False, True])
def test_a_connection_that_goes_away_leaves_nothing(advance: bool) -> None:
    reader = Reader()
    for number in range(1, 5):
        reader.ask(number, follows=number - 1)
    if advance:
        reader.world.advance(1)
    reader.node.run(reader.node.broker.disconnected, reader.client.number)
    del reader.node.clients[reader.client.number]
    reader.world.advance(100)
    gc.collect()
    left = [one for one in gc.get_objects() if type(one).__name__ == "ReadChains"]
    assert not left
