"""The machine of snapshot mode, step by step, in one cluster."""

import pytest

from magnetar.core.ids import EARLIEST, LATEST, NONE, OriginKey, Position
from magnetar.replication.marker_host import Acked
from magnetar.replication.snapshots import Snapshots, refuses_snapshots, state
from magnetar.storage.positions import PositionSet
from magnetar.storage.retention import Trim
from magnetar.storage.topiclog import Retention
from magnetar.wire import markers
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import Epoch, SoughtEpoch
from magnetar.wire.markers import Claim, Snapshot, SnapshotRequest, SnapshotResponse, Update
from magnetar.wire.metadata import build
from tests.unit.replication.snapshots.host import Host

B = OriginKey("b", 1)
A = OriginKey("a", 7)


@pytest.fixture
def host() -> Host:
    return Host("b")


def test_a_round_trip(host: Host) -> None:
    host.subscribe()
    announced = host.take(Update)
    assert announced == [Update("s", {"b": NONE}, Claim({}, {}, (), created=True))]
    first = host.publish()
    assert host.take(SnapshotRequest) == [SnapshotRequest("id1", "a", 1)]
    host.written.append((SnapshotRequest("id1", "a", 1), ()))
    host.answer("b", Position(3, 4))
    (snapshot,) = host.take(Snapshot)
    assert snapshot.clusters == {"b": Position(3, 4)}
    assert snapshot.held == {A: [(0, 1)]}
    assert not host.take(Update)
    host.ack(first)
    (update,) = host.take(Update)
    assert update == Update("s", {"b": Position(3, 4)}, Claim({A: [(0, 1)]}, {}, ()))


def test_first_at_once_then_every_interval_then_silence(host: Host) -> None:
    host.subscribe()
    host.publish()
    assert len(host.take(SnapshotRequest)) == 1
    host.written.append((SnapshotRequest("id1", "a", 1), ()))
    host.answer("b")
    host.publish()
    assert len(host.take(SnapshotRequest)) == 1, "the first one again, no second within the interval"
    host.pass_ms(999)
    assert not host.take(SnapshotRequest)
    host.pass_ms(1)
    assert len(host.take(SnapshotRequest)) == 1
    host.written.append((SnapshotRequest("id2", "a", 1), ()))
    host.answer("b")
    host.written.clear()
    for _ in range(5):
        host.pass_ms(60_000)
    assert not host.written
    assert not host.timers


def test_nothing_without_a_replicated_subscription(host: Host) -> None:
    host.publish()
    host.pass_ms(60_000)
    assert not host.written


def test_the_vector_is_taken_at_the_local_position(host: Host) -> None:
    host.subscribe()
    first = host.publish()
    host.answer("b")
    later = host.arrives("b", 0)
    host.ack(first, later)
    updates = [update for update in host.take(Update) if not update.claim.created]
    assert updates[0].claim.acked == {A: [(0, 1)]}


def test_a_snapshot_that_comes_after_the_acknowledgement(host: Host) -> None:
    host.subscribe()
    host.ack(host.publish())
    host.take(Update)
    host.answer("b")
    assert len(host.take(Update)) == 1


def test_who_was_told_tells_nobody(host: Host) -> None:
    host.arrives("b", 0)
    host.told("b", Update("s", {"a": NONE}, Claim({B: [(0, 1)]}, {}, ())))
    assert host.cursors["s"].backlog_entries() == 0
    host.answer("b")
    host.pass_ms(60_000)
    assert not [update for update in host.take(Update) if update.claim.acked]


def test_late_rounds_do_not_count() -> None:
    host = Host("b", "c")
    host.subscribe()
    host.publish()
    host.answer("b", round_=0)
    host.answer("c", Position(1, 9), round_=0)
    second = host.take(SnapshotRequest)[-1]
    assert (second.snapshot_id, second.round) == ("id1:2", 2)
    host.written.append((SnapshotRequest("id1", "a", 1), ()))
    host.answer("b", round_=0)
    host.answer("c", round_=0)
    assert not host.take(Snapshot), "answers to the first round"
    host.written.append((second, ()))
    host.answer("b", Position(1, 77), round_=0)
    host.answer("c", Position(1, 78), round_=0)
    (snapshot,) = host.take(Snapshot)
    assert snapshot.clusters == {"b": Position(1, 5), "c": Position(1, 9)}, "positions of the first round"


def test_one_answer_is_enough_when_the_time_is_up_and_claims_are_known() -> None:
    host = Host("b", "c")
    host.subscribe()
    host.publish()
    host.answer("b")
    host.pass_ms(30_000)
    (snapshot,) = host.take(Snapshot)
    assert set(snapshot.clusters) == {"b"}
    assert host.machine.missing == {"c": 1_000_000}
    assert any("c did not answer" in note for note in host.notes)
    host.take(SnapshotRequest)
    host.publish()
    host.pass_ms(1000)
    host.answer("b")
    assert host.take(Snapshot), "nobody waits for c now"
    host.arrives("c", 0)
    assert not host.machine.missing


def test_nobody_answers_and_the_topic_is_idle(host: Host) -> None:
    host.subscribe()
    host.publish()
    host.take(SnapshotRequest)
    host.pass_ms(30_000)
    assert host.machine.metrics()["dropped"] == 1
    for _ in range(10):
        host.pass_ms(60_000)
    assert not host.take(SnapshotRequest)
    host.told("b", SnapshotResponse("id1", "b", Position(1, 1), 1), ["a"])
    assert len(host.take(SnapshotRequest)) == 1, "b is back"


def test_a_peer_without_claims_that_is_missing_answers_drops_it() -> None:
    host = Host("b", "c")
    host.subscribe()
    host.publish()
    host.answer("b", round_=0)
    host.pass_ms(30_000)
    assert not host.take(Snapshot)
    assert host.machine.metrics()["dropped"] == 1


def test_requests_are_answered_in_either_mode() -> None:
    host = Host("b", writes=False)
    host.publish()
    host.told("b", SnapshotRequest("x", "b", 1))
    assert host.written == [(SnapshotResponse("x", "a", Position(7, 1), 1), ("b",))]
    host.told("b", SnapshotRequest("y", "b"))
    assert host.written[-1] == (SnapshotResponse("y", "a", Position(7, 3)), ("b",))


def test_what_never_came_to_the_writer_stays(host: Host) -> None:
    kept = [host.arrives("b", index) for index in range(4)]
    host.subscribe()
    host.told("b", Update("s", {"a": kept[3]}, Claim({B: [(0, 1), (2, 4)]}, {}, ())))
    cursor = host.cursors["s"]
    assert [cursor.is_acked(position) for position in kept] == [True, False, True, True]


def test_a_batch_counts_only_as_a_whole(host: Host) -> None:
    batch = host.arrives("b", 0, count=5)
    host.subscribe()
    host.told("b", Update("s", {}, Claim({B: [(0, 4)]}, {}, ())))
    assert not host.cursors["s"].is_acked(batch)
    host.told("b", Update("s", {}, Claim({B: [(0, 5)]}, {}, ())))
    assert host.cursors["s"].is_acked(batch)


def test_acknowledged_before_it_comes(host: Host) -> None:
    host.subscribe()
    host.told("b", Update("s", {}, Claim({OriginKey("c", 3): [(0, 2)]}, {}, ())))
    assert host.cursors["s"].is_acked(host.arrives("c", 0, incarnation=3))
    assert not host.cursors["s"].is_acked(host.arrives("c", 2, incarnation=3))


def test_positions_of_a_peer_that_only_knows_those(host: Host) -> None:
    first, second = host.publish(), host.publish()
    host.subscribe()
    host.told("b", Update("s", {"a": Position(6, 0)}))
    host.told("b", Update("s", {"a": Position(7, 999)}))
    host.told("b", Update("s", {"c": second}))
    assert host.cursors["s"].backlog_entries() == 2
    assert host.machine.metrics()["unknown_positions"] == 2
    host.told("b", Update("s", {"a": first}))
    assert host.cursors["s"].mark_delete == first
    host.told("b", Update("s", {"a": second}))
    host.told("b", Update("s", {"a": first}))
    assert host.cursors["s"].backlog_entries() == 0


def test_an_update_written_before_our_seek_is_ignored(host: Host) -> None:
    first = host.arrives("b", 0)
    host.subscribe()
    host.ack(first)
    answered = []
    host.cursors["s"].reset(first)
    host.machine.sought("s", answered.append)
    assert not answered, "it is not durable yet"
    host.run()
    assert answered == [""]
    (marker,) = host.take(SoughtEpoch)
    host.told("b", Update("s", {}, Claim({B: [(0, 1)]}, {}, ())))
    assert not host.cursors["s"].is_acked(first)
    host.told("b", Update("s", {}, Claim({B: [(0, 1)]}, {}, (marker.epoch,))))
    assert host.cursors["s"].is_acked(first)


def test_a_second_seek_within_the_same_moment(host: Host) -> None:
    host.publish()
    host.subscribe()
    for _ in range(2):
        host.machine.sought("s", lambda error: None)
        host.run()
    one, two = host.take(SoughtEpoch)
    assert two.epoch.time_ms == one.epoch.time_ms + 1


def test_hearing_of_a_seek_forgets_what_was_not_told(host: Host) -> None:
    host.subscribe()
    host.ack(host.publish())
    host.told("b", SoughtEpoch("b", "s", Epoch(1, 5, "b", 1)))
    host.take(Update)
    host.answer("b")
    assert not host.take(Update)
    host.ack(host.publish())
    host.pass_ms(1000)
    host.answer("b")
    (update,) = host.take(Update)
    assert update.claim.seeks == (Epoch(1, 5, "b", 1),)


def test_a_starting_point_is_no_acknowledgement(host: Host) -> None:
    host.publish()
    host.arrives("b", 0)
    host.subscribe(at=LATEST)
    (announced,) = host.take(Update)
    assert announced.claim.base == {A: [(0, 1)], B: [(0, 1)]}
    host.ack(host.publish())
    host.answer("b")
    (update,) = host.take(Update)
    assert update.claim.acked == {A: [(1, 2)]}


def test_bases_merge_by_intersection(host: Host) -> None:
    mine, yours = host.publish(), host.arrives("b", 0)
    cursor = host.subscribe(at=LATEST)
    host.told("b", Update("s", {}, Claim({}, {B: [(0, 1)]}, (), created=True)))
    assert host.rebuilt == ["s"]
    assert not cursor.is_acked(mine)
    assert cursor.is_acked(yours)
    host.told("b", Update("s", {}, Claim({}, {B: [(0, 1)], A: [(0, 1)]}, ())))
    assert host.rebuilt == ["s"]


@pytest.mark.parametrize("by", ["a starting point", "exact mode"])
def test_what_comes_back_where_everything_has_expired_is_not_told_as_acknowledged(host: Host, by: str) -> None:
    """Another cluster wants what the starting point here skipped; it expired here meanwhile, and nobody acknowledged it
    (simulator: snapshot, 96 steps, seed 627).
    """
    first, second = host.publish(), host.publish()
    cursor = host.subscribe(at=LATEST)
    third = host.publish()
    host.take(Update)
    host.expired = second
    if by == "exact mode":
        host.rebuild("s", PositionSet(), {})
        host.machine.moved_back("s", [])
    else:
        host.told("b", Update("s", {}, Claim({}, {}, (), created=True)))
    assert host.rebuilt == ["s"]
    assert cursor.is_acked(first), "it has expired"
    host.ack(third)
    host.pass_ms(1000)
    host.answer("b")
    assert [update.claim.acked for update in host.take(Update) if update.claim.acked] == [{A: [(2, 3)]}]


def test_what_was_acknowledged_does_not_come_back_with_a_starting_point(host: Host) -> None:
    """Seed snapshot 1017 of the simulator, more seeks: it was acknowledged behind a seek, or before a failover brought it."""
    mine, yours = host.publish(), host.arrives("b", 0)
    cursor = host.subscribe(at=LATEST)
    host.known = [(A, 0, 1)]
    host.told("b", Update("s", {}, Claim({}, {}, (), created=True)))
    assert cursor.is_acked(mine)
    assert not cursor.is_acked(yours)


@pytest.mark.parametrize("found", [False, True], ids=["told of", "found"])
@pytest.mark.parametrize("known", [False, True])
def test_what_the_other_mode_brought_as_acknowledged_is_no_starting_point(host: Host, known: bool, found: bool) -> None:
    """A planned move brings a subscription with its set; an update of another cluster, whose base is smaller, comes behind it.
    The machine was there before, or is made only then and finds the subscription (seed 4504).
    """
    positions = [host.arrives("b", index) for index in range(3)]
    host.create("s")
    cursor = host.cursors["s"]
    cursor.ack(positions[:2])
    host.known = [(B, 0, 2)] if known else []
    if found:
        host.machine.load("s", None)
    host.told("b", Update("s", {"a": NONE}, Claim({}, {}, (), created=True)))
    assert cursor.is_acked(positions[1]) == known
    assert host.rebuilt == ([] if known else ["s"])
    assert not cursor.is_acked(positions[2])


def test_a_base_comes_with_the_subscription(host: Host) -> None:
    old, new = host.arrives("b", 0), host.arrives("b", 1)
    host.told("b", Update("s", {}, Claim({}, {B: [(0, 1)]}, (), created=True)))
    assert host.cursors["s"].is_acked(old)
    assert not host.cursors["s"].is_acked(new)


def test_expiry_is_not_told(host: Host) -> None:
    host.subscribe()
    first, second = host.publish(), host.publish()
    host.cursors["s"].ack_up_to(first)
    host.machine.expired("s", NONE, first)
    host.answer("b")
    host.take(Update)
    host.ack(second)
    host.pass_ms(1000)
    if host.take(SnapshotRequest):
        host.written.append((SnapshotRequest("id2", "a", 1), ()))
        host.answer("b")
    (update,) = host.take(Update)
    assert update.claim.acked == {A: [(1, 2)]}


def deleting(host: Host) -> tuple[Trim, Position]:
    """Retention is deleting all messages so far: what it removes, and a message that stays."""
    end = host.log.last
    host.log.roll(host.now_ms)
    kept = host.publish()
    trim = host.log.trim(end, host.now_ms + 1, Retention(0, 0))
    assert trim is not None
    host.first_kept = trim.first_ledger
    return trim, kept


@pytest.mark.parametrize("put", ["brought", "created", "found", "sought", "taken back", "a smaller base"])
def test_what_retention_is_deleting_is_not_told_as_acknowledged(host: Host, put: str) -> None:
    """Seed mixed 889 of the simulator: a cursor was put in front of it, no consumer got it, and others that retain it skipped it.

    What a consumer acknowledges before it is gone counts.
    """
    going, taken = host.publish(), host.publish()
    if put in ("taken back", "a smaller base"):
        host.subscribe(at=LATEST)
    elif put == "sought":
        host.subscribe()
        host.ack(going, taken)
    trim, kept = deleting(host)
    smaller = Update("s", {}, Claim({}, {}, (), created=True))
    match put:
        case "brought" | "a smaller base":
            host.told("b", smaller)
        case "created":
            host.subscribe()
        case "found":
            host.create("s")
            host.machine.load("s", None)
        case "sought":
            host.cursors["s"].reset(EARLIEST)
            host.machine.sought("s", lambda _: None)
        case "taken back":
            host.rebuild("s", PositionSet(), {})
            host.machine.moved_back("s", [])
    assert not host.cursors["s"].is_acked(going)
    host.ack(taken)
    host.log.forget(trim)
    host.machine.trimmed()
    host.ack(kept)
    assert not host.cursors["s"].backlog_entries()
    host.pass_ms(1000)
    host.answer("b")
    assert [update.claim.acked for update in host.take(Update) if update.claim.acked] == [{A: [(1, 3)]}]


ONE_BY_ONE = [Acked(entries=(Position(7, 0), Position(7, 1)))]
CUMULATIVE = [Acked(NONE, Position(7, 1))]
IN_PARTS = [Acked(NONE, Position(7, 0)), Acked(partial={Position(7, 1): 0b01}), Acked(partial={Position(7, 1): 0b10})]


@pytest.mark.parametrize("how", [ONE_BY_ONE, CUMULATIVE, IN_PARTS])
def test_what_is_acknowledged_before_retention_has_deleted_it_is_told(host: Host, how: list[Acked]) -> None:
    taken = [host.publish(), host.publish(2)]
    assert taken == [Position(7, 0), Position(7, 1)]
    trim, kept = deleting(host)
    host.subscribe()
    host.cursors["s"].ack(taken)
    for acked in how:
        host.machine.acknowledged("s", acked)
    host.log.forget(trim)
    host.machine.trimmed()
    host.ack(kept)
    host.pass_ms(1000)
    host.answer("b")
    assert [update.claim.acked for update in host.take(Update) if update.claim.acked] == [{A: [(0, 4)]}]


def test_deleted_here_stays_deleted(host: Host) -> None:
    host.subscribe()
    host.machine.deleted("s")
    del host.cursors["s"]
    mark = host.machine.encode("s")
    host.told("b", Update("s", {}, Claim({}, {}, ())))
    assert "s" not in host.cursors
    again = Host("b")
    again.machine.load("s", mark)
    again.told("b", Update("s", {}, Claim({}, {}, ())))
    assert "s" not in again.cursors
    again.subscribe()
    again.told("b", Update("s", {}, Claim({}, {}, ())))
    assert again.machine.describe("s")["cachedSnapshots"] == 0


def test_what_was_told_before_somebody_subscribed_again_does_not_count_after_a_restart_either(host: Host) -> None:
    """Seed snapshot 14577 with 96 steps: the replay begins at the cursor, which is in front of what was passed over."""
    host.subscribe()
    first = host.arrives("b", 0)
    second = host.arrives("b", 1)
    host.machine.deleted("s")
    del host.cursors["s"]
    host.told("b", Update("s", {}, Claim({B: [(0, 1)]}, {}, ())))
    cursor = host.subscribe()
    host.told("b", Update("s", {}, Claim({B: [(1, 2)]}, {}, ())))
    assert not cursor.is_acked(first)
    state = host.machine.encode("s")
    host.machine = Snapshots(host, new_id=host.new_id)
    after = host.machine.load("s", state)
    host.machine.stored([entry for entry in host.entries if entry.position > after])
    host.machine.started()
    assert not cursor.is_acked(first)
    assert cursor.is_acked(second)


def test_a_subscription_of_the_same_name_that_is_not_replicated(host: Host) -> None:
    first = host.arrives("b", 0)
    host.subscribe("mine")
    host.replicated.clear()
    host.machine.deleted("mine")
    fresh = Host("b")
    fresh.cursors["mine"] = host.cursors["mine"]
    fresh.told("b", Update("mine", {}, Claim({B: [(0, 9)]}, {}, ())))
    assert not host.cursors["mine"].is_acked(first)
    assert any("not replicated here" in note for note in fresh.notes)


@pytest.mark.parametrize(
    ("origin", "marker", "counter"),
    [
        ("x", Update("s", {}), "unknown_clusters"),
        ("b", SnapshotRequest("i", "c"), "unknown_clusters"),
        ("b", SnapshotResponse("i", "c", Position(1, 1)), "unknown_clusters"),
        ("b", SoughtEpoch("c", "s", Epoch(1, 5, "c", 1)), "unknown_clusters"),
        ("b", Update("pulsar.dedup", {}), "bad_names"),
        ("b", Update("", {}), "bad_names"),
    ],
)
def test_markers_that_cannot_be(host: Host, origin: str, marker: markers.Marker, counter: str) -> None:
    host.subscribe()
    host.publish()
    before = host.machine.describe("s"), host.machine.encode("s")
    for _ in range(2):
        host.told(origin, marker)
    assert host.machine.metrics()[counter] == 2
    assert len([note for note in host.notes if origin in note]) == 1, "noted once"
    assert (host.machine.describe("s"), host.machine.encode("s")) == before


def test_malformed_markers_are_passed_over(host: Host) -> None:
    cursor = host.subscribe()
    for kind in (10, 11, 12, 13, 111):
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, marker_type=kind)
        host.raw("b", build(metadata, b"\xff\xff"))
    assert host.machine.metrics()["malformed"] == 5
    assert len([note for note in host.notes if "ignored" in note]) == 1
    assert cursor.backlog_entries() == 0


def test_refused_writes_are_tried_again(host: Host) -> None:
    host.refusing = True
    host.subscribe()
    host.told("b", SnapshotRequest("x", "b", 1))
    assert not host.written
    host.refusing = False
    host.machine.healed()
    host.run()
    kinds = {type(marker) for marker, _ in host.written}
    assert kinds == {SnapshotResponse, Update}


def test_a_failed_update_is_written_again(host: Host) -> None:
    host.subscribe()
    first = host.publish()
    host.answer("b")
    host.take(Update)
    host.cursors["s"].ack((first,))
    host.machine.acknowledged("s", Acked(entries=(first,)))
    assert len(host.take(Update)) == 1
    lost, host.waiting = host.waiting, []
    host.log.fail()
    host.machine.healed()
    assert len(host.take(Update)) == 1
    for _, then in lost:
        assert then is not None
        then(NONE, "late")
    assert not host.take(Update)


def test_retelling_goes_to_whom_it_concerns() -> None:
    host = Host("b", "c")
    host.subscribe()
    host.ack(host.publish())
    host.answer("b")
    host.answer("c")
    host.written.clear()
    host.machine.rebased("b")
    host.run()
    host.pass_ms(1000)
    request = host.take(SnapshotRequest)[-1]
    host.written.append((request, ()))
    host.answer("b")
    host.answer("c")
    updates = [(marker, to) for marker, to in host.written if isinstance(marker, Update) and not marker.claim.created]
    assert [to for _, to in updates] == [("b",)]


def test_retelling_goes_to_nobody_who_comes_later() -> None:
    """Seed snapshot 924 of the simulator: one that comes again may have sought meanwhile, and has nothing to be told again."""
    host = Host("b")
    host.subscribe()
    host.ack(host.publish())
    host.answer("b")
    host.machine.rebased("b")
    host.pass_ms(1000)
    host.written = [(marker, to) for marker, to in host.written if not isinstance(marker, Update)]
    host.answer("b")
    assert [to for marker, to in host.written if isinstance(marker, Update)] == [("b",)]


def test_state_there_and_back(host: Host) -> None:
    host.subscribe()
    host.ack(host.publish())
    data = host.machine.encode("s")
    again = Host("b")
    again.log, again.cursors, again.replicated = host.log, host.cursors, host.replicated
    assert again.machine.load("s", data) == host.cursors["s"].mark_delete
    assert again.machine.encode("s") == data
    for damaged in (b"x", data[:-1], b"\x09" + data[1:]):
        other = Host("b")
        other.cursors = host.cursors
        other.machine.load("s", damaged)
        assert any("damaged" in note or "version" in note for note in other.notes)


def test_refuses() -> None:
    assert refuses_snapshots({("a", "b"), ("b", "a")}) == ""
    text = refuses_snapshots({("a", "b"), ("b", "a"), ("a", "c")})
    assert "none leads from c to a" in text
    assert "exact mode" in text
    assert "\n" not in text


def test_a_subscription_that_was_brought_comes_again_after_a_crash(host: Host) -> None:
    host.told("b", Update("s", {}, Claim({}, {}, (), created=True)))
    again = Host("b", start=False)
    again.log = host.log
    again.machine.stored(host.entries)
    again.machine.started()
    assert "s" in again.cursors


def test_who_subscribed_again_during_a_replay_that_a_crash_ended(host: Host) -> None:
    """Seeds snapshot 7096 and 7150 of the simulator: the stored state says deleted, and the subscription is here."""
    host.subscribe()
    host.take(Update)
    host.machine.deleted("s")
    state = host.machine.encode("s")
    host.machine = Snapshots(host, new_id=host.new_id)
    host.machine.load("s", state)
    host.machine.set_writes(writes=True)
    host.machine.started()
    host.run()
    assert host.take(Update) == [Update("s", {"b": NONE}, Claim({}, {}, (), created=True))], "the others hear of it"
    host.told("b", Update("s", {"a": NONE}, Claim({}, {}, ())))
    host.machine.validate()
    del host.cursors["s"]
    host.replicated.clear()
    host.machine = Snapshots(host, new_id=host.new_id)
    host.machine.load("s", state)
    host.machine.started()
    host.told("b", Update("s", {"a": NONE}, Claim({}, {}, (), created=True)))
    assert "s" not in host.cursors, "deleted here stays deleted"


@pytest.mark.parametrize("writes", [False, True], ids=["exact", "snapshot"])
def test_of_what_the_log_held_the_newest_runs_are_remembered(writes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is for another cluster makes two runs of one, and retention does not change that."""
    monkeypatch.setattr("magnetar.replication.snapshots.machine.RANGES_MAX", 64, raising=False)
    host = Host("b", writes=writes)
    host.subscribe()
    for index in range(0, 200, 2):
        host.arrives("b", index)
        assert host.machine._known_held.count_runs() <= 72
        stored = state.read_held(state.decode(host.machine.encode("s")).held)
        assert stored.count_runs() <= 64
        assert stored.has(B, index, index + 1)


def test_what_was_forgotten_is_not_told_of_a_subscription_that_begins_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log still has it: when there are fewer runs it is remembered again after a restart, and nobody acknowledged it."""
    monkeypatch.setattr("magnetar.replication.snapshots.machine.RANGES_MAX", 6, raising=False)
    host = Host("b")
    for index in range(0, 20, 2):
        host.arrives("b", index)
    host.subscribe(at=LATEST)
    between = [host.arrives("b", index) for index in range(9, 19, 2)]
    data = host.machine.encode("s")
    host.written.clear()
    host.machine = Snapshots(host, new_id=host.new_id)
    host.machine.load("s", data)
    host.machine.started()
    assert host.machine._held.has(B, 0, 1), "remembered again, or this tests nothing"
    last = host.publish()
    host.answer("b")
    host.ack(*between, last)
    (update,) = host.take(Update)
    assert update.claim.acked == {A: [(0, 1)], B: [(index, index + 1) for index in range(9, 19, 2)]}
