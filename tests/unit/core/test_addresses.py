"""The addresses of a cluster, against every history of answers and failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.addresses import SILENT_AGAIN_S, SILENT_S, AddressRound, BrokerAddresses

NAMES = ("a:1", "b:1", "c:1", "d:1")
clusters = st.integers(1, 4).map(lambda count: NAMES[:count])


def tried(tries: AddressRound, serves: str) -> list[str]:
    """Go through one round while the broker at `serves` accepts (no broker if it is not an address)."""
    order = [tries.address]
    while tries.address != serves and tries.failed(f"{tries.address}: refused"):
        order.append(tries.address)
    if tries.address == serves:
        tries.answered()
    tries.give_up()
    return order


@given(clusters, st.lists(st.sampled_from((*NAMES, "no broker")), max_size=12))
def test_a_round_without_an_answer_tries_every_address_once(names, history):
    addresses = BrokerAddresses(names)
    for serves in history:
        tried(addresses.round(), serves)
    tries = addresses.round()
    assert sorted(tried(tries, "no broker")) == sorted(names)
    assert sorted(tries.reason.split("; ")) == sorted(f"{name}: refused" for name in names)


@given(clusters, st.lists(st.sampled_from((*NAMES, "no broker")), max_size=12), st.data())
def test_after_an_answer_the_next_round_begins_there_and_ends_there(names, history, data):
    addresses = BrokerAddresses(names)
    for serves in history:
        tried(addresses.round(), serves)
    serves = data.draw(st.sampled_from(names))
    assert tried(addresses.round(), serves)[-1] == serves
    assert tried(addresses.round(), serves) == [serves]


@given(clusters, st.data())
def test_a_round_that_was_given_up_is_not_the_next_one_s_beginning(names, data):
    addresses = BrokerAddresses(names)
    tried(addresses.round(), data.draw(st.sampled_from(names)))
    silent = addresses.round()
    silent.give_up()
    silent.give_up()  # a connection may be closed twice
    assert (addresses.round().address == silent.address) == (len(names) == 1)


@given(clusters.filter(lambda names: len(names) > 1), st.data())
def test_a_late_failure_does_not_undo_the_answer_of_another_address(names, data):
    addresses = BrokerAddresses(names)
    slow = addresses.round()
    serves = data.draw(st.sampled_from([name for name in names if name != slow.address]))
    tried(addresses.round(), serves)
    slow.give_up()
    assert addresses.round().address == serves


@given(clusters, st.data())
def test_a_broker_that_is_slow_to_answer_is_reached_in_one_round(names, data):
    """The others refuse at once. It needs more than `SILENT_S`."""
    serves, needs_s, caller_s = data.draw(st.sampled_from(names)), SILENT_AGAIN_S, 10.0
    tries = BrokerAddresses(names).round()
    order = []
    while tries.address != serves or tries.patience_s(caller_s) < needs_s:
        order.append(tries.address)
        assert tries.failed(f"{tries.address}: no answer", silent=tries.address == serves), order
    assert sorted(order) == sorted(names[:-1] if serves == names[-1] else names)


@given(clusters, st.data())
def test_a_round_tries_once_more_those_that_were_silent_but_for_the_last(names, data):
    silent = data.draw(st.sets(st.sampled_from(names)))
    tries, order = BrokerAddresses(names).round(), []
    while True:
        order.append((tries.address, tries.patience_s(10.0)))
        if not tries.failed(f"{tries.address}: {len(order)}", silent=tries.address in silent):
            break
    *others, last = names
    again = [(name, SILENT_AGAIN_S) for name in others if name in silent]
    assert order == [*((name, SILENT_S) for name in others), (last, 10.0), *again]
    said = {name: number for number, (name, _) in enumerate(order, 1)}
    assert tries.reason == "; ".join(f"{name}: {said[name]}" for name in names)


def test_an_address_that_another_one_named_may_be_tried_again_first():
    tries = BrokerAddresses(NAMES[:3]).round()
    for _ in range(2):
        tries.failed("silent", silent=True)
    assert tries.failed("c:1 does not serve", "b:1")
    assert tries.address == "b:1"


def test_a_caller_that_has_less_patience_waits_no_longer():
    tries = BrokerAddresses(NAMES[:2]).round()
    seen = [tries.patience_s(0.1)]
    while tries.failed("silent", silent=True):
        seen.append(tries.patience_s(0.1))
    assert seen == [0.1, 0.1, 0.1]


@given(clusters)
def test_the_text_has_every_address_in_its_order(names):
    assert BrokerAddresses.parse(str(BrokerAddresses(names))).order() == names


def test_one_address_is_its_own_text_as_it_was_before_there_were_several():
    assert str(BrokerAddresses(["127.0.0.1:6650"])) == "127.0.0.1:6650"


def test_an_address_that_occurs_twice_is_tried_once():
    assert BrokerAddresses(["a:1", "b:1", "a:1"]).order() == ("a:1", "b:1")


def test_no_address_is_refused():
    with pytest.raises(ValueError, match="no address"):
        BrokerAddresses([])
