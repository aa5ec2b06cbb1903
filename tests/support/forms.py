"""The tests that need pure Python: they are left out of a run in compiled form (`make compiled`), and `make test` has them.

A compiled function calls the functions of compiled modules directly, so a test that replaces one of these tests nothing.
Tests that give a double where a compiled function wants an object of a compiled class fail with a TypeError.
"""

import pkgutil
import types
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

PATCHES: tuple[str, ...] = (
    "tests/unit/broker/subscriptions/test_subscription.py::test_skip_goes_by_ledgers",
    "tests/unit/broker/subscriptions/test_subscription.py::test_of_an_ack_set_no_more_is_read_than_its_batch_has",
    "tests/unit/broker/subscriptions/test_subscription.py::test_of_the_ack_set_of_a_seek_no_more_is_read_either",
    "tests/unit/broker/subscriptions/dispatch/test_delayed.py::test_what_is_not_delayed_overtakes_and_the_delayed_come_by_time",
    "tests/unit/broker/subscriptions/dispatch/test_delayed.py::test_due_entries_wait_packed_until_somebody_takes_them",
    "tests/unit/broker/subscriptions/dispatch/test_delayed.py::test_one_event_takes_sends_and_reads_only_so_many_of_those_that_are_due",
    "tests/unit/broker/subscriptions/dispatch/test_hashing.py::test_a_newcomer_costs_its_own_points",
    "tests/unit/broker/subscriptions/dispatch/test_hashing.py::test_long_keys_are_hashed_in_time_and_not_kept",
    "tests/unit/broker/subscriptions/dispatch/test_shared.py::test_much_comes_back_a_few_at_a_time",
    "tests/unit/broker/subscriptions/dispatch/test_shared.py::test_what_is_given_back_meanwhile_comes_back_with_the_rest",
    "tests/unit/broker/subscriptions/dispatch/test_shared.py::test_a_subscription_that_starts_anew_waits_for_nothing_that_comes_back",
    "tests/unit/replication/acked_sets/test_unseen_rules.py::test_marks_of_a_peers_former_life_are_void",
    "tests/unit/replication/acked_sets/test_unseen_rules.py::test_a_seek_of_a_new_life_is_not_taken_for_one_of_the_former",
    "tests/unit/storage/test_cursor.py::test_acknowledging_in_order_over_a_marker_touches_no_bitmap",
    "tests/unit/storage/test_format.py::test_todays_bytes_are_the_golden_ones",
    "tests/unit/storage/test_ledger_together.py::test_together_or_one_by_one",
    "tests/property/test_plain_sends.py::test_plain_messages_are_taken_without_being_inspected",
    "tests/property/test_idempotency.py::test_the_check_can_fail",
    "tests/property/test_storage_faults.py::test_confirmed_entries_survive",
    "tests/property/test_withdrawals.py::test_the_check_can_fail",
    "tests/web/test_shape.py::test_broker_errors_have_statuses",
)
"""Tests, files and folders that replace functions, constants or methods of compiled modules."""

PLANTS: tuple[str, ...] = (
    "tests/property/test_acked_set_worlds.py::test_planted_bug_is_found",
    "tests/property/test_snapshot_worlds.py::test_planted_bug_is_found",
    "tests/sim/test_bookkeeper.py::test_planted_bugs_are_noticed",
    "tests/sim/test_bugs.py::test_every_bug_can_be_planted",
    "tests/sim/test_bugs.py::test_planted_bug_is_found",
    "tests/sim/test_killed_takeovers.py::test_a_rule_that_only_a_kill_at_some_steps_shows",
    "tests/sim/test_metadata.py::test_planted_bugs_are_noticed",
    "tests/sim/test_takeovers.py::test_every_bug_can_be_planted",
    "tests/sim/test_takeovers.py::test_planted_bugs_are_noticed",
)
"""Tests that plant bugs in the simulator's worlds, which it refuses in compiled form."""

DOUBLES: tuple[str, ...] = (
    "tests/unit/broker/topics/test_topic.py::test_many_subscriptions_are_told_in_several_events_each_once_and_in_turn",
    "tests/unit/runtime/test_driver.py::test_what_a_reader_found_is_answered",
    "tests/unit/runtime/test_driver.py::test_what_is_at_hand_is_read_by_nobody_else",
    "tests/unit/runtime/test_driver.py::test_a_bug_in_reading_what_is_at_hand_leaves_it_to_a_reader",
    "tests/unit/runtime/test_driver.py::test_reads_that_bring_the_next_ones_take_one_turn_between_two_looks",
    "tests/unit/runtime/test_driver.py::test_recent_entries_that_bring_the_next_ones_take_turns_with_the_sockets",
    "tests/unit/runtime/test_driver.py::test_recent_entries_are_at_hand_at_once",
    "tests/unit/broker/topics/test_topic.py::test_few_are_told_in_the_event_that_brought_the_entries",
)
"""Tests and files that give doubles of compiled classes to compiled functions."""

INSIDE: tuple[str, ...] = (
    "tests/unit/wire/test_commands.py::test_no_reply_is_left_out",
    "tests/unit/wire/test_frames.py::test_a_decoder_that_met_a_fault_goes_with_its_last_reference",
)
"""Tests that ask a function or an object for what compiled ones do not have: Python's own kind of function, weak references."""

PURE = (*PATCHES, *PLANTS, *DOUBLES, *INSIDE)


def module_of(target: Any) -> str:
    """The module in which a patch of `target` changes something: of a module itself, or of a class."""
    if isinstance(target, types.ModuleType):
        return target.__name__
    return target.__module__ if isinstance(target, type) else ""


def refuse_patches(modules: Sequence[str]) -> None:
    """From now on a patch of a compiled module fails: it would have no effect, and the test would not notice.

    Args:
        modules: the compiled ones.
    """
    names = frozenset(modules)

    def check(target: Any) -> None:
        assert module_of(target) not in names, (
            f"{module_of(target)} is compiled: a patch of it has no effect. Name the test in tests/support/forms.py"
        )

    enter, replace = mock._patch.__enter__, pytest.MonkeyPatch.setattr  # type: ignore[attr-defined]

    def entered(self: Any) -> Any:
        check(self.getter())
        return enter(self)

    def replaced(self: pytest.MonkeyPatch, target: Any, *more: Any, **options: Any) -> None:
        check(pkgutil.resolve_name(target.rpartition(".")[0]) if isinstance(target, str) else target)
        replace(self, target, *more, **options)

    mock._patch.__enter__ = entered  # type: ignore[attr-defined]
    pytest.MonkeyPatch.setattr = replaced  # type: ignore[method-assign]
