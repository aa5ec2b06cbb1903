"""What a role that may replicate one namespace can do with each link command, field by field: nothing to anybody else.

The table says of every field of every command what it concerns. A new one fails the test until somebody has decided.
"""

from collections.abc import Callable
from typing import Any, Final

import jwt
import pytest

from magnetar.broker.security.credentials import Keys
from magnetar.core.ids import LEDGER_BELIEVED_MAX, LEDGER_MAX, NONE, Position
from magnetar.core.names import NamespaceName
from magnetar.core.security import AuthenticationConfig, AuthorizationConfig, Security
from magnetar.metadata.permissions import Action, grant
from magnetar.metadata.policies.namespace import Policies
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import GEO_REQUESTS
from magnetar.wire.positions import position_to_proto
from tests.support.geoworld import Client, Node, World

SECRET: Final = b"s" * 64
OTHER: Final = "persistent://public/default/t"
MINE: Final = "persistent://public/mine/t"
UUID: Final = "uuid-a"
PIPELINE: Final = "the-real-one"
AT: Final = Position(9, 0)

OWN = "the connection's own"
LINK = "which link: there is one or it is refused"
TOPIC = "one topic, which is checked"
IN_TOPIC = "the topic that is checked"
SESSION = "the fetch session of its own role"
WHOLE = "the whole link: only with the right to it"
IDENTITY = "who a cluster is: only with the right to the whole link"
TICKET = "what this connection was asked for"

FIELDS: dict[int, tuple[str, dict[str, str]]] = {
    1000: (
        "geo_topics",
        {"request_id": OWN, "to": LINK, "counter": OWN, "wait_ms": OWN, "pipeline": WHOLE, "lease_ms": WHOLE, "boot": OWN},
    ),
    1002: (
        "geo_read",
        {"request_id": OWN, "topic": TOPIC, "to": LINK, "origin": IN_TOPIC, "after": IN_TOPIC, "up_to": IN_TOPIC,
         "bytes_max": OWN, "follows": OWN},
    ),
    1004: (
        "geo_append",
        {"request_id": OWN, "topic": TOPIC, "source": IDENTITY, "uuid": IDENTITY, "incarnation": IN_TOPIC, "gen": IN_TOPIC,
         "p": IN_TOPIC, "ledgers": IN_TOPIC, "entries": IN_TOPIC, "first_indexes": IN_TOPIC, "counts": IN_TOPIC,
         "sizes": IN_TOPIC, "schema_numbering": IN_TOPIC},
    ),
    1006: (
        "geo_commit",
        {"request_id": OWN, "to": LINK, "commits": TOPIC, "learned": TOPIC, "pipeline": OWN, "trouble": WHOLE,
         "reason": WHOLE, "throttled": WHOLE, "grants": TOPIC, "revoked": SESSION, "totals": SESSION},
    ),
    1008: (
        "geo_watermarks",
        {"request_id": OWN, "source": IDENTITY, "uuid": IDENTITY, "counter": OWN, "topics": TOPIC,
         "wait_ms": OWN, "news": OWN},
    ),
    1010: ("geo_status", {"request_id": OWN, "to": LINK}),
    1012: (
        "geo_restore",
        {"request_id": OWN, "topic": TOPIC, "cluster": IN_TOPIC, "peer": IN_TOPIC, "partitions": IN_TOPIC,
         "incarnation": IN_TOPIC, "ledgers": IN_TOPIC, "entries": IN_TOPIC, "first_indexes": IN_TOPIC, "counts": IN_TOPIC,
         "sizes": IN_TOPIC, "after_incarnation": IN_TOPIC, "after_index": IN_TOPIC, "schema_numbering": IN_TOPIC},
    ),
    1014: ("geo_schemas", {"request_id": OWN, "topic": TOPIC, "schema_numbering": IN_TOPIC, "versions": IN_TOPIC}),
    1017: ("geo_schemas_brought", {"ticket": TICKET, "found": TICKET, "missing": TICKET, "reason": TICKET}),
    1018: (
        "geo_fetch",
        {"request_id": OWN, "to": LINK, "pipeline": SESSION, "epoch": SESSION, "reader": SESSION, "wait_ms": OWN,
         "bytes_max": OWN, "window_bytes": SESSION},
    ),
}  # fmt: skip
PARTS: dict[str, dict[str, str]] = {
    "GeoCommitTopic": {
        "topic": TOPIC, "incarnation": IN_TOPIC, "cursor": IN_TOPIC, "blocked": IN_TOPIC, "reason": IN_TOPIC,
        "position": IN_TOPIC, "conflict": IN_TOPIC, "grant": SESSION, "ended": SESSION, "ended_reason": SESSION,
    },
    "GeoGrant": {"topic": TOPIC, "incarnation": IN_TOPIC, "gen": IN_TOPIC, "number": SESSION},
    "GeoLearnTopic": {
        "topic": TOPIC, "incarnation": IN_TOPIC, "watermark": IDENTITY, "counter": IN_TOPIC, "blocked": IN_TOPIC,
        "reason": IN_TOPIC, "gen": IN_TOPIC, "foreign": IDENTITY, "there": IN_TOPIC,
    },
    "GeoWatermarkQuery": {
        "topic": TOPIC, "incarnation": IN_TOPIC, "partitions": IN_TOPIC, "last": IN_TOPIC, "start": IN_TOPIC,
        "retained": IN_TOPIC,
    },
}  # fmt: skip


def test_it_is_known_of_every_field_what_it_concerns() -> None:
    assert FIELDS.keys() == GEO_REQUESTS
    for name, fields in FIELDS.values():
        body = pb.BaseCommand.DESCRIPTOR.fields_by_name[name].message_type
        assert fields.keys() == set(body.fields_by_name), (
            f"{name}: decide what the new field concerns, and who may say it"
        )
    for name, fields in PARTS.items():
        assert fields.keys() == set(getattr(pb, name).DESCRIPTOR.fields_by_name), name


class Secured:
    """Cluster b, which is the destination of a and a source for a, with a role for one namespace and one for everything."""

    def __init__(self) -> None:
        self.world = World("ab", limits={"identity_silence_ms": 10_000})
        self.world.cut = {("a", "b"), ("b", "a")}
        node = self.node
        config = Security(
            authentication=AuthenticationConfig(methods=["token"]),
            authorization=AuthorizationConfig(superusers=["root"], replicate_roles=["links"]),
        )
        broker = node.broker
        node.secure(config, Keys((SECRET,)))
        for namespace in ("default", "mine"):
            name = NamespaceName("public", namespace)
            both = {"replication_clusters": ["a", "b"]}
            if broker.resources.has_namespace(name):
                node.apply(broker.resources.change_policies(name, **both))
            else:
                node.apply(broker.resources.create_namespace(name, Policies(**both)))  # type: ignore[arg-type]
        node.apply(grant(broker.resources, NamespaceName("public", "mine"), "narrow", [Action.REPLICATE]))
        for topic in (OTHER, MINE):
            node.create(topic)
        self.whole, self.narrow = self.client("links"), self.client("narrow")
        hello = pb.CommandGeoWatermarks(request_id=1, source="a", uuid=UUID, counter=0)
        hello.topics.add(topic=OTHER, incarnation=5, partitions=0)
        assert not self.ask(self.whole, 1008, geo_watermarks=hello).geo_watermarks_response.blocked

    @property
    def node(self) -> Node:
        return self.world["b"]

    def client(self, role: str) -> Client:
        token = jwt.encode({"sub": role}, SECRET, "HS256").encode()
        client = self.node.client(auth_method_name="magnetar-link", auth_data=token)
        assert client.answers.pop().connected.HasField("geo")
        return client

    def ask(self, client: Client, kind: int, payload: bytes = b"", **body: Any) -> pb.BaseCommand:
        before = len(client.answers)
        client.send(pb.BaseCommand(type=kind, **body), payload)
        self.world.work()
        assert len(client.answers) == before + 1, f"{kind}: {client.answers[before:]}"
        return client.answers[-1]

    def poll(self, client: Client, pipeline: str) -> pb.CommandGeoTopicsResponse:
        request = pb.CommandGeoTopics(request_id=1, to="a", counter=0, pipeline=pipeline, lease_ms=10_000)
        return self.ask(client, 1000, geo_topics=request).geo_topics_response

    def greets(self, client: Client, uuid: str, *topics: str, source: str = "a") -> pb.CommandGeoWatermarksResponse:
        request = pb.CommandGeoWatermarks(request_id=1, source=source, uuid=uuid, counter=0)
        for topic in topics:
            request.topics.add(topic=topic, incarnation=5, partitions=0, start=position_to_proto(Position(1 << 45, 0)))
        return self.ask(client, 1008, geo_watermarks=request).geo_watermarks_response

    def brings(
        self, client: Client, topic: str, *, position: Position = AT, **fields: Any
    ) -> pb.CommandGeoAppendResponse:
        data = metadata.build(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"x")
        request = pb.CommandGeoAppend(
            request_id=1, topic=topic, source="a", uuid=UUID, gen=1, p=position_to_proto(NONE), ledgers=[position.ledger],
            entries=[position.entry], counts=[1], sizes=[len(data)],
            **{"incarnation": 5, "first_indexes": [0], **fields},
        )  # fmt: skip
        return self.ask(client, 1004, data, geo_append=request).geo_append_response

    def commits(self, client: Client, **fields: Any) -> pb.BaseCommand:
        return self.ask(client, 1006, geo_commit=pb.CommandGeoCommit(request_id=1, to="a", **fields))

    def learns(self, client: Client, topic: str, watermark: Position, **fields: Any) -> pb.BaseCommand:
        incarnation = self.node.broker.topics[topic].log.incarnation
        learnt = pb.GeoLearnTopic(
            topic=topic, incarnation=incarnation, watermark=position_to_proto(watermark), **fields
        )
        return self.commits(client, learned=[learnt])


def topics(it: Secured) -> None:
    assert it.poll(it.whole, PIPELINE).lease
    told = it.poll(it.narrow, PIPELINE)
    assert [one.topic for one in told.topics] == [MINE]
    assert (told.lease, told.lease_holder) == (True, PIPELINE), "it has a lease of its own"
    it.narrow.node.run(it.node.broker.disconnected, it.narrow.number)
    it.world.advance(5_000, links=False)
    assert not it.poll(it.whole, "stand-by").lease, "the real pipeline's lease did not end with the other's connection"
    assert it.poll(it.whole, PIPELINE).lease
    assert it.poll(it.client("narrow"), "mine").lease, "what it left is free"


def read(it: Secured) -> None:
    request = pb.CommandGeoRead(request_id=1, topic=OTHER, to="a", after=position_to_proto(NONE), bytes_max=1 << 20)
    assert it.ask(it.narrow, 1002, geo_read=request).geo_read_response.blocked == "policy"
    request.topic = MINE
    assert not it.ask(it.narrow, 1002, geo_read=request).geo_read_response.blocked


def append(it: Secured) -> None:
    assert it.brings(it.narrow, OTHER).blocked == "policy"
    assert it.node.broker.topics[OTHER].log.watermark("a") == NONE
    it.world.advance(10_000, links=False)
    assert not it.brings(it.narrow, MINE).blocked
    assert it.node.broker.topics[MINE].log.watermark("a") == (9, 0)
    assert not it.greets(it.whole, "uuid-reborn", OTHER).blocked, "what it sends keeps no old uuid alive"


def commit(it: Secured) -> None:
    last = it.node.broker.ledger_ids.last
    source = it.node.broker.links.sources["a"]
    assert it.learns(it.narrow, OTHER, NONE).HasField("error")
    assert it.commits(it.narrow, trouble="down", reason="made up", throttled=True).type == 1007
    assert (source.trouble, source.throttled) == ("", False)
    for foreign in (False, True):
        for ledger in (last + 1_000_000, LEDGER_BELIEVED_MAX):
            assert it.learns(it.narrow, MINE, Position(ledger, 0), foreign=foreign).type == 1007
    assert it.node.broker.ledger_ids.last == last, "ids are the whole cluster's"
    assert it.commits(it.whole, trouble="down", reason="it is").type == 1007
    assert source.trouble == "down"
    assert it.learns(it.whole, MINE, Position(last + 1_000_000, 0)).type == 1007
    assert it.node.broker.ledger_ids.last == last + 1_000_000


def watermarks(it: Secured) -> None:
    told = it.greets(it.narrow, UUID, MINE, OTHER)
    assert (told.blocked, [one.blocked for one in told.topics]) == ("", ["", "policy"])
    it.world.advance(20_000, links=False)
    for source, uuid in (("a", "made-up"), ("c", "made-up")):
        told = it.greets(it.narrow, uuid, MINE, source=source)
        assert (
            told.blocked == "identity"
            and "role narrow has only `replicate` permissions and cannot introduce uuid made-up as cluster"
            in told.reason
        )
    assert it.node.broker.links.destination.peers.known()["a"][0] == UUID
    assert not it.greets(it.whole, UUID, OTHER).blocked, "the real one goes on"
    it.world.advance(9_000, links=False)
    it.greets(it.narrow, UUID, MINE)
    it.world.advance(1_000, links=False)
    assert not it.greets(it.whole, "uuid-reborn", OTHER).blocked, "it keeps no old uuid alive"


def status(it: Secured) -> None:
    source = it.node.broker.links.sources["a"]
    for topic in (OTHER, MINE):
        source.topics[topic].block("size", f"because of {topic}", it.world.now_ms)
        source.topics[topic].gap = 7
    told = it.ask(it.narrow, 1010, geo_status=pb.CommandGeoStatus(request_id=1)).geo_status_response
    assert ([one.topic for one in told.blocked], told.gap) == ([MINE], 0)
    told = it.ask(it.whole, 1010, geo_status=pb.CommandGeoStatus(request_id=1)).geo_status_response
    assert (len(told.blocked), told.gap) == (2, 14)


def restore(it: Secured) -> None:
    request = pb.CommandGeoRestore(request_id=1, topic=OTHER, cluster="b", peer="a", partitions=0)
    assert it.ask(it.narrow, 1012, geo_restore=request).HasField("error")
    request.topic = MINE
    assert not it.ask(it.narrow, 1012, geo_restore=request).geo_restore_response.blocked


def schemas(it: Secured) -> None:
    request = pb.CommandGeoSchemas(request_id=1, topic=OTHER, schema_numbering=1, versions=[0])
    assert it.ask(it.narrow, 1014, geo_schemas=request).HasField("error")


def brought(it: Secured) -> None:
    data = metadata.build(
        pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, schema_version=bytes(8)), b"x"
    )
    request = pb.CommandGeoAppend(
        request_id=1, topic=OTHER, source="a", uuid=UUID, incarnation=5, gen=1, p=position_to_proto(NONE), ledgers=[9],
        entries=[0], first_indexes=[0], counts=[1], sizes=[len(data)], schema_numbering=1,
    )  # fmt: skip
    wanted = it.ask(it.whole, 1004, data, geo_append=request).geo_schemas_wanted
    answers = len(it.whole.answers)
    forged = pb.CommandGeoSchemasBrought(ticket=wanted.ticket, missing=[0])
    it.narrow.send(pb.BaseCommand(type=1017, geo_schemas_brought=forged))
    it.world.work()
    assert len(it.whole.answers) == answers, "another connection's ticket"
    it.whole.send(pb.BaseCommand(type=1017, geo_schemas_brought=forged))
    it.world.work()
    assert it.whole.answers[-1].type == 1005


def fetch(it: Secured) -> None:
    assert it.poll(it.whole, PIPELINE).lease and it.poll(it.narrow, "mine").lease

    def grants(client: Client, pipeline: str, *topics: str) -> pb.BaseCommand:
        logs = {topic: it.node.broker.topics[topic].log for topic in topics}
        numbered = [
            pb.GeoGrant(topic=topic, incarnation=log.incarnation, gen=1, number=1) for topic, log in logs.items()
        ]
        return it.commits(client, pipeline=pipeline, grants=numbered)

    def fetched(client: Client, pipeline: str, wait_ms: int = 0) -> pb.CommandGeoFetchResponse:
        request = pb.CommandGeoFetch(
            request_id=1, to="a", pipeline=pipeline, epoch=1, reader=1, bytes_max=1 << 20, wait_ms=wait_ms
        )
        return it.ask(client, 1018, geo_fetch=request).geo_fetch_response

    for topic in (OTHER, MINE):
        it.node.publish(b"x", topic=topic)
    assert grants(it.narrow, "mine", OTHER, MINE).HasField("error")
    assert not grants(it.whole, PIPELINE, OTHER, MINE).geo_commit_response.ignored
    assert grants(it.narrow, PIPELINE, MINE).geo_commit_response.ignored, "its lease is another pipeline's"
    assert not grants(it.narrow, "mine", MINE).geo_commit_response.ignored
    assert fetched(it.narrow, PIPELINE).refused
    assert [part.topic for part in fetched(it.narrow, "mine").parts] == [MINE]
    it.commits(it.narrow, pipeline=PIPELINE, revoked=[OTHER, MINE])
    assert [part.topic for part in fetched(it.whole, PIPELINE).parts] == [OTHER, MINE]


def test_who_brings_no_schemas_holds_up_no_other_link() -> None:
    """What waits for schemas counts as on its way to the disk; a link of one namespace may let it wait for ever."""
    it = Secured()
    it.node.broker.links.destination._pending_bytes_max = 4 * 5_000
    data = metadata.build(
        pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, schema_version=bytes(8)), b"x" * 3_000
    )
    fields = {
        "incarnation": 5,
        "gen": 1,
        "p": position_to_proto(NONE),
        "counts": [1],
        "sizes": [len(data)],
        "schema_numbering": 1,
    }
    told = []
    for number in range(4):
        request = pb.CommandGeoAppend(
            request_id=number, topic=MINE, source="a", uuid=UUID, ledgers=[9], entries=[number], first_indexes=[number],
            **fields,
        )  # fmt: skip
        before = len(it.narrow.answers)
        it.narrow.send(pb.BaseCommand(type=1004, geo_append=request), data)
        it.world.work()
        told += it.narrow.answers[before:]
    assert [one.type for one in told] == [1016, 1005, 1005], (
        "schemas are asked for, a second one waits, others come again"
    )
    assert all(one.geo_append_response.throttle_ms for one in told[1:])
    it.node.broker.links.destination._pending_bytes_max = 6_000
    assert not it.brings(it.whole, OTHER).retry
    it.node.run(it.node.broker.disconnected, it.narrow.number)
    assert it.node.broker.links.destination.schemas.parked_narrow_bytes == 0


def test_a_restore_of_one_namespace_that_waits_holds_up_no_other_restore() -> None:
    """As with links: a role with the right to one namespace need not bring the schemas that it is asked for."""
    it = Secured()
    machine = it.node.broker.links.restores.machine
    data = metadata.build(
        pb.MessageMetadata(
            producer_name="p", sequence_id=0, publish_time=1, schema_version=bytes(8), replicated_from="b"
        ),
        b"x" * 3_000,
    )
    plain = metadata.build(
        pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, replicated_from="b"), b"x"
    )
    fields = {
        "request_id": 1,
        "cluster": "b",
        "peer": "a",
        "incarnation": 3,
        "ledgers": [3],
        "counts": [1],
        "schema_numbering": 1,
    }
    machine._pending_bytes_max = 4 * 5_000
    told = []
    for number in range(4):
        request = pb.CommandGeoRestore(
            topic=MINE, entries=[number], first_indexes=[number], sizes=[len(data)], **fields
        )
        before = len(it.narrow.answers)
        it.narrow.send(pb.BaseCommand(type=1012, geo_restore=request), data)
        it.world.work()
        told += it.narrow.answers[before:]
    assert [one.type for one in told] == [1016, 1013, 1013], (
        "one asks for schemas, one waits behind it, the others come again"
    )
    assert all(one.geo_restore_response.retry and one.geo_restore_response.throttle_ms for one in told[1:])
    machine._pending_bytes_max = 6_000
    request = pb.CommandGeoRestore(topic=OTHER, entries=[0], first_indexes=[0], sizes=[len(plain)], **fields)
    other = it.ask(it.whole, 1012, plain, geo_restore=request).geo_restore_response
    assert (other.retry, other.stored, other.reason) == (False, 1, "")
    it.node.run(it.node.broker.disconnected, it.narrow.number)
    assert machine.schemas.parked_bytes == machine.schemas.parked_narrow_bytes == 0


CASES: dict[int, Callable[[Secured], None]] = {
    1000: topics, 1002: read, 1004: append, 1006: commit, 1008: watermarks, 1010: status, 1012: restore, 1014: schemas,
    1017: brought, 1018: fetch,
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(GEO_REQUESTS))
def test_a_role_of_one_namespace_does_nothing_to_others(kind: int) -> None:
    CASES[kind](Secured())


def test_no_number_that_a_link_names_leaves_no_room() -> None:
    """Ids of a cluster's ledgers, lives of topics and origin indexes count on for ever; a peer that is broken may name any."""
    for fields in (
        {"position": Position(LEDGER_MAX + 1, 0)},
        {"position": Position(9, 2**63 - 1)},
        {"incarnation": LEDGER_MAX + 1},
        {"first_indexes": [(1 << 62) - 1]},
    ):
        it = Secured()
        it.node.run(lambda: None)
        before = len(it.whole.answers)
        with pytest.raises(AssertionError):
            it.brings(it.whole, MINE, **fields)
        assert len(it.whole.answers) == before and it.whole.number not in it.node.clients, fields
        assert it.node.broker.topics[MINE].log.watermark("a") == NONE


@pytest.mark.parametrize("foreign", [False, True])
def test_a_watermark_that_leaves_no_room_blocks_its_topic_and_moves_no_id(foreign: bool) -> None:
    it = Secured()
    last = it.node.broker.ledger_ids.last
    for _ in range(2):
        assert it.learns(it.whole, MINE, Position(2**63 - 2, 0), foreign=foreign).type == 1007
    assert it.node.broker.ledger_ids.last == last
    (told,) = it.ask(it.whole, 1010, geo_status=pb.CommandGeoStatus(request_id=1)).geo_status_response.blocked
    assert (told.topic, told.kind) == (MINE, "identity") and "create it there again" in told.reason
    it.learns(it.whole, MINE, NONE)
    assert not it.ask(it.whole, 1010, geo_status=pb.CommandGeoStatus(request_id=1)).geo_status_response.blocked
