"""A wiped cluster takes its messages back: under their old identity, once, in order, whoever asks how often."""

from typing import Any

import pytest

from magnetar.core.errors import ProtocolError
from magnetar.core.ids import Identity, Position
from magnetar.core.names import TopicName
from magnetar.replication.holdings import Runs
from magnetar.replication.link.policy import local_messages
from magnetar.replication.restore import Restorer
from magnetar.storage.entries import EntryFlags, NewEntry
from magnetar.wire import pulsar_pb2 as pb
from tests.unit.replication.link.rig import TOPIC, Rig, message

OLD = 3
"""The incarnation of the earlier data folder."""


class Host(Rig):
    """Cluster a, after its disk was lost."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: dict[int, Runs] = {}

    def forgotten(self, topic: str) -> dict[int, Runs]:
        return self.gone


class Here:
    def __init__(self, *, opened: bool = True, **limits: Any) -> None:
        self.rig = Host()
        self.machine = Restorer(
            self.rig.outbox, cluster="a", host=self.rig, **({"message_bytes_max": 5 << 20} | limits)
        )  # fmt: skip
        self.answers: list[pb.CommandGeoRestoreResponse] = []
        self.wanted: list[pb.CommandGeoSchemasWanted] = []
        if opened:
            self.open()

    def open(self, topic: str = TOPIC, partitions: int = 0) -> pb.CommandGeoRestoreResponse:
        request = pb.CommandGeoRestore(request_id=1, topic=topic, cluster="a", peer="b", partitions=partitions)
        got: list[pb.CommandGeoRestoreResponse] = []
        self.machine.restore(1, request, b"", got.append, self.wanted.append)
        self.rig.store()
        assert len(got) == 1
        return got[0]

    def send(
        self,
        indexes: list[int],
        *,
        after: tuple[int, int] = (0, -1),
        brought: list[NewEntry] | None = None,
        **more: Any,
    ) -> None:
        brought = brought or [message(f"m{index}", origin="a") for index in indexes]
        fields: dict[str, Any] = {
            "request_id": 9, "topic": TOPIC, "cluster": "a", "peer": "b", "partitions": 0, "incarnation": OLD,
            "ledgers": [OLD] * len(indexes), "entries": indexes, "first_indexes": indexes,
            "counts": [entry.count for entry in brought], "sizes": [len(entry.data) for entry in brought],
            "after_incarnation": after[0], "after_index": after[1],
        }  # fmt: skip
        payload = more.pop("payload", b"".join(entry.data for entry in brought))
        self.machine.restore(
            1, pb.CommandGeoRestore(**(fields | more)), payload, self.answers.append, self.wanted.append
        )
        self.rig.pump()
        self.machine.validate()

    def sync(self) -> None:
        self.rig.sync()
        self.machine.validate()

    def fail(self) -> None:
        self.rig.fail()
        self.machine.validate()

    def held(self) -> list[tuple[int, int, int]]:
        told = self.open()
        return list(zip(told.held_incarnations, told.held_firsts, told.held_ends, strict=True))

    @property
    def log(self) -> Any:
        return self.rig.topics[TOPIC].log

    def stored(self) -> list[tuple[str, int, int]]:
        return [(e.origin, e.incarnation, e.first_index) for _, e in sorted(self.rig.topics[TOPIC].disk.items())]

    @property
    def last(self) -> pb.CommandGeoRestoreResponse:
        return self.answers[-1]


def test_messages_come_back_under_their_old_identity_and_no_link_takes_them() -> None:
    here = Here()
    here.rig.topics[TOPIC].publish(message("new"))
    here.send([0, 1, 2])
    assert here.answers == []
    here.sync()
    assert (here.last.stored, here.last.duplicates) == (3, 0)
    assert here.stored()[1:] == [("a", OLD, 0), ("a", OLD, 1), ("a", OLD, 2)]
    log = here.log
    position = log.position_of(Identity("a", OLD, 1))
    assert position is not None and log.flags_at(position) & EntryFlags.REPLICATED
    assert local_messages(log, Position(-1, -1), log.last) == 1, "only the new one is for links"
    assert log.next_index == 1


def test_the_bytes_are_the_producers_own() -> None:
    here = Here()
    here.send([0], brought=[message("x", origin="a")])
    here.sync()
    (entry,) = here.rig.topics[TOPIC].disk.values()
    assert entry.data == message("x").data
    assert entry.flags & EntryFlags.REPLICATED, "although the metadata do not say so"


def test_repeating_stores_nothing_twice() -> None:
    here = Here()
    here.send([0, 1])
    here.send([0, 1, 2])
    assert here.answers == [], "a duplicate's answer waits for the first copy"
    here.sync()
    assert [(one.stored, one.duplicates) for one in here.answers] == [(2, 0), (1, 2)]
    here.send([0, 1, 2])
    assert (here.last.stored, here.last.duplicates) == (0, 3)
    assert len(here.stored()) == 3


def test_what_retention_deleted_since_does_not_come_again() -> None:
    here = Here()
    here.rig.gone = {OLD: [(0, 2)]}
    assert (OLD, 0, 2) in here.held()
    here.send([0, 1, 2])
    here.sync()
    assert (here.last.stored, here.last.duplicates) == (1, 2)
    here.send([3], after=(OLD, 1))
    here.sync()
    assert here.last.stored == 1, "what was deleted may stand before"


def test_another_peer_fills_what_the_first_did_not_hold() -> None:
    here = Here()
    here.send([5, 6])
    here.sync()
    here.send([0, 5, 6, 9], peer="c")
    here.sync()
    assert (here.last.stored, here.last.duplicates) == (2, 2)
    assert sorted(here.stored()) == [("a", OLD, index) for index in (0, 5, 6, 9)]


def test_nothing_comes_behind_a_failed_append() -> None:
    here = Here()
    here.send([0, 1])
    here.send([2, 3], after=(OLD, 1))
    here.fail()
    assert [one.retry for one in here.answers] == [True, True]
    here.send([4], after=(OLD, 3))
    assert here.last.refused
    here.send([0, 1])
    here.send([2, 3], after=(OLD, 1))
    here.sync()
    assert [index for _, _, index in here.stored()] == [0, 1, 2, 3]


def test_a_failure_told_late_does_not_touch_what_was_staged_since() -> None:
    here = Here()
    here.send([0])
    (lost,) = here.rig.writes.waiting
    here.rig.writes.waiting = []
    here.send([1], after=(OLD, 0))
    here.fail()  # the second; the topic gave up both
    here.send([0])
    lost.token(lost, "late")
    here.rig.topics[TOPIC].log.fail()
    here.send([0])
    here.sync()
    assert [index for _, _, index in here.stored()] == [0]
    assert [(one.stored, one.duplicates) for one in here.answers[2:]] == [(1, 0), (0, 1)]


def test_messages_of_this_life_are_never_taken() -> None:
    here = Here()
    life = here.log.incarnation
    here.send([0, 1], incarnation=life)
    assert (here.last.stored, here.last.duplicates) == (0, 2)
    assert (life, 0, 1 << 62) in here.held()


def test_missing_topics_are_made_with_their_partitions() -> None:
    here = Here(opened=False)
    assert not here.open().blocked
    part = "persistent://public/default/p-partition-1"
    assert not here.open(part, 3).blocked
    assert here.rig.created == [(TOPIC, 0), ("persistent://public/default/p", 3)]
    answer = here.open("persistent://public/default/p", 0)
    assert (answer.blocked, "3 partitions in a" in answer.reason) == ("partitions", True)


def test_a_missing_namespace_is_told_with_the_command_to_run() -> None:
    here = Here(opened=False)
    here.rig.refused[TOPIC] = "namespace public/default does not exist in a: magnetar namespaces create ..."
    answer = here.open()
    assert (answer.blocked, answer.reason) == ("policy", here.rig.refused[TOPIC])
    here.send([0])
    assert here.last.blocked == "policy"


def test_a_spoilt_or_large_entry_stops_its_topic_behind_what_came_before() -> None:
    here = Here(message_bytes_max=200)
    large = message("x" * 300, origin="a")
    here.send([0, 1, 2], brought=[message("a", origin="a"), large, message("c", origin="a")])
    here.sync()
    assert (here.last.stored, here.last.blocked) == (1, "size")
    data = bytearray(message("b", origin="a").data)
    data[-1] ^= 1
    here.send([1], brought=[message("b", origin="a")._replace(data=bytes(data))])
    assert here.last.blocked == "corrupt" and "message 1" in here.last.reason


def test_a_terminated_topic_stops_with_its_reason_and_takes_nothing_but_duplicates() -> None:
    here = Here()
    here.send([0])
    here.sync()
    here.rig.topics[TOPIC].terminated = True
    here.send([0])
    assert (here.last.stored, here.last.duplicates, here.last.blocked) == (0, 1, "")
    here.send([0, 1])
    assert (here.last.stored, here.last.blocked, here.last.retry) == (0, "terminated", False)
    assert "terminated in a" in here.last.reason


def test_room_runs_out() -> None:
    here = Here(pending_bytes_max=1)
    here.send([0])
    here.send([1], after=(OLD, 0))
    assert here.last.retry and here.last.throttle_ms
    here.sync()
    assert here.machine.pending_bytes == 0


def test_a_deleted_topic_answers_who_waits() -> None:
    here = Here()
    here.send([0])
    here.machine.removed(TOPIC)
    assert here.last.retry
    here.send([1])
    here.machine.disconnected(1)
    here.sync()
    assert len(here.answers) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"cluster": "b"},
        {"peer": "a"},
        {"peer": "A!"},
        {"topic": "t"},
        {"topic": "non-persistent://public/default/t"},
        {"counts": [1]},
        {"sizes": [1, 1]},
        {"incarnation": 0},
        {"entries": [-1, 1]},
        {"first_indexes": [1, 1]},
        {"first_indexes": [-1, 1]},
        {"first_indexes": [0, 1 << 62]},
        {"counts": [0, 1]},
        {"counts": [2, 1], "first_indexes": [0, 1]},
        {"partitions": 2},
    ],
)
def test_what_only_a_broken_peer_sends_ends_the_connection(wrong: dict[str, Any]) -> None:
    here = Here()
    with pytest.raises(ProtocolError):
        here.send([0, 1], **wrong)


def test_forged_entries_end_the_connection() -> None:
    here = Here()
    for forged in (message("x"), message("x", origin="c"), message("x", origin="a", count=2)._replace(count=1)):
        with pytest.raises(ProtocolError):
            here.send([0], brought=[forged])
    assert TopicName.parse(TOPIC).persistent and here.stored() == []
