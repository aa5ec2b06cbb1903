"""The destination side, one row of the failure table after another."""

import re
from typing import Any

import pytest

from magnetar.core.errors import ProtocolError
from magnetar.core.ids import NONE, Position
from magnetar.replication.link.destination import LinkDestination, _Waiting
from magnetar.storage.entries import EntryFlags
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import inspect
from magnetar.wire.positions import position_from_proto, position_to_proto
from tests.unit.replication.link.rig import TOPIC, Rig, append_request, message


class Here:
    """Cluster b, and what it answers."""

    def __init__(self, *, greeted: bool = True, **limits: Any) -> None:
        self.rig = Rig()
        self.machine = LinkDestination(self.rig.outbox, cluster="b", uuid="b-1", host=self.rig, boot=1_000, **limits)
        self.answers: list[pb.CommandGeoAppendResponse] = []
        self.wanted: list[pb.CommandGeoSchemasWanted] = []
        if greeted:
            self.greet()

    def greet(self, uuid: str = "a-1", topic: str = TOPIC, partitions: int = 0, **fields: Any) -> pb.GeoWatermark:
        self.told = self.handshake(uuid, topic, partitions, **fields)
        return self.told.topics[0]

    def handshake(
        self, uuid: str = "a-1", topic: str = TOPIC, partitions: int = 0, **fields: Any
    ) -> pb.CommandGeoWatermarksResponse:
        request = pb.CommandGeoWatermarks(request_id=1, source="a", uuid=uuid, counter=0)
        request.topics.add(topic=topic, incarnation=3, partitions=partitions, **fields)
        got: list[pb.CommandGeoWatermarksResponse] = []
        self.machine.watermarks(request, got.append)
        self.rig.store()
        assert len(got) == 1
        return got[0]

    def send(self, *args: Any, connection: int = 1, payload: bytes | None = None, **fields: Any) -> None:
        request, data = append_request(*args, **fields)
        self.machine.append(
            connection, request, data if payload is None else payload, self.answers.append, self.wanted.append
        )
        self.rig.pump()

    def stored(self) -> list[tuple[Position, str, int]]:
        disk = self.rig.topics[TOPIC].disk
        return [(e.source, e.origin, e.first_index) for _, e in sorted(disk.items())]

    @property
    def last(self) -> pb.CommandGeoAppendResponse:
        return self.answers[-1]


def test_an_entry_is_answered_when_it_is_durable_and_says_where_it_came_from() -> None:
    here = Here()
    here.send([message("x"), message("y", count=3)], [(3, 0), (3, 4)], first_indexes=[8, 9])
    assert here.answers == []
    here.rig.sync()
    assert position_from_proto(here.last.persisted) == Position(3, 4)
    assert (here.last.duplicates, here.last.refused) == (0, False)
    entries = list(here.rig.topics[TOPIC].disk.values())
    assert here.stored() == [(Position(3, 0), "a", 8), (Position(3, 4), "a", 9)]
    for entry in entries:
        seen = inspect(entry.data, message_bytes_max=1 << 20)
        assert (seen.metadata.replicated_from, entry.incarnation) == ("a", 3)
        assert seen.flags == entry.flags
        assert entry.flags & EntryFlags.REPLICATED
    assert here.machine.status()["a"]["messages"] == 4
    here.machine.validate()


def test_a_duplicate_in_flight_is_answered_with_its_first_copy() -> None:
    here = Here()
    here.send([message()], [(3, 0)])
    here.send([message()], [(3, 0)], request_id=2, connection=2)
    assert here.answers == []
    here.rig.sync()
    assert [(a.request_id, a.duplicates) for a in here.answers] == [(1, 0), (2, 1)]
    here.send([message()], [(3, 0)], request_id=3)
    assert (here.last.request_id, here.last.duplicates) == (3, 1)
    assert len(here.stored()) == 1


def test_a_broken_chain_is_refused_with_what_is_persisted() -> None:
    here = Here()
    here.send([message()], [(3, 0)])
    here.send([message()], [(3, 2)], Position(3, 1))
    assert here.last.refused
    assert position_from_proto(here.last.persisted) == NONE
    here.rig.sync()
    here.send([message()], [(3, 2)], Position(3, 1))
    assert position_from_proto(here.last.persisted) == Position(3, 0)


def test_a_failed_append_answers_retry_and_the_chain_falls_back() -> None:
    here = Here()
    counter = here.machine.counter
    here.send([message()], [(3, 0)])
    here.send([message()], [(3, 1)], Position(3, 0), request_id=2)
    here.rig.fail()
    assert [(a.request_id, a.retry, a.reason) for a in here.answers] == [
        (1, True, "disk failed"),
        (2, True, "disk failed"),
    ]
    assert here.machine.counter > counter
    assert here.machine.pending_bytes == 0
    here.send([message()], [(3, 1)], Position(3, 0))
    assert here.last.refused
    here.send([message()], [(3, 0)])
    here.rig.sync()
    assert len(here.stored()) == 1


def test_a_failure_that_is_told_in_two_events_leaves_nobody_without_an_answer() -> None:
    here = Here()
    here.send([message()], [(3, 0)])
    here.send([message()], [(3, 1)], Position(3, 0), request_id=2)
    here.rig.pump()
    first, second = here.rig.writes.waiting
    here.rig.writes.waiting.clear()
    here.rig.topics[TOPIC].log.fail()
    here.machine.validate()
    assert not here.answers, "the log fell back; who is told what comes now"
    first.token(first, "disk failed")
    here.machine.validate()
    second.token(second, "disk failed")
    here.machine.validate()
    assert [answer.retry for answer in here.answers] == [True, True]
    here.machine._waiting[TOPIC, "a"] = [_Waiting(1, Position(3, 5), pb.CommandGeoAppendResponse(), lambda _: None)]
    with pytest.raises(AssertionError, match="will never come"):
        here.machine.validate()


def test_a_topic_whose_write_failed_says_try_again() -> None:
    here = Here()
    here.rig.topics[TOPIC].write_failed = True
    here.send([message()], [(3, 0)])
    assert here.last.retry
    assert here.last.reason == "waits for its storage"


def test_too_large_stops_at_that_message_and_keeps_what_came_before() -> None:
    here = Here(message_bytes_max=200)
    here.send([message("a"), message("b" * 300), message("c")], [(3, 0), (3, 1), (3, 2)])
    assert here.answers == []
    here.rig.sync()
    assert (here.last.blocked, position_from_proto(here.last.position)) == ("size", Position(3, 1))
    assert position_from_proto(here.last.persisted) == Position(3, 0)
    assert "over the limit of 200 bytes" in here.last.reason
    here.send([message("b" * 300)], [(3, 1)], Position(3, 0))
    assert here.last.blocked == "size"


def test_spoilt_bytes_are_never_stored() -> None:
    here = Here()
    request, data = append_request([message("abc")], [(3, 0)])
    here.machine.append(1, request, data[:-1] + b"X", here.answers.append, here.wanted.append)
    assert (here.last.blocked, position_from_proto(here.last.position)) == ("corrupt", Position(3, 0))
    assert here.rig.writes.waiting == []


@pytest.mark.parametrize(
    ("fields", "payload"),
    [
        ({"sizes": [1]}, None),
        ({}, b""),
        ({"ledgers": []}, None),
        ({"entries": [0, 1]}, None),
        ({"counts": [2]}, None),
        ({"first_indexes": [-1]}, None),
        ({"p": position_to_proto(Position(3, 0))}, None),
        ({"ledgers": [-4]}, None),
        ({"topic": "t"}, None),
        ({"topic": "non-persistent://public/default/t"}, None),
        ({"topic": "persistent://public/default/../t"}, None),
    ],
)
def test_what_only_a_broken_peer_sends_ends_the_connection(fields: dict[str, Any], payload: bytes | None) -> None:
    here = Here()
    with pytest.raises(ProtocolError):
        here.send([message()], [(3, 0)], payload=payload, **fields)
    assert here.rig.writes.waiting == []


def test_positions_must_ascend() -> None:
    here = Here()
    with pytest.raises(ProtocolError, match="ascend"):
        here.send([message(), message()], [(3, 1), (3, 1)])


def test_no_relays_and_no_forged_origins() -> None:
    here = Here()
    with pytest.raises(ProtocolError, match="no relays"):
        here.send([message(origin="c")], [(3, 0)])


@pytest.mark.parametrize(
    ("uuid", "reason"), [("b-2", "two clusters are called b: b-1.*and b-2"), ("b-1", "back to itself")]
)
def test_a_link_from_a_cluster_of_the_same_name_is_told_why_it_is_refused(uuid: str, reason: str) -> None:
    here = Here(greeted=False)
    here.machine.uuid = "b-1"
    got: list[Any] = []
    request = pb.CommandGeoWatermarks(request_id=1, source="b", uuid=uuid, counter=0)
    request.topics.add(topic=TOPIC, incarnation=3, partitions=0)
    here.machine.watermarks(request, got.append)
    assert got[0].blocked == "identity"
    assert re.search(reason, got[0].reason)
    assert not here.rig.stores.waiting, "nobody is believed for it"
    assert not here.rig.created


def test_policy_stops_the_topic_and_gives_the_command() -> None:
    here = Here()
    here.rig.refused[TOPIC] = "namespace public/default does not exist in b: magnetar namespaces create public/default"
    here.send([message()], [(3, 0)])
    assert (here.last.blocked, "magnetar namespaces create" in here.last.reason) == ("policy", True)
    assert here.greet().blocked == "policy"
    here.rig.refused.clear()
    assert not here.greet().blocked


def test_a_topic_that_is_gone_is_refused_with_nothing_and_made_anew_by_the_handshake() -> None:
    here = Here()
    here.send([message()], [(3, 0)])
    here.rig.sync()
    counter = here.machine.counter
    del here.rig.topics[TOPIC]
    here.machine.removed(TOPIC)
    assert here.machine.counter > counter
    here.send([message()], [(3, 1)], Position(3, 0))
    assert (here.last.refused, position_from_proto(here.last.persisted)) == (True, NONE)
    assert position_from_proto(here.greet().persisted) == NONE
    assert TOPIC in here.rig.topics


def test_deleting_a_topic_answers_whoever_waits() -> None:
    here = Here()
    here.send([message()], [(3, 0)])
    del here.rig.topics[TOPIC]
    here.machine.removed(TOPIC)
    assert here.last.retry


def test_a_connection_that_is_gone_gets_no_answer_but_its_entries_stay() -> None:
    here = Here()
    here.send([message()], [(3, 0)], connection=4)
    here.machine.disconnected(4)
    here.rig.sync()
    assert here.answers == []
    assert len(here.stored()) == 1


def test_too_much_on_its_way_asks_for_a_pause() -> None:
    here = Here(pending_bytes_max=10)
    here.send([message()], [(3, 0)])
    here.send([message()], [(3, 1)], Position(3, 0))
    assert (here.last.retry, here.last.throttle_ms > 0) == (True, True)
    here.rig.sync()
    here.send([message()], [(3, 1)], Position(3, 0))
    here.rig.sync()
    assert len(here.stored()) == 2


# ------------------------------------------------------------------------------------------------------------ partitions


def test_partitions_are_made_and_grow_and_never_shrink() -> None:
    here = Here(greeted=False)
    assert not here.greet(topic=f"{TOPIC}-partition-1", partitions=2).blocked
    assert here.rig.created == [(TOPIC, 2)]
    assert not here.greet(topic=f"{TOPIC}-partition-3", partitions=4).blocked
    assert here.rig.counts[TOPIC] == 4
    assert not here.greet(topic=f"{TOPIC}-partition-1", partitions=2).blocked
    assert here.rig.counts[TOPIC] == 4


def test_one_request_makes_a_partitioned_topic_once() -> None:
    here = Here(greeted=False)
    request = pb.CommandGeoWatermarks(request_id=1, source="a", uuid="a-1", counter=0)
    for number in range(3):
        request.topics.add(topic=f"{TOPIC}-partition-{number}", incarnation=3, partitions=3)
    got: list[Any] = []
    here.machine.watermarks(request, got.append)
    here.rig.store()
    assert here.rig.created == [(TOPIC, 3)]
    assert [w.blocked for w in got[0].topics] == ["", "", ""]


@pytest.mark.parametrize(("here_count", "there", "name"), [(0, 2, f"{TOPIC}-partition-0"), (4, 0, TOPIC)])
def test_partitioned_on_one_side_only_blocks_with_both_counts(here_count: int, there: int, name: str) -> None:
    here = Here(greeted=False)
    here.rig.counts[TOPIC] = here_count
    told = here.greet(topic=name, partitions=there)
    assert told.blocked == "partitions"
    assert f"{there or 'no'} partitions at the source" in told.reason
    assert f"{here_count or 'no'} partitions in b" in told.reason


def test_impossible_partitions_end_the_connection() -> None:
    here = Here(greeted=False)
    for name, count in ((TOPIC, 3), (f"{TOPIC}-partition-3", 3), (f"{TOPIC}-partition-0", 100_000)):
        with pytest.raises(ProtocolError):
            here.greet(topic=name, partitions=count)


def test_a_topic_that_cannot_be_made_is_blocked() -> None:
    here = Here(greeted=False)
    got: list[Any] = []
    request = pb.CommandGeoWatermarks(request_id=1, source="a", uuid="a-1", counter=0)
    request.topics.add(topic=TOPIC, incarnation=3, partitions=0)
    here.machine.watermarks(request, got.append)
    here.rig.stores.waiting.clear()
    here.rig.pump()
    here.rig.stores.waiting.popleft().then("")  # type: ignore[misc]
    here.rig.pump()
    here.rig.store("no room")
    assert (got[0].topics[0].blocked, "no room" in got[0].topics[0].reason) == ("policy", True)


# -------------------------------------------------------------------------------------------------------------- identity


def test_append_before_the_handshake_has_to_wait() -> None:
    here = Here(greeted=False)
    here.rig.topic()
    here.send([message()], [(3, 0)])
    assert here.last.retry
    assert here.stored() == []


def test_who_a_cluster_is_survives_a_restart() -> None:
    here = Here()
    again = LinkDestination(here.rig.outbox, cluster="b", uuid="b-1", host=here.rig, boot=2_000)
    again.load(here.rig.meta)
    assert again.peers.known()["a"][0] == "a-1"
    assert again.counter > here.machine.counter


def test_two_clusters_of_one_name_are_told_both_uuids() -> None:
    here = Here()
    told = here.handshake("a-2")
    assert told.blocked == "identity"
    assert "a-1" in told.reason
    assert "a-2" in told.reason
    here.send([message()], [(3, 0)], uuid="a-2")
    assert here.last.blocked == "identity"


def test_a_wiped_cluster_is_believed_after_silence_and_the_old_one_never_again() -> None:
    here = Here(silence_ms=10_000)
    here.rig.later(9_999)
    assert here.handshake("a-2").blocked == "identity"
    here.rig.later(1)
    assert not here.handshake("a-2").blocked
    assert here.handshake("a-1").blocked == "identity"
    here.send([message()], [(3, 0)], uuid="a-1")
    assert here.last.blocked == "identity"
    here.rig.later(60_000)
    assert here.handshake("a-1").blocked == "identity"


def test_the_old_one_need_only_be_heard_of_to_keep_its_name() -> None:
    here = Here(silence_ms=10_000)
    here.rig.later(8_000)
    assert not here.handshake("a-1").blocked
    here.rig.later(8_000)
    assert here.handshake("a-2").blocked == "identity"


def test_an_heir_that_begins_below_what_is_known_is_told_to_leave_it_behind() -> None:
    here = Here(silence_ms=10_000)
    here.send([message()], [(30, 5)])
    here.rig.sync()
    here.rig.later(20_000)
    told = here.handshake("a-2", start=position_to_proto(Position(10, 0)))
    assert told.blocked == "identity"
    assert told.topics[0].foreign
    assert position_from_proto(told.topics[0].persisted) == Position(30, 5)
    assert not here.handshake("a-2", start=position_to_proto(Position(30, 5))).blocked


def test_an_answer_waits_for_the_books() -> None:
    here = Here(greeted=False)
    request = pb.CommandGeoWatermarks(request_id=1, source="a", uuid="a-1", counter=0)
    got: list[Any] = []
    here.machine.watermarks(request, got.append)
    assert got == []
    here.machine.watermarks(request, got.append)
    assert got[0].blocked == "identity"
    here.rig.store("disk full")
    assert "disk full" in got[1].reason
    here.machine.watermarks(request, got.append)
    here.rig.store()
    assert not got[2].blocked


def test_an_entry_without_a_checksum_is_stored_with_one() -> None:
    here = Here()
    whole = message("no checksum")
    bare = whole._replace(data=whole.data[6:])
    here.send([bare], [(3, 0)])
    here.rig.sync()
    [entry] = here.rig.topics[TOPIC].disk.values()
    seen = inspect(entry.data, message_bytes_max=1 << 20)
    assert seen.metadata.replicated_from == "a"
    assert entry.data[seen.metadata_end :] == b"no checksum"


def test_a_late_task_of_a_topics_former_life_does_not_pass_for_its_present_one() -> None:
    """Else the topic seems to begin anew, and once more with the next handshake: a full state of every subscription each time."""
    here = Here(greeted=False)
    heard = here.rig.active
    here.greet()
    assert heard == [("a", True)]
    here.send([message()], [(2, 0)], incarnation=2)
    here.greet()
    assert heard == [("a", True)]
    assert here.machine.incarnations.of(TOPIC, "a") == 3


def test_a_handshake_tells_the_incarnation_of_the_topic_here() -> None:
    """The source lets go of what the former one retained (docs/design/acknowledged-sets.md#forgetting)."""
    here = Here(greeted=False)
    told = here.greet()
    assert told.incarnation == here.rig.topics[TOPIC].log.incarnation > 0
