"""The parts of `verify` that need neither Spark nor a broker, against dumb twins."""

import itertools
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.ids import NONE, Position
from magnetar.jobs import verify as v
from magnetar.jobs import verify_comparing as comparing
from magnetar.jobs.verify_listing import ENTRY, Packed, Packer, Part, checksum, suffix_of
from magnetar.jobs.verify_planning import PART_BYTES, PART_ENTRIES, Ledger, Wanted, parts
from magnetar.storage.entries import EntryFlags
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb

CLUSTERS = ("a", "b", "c")
LINKS = frozenset((x, y) for x in "abc" for y in "abc" if x != y)
LISTS = ("", "a,b", "b", "c")
"""Restrictions; the first: none."""


# ---------------------------------------------------------------------------------------------------------------- planning


@given(
    st.lists(st.tuples(st.integers(0, 180_000), st.sampled_from([1, 40, 1000, 9000])), max_size=8),
    st.sampled_from([3, 40, 4096]),
)
def test_parts_cover_every_entry_once_in_order(ledgers: list[tuple[int, int]], parts_max: int) -> None:
    told = [
        Ledger(5 + 3 * number, entries, entries * each) for number, (entries, each) in enumerate(ledgers)
    ]  # fmt: skip
    wanted = [Wanted(cluster, 0, "h:1", "t", told) for cluster in range(2)]
    made = parts(wanted, parts_max=parts_max)
    total = sum(ledger.entries for ledger in told)
    for cluster in range(2):
        mine = sorted((part for part in made if part.cluster == cluster), key=lambda part: part.number)
        assert [part.number for part in mine] == list(range(len(mine)))
        assert sum(part.entries for part in mine) == total
        at = NONE
        for part in mine:
            assert part.after == at and part.up_to is not None and part.up_to > at and part.entries > 0
            between = [
                min(ledger.entries - 1, part.up_to.entry if ledger.ledger == part.up_to.ledger else 1 << 60)
                - (part.after.entry if ledger.ledger == part.after.ledger else -1)
                for ledger in told
                if part.after.ledger <= ledger.ledger <= part.up_to.ledger
            ]
            assert sum(between) == part.entries
            at = part.up_to
        full = [ledger for ledger in told if ledger.entries]
        assert at == (Position(full[-1].ledger, full[-1].entries - 1) if full else NONE)
    assert len(made) <= parts_max + len(wanted) + 2 * len(told)


def test_small_ledgers_share_a_part_and_large_ones_are_cut() -> None:
    small = [Ledger(number, 10, 1000) for number in range(100)]
    assert [(part.after, part.up_to) for part in parts([Wanted(0, 0, "h:1", "t", small)])] == [(NONE, Position(99, 9))]
    large = [Ledger(1, 2 * PART_ENTRIES, 100), Ledger(2, 10, 3 * PART_BYTES)]
    assert [part.entries for part in parts([Wanted(0, 0, "h:1", "t", large)])] == [50_000, 50_000, 3, 3, 4]


def test_a_topic_whose_ledgers_are_not_known_is_one_part() -> None:
    (part,) = parts([Wanted(0, 0, "h:1", "t", None)])
    assert (part.after, part.up_to) == (NONE, None)
    assert v.expected([part]) is None


# --------------------------------------------------------------------------------------------------------------- checksums


def entry(value: bytes, **fields: object) -> bytes:
    described = {"producer_name": "p", "sequence_id": 7, "publish_time": 99} | fields
    return metadata.build(pb.MessageMetadata(**described), value)  # type: ignore[arg-type]


@given(st.binary(max_size=300), st.binary(max_size=40), st.sampled_from([None, b"", b"\x00\x01", b"\x82\x01\x02"]))
def test_copies_have_the_same_checksum_everywhere(value: bytes, key: bytes, version: bytes | None) -> None:
    fields: dict[str, object] = {"ordering_key": key}
    if version is not None:
        fields["schema_version"] = version
    here = entry(value, **fields)
    there = metadata.with_replicated_from(entry(value, ordering_key=key), "us-west")
    kept = metadata.with_replicated_from(here, "us-west")
    sums = {checksum(memoryview(here), b"")}
    sums |= {checksum(memoryview(one), suffix_of("us-west")) for one in (there, kept)}
    sums.add(checksum(memoryview(here), b"?"))  # a suffix that is not there: the long way
    assert len(sums) == 1
    changed = bytearray(here)
    changed[-1] ^= 1
    if value:
        assert checksum(memoryview(bytes(changed)), b"") not in sums


def test_what_cannot_be_decoded_has_a_checksum_all_the_same() -> None:
    broken = bytearray(entry(b"x", schema_version=b"\x01"))
    broken[10] = 0xFF
    assert checksum(memoryview(bytes(broken)), b"") != checksum(memoryview(entry(b"x")), b"")


# --------------------------------------------------------------------------------------------------------------- comparing

Row = tuple[str, int, int, int, int]
"""Origin, index, messages, checksum, restriction."""


def packed(cluster: int, rows: list[Row], cuts: Iterable[int]) -> list[Packed]:
    """A cluster's log, cut into parts at some places, as tasks hand it on."""
    result: list[Packed] = []
    borders = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    for number, (begin, end) in enumerate(itertools.pairwise(borders)):
        packer = Packer()
        read = pb.CommandGeoReadResponse()
        pieces = []
        for place, (origin, index, count, salt, only) in enumerate(rows[begin:end], begin):
            fields: dict[str, object] = {"replicate_to": LISTS[only].split(",")} if only else {}
            data = entry(b"%d-%d" % (index, salt), **fields)
            flags = int(EntryFlags.RESTRICTED) if only else 0
            if origin != CLUSTERS[cluster]:
                data, flags = metadata.with_replicated_from(data, origin), flags | int(EntryFlags.REPLICATED)
            if origin not in read.origins:
                read.origins.append(origin)
            read.origin_ids.append(list(read.origins).index(origin))
            read.ledgers.append(3)
            read.entries.append(place)
            read.first_indexes.append(index)
            read.counts.append(count)
            read.flags.append(flags)
            read.sizes.append(len(data))
            read.incarnations.append(1)
            pieces.append(data)
        packer.add(read, memoryview(b"".join(pieces)))
        result += packer.rows(Part(number, cluster, 0, "h:1", "t", NONE, None, 0))
    return result


def dumb(logs: list[list[Row]], links: frozenset[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Counts by cluster and kind, entry by entry."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    everything = sorted({(origin, index) for log in logs for origin, index, *_ in log})
    for origin, index in everything:
        copies = [[row for row in log if row[:2] == (origin, index)] for log in logs]
        n = max(rows[0][2] for rows in copies if rows)
        only = max(rows[0][4] for rows in copies if rows)
        own = copies[CLUSTERS.index(origin)]
        votes = [rows[0][2:] for rows in copies if rows]
        true = {own[0][2:]} if own else {one for one in votes if votes.count(one) == max(map(votes.count, votes))}
        for cluster, name in enumerate(CLUSTERS):
            log = logs[cluster]
            if not copies[cluster]:
                if name == origin or ((origin, name) in links and (not only or name in LISTS[only].split(","))):
                    found[name, "missing"] += n
                continue
            found[name, "duplicated"] += n * (len(copies[cluster]) - 1)
            place = log.index(copies[cluster][0])
            if any(row[0] == origin and row[1] > index for row in log[:place]):
                found[name, "reordered"] += n
            if len(true) == 1 and any(row[2:] not in true for row in copies[cluster]):
                found[name, "altered"] += n
        if len(true) > 1:
            found["?", "undecided"] += 1
    return {key: count for key, count in found.items() if count}


def row_of(origin: str, index: int, salt: int) -> Row:
    """Messages and restriction of an identity do not differ between copies; the bytes may."""
    return origin, index, 1 + index % 3, salt, (index * 7) % 5 % 4 if index % 2 else 0


INDEXES = (*range(12), 65_530, 65_536, 200_000)
rows_of_a_log = st.lists(
    st.builds(row_of, st.sampled_from(CLUSTERS), st.sampled_from(INDEXES), st.sampled_from([0, 0, 0, 1])), max_size=14
)


@given(
    st.lists(rows_of_a_log, min_size=3, max_size=3),
    st.lists(st.integers(0, 20), max_size=3),
    st.sampled_from([LINKS, frozenset({("a", "b"), ("b", "c")})]),
)
def test_comparing_finds_what_a_dumb_comparison_finds(
    logs: list[list[Row]], cuts: list[int], links: frozenset[tuple[str, str]]
) -> None:
    held = [one for cluster in range(3) for one in packed(cluster, logs[cluster], cuts)]
    terms = comparing.Terms(CLUSTERS, links, v._before(held), v._reach(held), 100)
    stretches: dict[tuple[int, str, int, int], list[Packed]] = defaultdict(list)
    for one in held:
        stretches[one.stretch].append(one)
    found: dict[tuple[str, str], int] = defaultdict(int)
    for one in comparing.compare_with(terms, lambda _: None)(stretches.items()):
        if one.cluster >= 0 and not one.kind.startswith("missing_"):
            found[CLUSTERS[one.cluster], one.kind] += one.messages
            if one.kind == comparing.DUPLICATED:
                assert sum(example.messages for example in one.examples) == one.messages
    expected = dumb(logs, links)
    if expected.pop(("?", "undecided"), 0):  # nobody is right by the dumb rule; ours picks one
        found = defaultdict(int, {key: count for key, count in found.items() if key[1] != "altered"})
        expected = {key: count for key, count in expected.items() if key[1] != "altered"}
    assert dict(found) == expected


def test_reach_tells_what_was_trimmed_and_what_is_on_its_way() -> None:
    logs = [[("a", index, 1, 0, 0) for index in range(10)], [("a", index, 1, 0, 0) for index in (3, 4, 6)], []]
    held = [one for cluster in range(3) for one in packed(cluster, logs[cluster], ())]
    terms = comparing.Terms(CLUSTERS, LINKS, v._before(held), v._reach(held), 2)
    found = list(comparing.compare_with(terms, lambda _: None)([(held[0].stretch, held)]))
    counts = {(one.cluster, one.kind): one.messages for one in found}
    assert counts == {
        (-1, "different"): 10, (1, "missing"): 7, (1, "missing_before_first"): 3, (1, "missing_after_last"): 3,
        (2, "missing"): 10,
    }  # fmt: skip
    (missing,) = [one for one in found if (one.cluster, one.kind) == (1, "missing")]
    assert [(one.first, one.copy_cluster, one.copy_entry) for one in missing.examples] == [(0, 0, 0), (1, 0, 1)]


def test_an_entry_is_as_large_as_the_texts_say() -> None:
    assert ENTRY.itemsize == 37
    assert np.dtype("<u4") == ENTRY["sum"]


@pytest.mark.parametrize("origin", ["a", "us-west", "x" * 60])
def test_the_suffix_is_what_destinations_append(origin: str) -> None:
    data = entry(b"v")
    assert metadata.with_replicated_from(data, origin)[10:-1].endswith(suffix_of(origin))
