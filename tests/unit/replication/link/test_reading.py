"""Reading a range for a link while the topic goes away under it."""

from collections.abc import Sequence

from magnetar.core.ids import NONE, Position
from magnetar.effects.outbox import Outbox, Read
from magnetar.replication.link.reading import Reading
from magnetar.storage.entries import StoredEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_from_proto
from magnetar_sim.host.host import Host
from tests.unit.replication.link.rig import Rig, RigTopic, message


def _read(topic: RigTopic, found: list[StoredEntry]) -> tuple[pb.CommandGeoReadResponse, Sequence[bytes]]:
    """Read all of a topic; what the broker finds under its name is `found`, whatever was asked for."""
    answers: list[tuple[pb.CommandGeoReadResponse, Sequence[bytes]]] = []
    outbox = Outbox(now_ms=1_000)
    Reading(
        outbox, topic.log, cluster="a", to="b", request_id=1, after=NONE, up_to=None, bytes_max=1 << 20,
        reply=lambda response, data: answers.append((response, data)), failed=lambda *_: None,
    ).start()  # fmt: skip
    reads: list[Read] = []

    def read(effect: Read) -> None:
        reads.append(effect)
        assert len(reads) <= 10, "it asks for the same again and again"
        effect.then(found, "")

    Host(outbox, {Read: read}).pump()
    return answers[0]


def _two_lives() -> tuple[Rig, RigTopic, list[StoredEntry]]:
    rig = Rig()
    old = rig.topic()
    old.publish(message("old"), message("older"))
    new = rig.topic()
    new.publish(message("new"))
    return rig, old, list(new.disk.values())


def test_entries_of_another_life_of_the_topic_are_not_sent_as_its_own() -> None:
    _, old, entries = _two_lives()
    response, data = _read(old, entries)
    assert (position_from_proto(response.end), list(data)) == (NONE, [])


def test_a_life_with_smaller_ledgers_either() -> None:
    """A lost disk and a clock that is behind: positions of the new life are below those of the old one."""
    _, old, entries = _two_lives()
    low = [entry._replace(ledger=Position(0, 0).ledger) for entry in entries]
    response, data = _read(old, low)
    assert (position_from_proto(response.end), list(data)) == (NONE, [])
