"""A cache is bounded by what its entries cost."""

import pytest

from magnetar.core.caching import ENTRY_BYTES, CostCache


def test_it_keeps_what_was_used_last_within_its_bytes() -> None:
    made: list[str] = []

    def make(key: str) -> str:
        made.append(key)
        return key * 2

    cache = CostCache[str, str](3 * (ENTRY_BYTES + 10), make, lambda _key, _value: 10)
    assert [cache(key) for key in "abc"] == ["aa", "bb", "cc"]
    cache("a")
    cache("d")  # b was not used for longest
    assert [cache(key) for key in "acd"] == ["aa", "cc", "dd"] and made == ["a", "b", "c", "d"]
    cache("b")
    assert made[-1] == "b" and len(cache) == 3 and cache.bytes == 3 * (ENTRY_BYTES + 10)


def test_what_is_dearer_than_all_of_it_is_made_and_not_kept() -> None:
    cache = CostCache[int, int](1_000, abs, lambda key, _value: key)
    cache(1)
    assert (cache(5_000), len(cache)) == (5_000, 1)


def test_what_cannot_be_made_is_not_kept() -> None:
    cache = CostCache[str, int](1_000, int, lambda _key, _value: 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            cache("x")
    assert (len(cache), cache.bytes) == (0, 0)
    cache("1")
    cache.clear()
    assert (len(cache), cache.bytes) == (0, 0)
