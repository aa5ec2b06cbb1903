"""The soak's judging, by made-up ledgers: what adds up passes, and each thing that does not is told."""

import os
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from math import inf
from pathlib import Path

import pytest

from tests.support.soaking.crossing import Crossing
from tests.support.soaking.ledger import (
    ACK_DURABLE_S,
    GROUPED_S,
    RECONNECT_S,
    TYPES,
    Account,
    Delivery,
    Ledger,
    Life,
    Outage,
    Place,
    judge_all,
)
from tests.support.soaking.rounds import limit_acknowledged
from tests.support.sources import ROOT
from tests.support.tools import tool

ALL = list(TYPES)
IN_ORDER = ["exclusive", "failover"]
MANY = ["shared", "key-shared"]


class Case:
    """Messages 1, 2, .. of a topic, all confirmed, and a first consumer on each subscription from second 10 on.

    Args:
        batch: so many messages lie in each entry.
        outages: of the broker.
        deduplicated: what is sent again is not stored again.
    """

    def __init__(
        self, messages: int = 1, *, batch: int = 1, outages: tuple[Outage, ...] = (), deduplicated: bool = False
    ) -> None:
        self.ledger = Ledger(batched=batch > 1, deduplicated=deduplicated)
        self.outages = outages
        self.batch = batch
        for number in range(1, messages + 1):
            self.ledger.sent[number], self.ledger.confirmed[number] = 9.0, 9.1
        self.first = {kind: self.came(kind, 10.0) for kind in ALL}

    def came(self, kind: str, opened: float, closed: float = inf) -> Life:
        life = Life(opened, closed)
        self.ledger.accounts[kind].came(life)
        return life

    def place(self, number: int) -> Place:
        entry, message = divmod(number - 1, self.batch)
        return Place(0, entry, message if self.batch > 1 else -1)

    def got(
        self, kind: str, number: int, at: float, *, acked: float = inf, returned: float = inf, life: Life | None = None
    ) -> Delivery:
        account, where = self.ledger.accounts[kind], self.place(number)
        made = account.delivered(life or self.first[kind], number, where, at)
        made.acked, made.returned = acked, returned
        return made

    def judged(self, *but: str) -> Counter[str]:
        """The rest of the subscriptions get everything once."""
        for kind in set(ALL) - set(but):
            for number in self.ledger.confirmed:
                self.got(kind, number, 11.0, acked=11.1)
        return self.ledger.judge(self.outages)


def test_nothing_special_adds_up() -> None:
    counted = Case(5).judged()
    assert (counted["published"], counted["delivered"], counted["acknowledged"]) == (5, 20, 20)
    assert counted["redelivered"] == counted["published again"] == counted["unknown"] == 0


def test_a_lost_message() -> None:
    case = Case(2)
    case.got("shared", 1, 11.0, acked=11.1)
    with pytest.raises(AssertionError, match=r"shared never got 1 confirmed messages, such as 2"):
        case.judged("shared")


def test_a_message_that_nobody_sent() -> None:
    case = Case(1)
    case.got("exclusive", 7, 11.0, acked=11.1)
    with pytest.raises(AssertionError, match="nobody sent"):
        case.judged()


def test_a_message_that_was_never_acknowledged() -> None:
    case = Case(1)
    case.got("failover", 1, 11.0)
    with pytest.raises(AssertionError, match="never acknowledged"):
        case.judged("failover")


@pytest.mark.parametrize("kind", ALL)
def test_an_acknowledgement_that_is_forgotten(kind: str) -> None:
    case = Case(1)
    case.got(kind, 1, 11.0)
    case.got(kind, 1, 12.0, acked=12.1)
    with pytest.raises(AssertionError, match=rf"{kind}: message 1 .* without a cause"):
        case.judged(kind)


@pytest.mark.parametrize("kind", ALL)
def test_given_back_makes_it_come_once_more_and_not_twice(kind: str) -> None:
    case = Case(1)
    case.got(kind, 1, 11.0, returned=11.1)
    case.got(kind, 1, 12.0)
    last = case.got(kind, 1, 13.0, acked=13.1)
    with pytest.raises(AssertionError, match=r"\(3 times by then\) without a cause"):
        case.judged(kind)
    case.ledger.accounts[kind].deliveries.remove(last)
    case.ledger.accounts[kind].deliveries[-1].acked = 12.1
    assert case.ledger.judge(())["again: given back"] == 1


@pytest.mark.parametrize("kind", IN_ORDER)
def test_in_order_another_message_given_back_brings_all_again(kind: str) -> None:
    case = Case(2)
    case.got(kind, 1, 11.0, returned=11.0)
    case.got(kind, 2, 11.2)  # lay in the queue before the client asked for all again
    case.got(kind, 1, 11.5, acked=11.6)
    case.got(kind, 2, 11.6, acked=11.7)
    assert case.judged(kind)["again: given back"] == 2


@pytest.mark.parametrize("kind", MANY)
def test_else_another_message_given_back_brings_nothing_again(kind: str) -> None:
    case = Case(2)
    case.got(kind, 1, 11.0, returned=11.0)
    case.got(kind, 2, 11.2)
    case.got(kind, 1, 11.5, acked=11.6)
    case.got(kind, 2, 11.6, acked=11.7)
    with pytest.raises(AssertionError, match=r"message 2 .* without a cause"):
        case.judged(kind)


@pytest.mark.parametrize("kind", MANY)
def test_but_one_of_a_batch_brings_the_batch_again(kind: str) -> None:
    case = Case(2, batch=2)
    case.got(kind, 1, 11.0, returned=11.0)
    case.got(kind, 2, 11.0, acked=11.1)  # the client tells no part of a batch
    case.got(kind, 1, 11.5, acked=11.6)
    case.got(kind, 2, 11.5, acked=11.7)
    assert case.judged(kind)["again: given back"] == 2


@pytest.mark.parametrize("kind", ALL)
def test_a_consumer_that_went_makes_what_it_left_come_again(kind: str) -> None:
    case = Case(1)
    case.first[kind].closed = 12.0
    case.got(kind, 1, 11.0)
    case.got(kind, 1, 12.2, acked=12.3, life=case.came(kind, 12.1))
    assert case.judged(kind)["redelivered"] == 1


@pytest.mark.parametrize("kind", ["exclusive", *MANY])
def test_but_not_what_it_had_acknowledged(kind: str) -> None:
    case = Case(1)
    case.first[kind].closed = 12.0
    case.got(kind, 1, 11.0, acked=11.99)
    case.got(kind, 1, 12.2, acked=12.3, life=case.came(kind, 12.1))
    with pytest.raises(AssertionError, match=r"acknowledged at 11\.99"):
        case.judged(kind)


@pytest.mark.parametrize("kind", MANY)
def test_the_going_of_a_consumer_that_never_had_it_is_no_cause(kind: str) -> None:
    case = Case(1)
    case.came(kind, 10.0, 12.0)
    case.got(kind, 1, 11.0)
    case.got(kind, 1, 12.2, acked=12.3, life=case.came(kind, 12.1))
    with pytest.raises(AssertionError, match="without a cause"):
        case.judged(kind)


def test_a_better_consumer_takes_over_while_the_other_still_has_a_queue() -> None:
    case = Case(1)
    case.got("failover", 1, 12.5, acked=12.6)
    case.got("failover", 1, 13.2, acked=13.3, life=case.came("failover", 12.0))
    assert case.judged("failover")["again: another's turn"] == 1


def test_a_better_consumer_that_goes_gives_the_turn_back() -> None:
    case = Case(1)
    case.came("failover", 12.0, 13.0)
    case.got("failover", 1, 11.5)
    case.got("failover", 1, 13.1, acked=13.2)
    assert case.judged("failover")["again: another's turn"] == 1


def test_it_does_not_get_what_was_acknowledged_long_before() -> None:
    case = Case(1)
    case.got("failover", 1, 11.0, acked=11.1)
    late = 11.1 + GROUPED_S + 0.1
    case.got("failover", 1, late + 1, acked=late + 1.1, life=case.came("failover", late))
    with pytest.raises(AssertionError, match="without a cause"):
        case.judged("failover")


@pytest.mark.parametrize("kind", ALL)
def test_an_outage_undoes_what_was_just_acknowledged_and_nothing_before(kind: str) -> None:
    case = Case(1, outages=(Outage(20.0, 21.0),))
    case.got(kind, 1, 11.0, acked=20.1 - ACK_DURABLE_S)
    case.got(kind, 1, 22.0, acked=22.0 + RECONNECT_S)
    assert case.judged(kind)["again: outage"] == 1
    case.ledger.accounts[kind].deliveries[0].acked = 19.9 - ACK_DURABLE_S
    with pytest.raises(AssertionError, match="without a cause"):
        case.ledger.judge(case.outages)


@pytest.mark.parametrize("kind", ALL)
def test_what_an_outage_explains_leaves_what_was_given_back_for_what_came_after(kind: str) -> None:
    """The first message of a batch was given back just before the second was handed out again, because of the outage."""
    case = Case(2, batch=2, outages=(Outage(12.0, 13.0),))
    for number in (1, 2):
        case.got(kind, number, 11.0)
    back = case.came(kind, 13.1)
    case.got(kind, 1, 14.0, returned=14.1, life=back)
    case.got(kind, 2, 14.2, life=back)
    for number in (1, 2):
        case.got(kind, number, 14.8, acked=14.9, life=back)
    assert case.judged(kind)["redelivered"] == 4


@pytest.mark.parametrize("kind", ALL)
def test_an_outage_before_a_message_was_sent_explains_nothing(kind: str) -> None:
    case = Case(1, outages=(Outage(20.0, 21.0),))
    case.ledger.sent[1], case.ledger.confirmed[1] = 50.0, 50.1
    case.got(kind, 1, 51.0)
    case.got(kind, 1, 52.0, acked=53.0)
    for other in set(ALL) - {kind}:
        case.got(other, 1, 51.0, acked=51.1)
    with pytest.raises(AssertionError, match="without a cause"):
        case.ledger.judge(case.outages)


def published_twice(outages: tuple[Outage, ...]) -> Counter[str]:
    case = Case(1, outages=outages)
    for kind in ALL:
        case.got(kind, 1, 11.0, acked=11.1)
        account: Account = case.ledger.accounts[kind]
        account.delivered(case.first[kind], 1, Place(0, 5, -1), 11.2).acked = 11.3
    return case.ledger.judge(outages)


def test_a_message_is_stored_twice_when_its_receipt_was_lost_in_an_outage_only() -> None:
    assert published_twice((Outage(9.05, 9.5),))["published again"] == 4
    for outages in ((), (Outage(9.5, 9.9),)):
        with pytest.raises(AssertionError, match="message 1 is stored at"):
            published_twice(outages)


@pytest.mark.parametrize("kind", IN_ORDER)
def test_first_deliveries_out_of_order(kind: str) -> None:
    case = Case(2)
    for number in (2, 1):
        case.got(kind, number, 11.0, acked=11.1)
    with pytest.raises(AssertionError, match="message 1 at"):
        case.judged(kind)


@pytest.mark.parametrize("kind", IN_ORDER)
def test_first_deliveries_in_order_of_a_log_that_has_them_out_of_order(kind: str) -> None:
    case = Case(2)
    account = case.ledger.accounts[kind]
    account.delivered(case.first[kind], 2, Place(0, 0, -1), 11.0).acked = 11.1
    account.delivered(case.first[kind], 1, Place(0, 1, -1), 11.0).acked = 11.1
    with pytest.raises(AssertionError, match="message 1 came for the first time after message 2"):
        case.judged(kind)


def test_key_shared_keeps_the_order_of_a_key() -> None:
    case = Case(18)
    for number in (18, *range(1, 18)):  # 18 has the key of 1
        case.got("key-shared", number, 11.0, acked=11.1)
    with pytest.raises(AssertionError, match="message 1 came for the first time after message 18"):
        case.judged("key-shared")


def test_and_of_nothing_else() -> None:
    case = Case(17)
    for number in range(17, 0, -1):
        case.got("key-shared", number, 11.0, acked=11.1)
    assert case.judged("key-shared")["redelivered"] == 0


def test_key_shared_has_no_order_among_delayed_messages_and_shared_none_at_all() -> None:
    case = Case(18)
    case.ledger.delayed.add(1)
    for number in (*range(2, 19), 1):
        case.got("key-shared", number, 11.0, acked=11.1)
        case.got("shared", number, 11.0, acked=11.1)
    assert case.judged("key-shared", "shared")["redelivered"] == 0


def test_a_redelivery_does_not_break_the_order() -> None:
    case = Case(3)
    case.first["exclusive"].closed = 12.0
    case.got("exclusive", 1, 11.0)
    case.got("exclusive", 2, 11.0)
    after = case.came("exclusive", 12.1)
    for number in (1, 2, 3):
        case.got("exclusive", number, 12.2, acked=12.3, life=after)
    assert case.judged("exclusive")["redelivered"] == 2


def test_the_log_may_keep_little_more_than_what_is_needed() -> None:
    assert limit_acknowledged(0, 0) < limit_acknowledged(1 << 20, 3) < 16 << 20


@pytest.mark.parametrize("deduplicated", [False, True])
def test_what_is_sent_again_after_an_outage_is_stored_again_unless_it_is_deduplicated(deduplicated: bool) -> None:
    case = Case(1, outages=(Outage(9.0, 9.05),), deduplicated=deduplicated)
    case.got("shared", 1, 11.0, acked=11.1)
    again = case.ledger.accounts["shared"].delivered(case.first["shared"], 1, Place(0, 5, -1), 11.2)
    again.acked = 11.3
    if deduplicated:
        with pytest.raises(AssertionError, match="shared: message 1 is stored at"):
            case.judged("shared")
    else:
        assert case.judged("shared")["published again"] == 1


def test_the_topic_that_does_not_add_up_is_named() -> None:
    fine, wrong = Ledger(batched=False), Ledger(batched=False)
    assert judge_all({"one": fine, "two": wrong}, []) == Counter()
    wrong.sent[1] = wrong.confirmed[1] = 10.0
    with pytest.raises(AssertionError, match="^two: exclusive never got 1 confirmed messages, such as 1$"):
        judge_all({"one": fine, "two": wrong}, [])


def crossed() -> tuple[Crossing, dict[str, list[str]]]:
    """Two messages of each cluster that are everywhere, and what both hold."""
    made = Crossing({"one": "pulsar://nowhere:1", "two": "pulsar://nowhere:2"}, "t", Path("unused"))
    stored = {"one": ["one-0", "two-0", "one-1", "two-1"], "two": ["two-0", "two-1", "one-0", "one-1"]}
    for cluster, found in stored.items():
        made.sent[cluster] = 2
        made.receipts[cluster].update([0, 1])
        made.received[cluster].update(found)
    return made, stored


def test_what_has_crossed_adds_up() -> None:
    crossing, stored = crossed()
    assert crossing.judge(stored) == {"published": 4, "crossed": 4, "delivered": 8}


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (["two-0", "two-1", "one-1"], "of one: 1 lost, such as one-0"),
        (["two-0", "two-1", "one-0", "one-1", "one-2"], "of one: 1 invented, such as one-2"),
        (["two-0", "two-1", "two-1", "one-0", "one-1"], "of two: 1 stored twice, such as two-1"),
        (["two-0", "two-1", "one-1", "one-0"], "of one: another order"),
        (["two-0", "two-1", "one-0", "one-1", "x"], "holds 5 messages, 4 were sent"),
    ],
)
def test_what_has_crossed_wrongly(found: list[str], line: str) -> None:
    crossing, stored = crossed()
    with pytest.raises(AssertionError, match=line):
        crossing.judge(stored | {"two": found})


def test_a_receipt_that_is_missing_or_comes_twice() -> None:
    crossing, stored = crossed()
    crossing.receipts["one"][1] = 2
    with pytest.raises(AssertionError, match="one: message 1 was confirmed 2 times"):
        crossing.judge(stored)
    del crossing.receipts["one"][1]
    with pytest.raises(AssertionError, match="one: 1 without receipt"):
        crossing.judge(stored)


def test_a_consumer_that_never_got_what_is_stored() -> None:
    crossing, stored = crossed()
    crossing.received["two"].discard("one-1")
    with pytest.raises(AssertionError, match="the consumer in two never got 1, such as one-1"):
        crossing.judge(stored)


@pytest.mark.parametrize(
    ("cluster", "code", "said"),
    [
        ("", 0, "tools/soak.py --hours 1"),
        ("bookkeeper", 0, "tools/soak.py --hours 1 --only cluster"),
        ("nothing", 2, "CLUSTER=nothing: it should be bookkeeper, or left out.  Stop."),
    ],
)
def test_make_soak_takes_one_kind_of_cluster(cluster: str, code: int, said: str) -> None:
    without = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    command = ["make", "-n", "soak", f"CLUSTER={cluster}"]
    made = subprocess.run(command, cwd=ROOT, env=without, capture_output=True, text=True, check=False)
    assert made.returncode == code
    assert (made.stdout + made.stderr).strip().endswith(said)


def test_the_parts_of_a_soak_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    soak = tool("soak")
    popen, started = subprocess.Popen, []

    def start(_command: list[str], *, start_new_session: bool) -> "subprocess.Popen[bytes]":
        sleeper = [sys.executable, "-c", "import signal; signal.pause()"]
        started.append(popen(sleeper, start_new_session=start_new_session))
        return started[-1]

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(soak.subprocess, "Popen", start)
    monkeypatch.setattr(soak.time, "sleep", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            soak.side_by_side(["ledger", "fuzz"], Namespace(hours=1.0, seed=1, tests=["sink"]))
        assert [part.poll() is not None for part in started] == [True, True]
    finally:
        for part in started:
            part.kill()
            part.wait()
