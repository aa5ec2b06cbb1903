"""Publishing once at the moments that matter: odd sequence ids, a disk that fails or a broker that dies before the receipt."""

import base64
import errno
import json
from typing import Any

import jwt
import pytest

from magnetar.broker.publish.deduplication_policy import Deduplications
from magnetar.broker.publish.idempotency.block import fingerprint
from magnetar.broker.publish.idempotency.snapshot import record_key
from magnetar.broker.publish.sequence_numbers import SEQUENCE_TAKEN_MAX
from magnetar.broker.security.credentials import Keys
from magnetar.core.errors import ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.core.names import NamespaceName
from magnetar.core.security import AuthenticationConfig, AuthorizationConfig, Security
from magnetar.core.settings import DeduplicationConfig
from magnetar.metadata.errors import PreconditionFailed
from magnetar.metadata.permissions import Action, grant
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.metadata.policies.types import PublishRate
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.metadata import build
from tests.support.geoworld import TOPIC, Client, Node, World

NAMESPACE = NamespaceName.parse("public/default")
UNSIGNED = 1 << 64
SECRET = b"s" * 64


class Publisher:
    """A producer by its bytes."""

    def __init__(self, node: Node, name: str = "p", connect: dict[str, Any] | None = None) -> None:
        self.node, self.name = node, name
        self.client: Client = node.client(**(connect or {}))
        producer = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name=name or None)
        self.client.send(pb.BaseCommand(type=5, producer=producer))
        node.world.work()

    @property
    def opened(self) -> Any:
        """The answer to opening it."""
        return self.client.answered(1)

    def send(self, sequence: int, *, key: str = "", written: str = "", highest: int = 0, batch: int = 0) -> None:
        """Send, and do not wait."""
        seen = pb.MessageMetadata(producer_name=written or self.name, sequence_id=sequence, publish_time=1)
        if highest:
            seen.highest_sequence_id = highest
        if batch:
            seen.num_messages_in_batch = batch
        if key:
            seen.properties.add(key="k", value=key)
        command = pb.BaseCommand(type=6)
        command.send.producer_id, command.send.sequence_id = 1, sequence
        self.client.answers.clear()
        self.client.send(command, build(seen, b"x"))

    def told(self) -> Position | str:
        """The position in the receipt, or the error."""
        self.node.world.work()
        for command in self.client.answers:
            if command.HasField("send_receipt"):
                found = command.send_receipt.message_id
                ledger, entry = ((n - UNSIGNED if n >> 63 else n) for n in (found.ledgerId, found.entryId))
                return Position(ledger, entry)
            if command.HasField("send_error"):
                return command.send_error.message
        return "nothing"

    def says(self, sequence: int, **more: Any) -> Position | str:
        """Send, and wait."""
        self.send(sequence, **more)
        return self.told()


def broker(*, numbers: bool, keys: bool = False) -> Node:
    """One cluster with a topic."""
    node = World("a")["a"]
    if numbers:
        node.apply(node.broker.resources.change_policies(NAMESPACE, deduplication_enabled=True))
    if keys:
        policy = IdempotencyPolicy(property="k", window_seconds=600)
        node.apply(node.broker.resources.change_policies(NAMESPACE, idempotency=policy))
    node.create()
    node.world.advance(100)
    return node


def stored(node: Node) -> int:
    return node.topic.log.messages_between(NONE, node.topic.log.last)


def test_ids_that_go_back_jump_and_repeat() -> None:
    node = broker(numbers=True)
    producer = Publisher(node)
    for sequence in (3, 4, 1_000_000_000_000, 2**62):
        assert isinstance(producer.says(sequence), Position)
    before = stored(node)
    for sequence in (2**62, 4, 3, 0, 2**61):
        assert producer.says(sequence) == NONE
    assert stored(node) == before == 4


@pytest.mark.parametrize("more", [{}, {"highest": True}, {"batch": 2}], ids=["one", "highest", "batch"])
@pytest.mark.parametrize("sequence", [SEQUENCE_TAKEN_MAX + 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_an_id_that_leaves_no_room_is_refused(sequence: int, more: dict[str, Any]) -> None:
    """It is said why; nothing is stored, and the numbers of the name stay as they were: whoever else has it goes on."""
    node = broker(numbers=True)
    producer = Publisher(node)
    producer.says(5)
    highest = sequence
    if "highest" in more:
        sequence, more = 6, {"highest": sequence}
    elif "batch" in more:
        sequence -= 1
    told = f"sequence id {highest} leaves no room for later ones: {SEQUENCE_TAKEN_MAX} is the highest that is taken"
    assert producer.says(sequence, **more) == told
    assert stored(node) == 1
    again = Publisher(node)
    assert again.opened.producer_success.last_sequence_id == 5
    assert isinstance(again.says(6), Position)
    assert isinstance(again.says(SEQUENCE_TAKEN_MAX), Position)
    assert again.says(SEQUENCE_TAKEN_MAX) == NONE


@pytest.mark.parametrize("how", ["before", "link", "snapshot"])
def test_an_id_that_leaves_no_room_is_nobodys_wherever_it_comes_from(how: str) -> None:
    """Published while nothing was judged, brought by a link, or stored by a version that took it."""
    world = World("ab" if how == "link" else "a")
    for node in world.nodes.values():
        node.create()
    writer = Publisher(world["a"], "stranger")
    for sequence in (5, 2**63 - 1):
        assert isinstance(writer.says(sequence, written="victim"), Position)
    node.apply(node.broker.resources.change_policies(NAMESPACE, deduplication_enabled=True))
    world.advance(1_000)
    if how == "snapshot":
        assert node.topic.deduplication is not None
        node.topic.deduplication.numbers.of("poisoned", 0).observe(2**63 - 1, 2**63 - 1)
        node.topic.deduplication.snapshot()
        world.advance(2_000)
        node.restart()
        world.advance(1_000)
        assert isinstance(Publisher(node, "poisoned").says(0), Position)
    victim = Publisher(node, "victim")
    assert victim.opened.producer_success.last_sequence_id == 5
    assert isinstance(victim.says(6), Position)


@pytest.mark.parametrize("connected", [False, True])
def test_an_operator_lets_a_name_begin_anew(*, connected: bool) -> None:
    """Somebody who may produce used up its numbers; what is forgotten stays so after a restart."""
    node = broker(numbers=True)
    stranger = Publisher(node, "victim")
    stranger.says(SEQUENCE_TAKEN_MAX)
    if not connected:
        node.run(node.broker.disconnected, stranger.client.number)
        assert Publisher(node, "victim").says(6) == NONE, "as if it were stored"
    assert node.control.topics.sequence_ids(TOPIC) == {"victim": SEQUENCE_TAKEN_MAX}
    other = Publisher(node, "other")
    other.says(3)
    node.hold_log = True
    stranger.send(SEQUENCE_TAKEN_MAX) if connected else other.send(4)
    answers: list[Any] = []
    node.control.topics.forget_producer(TOPIC, "victim", answers.append)
    node.hold_log = False
    node.world.advance(5_000)
    assert answers == [None]
    if connected:
        assert [one.close_producer.producer_id for one in stranger.client.answers if one.type == 15] == [1]
    node.restart()
    node.world.advance(1_000)
    victim = Publisher(node, "victim")
    assert victim.opened.producer_success.last_sequence_id == -1
    assert isinstance(victim.says(0), Position)
    assert Publisher(node, "other").says(3) == NONE, "others' numbers stay"


def test_names_may_be_kept_for_their_roles() -> None:
    """Then nobody uses up the numbers of somebody else's name. An administrator may, and a name that the broker gives fits."""
    node = broker(numbers=True)
    security = Security(
        authentication=AuthenticationConfig(methods=["token"]),
        authorization=AuthorizationConfig(superusers=["root"]),
    )
    node.secure(security, Keys((SECRET,)))
    for role in ("billing", "stranger"):
        node.apply(grant(node.broker.resources, NAMESPACE, role, [Action.PRODUCE]))

    def opens(role: str, name: str) -> pb.BaseCommand:
        token = jwt.encode({"sub": role}, SECRET, "HS256").encode()
        return Publisher(node, name, connect={"auth_method_name": "token", "auth_data": token}).opened

    assert opens("stranger", "billing-importer").HasField("producer_success"), "off by default, as in Pulsar"
    made = node.broker
    named = DeduplicationConfig(names_begin_with_role=True)
    made.deduplications = Deduplications(
        made.context, made.topics, made.flusher, named, made.clients.close_producer, {}
    )
    node.serve_anew()
    told = opens("stranger", "billing-importer").error
    assert told.error == ErrorCode.NOT_ALLOWED and "has to begin with the role's, 'stranger'" in told.message
    assert opens("billing", "billing-importer-2").HasField("producer_success")
    assert opens("root", "billing-importer-3").HasField("producer_success")
    given = opens("stranger", "").producer_success.producer_name
    assert given.startswith("stranger-a-")
    assert opens("stranger", given + "-again").HasField("producer_success")


def test_where_there_is_no_deduplication_no_name_can_be_forgotten() -> None:
    node = broker(numbers=False)
    for ask in (node.control.topics.sequence_ids, lambda topic: node.control.topics.forget_producer(topic, "p", print)):
        with pytest.raises(PreconditionFailed, match="deduplication is not on in persistent://public/default/t"):
            ask(TOPIC)


@pytest.mark.parametrize("fails", [False, True])
def test_the_next_producer_of_a_name_is_told_what_was_on_its_way_when_the_last_one_went(*, fails: bool) -> None:
    """It begins behind that number: a message of its own under the same one would pass for a duplicate, and be lost."""
    node = broker(numbers=True)
    gone = Publisher(node)
    gone.says(4)
    node.hold_log = True
    gone.send(5)
    node.run(node.broker.disconnected, gone.client.number)
    successor, other = Publisher(node), Publisher(node, "q")
    assert successor.opened is None
    assert other.opened.producer_success.last_sequence_id == -1, "nobody else has to wait"
    if fails:
        node.files.fail_next("write", OSError(errno.EIO, "Input/output error"))
    node.hold_log = False
    node.world.work()
    if fails:
        assert successor.opened.error.error == ErrorCode.SERVICE_NOT_READY
        node.world.advance(5_000)
        successor = Publisher(node)
    last = 4 if fails else 5
    assert successor.opened.producer_success.last_sequence_id == last
    assert isinstance(successor.says(last + 1), Position)


def test_a_message_of_another_producers_name_is_refused() -> None:
    """A start would take it for that one's."""
    node = broker(numbers=True)
    assert "carries the name of the producer that sends it" in str(Publisher(node).says(1, written="victim"))
    assert stored(node) == 0


def test_two_live_producers_of_one_name_in_two_clusters() -> None:
    """They are taken for one sequence; the log says so, once."""
    world = World("ab")
    for name in "ab":
        world[name].apply(world[name].broker.resources.change_policies(NAMESPACE, deduplication_enabled=True))
    world["a"].create()
    world.advance(2_000)
    here, there = Publisher(world["a"]), Publisher(world["b"])
    there.says(7)
    world.advance(2_000)
    assert here.says(7) == NONE
    there.says(8)
    world.advance(2_000)
    warned = [
        note.text for note in world["a"].notes if note.level == "warning" and "is in use here and in b" in note.text
    ]
    assert len(warned) == 1


KINDS = [(True, False), (False, True), (True, True)]


@pytest.mark.parametrize(("numbers", "keys"), KINDS)
def test_killed_between_append_and_receipt(*, numbers: bool, keys: bool) -> None:
    """The message is in the log, its producer does not know: what it sends again adds nothing."""
    node = broker(numbers=numbers, keys=keys)
    producer = Publisher(node)
    producer.says(0, key="a")
    producer.send(1, key="b")
    node.up = False  # the broker gets no further event
    assert node.log.cycle()
    assert producer.told() == "nothing"
    node.restart()
    node.world.advance(1_000)
    assert stored(node) == 2
    again = Publisher(node)
    known = again.says(1, key="b")
    assert known == (Position(*node.topic.log.last) if keys else NONE)
    assert isinstance(again.says(2, key="c"), Position)
    assert stored(node) == 3


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize(("numbers", "keys"), KINDS)
def test_a_disk_that_fails_before_the_receipt(operation: str, *, numbers: bool, keys: bool) -> None:
    """An error instead of a receipt, and numbers and keys are free again: what is sent again is stored, once."""
    node = broker(numbers=numbers, keys=keys)
    producer = Publisher(node)
    producer.says(0, key="a")
    node.files.fail_next(operation, OSError(errno.EIO, "Input/output error"))
    answer = producer.says(1, key="b")
    assert isinstance(answer, str), answer
    node.world.advance(5_000)
    again = Publisher(node)
    assert isinstance(again.says(1, key="b"), Position)
    assert stored(node) == 2
    repeated = again.says(1, key="b")
    assert repeated == (node.topic.log.last if keys else NONE)
    node.restart()
    node.world.advance(1_000)
    assert stored(node) == 2


@pytest.mark.parametrize(("numbers", "keys"), [(True, False), (False, True), (True, True)])
def test_damage_behind_sound_messages_takes_nothing_of_them(numbers: bool, keys: bool) -> None:
    """The connection ends there; what came before in the same read is stored, so that its numbers and keys do not hang."""
    node = broker(numbers=numbers, keys=keys)
    producer = Publisher(node)
    frames = []
    for sequence in (1, 2, 3):
        seen = pb.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1)
        seen.properties.add(key="k", value=f"k{sequence}")
        command = pb.BaseCommand(type=6)
        command.send.producer_id, command.send.sequence_id = 1, sequence
        whole = build(seen, b"x") if sequence < 3 else b"\x0e\x01"
        frames.append(Frame(command, whole))
    node.run(node.broker.frames, producer.client.number, frames)
    node.world.work()
    assert stored(node) == 2
    again = Publisher(node)
    first = again.says(1, key="k1")
    assert first == (NONE if not keys else node.topic.log.first)
    assert isinstance(again.says(3, key="k3"), Position)
    assert stored(node) == 3


def test_fingerprints_have_a_secret_that_outlives_a_change_of_the_token() -> None:
    """Each topic has its own; stored keys bring theirs along, so that another link token forgets nothing."""
    node = broker(numbers=False, keys=True)
    producer = Publisher(node)
    first = producer.says(1, key="a")
    keys = node.topic.idempotency
    assert keys is not None
    own = keys.table._keys[0]
    assert own != fingerprint(b"a")
    keys.save()
    node.world.work()
    secret = json.loads(node.meta[record_key(TOPIC)])["secret"]
    assert fingerprint(b"a", base64.b64decode(secret)) == own

    node.link_token = b"another"
    node.restart()
    node.world.work()
    assert Publisher(node).says(9, key="a") == first
    keys = node.topic.idempotency
    assert keys is not None
    assert keys.table._keys[-1] == own
    # Switched off and on again, the keys are read anew, with a secret of the new token.
    node.apply(node.broker.resources.change_policies(NAMESPACE, idempotency=None))
    node.apply(
        node.broker.resources.change_policies(
            NAMESPACE, idempotency=IdempotencyPolicy(property="k", window_seconds=600)
        )
    )
    node.world.advance(100)
    keys = node.topic.idempotency
    assert keys is not None
    assert keys.table._keys[-1] != own
    assert Publisher(node).says(10, key="a") == first


@pytest.mark.parametrize(("numbers", "keys"), KINDS)
def test_switched_on_while_a_message_is_on_its_way_to_the_disk(*, numbers: bool, keys: bool) -> None:
    """It was judged by nobody, and counts: nobody is let in before it has landed."""
    node = broker(numbers=False)
    Publisher(node).says(0, key="z")
    node.hold_log = True
    early = Publisher(node, "early")
    early.send(1, key="a")
    if numbers:
        node.apply(node.broker.resources.change_policies(NAMESPACE, deduplication_enabled=True))
    if keys:
        policy = IdempotencyPolicy(property="k", window_seconds=600)
        node.apply(node.broker.resources.change_policies(NAMESPACE, idempotency=policy))
    again = Publisher(node, "early")
    assert again.opened is None, "let in while it is not known what is stored"
    node.hold_log = False
    node.world.advance(1_000)
    assert again.opened.producer_success.producer_ready
    assert again.says(1, key="a") == (node.topic.log.last if keys else NONE)
    assert isinstance(again.says(2, key="b"), Position)
    assert stored(node) == 3


def test_numbers_are_stored_by_entries_and_by_time() -> None:
    """What a start has to read is what came since the last time: 1,000 entries or 120 s, as in Pulsar."""
    node = broker(numbers=True)
    producer = Publisher(node)
    for sequence in range(1_000):
        producer.says(sequence)
    node.world.advance(1_000)
    for sequence in range(1_000, 1_003):
        producer.says(sequence)

    def replayed() -> int:
        node.restart()
        node.world.advance(1_000)
        return node.broker.deduplications.counters.replayed

    assert replayed() == 3
    node.world.advance(130_000)
    assert replayed() == 0
    assert Publisher(node).opened.producer_success.last_sequence_id == 1_002


def test_a_failure_that_is_told_late_takes_nothing_of_what_came_since() -> None:
    """One append of a broken write is reported when the log works again and others are on their way (simulator: snapshot,
    96 steps, seed 7365). They are neither forgotten nor refused.
    """
    node = broker(numbers=True)
    early = Publisher(node, "early")
    node.hold_log = True
    early.send(1)
    early.send(2)
    first, second = node.log._queue
    node.log._queue = []
    node.run(node.broker.append_failed, [first], "the disk failed")
    node.run(node.broker.healed)
    late = Publisher(node, "late")
    assert late.opened.producer_success.producer_ready
    late.send(7)
    node.run(node.broker.append_failed, [second], "the log failed while this was on its way")
    assert late.client.answers == [], "nothing of its own failed"
    late.send(7)
    assert "is not known yet" in late.client.answers[0].send_error.message
    node.run(node.broker.healed)
    node.hold_log = False
    node.world.advance(100)
    assert stored(node) == 1


@pytest.mark.parametrize(("numbers", "keys"), [(False, False), *KINDS])
@pytest.mark.parametrize("forged", [{"replicated_from": "b"}, {"marker_type": 13}])
def test_a_link_forges_no_more_than_any_client(forged: dict[str, Any], *, numbers: bool, keys: bool) -> None:
    """It was let in for some topics and may publish to others: origins and markers travel by its own commands, never by SEND."""
    node = broker(numbers=numbers, keys=keys)
    client = Client(node, 77)
    node.clients[77] = client
    node.run(node.broker.connected, 77, "test:77")
    hello = pb.CommandConnect(
        client_version="t", protocol_version=20, auth_method_name="magnetar-link", auth_data=node.link_token
    )
    client.send(pb.BaseCommand(type=2, connect=hello))
    assert client.answers[0].connected.HasField("geo")
    opening = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name="p")
    client.send(pb.BaseCommand(type=5, producer=opening))
    node.world.work()
    seen = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **forged)
    command = pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=1, marker="marker_type" in forged))
    client.send(command, build(seen, b"forged"))
    node.world.work()
    (told,) = [answer.send_error for answer in client.answers if answer.type == 8]
    assert told.error == ErrorCode.NOT_ALLOWED and "a client may not" in told.message
    assert node.topic.log.last == NONE


@pytest.mark.parametrize("lifted", [False, True])
def test_a_malformed_message_that_waited_for_a_rate_ends_its_connection_alone(lifted: bool) -> None:
    """It is looked at when its turn comes, in an event that is nobody's command."""
    node = World("a")["a"]
    node.create()
    resources = node.broker.resources
    node.apply(resources.change_policies(NAMESPACE, publish_rate=PublishRate(1, -1)))
    bad, good = Publisher(node, "bad"), Publisher(node, "good")
    for sequence in range(3):
        bad.send(sequence)
        good.send(sequence)
    before = node.topic.messages_in
    bad.client.send(pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=3)), b"x")
    bad.send(4)
    assert node.topic.publish_throttle is not None and node.topic.publish_throttle.waiting_messages
    assert bad.client.number in node.broker.sessions
    if lifted:
        node.apply(resources.change_policies(NAMESPACE, publish_rate=None))
    node.world.advance(20_000)
    assert bad.client.number not in node.broker.sessions and good.client.number in node.broker.sessions
    assert list(node.topic.producers.live) == ["good"]
    assert before < node.topic.messages_in == 6, "what came before the malformed one, and all of the other's"
