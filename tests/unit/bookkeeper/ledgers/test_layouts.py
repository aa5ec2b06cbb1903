"""Paths of ledgers as Java's tools expect them, and the nodes that count ids."""

import pytest

from magnetar.bookkeeper.ledgers.layouts import (
    LEDGER_ID_MAX,
    Layout,
    LedgerPaths,
    NotALedger,
    UnknownLayout,
    counted,
    decode_layout,
    encode_layout,
    long_id,
)

HIERARCHICAL = LedgerPaths(Layout.HIERARCHICAL)


@pytest.mark.parametrize(
    ("layout", "ledger", "path"),
    [
        (Layout.FLAT, 862, "/ledgers/L0000000862"),
        (Layout.HIERARCHICAL, 862, "/ledgers/00/0000/L0862"),
        (Layout.HIERARCHICAL, 2**31 - 2, "/ledgers/21/4748/L3646"),
        (Layout.HIERARCHICAL, 2**31 - 1, "/ledgers/000/0000/0021/4748/L3647"),
        (Layout.LONG_HIERARCHICAL, 862, "/ledgers/000/0000/0000/0000/L0862"),
        (Layout.LONG_HIERARCHICAL, LEDGER_ID_MAX, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_paths(layout: Layout, ledger: int, path: str) -> None:
    assert LedgerPaths(layout).of(ledger) == path
    assert LedgerPaths(layout).ledger_of(path) == ledger


@pytest.mark.parametrize("ledger", [-1, LEDGER_ID_MAX + 1])
def test_ids_that_cannot_be(ledger: int) -> None:
    with pytest.raises(ValueError, match="is no id of a ledger"):
        HIERARCHICAL.of(ledger)


@pytest.mark.parametrize(
    "path",
    [
        "/ledgers/00/0000",
        "/ledgers/00/0000/L08621",
        "/other/00/0000/L0862",
        "/ledgers/99/0000/L0000",
        "/ledgers/000/0000/0000/0000/L0862",
        "/ledgers/999/9999/9999/9999/L9999",
        "/ledgers/available/a:1",
        "/ledgers/\u0660\u0660/0000/L0862",
    ],
)
def test_paths_that_are_no_ledger(path: str) -> None:
    with pytest.raises(NotALedger, match="is not the path of a ledger below /ledgers in the layout HIERARCHICAL"):
        HIERARCHICAL.ledger_of(path)


def test_children_of_the_root() -> None:
    others = ["available", "cookies", "idgen", "idgen-long", "LAYOUT", "INSTANCEID", "underreplication", "1", "0000"]
    assert [child for child in ("00", "000", *others) if HIERARCHICAL.holds_ledgers(child)] == ["00", "000"]
    flat = LedgerPaths(Layout.FLAT)
    assert [child for child in ("L0000000862", *others) if flat.holds_ledgers(child)] == ["L0000000862"]


@pytest.mark.parametrize("layout", Layout)
def test_the_node_layout(layout: Layout) -> None:
    assert decode_layout(encode_layout(layout)) is layout


@pytest.mark.parametrize(
    "encoded", [b"", b"\xff", b"1\nflat", b"2\norg.apache.bookkeeper.meta.MSLedgerManagerFactory:1"]
)
def test_other_layouts_are_refused(encoded: bytes) -> None:
    with pytest.raises(UnknownLayout, match="this client knows the layouts FLAT, HIERARCHICAL, LONG_HIERARCHICAL"):
        decode_layout(encoded)


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("/ledgers/idgen/ID-0000000862", 862),
        ("/ledgers/idgen/ID-2147483646", 2**31 - 2),
        ("/ledgers/idgen/ID-2147483647", None),
        ("/ledgers/idgen/ID--2147483648", None),
        ("/ledgers/idgen-long/HOB-0000000001/ID-0000000003", 3),
    ],
)
def test_counters(path: str, number: int | None) -> None:
    assert counted(path) == number


def test_other_nodes_count_nothing() -> None:
    with pytest.raises(ValueError, match="is not the path of a node that gives ids"):
        counted("/ledgers/idgen")


def test_large_ids() -> None:
    assert HIERARCHICAL.long_id_prefix(1) == "/ledgers/idgen-long/HOB-0000000001/ID-"
    assert HIERARCHICAL.id_prefix == "/ledgers/idgen/ID-"
    assert LedgerPaths(Layout.FLAT).id_prefix == "/ledgers/ID-"
    assert long_id(1, 3) == 2**32 + 3
