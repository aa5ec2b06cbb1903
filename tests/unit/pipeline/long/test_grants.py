"""Grants of one link, and the turns of long batches: pure machines."""

import random
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.link_state import Link
from magnetar.pipeline.long.grants import IGNORED_MS, NOT_NOW, LinkGrants, Wanted
from magnetar.pipeline.long.turns import LEAD_MS, Turns
from magnetar.pipeline.pipeline_state import PipelineState
from magnetar.wire import pulsar_pb2 as pb

NOW = 1_000


def granted(grants: LinkGrants, *topics: str, counter: int = 5) -> list[pb.GeoGrant]:
    """Topics that the source has granted."""
    grants.touch(topics)
    grants.update(topics, True, lambda _topic: Wanted(0, 7, 1), NOW)
    owed, _ = grants.owed()
    grants.answered(owed, (), (), counter, NOW)
    return owed


def test_a_grant_is_owed_until_the_source_has_answered() -> None:
    grants = LinkGrants(count(100))
    grants.update(["t"], True, lambda _topic: Wanted(0, 7, 1), NOW)
    [grant], revoked = grants.owed()
    assert (grant.topic, grant.incarnation, grant.gen, grant.number, revoked) == ("t", 7, 1, 100, [])
    assert grants.carries("t"), "it may be handed out from the moment that it is sent"
    assert grants.owed()[0] == [grant]
    grants.answered([grant], (), (), 5, NOW)
    assert grants.owed() == ([], [])
    assert grants.carries("t")


def test_a_revoked_topic_may_be_confirmed_until_the_source_has_answered() -> None:
    grants = LinkGrants(count(100))
    granted(grants, "t")
    grants.touch(["t"])
    grants.update(["t"], True, lambda _topic: Wanted(NOT_NOW), NOW)
    assert grants.owed() == ([], ["t"])
    assert grants.carries("t")
    grants.touch(["t"])
    grants.update(["t"], True, lambda _topic: Wanted(0, 7, 2), NOW)
    assert grants.owed() == ([], ["t"]), "no second grant before the first one is over"
    grants.answered((), ["t"], (), 6, NOW)
    assert not grants.carries("t")
    grants.update(["t"], True, lambda _topic: Wanted(0, 7, 2), NOW)
    [again], _ = grants.owed()
    assert again.number == 101, "a number is never used twice"


def test_a_link_that_closes_revokes_everything_and_grants_again_when_it_opens() -> None:
    grants = LinkGrants(count(100))
    granted(grants, "t", "u")
    grants.update(["t", "u"], False, lambda _topic: Wanted(0, 7, 1), NOW)
    owed, revoked = grants.owed()
    assert (owed, sorted(revoked)) == ([], ["t", "u"])
    grants.answered((), ["t", "u"], (), 6, NOW)
    grants.update(["t", "u"], True, lambda _topic: Wanted(0, 7, 1), NOW)
    assert sorted(grant.topic for grant in grants.owed()[0]) == ["t", "u"]


def test_a_topic_that_has_to_wait_is_looked_at_again_in_time() -> None:
    grants = LinkGrants(count(100))
    wanted = Wanted(NOW + 300)
    grants.update(["t"], True, lambda _topic: wanted, NOW)
    assert grants.next_ms() == NOW + 300
    grants.update(["t"], True, lambda _topic: wanted, NOW + 299)
    assert grants.owed() == ([], [])
    wanted = Wanted(0, 7, 1)
    grants.update(["t"], True, lambda _topic: wanted, NOW + 300)
    assert [grant.topic for grant in grants.owed()[0]] == ["t"]
    assert grants.next_ms() == 0


def test_a_grant_that_the_source_ignores_is_tried_again_after_a_pause() -> None:
    grants = LinkGrants(count(100))
    grants.update(["t"], True, lambda _topic: Wanted(0, 7, 1), NOW)
    owed, _ = grants.owed()
    grants.answered(owed, (), ["t"], 5, NOW)
    assert not grants.carries("t")
    assert grants.next_ms() == NOW + IGNORED_MS


def test_the_source_says_that_a_grant_is_over() -> None:
    grants = LinkGrants(count(100))
    [grant] = granted(grants, "t", counter=5)
    assert not grants.reported("t", 0, 5), "said before it took the grant"
    assert not grants.reported("t", grant.number, 6)
    assert grants.carries("t")
    assert grants.reported("t", 0, 7)
    assert not grants.carries("t")
    assert not grants.reported("t", 0, 8), "once"


def test_a_topic_that_is_gone_is_forgotten() -> None:
    grants = LinkGrants(count(100))
    granted(grants, "t")
    grants.forget("t")
    assert not grants.carries("t")
    grants.update([], True, lambda _topic: Wanted(NOT_NOW), NOW)
    assert grants.owed() == ([], [])


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(("want", "refuse", "answer", "ended", "shut", "open"))))
)
def test_the_source_and_the_pipeline_agree_in_the_end(steps: list[tuple[str, str]]) -> None:
    """Whatever happens in between, what the source holds when all is answered is what the pipeline wants."""
    grants, source, counter = LinkGrants(count(1)), dict[str, int](), 0
    want, is_open = dict.fromkeys("abc", True), True

    def answer() -> None:
        nonlocal counter
        owed, revoked = grants.owed()
        for topic in revoked:
            source.pop(topic, None)
        for grant in owed:
            source[grant.topic] = grant.number
        counter += 1
        grants.answered(owed, revoked, (), counter, NOW)

    def update() -> None:
        grants.update("abc", is_open, lambda topic: Wanted(0, 1, 1) if want[topic] else Wanted(NOT_NOW), NOW)

    for topic, step in steps:
        if step in ("want", "refuse"):
            want[topic] = step == "want"
            grants.touch([topic])
        elif step == "answer":
            answer()
        elif step == "ended":
            if source.pop(topic, 0):
                counter += 1
            grants.reported(topic, source.get(topic, 0), counter)
            grants.touch([topic])
        else:
            is_open = step == "open"
        update()
        assert all(grants.carries(topic) for topic in source), "what the source may hand out may still be confirmed"
    for _ in range(3):
        for topic in "abc":
            grants.reported(topic, source.get(topic, 0), counter)
        grants.touch("abc")
        update()
        answer()
    assert source.keys() == ({topic for topic in "abc" if want[topic]} if is_open else set())


def test_turns_overlap_a_little() -> None:
    turns = Turns(("a", "b"), 30_000, 40)
    assert turns.at_ms("a") == turns.at_ms("b") == 0
    turns.take("a", NOW)
    assert turns.at_ms("b") == NOW + 30_000 - LEAD_MS, "the other one waits from the moment that one goes"
    assert turns.begin("a", NOW + 10) == 41
    assert turns.at_ms("b") == NOW + 30_010 - LEAD_MS
    assert turns.begin("b", NOW + 28_510) == 42
    assert turns.at_ms("a") == NOW + 58_510 - LEAD_MS
    assert turns.running
    turns.over("a")
    turns.over("b")
    assert turns.at_ms("a") == 0, "at once, when the other one ended early"
    assert not turns.running


def news(boot: int, counter: int, grant: int = 0) -> pb.CommandGeoTopicsResponse:
    """A source's report of one topic at its end."""
    nowhere = pb.GeoPosition(ledger=-1, entry=-1)
    response = pb.CommandGeoTopicsResponse(
        request_id=1, counter=counter, uuid="a-1", boot=boot,
        totals=pb.GeoFetchTotals(task=0, messages=0, bytes=0, duplicates=0),
    )  # fmt: skip
    response.topics.add(
        topic="t", incarnation=7, partitions=0, cursor=pb.GeoCursor(c=nowhere, s=nowhere, gen=1), last=nowhere,
        pending_entries=0, pending_bytes=0, grant=grant,
    )  # fmt: skip
    return response


def test_a_source_that_starts_again_with_an_earlier_clock_gets_its_grants_again() -> None:
    """Simulator, snapshot seed 57: the counter of its new run is lower, so that all its reports were taken for outdated ones."""
    state = PipelineState([Link(0, "a", "b")], random.Random(1), 2, first_grant=100)
    state.source_reported(0, news(boot=9, counter=9_000), NOW)
    [asked] = state.handshakes("b", NOW)
    answer = pb.CommandGeoWatermarksResponse(request_id=1, counter=1, uuid="b-1")
    answer.topics.add(topic="t", persisted=pb.GeoPosition(ledger=-1, entry=-1))
    state.handshake_answered(asked, answer, NOW)
    [owed] = state.owed("a", NOW)
    assert [grant.number for grant in owed.grants] == [100]
    state.commit_answered(owed, (), 9_001, NOW)
    state.source_lost("a")
    state.source_reported(0, news(boot=5, counter=5_000), NOW)
    [owed] = state.owed("a", NOW)
    assert [grant.number for grant in owed.grants] == [101]
