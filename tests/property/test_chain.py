"""The chain rule against dumb twins that look at one entry at a time."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.ids import NONE, LinkCursor, Position
from magnetar.replication.link.chain import Verdict, advance, judge, learn

positions = st.builds(Position, st.integers(0, 3), st.integers(0, 5))
some = st.one_of(st.just(NONE), positions)
runs = st.lists(some, min_size=2, max_size=9, unique=True).map(sorted)
cursors = st.builds(lambda a, b, gen: LinkCursor(max(a, b), min(a, b), gen), some, some, st.integers(1, 3))


def one_by_one(pushed: Position, p: Position, run: list[Position]) -> Verdict:
    """Each entry by itself: stored if p <= pushed < position, known if position <= pushed, else refused."""
    first_new, duplicates = None, 0
    for at, position in enumerate(run):
        if position <= pushed:
            duplicates += 1
        elif p <= pushed:
            first_new = at if first_new is None else first_new
            pushed = position
        else:
            return Verdict(None, duplicates, True)
        p = position
    return Verdict(first_new, duplicates, False)


@given(some, runs)
def test_a_run_is_judged_like_its_entries_one_by_one(pushed: Position, run: list[Position]) -> None:
    p, *rest = run
    assert judge(pushed, p, rest) == one_by_one(pushed, p, rest)


@given(some, runs, st.data())
def test_a_run_in_pieces_ends_like_the_whole(pushed: Position, run: list[Position], data: st.DataObject) -> None:
    p, *rest = run
    cut = data.draw(st.integers(1, len(rest)))
    whole = judge(pushed, p, rest)
    first = judge(pushed, p, rest[:cut])
    if first.refused:
        assert whole.refused
        return
    after = rest[cut - 1] if first.first_new is not None else pushed
    if rest[cut:]:
        second = judge(max(after, pushed), rest[cut - 1], rest[cut:])
        assert not second.refused
        assert first.duplicates + second.duplicates == whole.duplicates


@given(cursors, cursors)
def test_a_confirmation_never_takes_the_cursor_back(cursor: LinkCursor, commit: LinkCursor) -> None:
    moved = advance(cursor, commit)
    if moved is None:
        assert commit.gen != cursor.gen or commit.c <= cursor.c
        return
    assert moved.gen == cursor.gen == commit.gen
    assert moved.c > cursor.c
    assert cursor.s <= moved.s <= moved.c


@given(cursors, some, some)
def test_only_a_destination_that_lost_something_makes_a_link_go_back(
    cursor: LinkCursor, watermark: Position, start: Position
) -> None:
    target = learn(cursor, watermark, start)
    if watermark >= cursor.s:
        assert target is None
    else:
        assert target == LinkCursor(max(watermark, start), watermark, cursor.gen + 1)
        assert learn(target, watermark, start) is None, "a rewind that is heard of twice happens once"
        assert advance(target, cursor._replace(c=Position(9, 9))) is None, "the old generation confirms nothing"
