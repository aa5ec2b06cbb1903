"""Tables that match regular expressions in one pass: a tree of nodes in, a table out (`core.patterns` makes the tree).

Thompson's way: the tree becomes states with arrows that cost nothing or one character; then sets of these states become
rows of the table, all of them at once, so that no name ever meets a row that is not there. The rows may be exponentially
many, and making one is work, so that both have a ceiling: whoever sends a pattern must not stop a broker.
"""

from array import array
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Ranges = tuple[tuple[int, int], ...]
"""Characters, as ranges of their code points, ends included."""

CODES_MAX: Final = 0x10FFFF

STATES_MAX: Final = 2_000
"""A ceiling on what a tree becomes: each repetition of `{n,m}` is written out. The longest pattern has a thousand characters."""

ROWS_MAX: Final = 1_000
"""A ceiling: people's patterns have some ten rows, one for each character and a few for each `.*`."""

CELLS_MAX: Final = 32_000
"""A ceiling on rows times columns, of two bytes: a thousand patterns that are watched then hold 64 MB at most."""

WORK_MAX: Final = 60_000
"""A ceiling on steps while a table is made: some 60 ms. People's patterns need a thousand, long ones ten or twenty thousand."""

DEAD: Final = 0
"""The row from which nothing matches."""

ALL: Final = 1
"""The row from which everything matches, as behind `.*` at the end."""


class TooComplex(Exception):
    """A table would be too large, or too much work."""


@dataclass(frozen=True, slots=True)
class Node:
    """A piece of an expression.

    Attributes:
        kind: "set" is one character; "start" and "end" are the ends of the text.
        parts: of a sequence or choice; the one that is repeated.
        ranges: of a set.
        least, most: of a repetition; -1: without end.
    """

    kind: Literal["set", "sequence", "choice", "repeat", "start", "end"]
    parts: "tuple[Node, ...]" = ()
    ranges: Ranges = ()
    least: int = 0
    most: int = 0


def flipped(ranges: Ranges) -> Ranges:
    """All characters but these."""
    found = []
    first = 0
    for low, high in sorted(ranges):
        if low > first:
            found.append((first, low - 1))
        first = max(first, high + 1)
    if first <= CODES_MAX:
        found.append((first, CODES_MAX))
    return tuple(found)


class Table:
    """An expression, ready.

    Args:
        cells: row after row the number of the next one, for each column.
        width: columns.
        firsts, columns: from which code point on it is which column, ascending.
        ends: for each row whether a text may end there.
        start: the row to begin with.
        work: steps that it took.
    """

    __slots__ = ("_ascii", "_cells", "_columns", "_ends", "_firsts", "_width", "start", "work")

    def __init__(
        self,
        cells: "array[int]",
        width: int,
        firsts: list[int],
        columns: list[int],
        ends: list[bool],
        start: int,
        work: int,
    ) -> None:
        self._cells = cells
        self._width = width
        self._firsts = firsts
        self._columns = columns
        self._ends = ends
        self._ascii = [self._column(code) for code in range(128)]
        self.start = start
        self.work = work

    @property
    def cells(self) -> int:
        """How many there are."""
        return len(self._cells)

    def _column(self, code: int) -> int:
        return self._columns[bisect_right(self._firsts, code) - 1]

    def accepts(self, text: str, row: int, begin: int) -> bool:
        """Whether a text matches from a place on, when what is in front of it led to this row."""
        return self._ends[self.run(text, row, begin)]

    def run(self, text: str, row: int, begin: int = 0) -> int:
        """The row behind a text."""
        cells, width, known = self._cells, self._width, self._ascii
        for at in range(begin, len(text)):
            if row <= ALL:
                break
            code = ord(text[at])
            row = cells[row * width + (known[code] if code < 128 else self._column(code))]
        return row

    def forced(self, row: int) -> tuple[str, int]:
        """What has to follow a row, as far as there is only one way on, and the row behind it."""
        found: list[str] = []
        seen = {row}
        while row > ALL and not self._ends[row]:
            ways = [code for code in range(128) if self._cells[row * self._width + self._ascii[code]] != DEAD]
            if len(ways) != 1 or any(
                self._cells[row * self._width + column] != DEAD
                for column in range(self._width)
                if column != self._ascii[ways[0]]
            ):
                break
            column = self._ascii[ways[0]]
            if self._wide(column):
                break
            row = self._cells[row * self._width + column]
            if row in seen:
                break  # cannot be: a way without an end never matches, and is dead
            seen.add(row)
            found.append(chr(ways[0]))
        return "".join(found), row

    def _wide(self, column: int) -> bool:
        """Whether a column is of more than one character."""
        places = [at for at, one in enumerate(self._columns) if one == column]
        ends = [*self._firsts, CODES_MAX + 1]
        return sum(ends[at + 1] - ends[at] for at in places) != 1


# ------------------------------------------------------------------------------------------------------------ building


class _State(NamedTuple):
    """One of the states between the tree and the table.

    Attributes:
        kind: "set" takes a character; "split", "start" and "end" take none; "match" is the end.
        ways: where to.
        ranges: of a set.
    """

    kind: Literal["set", "split", "start", "end", "match"]
    ways: tuple[int, ...] = ()
    ranges: Ranges = ()


_MATCH: Final = 0


def build(tree: Node) -> Table:
    """The table of an expression.

    Raises:
        TooComplex: it would be too large.
    """
    states: list[_State] = [_State("match")]
    first = _added(states, tree, _MATCH)
    return _Builder(states, first).table()


def _add(states: list[_State], state: _State) -> int:
    if len(states) >= STATES_MAX:
        raise TooComplex(f"more than {STATES_MAX} states")
    states.append(state)
    return len(states) - 1


def _added(states: list[_State], node: Node, then: int) -> int:
    """The first state of a node that goes on with `then`."""
    match node.kind:
        case "set":
            return _add(states, _State("set", (then,), node.ranges))
        case "start" | "end":
            return _add(states, _State(node.kind, (then,)))
        case "sequence":
            for part in reversed(node.parts):
                then = _added(states, part, then)
            return then
        case "choice":
            return _add(states, _State("split", tuple(_added(states, part, then) for part in node.parts)))
        case "repeat":
            (part,) = node.parts
            if node.most < 0:
                loop = _add(states, _State("split", (then,)))
                states[loop] = _State("split", (_added(states, part, loop), then))
                first = loop
            else:
                first = then
                for _ in range(node.most - node.least):
                    first = _add(states, _State("split", (_added(states, part, first), then)))
            for _ in range(node.least):
                first = _added(states, part, first)
            return first


class _Row(NamedTuple):
    """A set of states: those that take a character, as bits, and whether a text may end."""

    takers: int
    ends: bool


class _Builder:
    """From states to rows.

    Args:
        states: of the expression.
        first: where it begins.
    """

    def __init__(self, states: list[_State], first: int) -> None:
        self._states = states
        self._work = 0
        self._reached: dict[int, _Row] = {}
        self._start = self._closed(first, at_start=True)
        self._firsts, self._columns, self._width = self._divided()
        self._columns_of = self._spread()

    def _spend(self, steps: int) -> None:
        self._work += steps
        if self._work > WORK_MAX:
            raise TooComplex(f"more than {WORK_MAX} steps")

    def _closed(self, first: int, *, at_start: bool = False) -> _Row:
        """What can be reached from a state without a character."""
        takers = 0
        ends = False
        # An end is passed only by a text that ends there: behind it nothing takes a character any more.
        stack = [(first, False)]
        seen = set(stack)
        while stack:
            number, ended = stack.pop()
            self._spend(1)
            state = self._states[number]
            if state.kind == "match":
                ends = True
            elif state.kind == "set":
                takers |= 0 if ended else 1 << number
            elif state.kind != "start" or at_start:
                for way in state.ways:
                    item = (way, ended or state.kind == "end")
                    if item not in seen:
                        seen.add(item)
                        stack.append(item)
        return _Row(takers, ends)

    def _divided(self) -> tuple[list[int], list[int], int]:
        """Which characters are in the same sets: from which code point on which column, and how many columns."""
        flips: dict[int, int] = {0: 0}
        number_of: dict[Ranges, int] = {}
        for state in self._states:
            if state.kind == "set" and state.ranges not in number_of:
                bit = 1 << len(number_of)
                number_of[state.ranges] = bit
                for low, high in _merged(state.ranges):
                    flips[low] = flips.get(low, 0) ^ bit
                    flips[high + 1] = flips.get(high + 1, 0) ^ bit
        self._bits = number_of
        self._masks: list[int] = []
        column_of: dict[int, int] = {}
        firsts: list[int] = []
        columns: list[int] = []
        mask = 0
        for code in sorted(flips):
            if code > CODES_MAX:
                break
            mask ^= flips[code]
            if mask not in column_of:
                column_of[mask] = len(column_of)
                self._masks.append(mask)
            firsts.append(code)
            columns.append(column_of[mask])
        return firsts, columns, len(column_of)

    def _spread(self) -> dict[Ranges, list[int]]:
        """The columns of each set."""
        self._spend(len(self._bits) * len(self._masks))
        return {
            ranges: [column for column, mask in enumerate(self._masks) if mask & bit]
            for ranges, bit in self._bits.items()
        }

    def table(self) -> Table:
        """All rows that can be reached."""
        numbers: dict[_Row, int] = {_Row(0, False): DEAD}
        rows: list[list[int]] = [[DEAD] * self._width, [ALL] * self._width]
        ends = [False, True]
        waiting: deque[_Row] = deque()

        def number(row: _Row) -> int:
            if row not in numbers:
                if len(rows) >= ROWS_MAX or (len(rows) + 1) * self._width > CELLS_MAX:
                    raise TooComplex(f"more than {ROWS_MAX} rows or {CELLS_MAX} cells")
                numbers[row] = len(rows)
                rows.append([])
                ends.append(row.ends)
                waiting.append(row)
            return numbers[row]

        start = number(self._start)
        while waiting:
            row = waiting.popleft()
            rows[numbers[row]] = [number(one) for one in self._behind(row)]
        alias = _settled(rows, ends)
        cells = array("H", [alias[cell] for row in rows for cell in row])
        return Table(cells, self._width, self._firsts, self._columns, ends, alias[start], self._work)

    def _behind(self, row: _Row) -> list[_Row]:
        """For each column what follows a row."""
        takers = [0] * self._width
        ends = [False] * self._width
        left = row.takers
        self._spend(self._width)
        while left:
            lowest = left & -left
            left ^= lowest
            state = self._states[lowest.bit_length() - 1]
            way = state.ways[0]
            if way not in self._reached:
                self._reached[way] = self._closed(way)
            then = self._reached[way]
            columns = self._columns_of[state.ranges]
            self._spend(1 + len(columns))
            for column in columns:
                takers[column] |= then.takers
                ends[column] |= then.ends
        return [_Row(*one) for one in zip(takers, ends, strict=True)]


def _merged(ranges: Ranges) -> Ranges:
    """The same characters, each once."""
    return flipped(flipped(ranges))


def _settled(rows: list[list[int]], ends: list[bool]) -> list[int]:
    """Each row's own number; `DEAD` for those from which nothing matches any more, `ALL` for those from which all does."""
    before: list[set[int]] = [set() for _ in rows]
    for number, row in enumerate(rows):
        for way in row:
            before[way].add(number)
    alive = _reaching(before, [number for number, end in enumerate(ends) if end])
    open_ended = _reaching(before, [number for number, end in enumerate(ends) if not end])
    return [DEAD if number not in alive else ALL if number not in open_ended else number for number in range(len(rows))]


def _reaching(before: list[set[int]], goals: list[int]) -> set[int]:
    """The rows from which one of some rows can be reached."""
    found = set(goals)
    stack = goals
    while stack:
        for number in before[stack.pop()]:
            if number not in found:
                found.add(number)
                stack.append(number)
    return found
