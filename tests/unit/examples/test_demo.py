"""The demo's bookkeeping: it must see every loss, every second copy, every change of order; and its real data."""

import io
import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from examples.demo import flights, report, schema, world
from examples.demo.flights import Departures
from examples.demo.outbox import BOOKINGS, TTL_S, Booked
from examples.demo.players import Consumer, Publisher
from examples.demo.ports import free_ports
from examples.demo.reasons import KILLED, MOVED, judge
from examples.demo.running import FAST_FLIGHTS
from examples.demo.screen import Plain, Quiet, screen
from examples.demo.script import Outcome
from examples.demo.staleness import Staleness
from examples.demo.tally import Board, Link, Tally
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.errors import MagnetarError

HEAD = [
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "carrier", "flight", "tailnum", "origin", "dest",
]  # fmt: skip


def row(origin: str, day: int, minute: int, tail: str = "N1") -> list[str]:
    return ["2013", "1", str(day), "NA", str(minute), "-4", "UA", "15", tail, origin, "MIA"]


def outcome(payloads: dict[str, list[bytes]]) -> tuple[Outcome, Board]:
    board = Board()
    counts = {origin: len(some) for origin, some in payloads.items()}
    numbers = {one: (origin, n) for origin, some in payloads.items() for n, one in enumerate(some)}
    watchers = {cluster: Tally(cluster, counts, numbers, board) for cluster in payloads}
    return Outcome(counts, watchers, Tally("consumer", counts, numbers, board), booked=booked()), board


def booked() -> Booked:
    """The outbox and the metadata, all as it should be."""
    held = {cluster: [str(number) for number in range(BOOKINGS)] for cluster in ("ewr", "jfk")}
    return Booked(2 * BOOKINGS, held, 100, dict.fromkeys(held, TTL_S), agree=True)


def test_every_fault_of_the_outbox_and_of_the_metadata_counts() -> None:
    assert booked().faults() == []
    lost = booked()
    lost.held["ewr"][3] = "4"
    assert lost.faults() == ["ewr lacks 1 bookings and holds 1 twice"]
    late = booked()
    late.ttl_s["jfk"] = None
    assert late.faults() == [f"jfk has message TTL None of public/bookings, not {TTL_S} s"]
    apart = booked()
    apart.agree = False
    assert apart.faults() == ["the clusters do not agree about their metadata"]
    assert Booked().faults()


PAYLOADS = {"ewr": [b"e0", b"e1"], "jfk": [b"j0", b"j1", b"j2"]}


def complete(found: Outcome) -> None:
    for tally in (*found.watchers.values(), found.consumer):
        for some in PAYLOADS.values():
            for one in some:
                tally.arrive(one, 1)
    found.staleness = [5, 7, 12_345]


def verified(**more: Any) -> dict[str, Any]:
    rows = [
        {"cluster": name, "messages": 5, "missing": 0, "duplicated": 0, "reordered": 0, "altered": 0}
        for name in PAYLOADS
    ]
    return {"messages": 5, "clean": True, "clusters": rows} | more


# ------------------------------------------------------------------------------------------------------------ flights


def decoded(payload: bytes, age: Any) -> dict[str, Any]:
    found = fastavro.schemaless_reader(io.BytesIO(payload), schema.parsed(age), None)
    assert isinstance(found, dict)
    return found


def test_what_was_decoded_is_judged_by_its_bytes() -> None:
    known = flights.flight(3, dict(zip(HEAD, row("EWR", 1, 2), strict=True)) | {"arr_delay": "-10"})
    assert known["made_up"] == 6
    old, new = schema.encode(known, "old"), schema.encode(known, "new")
    # The reader of the old one sees the default, and it is the old one all the same.
    assert schema.age_of(known | {"made_up": None}, old) == "old"
    assert schema.age_of(known, new) == "new"
    assert schema.age_of(known | {"row": 4}, new) is None
    assert schema.age_of(None, new) is None
    for age, payload in (("old", old), ("new", new)):
        official = schema.official("new")
        official.attach_client(None)
        writer = json.loads(json.dumps(schema.definition(age)))  # type: ignore[arg-type]
        assert schema.age_of(official._decode_bytes(payload, writer), payload) == age


def test_departures_are_by_airport_in_scheduled_order() -> None:
    data = [HEAD, row("EWR", 2, 500), row("JFK", 1, 30), row("EWR", 1, 600), row("EWR", 2, 45), row("LGA", 1, 1, "NA")]
    found = flights.departures(data)
    ages = ["old", "new", "new"]
    told = [decoded(one, age) for one, age in zip(found["ewr"].payloads, ages, strict=True)]
    assert [one["row"] for one in told] == [2, 3, 0]
    assert (found["ewr"].evolves_at, found["jfk"].evolves_at) == (1, None)
    assert found["lga"].keys == ["UA15"]
    (departure,) = (decoded(one, "old") for one in found["lga"].payloads)
    assert (departure["dep_time"], departure["sched_dep_time"], departure["dep_delay"]) == (None, 1, -4)
    assert {name: len(one) for name, one in flights.departures(data, 1).items()} == {"ewr": 1, "jfk": 1, "lga": 1}


def test_the_data_is_real_and_complete() -> None:
    lines = flights.rows(flights.source())
    head = next(lines)
    origin = head.index("origin")
    counts: dict[str, int] = {}
    for line in lines:
        counts[line[origin].lower()] = counts.get(line[origin].lower(), 0) + 1
    assert counts == {"ewr": 120_835, "jfk": 111_279, "lga": 104_662}
    assert sum(counts.values()) == flights.FLIGHTS


def test_january_comes_first_and_at_once() -> None:
    lines = list(flights.rows(flights.source()))
    month = lines[0].index("month")
    first = list(flights.january(lines))
    assert len(first) - 1 == sum(line[month] == "1" for line in lines[1:]) == 27_004
    assert all(len(one) == FAST_FLIGHTS for one in flights.departures(first, FAST_FLIGHTS).values())


def test_no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(flights.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MagnetarError, match=r"magnetar\[demo\]"):
        flights.source()
    path = tmp_path / "flights.csv.zip"
    path.write_bytes(b"no zip")
    with pytest.raises(MagnetarError, match="cannot be read"):
        list(flights.rows(path))


# -------------------------------------------------------------------------------------------------------------- tally


def test_all_is_well() -> None:
    found, _ = outcome(PAYLOADS)
    complete(found)
    assert found.faults() == []
    result = report.summary(found, verified())
    assert (result["ok"], result["lost"], result["faults"]) == (True, 0, [])
    assert [one["link"] for one in result["links"]] == ["jfk:ewr", "ewr:jfk"]


def spoil_missing(found: Outcome) -> None:
    found.watchers["jfk"].links["ewr"] = Link(2)


def spoil_staleness(found: Outcome) -> None:
    found.staleness = ()


def spoil_twice(found: Outcome) -> None:
    found.watchers["jfk"].arrive(b"e1", 1)


def spoil_order(found: Outcome) -> None:
    link = found.watchers["jfk"].links["ewr"] = Link(2)
    link.arrive(1, 2, 0, 1, True)
    link.arrive(0, 2, 0, 1, True)


def spoil_decoding(found: Outcome) -> None:
    found.watchers["ewr"].decode(0, None)


def spoil_version(found: Outcome) -> None:
    found.watchers["ewr"].decode(-1, "old")


def spoil_evolution(found: Outcome) -> None:
    found.evolved = 1
    for tally in (*found.watchers.values(), found.consumer):
        tally.decode(1, "new" if tally is not found.watchers["jfk"] else "old")


def spoil_registry(found: Outcome) -> None:
    found.versions = {"ewr": [0, 1], "jfk": [0]}


def spoil_bytes(found: Outcome) -> None:
    found.consumer.arrive(b"altered", 1)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_missing, "the reader in jfk never got 2 flights"),
        (
            spoil_staleness,
            "how soon other clusters know of acknowledgements was not measured: none was seen in two clusters",
        ),
        (spoil_twice, "the reader in jfk got 1 flights twice without a reason"),
        (spoil_order, "the reader in jfk got 2 flights out of their origin's order"),
        (spoil_decoding, "the reader in ewr could not decode 1 flights with the schema they were written with"),
        (spoil_version, "the reader in ewr could not decode 1 flights with the schema they were written with"),
        (spoil_evolution, "the reader in jfk saw the new field in 0 of 1 flights"),
        (spoil_registry, "jfk has 1 schemas of the topic, two were published"),
        (spoil_bytes, "the consumer got 1 messages that are no flights as published"),
    ],
)
def test_every_fault_is_seen(spoil: Callable[[Outcome], None], words: str) -> None:
    found, _ = outcome(PAYLOADS)
    complete(found)
    spoil(found)
    assert found.faults() == [words]
    assert report.summary(found, verified())["ok"] is False


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"messages": 4}, "verify counts 4 different messages, 5 were published"),
        ({"clean": False}, "verify says that the clusters differ"),
    ],
)
def test_verify_is_believed(change: dict[str, Any], words: str) -> None:
    found, _ = outcome(PAYLOADS)
    complete(found)
    assert words in report.summary(found, verified(**change))["faults"]


def figures(found: Outcome) -> dict[str, Any]:
    """The verdict's table."""
    rows = report.verdict(found)
    assert all(tuple(one) == report.VERDICT_COLUMNS for one in rows)
    return dict(tuple(one.values()) for one in rows)


STALENESS = "acknowledged in one cluster, known in the others after, "


def test_the_table_says_what_the_demo_is_for() -> None:
    found, _ = outcome(PAYLOADS)
    complete(found)
    assert figures(found) == {
        "messages published": 5,
        "messages lost": 0,
        "messages delivered twice": 0,
        STALENESS + "p50": "7 ms",
        STALENESS + "p99": "12.3 s",
    }


def test_the_table_says_why_messages_came_twice_and_what_is_lost() -> None:
    found, _ = outcome(PAYLOADS)
    complete(found)
    for one in (b"e0", b"e1", b"j0"):
        found.consumer.arrive(one, 2)
    found.consumer.reasons = Counter({KILLED: 1, MOVED: 1})
    spoil_missing(found)
    found.staleness = ()
    assert figures(found) == {
        "messages published": 5,
        "messages lost": 2,
        "messages delivered twice": 3,
        "of these acknowledged in jfk, and lga did not know when jfk was killed": 1,
        "of these sent to the consumer in lga and not acknowledged in time for the planned move": 1,
        "of these without a reason": 1,
        STALENESS + "p50": "not measured",
        STALENESS + "p99": "not measured",
    }


@pytest.mark.parametrize("kind", ["missing", "duplicated", "reordered", "altered", "messages"])
def test_every_count_of_verify_counts(kind: str) -> None:
    found, _ = outcome(PAYLOADS)
    complete(found)
    told = verified()
    told["clusters"][1][kind] = 7
    (line,) = report.summary(found, told)["faults"]
    assert "jfk" in line
    assert "7" in line


@given(st.lists(st.integers(0, 9), max_size=40))
def test_a_link_counts_as_a_set_does(numbers: list[int]) -> None:
    link = Link(10)
    for at, number in enumerate(numbers):
        link.arrive(number, 1, at, at + 5, True)
    firsts = list(dict.fromkeys(numbers))
    assert link.arrived == len(firsts)
    assert link.missing == 10 - len(firsts)
    assert link.again == len(numbers) - len(firsts)
    assert (link.disorder == 0) == (firsts == list(range(len(firsts))))
    assert list(link.calm) == [5] * len(firsts)


def test_throughput_is_of_the_time_when_there_was_something_to_send() -> None:
    link = Link(4)
    link.arrive(0, 1, 1000, 1100, True)  # busy 100 ms
    link.arrive(1, 1, 1050, 1150, True)  # 50 ms more
    link.arrive(2, 1, 9000, 9050, True)  # idle before; 50 ms
    link.arrive(3, 1, 9100, 12_000, False)  # broken: does not count
    assert (link.busy_ms, link.per_second, link.lag_max_ms) == (200, 15.0, 2900)


@given(st.lists(st.integers(-100, 100)), st.floats(0, 1))
def test_percentile_is_the_smallest_value_that_covers_the_share(values: list[int], share: float) -> None:
    found = report.percentile(values, share)
    if not values:
        assert found is None
        return
    assert found is not None
    below = sum(value <= found for value in values)
    assert below >= share * len(values) - 1e-9
    assert all(sum(value <= other for value in values) < share * len(values) for other in values if other < found)


HOLDERS = {1: {"jfk"}, 2: {"lga"}, 3: {"jfk"}, 9: {"jfk", "lga"}}
"""Which cluster has which ledger; 9 was given by both."""


def judged(
    deliveries: list[tuple[int, int]], replicated: int | None = 2, redelivered: int = 0
) -> tuple[dict[str, int], dict[str, int]]:
    """Reasons and what has none, of (flight, ledger) in the order of delivery."""
    found, board = outcome({"jfk": [b"%d" % number for number in range(10)]})
    consumer = Consumer("s", found.consumer, "pulsar://x", "t", board)
    for flight, ledger in deliveries:
        consumer.note(b"%d" % flight, ledger)
    verdict = judge(
        consumer.again,
        consumer.acknowledged,
        lambda ledger: frozenset(HOLDERS.get(ledger, ())),
        first="jfk",
        second="lga",
        replicated=replicated,
        redelivered=redelivered,
    )
    return dict(verdict.reasons), dict(verdict.strange)


def test_what_the_other_cluster_did_not_have_yet_when_a_broker_was_killed_may_come_again() -> None:
    in_jfk = [(number, 1) for number in range(5)]
    assert judged([*in_jfk, (2, 2), (3, 2), (4, 2), (5, 2)]) == ({KILLED: 3}, {})
    assert judged([*in_jfk, (1, 2), (2, 2)]) == ({KILLED: 1}, {"whose acknowledgement lga had": 1})
    assert judged([*in_jfk, (2, 2)], replicated=None) == ({}, {"in lga without any broker having been killed": 1})
    # Both have a ledger of this number: it may have been either.
    assert judged([*[(number, 9) for number in range(5)], (2, 2)]) == ({KILLED: 1}, {})


def test_what_the_planned_move_reported_may_come_again_and_no_more() -> None:
    there = [(0, 1), (1, 2), (2, 2), (3, 2)]
    assert judged([*there, (2, 3), (3, 3)], redelivered=2) == ({MOVED: 2}, {})
    assert judged([*there, (2, 3), (3, 3)], redelivered=1) == ({MOVED: 1}, {"more than the planned move reported": 1})
    assert judged([*there, (2, 3)]) == ({}, {"more than the planned move reported": 1})
    # Acknowledged in jfk after the way back, and again in lga: nobody was killed then.
    assert judged([*there, (4, 3), (4, 2)]) == ({}, {"in lga after the way back": 1})


def test_nothing_may_come_again_in_the_cluster_where_it_was_acknowledged() -> None:
    assert judged([(0, 1), (0, 1), (1, 2), (1, 2), (2, 7), (2, 3)]) == (
        {},
        {
            "first in jfk and again in jfk": 1,
            "first in lga and again in lga": 1,
            "first in nowhere and again in jfk": 1,
        },
    )
    found, board = outcome(PAYLOADS)
    consumer = Consumer("s", found.consumer, "pulsar://x", "t", board)
    consumer.note(b"unknown", 1)
    consumer.note(b"j0", 1)
    consumer.note(b"j0", 2)
    assert (len(consumer.acknowledged), len(consumer.again)) == (1, 1)


def test_staleness_is_from_the_first_cluster_that_shows_it_to_each_other() -> None:
    board = Board()
    seen = Staleness({"a": "http://a", "b": "http://b", "c": "http://c"}, "t", "s", board)
    seen.see("a", 10, 1_000)
    seen.see("b", 4, 1_100)
    seen.see("a", 20, 1_200)
    seen.see("b", 15, 1_300)
    seen.see("c", 20, 1_500)
    # b: 4 after 100 ms, 6 after 300 ms, 5 after 100 ms; c: 10 after 500 ms, 10 after 300 ms.
    assert sorted(seen.calm) == [100] * 9 + [300] * 16 + [500] * 10
    board.trouble(1_600)
    seen.see("a", 30, 1_700)
    seen.see("b", 30, 1_900)
    assert len(seen.calm) == 40, "what b lacked of the calm time counts, what was made in trouble does not"


def test_what_the_planned_move_did_counts() -> None:
    found, _ = outcome(PAYLOADS)
    complete(found)
    found.moved = {"skipped": 3, "redelivered": 0, "pause_ms": 100}
    found.followed = False
    found.staleness = [5, 7]
    assert found.faults() == [
        "the planned move skipped 3 messages",
        "the consumer did not follow its subscription back to jfk",
    ]
    told = report.summary(found, verified())["subscription"]
    assert (told["staleness_p50_ms"], told["staleness_p99_ms"]) == (5, 7)
    assert any("3 skipped, 100 ms" in line for line in report.sentences(found))


# -------------------------------------------------------------------------------------------------------------- board


def test_the_board_waits_for_progress() -> None:
    board, seen = Board(), []
    timer = threading.Timer(0.05, lambda: seen.append(1))
    timer.start()
    assert board.wait(lambda: bool(seen), patience_s=20) is None
    timer.join()


def test_the_board_loses_patience_when_nothing_moves() -> None:
    board = Board()
    assert board.wait(lambda: False, patience_s=0.0) == ""


def test_the_board_passes_a_failure_on() -> None:
    board = Board()
    board.fail("publisher in jfk: broken")
    board.fail("later")
    assert board.wait(lambda: False, patience_s=20) == "publisher in jfk: broken"
    assert board.wait(lambda: True, patience_s=20) is None


def test_calm_and_trouble() -> None:
    board = Board()
    board.healed(5)  # nothing was broken
    board.trouble(10)
    assert (board.calm_at(9), board.calm_at(10), board.calm_at(10**15)) == (True, False, False)
    board.healed(20)
    assert (board.calm_at(20), board.calm_at(21)) == (False, True)


# ------------------------------------------------------------------------------------------------- players and screens


class FakeProducer:
    def __init__(self) -> None:
        self.sent: list[tuple[bytes, str]] = []
        self.flushed = 0

    def send_async(self, payload: bytes, callback: Callable[[object, object], None], partition_key: str) -> None:
        self.sent.append((payload, partition_key))
        callback("Ok", None)

    def flush(self) -> None:
        self.flushed += 1

    def close(self) -> None:
        pass


class FakeClient:
    def __init__(self, producer: FakeProducer) -> None:
        self.producer = producer
        self.ages: list[tuple[int, int]] = []

    def create_producer(self, topic: str, **options: Any) -> FakeProducer:
        info = json.loads(options["schema"].schema_info().schema())
        self.ages.append((len(self.producer.sent), len(info["fields"])))
        return self.producer


def test_a_publisher_goes_as_far_as_it_may_and_in_order() -> None:
    departures = Departures("jfk", [b"%d" % n for n in range(100)], [f"N{n}" for n in range(100)], 50)
    board, producer = Board(), FakeProducer()
    client = FakeClient(producer)
    publisher = Publisher(departures, 100_000, "pulsar://x", "t", board)
    thread = threading.Thread(target=publisher.play, args=(client,))
    thread.start()
    publisher.allow(0.4)
    assert board.wait(lambda: publisher.confirmed >= 40 and producer.flushed > 0, patience_s=20) is None
    assert len(producer.sent) == 40
    publisher.allow(1.0)
    thread.join(20)
    assert [payload for payload, _ in producer.sent] == departures.payloads
    assert [key for _, key in producer.sent] == departures.keys
    # Half way the producer is closed, and another one goes on with a field more.
    assert client.ages == [(0, 20), (50, 21)]


def test_a_flight_that_is_not_stored_ends_the_demo() -> None:
    board = Board()
    publisher = Publisher(Departures("jfk", [b"x"], ["N"]), 1, "pulsar://x", "t", board)
    publisher._confirm("TimeOut", None)
    assert board.wait(lambda: False, patience_s=20) == "publisher in jfk: a flight was not stored: TimeOut"
    assert publisher.confirmed == 0


def test_without_a_terminal_there_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(screen(as_json=True), Quiet)
    shown = screen(as_json=False)
    assert isinstance(shown, Plain)
    shown.step("a step")
    shown.bars({"published": lambda: (1234, 5000)})
    shown.look()
    shown._printed = -1e9
    shown.look()
    shown.look()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("s  ", 1)[1] for line in lines] == ["a step", "published 1,234"]


# -------------------------------------------------------------------------------------------------- processes, command


def test_free_ports_are_different() -> None:
    found = free_ports(10)
    assert len(set(found)) == 10


def test_a_process_that_does_not_become_ready(tmp_path: Path) -> None:
    process = world.Process("broker x", ["broker", "x", "-c", str(tmp_path / "no.toml")], " ready ", tmp_path, 30)
    with pytest.raises(MagnetarError, match=r"broker x ended with exit code 1: magnetar: .*no\.toml: cannot be read"):
        process.start()
    process.kill()
    assert not process.running


def test_a_brief_java_keeps_the_users_options() -> None:
    assert world.brief_java({}) == {"JDK_JAVA_OPTIONS": world.BRIEF_JAVA}
    assert world.brief_java({"JDK_JAVA_OPTIONS": "-Xmx1g"})["JDK_JAVA_OPTIONS"].endswith(" -Xmx1g")


def test_the_worlds_file_is_right(tmp_path: Path) -> None:
    from magnetar.core import config

    made = world.World(tmp_path / "w", flights.AIRPORTS, "local[1]")
    found = config.load(made.config)
    assert list(found.clusters) == list(flights.AIRPORTS)
    assert found.replication.master == "local[1]"
    assert {name: one.service_url for name, one in found.clusters.items()} == made.urls
    made.close()
