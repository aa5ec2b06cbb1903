"""Of a flood of warnings some are written, and how many there were."""

from collections.abc import Callable

from magnetar.runtime.log_rate_limit import INTERVAL_S, KINDS_MAX, LINES_MAX, Quiet


class Clock:
    """Timers in the test's hands, and what was written."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.lines: list[str] = []
        self.quiet = Quiet(lambda after_s, then: self.due.append((after_s, then)), self.lines.append)

    def over(self) -> None:
        """The interval is over."""
        due, self.due = self.due, []
        for after_s, then in due:
            assert after_s == INTERVAL_S
            then()


def test_a_flood_is_counted_and_others_are_not_concerned() -> None:
    clock = Clock()
    flood = [clock.quiet.allows(f"closed the connection of 10.0.0.1:{port}: malformed") for port in range(1_000)]
    assert flood == [True] * LINES_MAX + [False] * (1_000 - LINES_MAX)
    assert clock.quiet.allows("refused a message of somebody")
    clock.over()
    assert clock.lines == [f"{1_000 - LINES_MAX} more lines like 'closed the connection ...' were left out within 10 s"]
    assert clock.quiet.allows("closed the connection of 10.0.0.1:1: malformed")


def test_few_lines_are_all_written_and_nothing_is_added() -> None:
    clock = Clock()
    assert all(clock.quiet.allows("one two three four") for _ in range(LINES_MAX))
    clock.over()
    assert clock.lines == []
    assert clock.due == []


def test_what_is_written_counts() -> None:
    clock = Clock()
    for number in range(LINES_MAX + 2):
        clock.quiet.warn(f"one two three {number}")
    assert clock.lines == [f"one two three {number}" for number in range(LINES_MAX)]
    assert not clock.quiet.allows("one two three four")
    clock.over()
    assert clock.lines[LINES_MAX:] == ["3 more lines like 'one two three ...' were left out within 10 s"]


def test_kinds_are_bounded() -> None:
    clock = Clock()
    for number in range(10 * KINDS_MAX):
        clock.quiet.allows(f"kind{number} is new")
    assert len(clock.due) == KINDS_MAX + 1
