"""The cursor against a dumb twin: for every entry the set of messages that are not acknowledged."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from magnetar.core.ids import EARLIEST, LATEST, NONE, Position
from magnetar.storage.cursor import Cursor
from magnetar.storage.positions import PositionSet
from magnetar.storage.topiclog import Retention
from tests.support.subscriptions import add_entries, entry, new_log

LEFT = st.integers(0, 255)


class CursorAndTwin(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.log = new_log()
        self.left: dict[Position, set[int]] = {}  # in order of the log; empty: acknowledged, or a marker
        self.cursor = Cursor.at(self.log, EARLIEST)
        self.reached = NONE  # by a cumulative acknowledgement or reset

    def some(self, number: int) -> Position:
        positions = list(self.left)
        return positions[number % len(positions)] if positions else Position(7, number)

    @rule(counts=st.lists(st.sampled_from([0, 1, 1, 1, 2, 5]), min_size=1, max_size=6), roll=st.booleans())
    def publish(self, counts: list[int], roll: bool) -> None:
        if roll:
            self.log.roll(0)
        stored = add_entries(self.log, [entry(marker=True) if not count else entry(count=count) for count in counts])
        for each, count in zip(stored, counts, strict=True):
            self.left[each.position] = set(range(count))
        self.cursor.step_over_markers()

    @rule(numbers=st.lists(st.integers(0, 60), max_size=8))
    def ack(self, numbers: list[int]) -> None:
        positions = [self.some(number) for number in numbers]
        expected = {position for position in positions if self.left.get(position)}
        assert self.cursor.ack(positions) == len(expected)
        for position in expected:
            self.left[position] = set()

    @rule(number=st.integers(0, 60), bits=LEFT)
    def ack_indexes(self, number: int, bits: int) -> None:
        position = self.some(number)
        gone = {index for index in self.left.get(position, set()) if not bits >> index & 1}
        assert self.cursor.ack_indexes(position, bits) == len(gone)
        if gone:
            self.left[position] -= gone

    @rule(number=st.integers(0, 60), bits=st.sampled_from([0, 0, 1, 2, 30]), shift=st.sampled_from([0, 0, 0, 50]))
    def ack_up_to(self, number: int, bits: int, shift: int) -> None:
        position = self.some(number)
        position = Position(position.ledger, position.entry + shift)
        changed = self.cursor.ack_up_to(position, bits)
        if position > self.log.last:
            assert not changed
            return
        for each in self.left:
            if each < position:
                self.left[each] = set()
            elif each == position:
                self.left[each] = {index for index in self.left[each] if bits >> index & 1}

    @rule(number=st.integers(0, 60), place=st.sampled_from(["earliest", "latest", "entry", "entry"]), bits=LEFT)
    def reset(self, number: int, place: str, bits: int) -> None:
        target = {"earliest": EARLIEST, "latest": LATEST}.get(place, self.some(number))
        bits = bits if place == "entry" else 0
        self.cursor.reset(target, bits)
        for position in self.left:
            count = self.log.count_at(position)
            self.left[position] = set() if position < target else set(range(count))
            if position == target and bits:
                self.left[position] = {index for index in range(count) if bits >> index & 1}

    @rule(numbers=st.lists(st.integers(0, 60), max_size=12), strange=st.booleans())
    def ack_set(self, numbers: list[int], strange: bool) -> None:
        wanted = PositionSet()
        for number in numbers:
            wanted.add(*self.some(number))
        if strange:
            wanted.add(3, 1)
            wanted.add(self.log.last.ledger, self.log.last.entry + 5)
        fresh = {position for position in wanted if self.left.get(position)}
        assert set(self.cursor.ack_set(wanted)) == fresh
        for position in fresh:
            self.left[position] = set()

    @rule(
        numbers=st.lists(st.integers(0, 60), max_size=12), part=st.integers(0, 60), bits=LEFT, floor=st.integers(0, 60)
    )
    def replace(self, numbers: list[int], part: int, bits: int, floor: int) -> None:
        wanted = PositionSet()
        for number in numbers:
            wanted.add(*self.some(number))
        below = self.some(floor) if floor % 4 == 0 else NONE
        partial = {self.some(part): bits}
        self.cursor.replace(wanted, partial, below)
        for position in self.left:
            count = self.log.count_at(position)
            gone = position in wanted or position <= below
            self.left[position] = set() if gone else set(range(count))
            if position in partial:
                self.left[position] = {index for index in self.left[position] if not bits >> index & 1}

    @rule(number=st.integers(0, 70))
    def nth_open(self, number: int) -> None:
        reached, found = NONE, 0
        for position, left in self.left.items():
            if left and found < number:
                reached, found = position, found + 1
        assert self.cursor.nth_open(number) == (reached, found)

    @rule()
    def store_and_load(self) -> None:
        data = self.cursor.encode()
        assert not self.cursor.dirty
        again = Cursor.decode(self.log, data)
        assert again.mark_delete == self.cursor.mark_delete
        assert list(again.acked) == list(self.cursor.acked)
        assert again.partial == self.cursor.partial
        self.cursor = again

    @rule()
    def retention(self) -> None:
        trim = self.log.trim(None, 0, Retention(0, 0))
        if trim is not None:
            self.log.forget(trim)
            self.left = {position: left for position, left in self.left.items() if position.ledger not in trim.ledgers}
            self.cursor.step_over_markers()

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "log"):
            return
        cursor = self.cursor
        cursor.validate()
        behind = next((position for position, left in self.left.items() if left), None)
        assert self.log.next_after(cursor.mark_delete) == behind
        for position, left in self.left.items():
            if self.log.count_at(position):
                assert cursor.is_acked(position) == (not left), position
            if left and len(left) < self.log.count_at(position):
                assert {index for index in range(8) if cursor.partial[position].bits >> index & 1} == left
            else:
                assert position not in cursor.partial
        assert cursor.backlog_entries() == sum(1 for left in self.left.values() if left)
        assert cursor.backlog_messages() == sum(map(len, self.left.values()))


TestCursor = CursorAndTwin.TestCase
TestCursor.settings = settings(
    max_examples=250,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
