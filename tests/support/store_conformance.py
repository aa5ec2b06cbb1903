"""The contract of every metadata store as tests: `class TestMine(StoreConformance)` with a fixture `store`.

One suite for all: the stores in memory, in SQLite and in ZooKeeper promise the same.
"""

from collections.abc import Callable

from magnetar.metadata.store import Store, VersionConflict


def _raises_conflict(store: Store, puts: dict[str, bytes], expected: dict[str, int]) -> bool:
    try:
        store.apply(puts, (), expected)
    except VersionConflict:
        return True
    return False


class StoreConformance:
    """The suite. A subclass gives a pytest fixture `store`: an empty store, closed by the fixture."""

    def test_empty(self, store: Store) -> None:
        """A new store holds nothing."""
        assert store.load() == {}

    def test_put_and_load(self, store: Store) -> None:
        """A value that was put is loaded byte for byte, the empty value included."""
        store.apply({"a/b": b"\x00\xff", "empty": b"", "ü/日本": b"x"})
        assert {key: value for key, (value, _) in store.load().items()} == {
            "a/b": b"\x00\xff",
            "empty": b"",
            "ü/日本": b"x",
        }

    def test_put_again_and_delete(self, store: Store) -> None:
        """The last write counts; deleting what is not there does no harm."""
        store.apply({"a": b"1", "b": b"1"})
        store.apply({"a": b"2"}, ("b", "never"))
        assert {key: value for key, (value, _) in store.load().items()} == {"a": b"2"}

    def test_put_wins_over_delete_of_the_same_key(self, store: Store) -> None:
        """A transaction that deletes a key and puts it leaves it there."""
        store.apply({"a": b"1"})
        store.apply({"a": b"2"}, ("a",))
        assert store.load()["a"][0] == b"2"

    def test_versions_grow_and_are_never_used_again(self, store: Store) -> None:
        """Also not after a deletion: a caller that remembers an old version cannot mistake the new key for it."""
        seen = []
        for _ in range(3):
            store.apply({"a": b"x"})
            seen.append(store.load()["a"][1])
            store.apply({}, ("a",))
        assert seen == sorted(set(seen))
        assert min(seen) > 0

    def test_the_version_grows_with_every_transaction(self, store: Store) -> None:
        """Also with one that deletes: a store whose version is lower than a known one went back in time."""
        seen = [store.version]
        for puts, deletes in (({"a": b"1"}, ()), ({"a": b"2"}, ()), ({}, ("a",)), ({"b": b"1"}, ("a",))):
            store.apply(puts, deletes)
            seen.append(store.version)
        assert seen == sorted(set(seen))
        assert store.load()["b"][1] <= store.version

    def test_compare_and_set(self, store: Store) -> None:
        """A write goes through only if all versions are as expected; 0 expects that there is no such key."""
        store.apply({"a": b"1"}, (), {"a": 0})
        version = store.load()["a"][1]
        assert _raises_conflict(store, {"a": b"2"}, {"a": 0})
        assert _raises_conflict(store, {"a": b"2"}, {"a": version + 1})
        assert _raises_conflict(store, {"a": b"2"}, {"a": version, "b": 7})
        store.apply({"a": b"2"}, (), {"a": version, "b": 0})
        assert store.load()["a"][0] == b"2"

    def test_a_refused_write_changes_nothing(self, store: Store) -> None:
        """All or nothing."""
        store.apply({"a": b"1", "b": b"1"})
        assert _raises_conflict(store, {"b": b"2", "c": b"2"}, {"a": 0})
        assert {key: value for key, (value, _) in store.load().items()} == {"a": b"1", "b": b"1"}

    def test_submitted_writes_are_done_in_order(self, store: Store) -> None:
        """Each is reported once, in the order of submission, and the last one counts."""
        reports: list[tuple[int, str]] = []

        def report(number: int) -> Callable[[str], None]:
            return lambda error: reports.append((number, error))

        for number in range(500):
            store.submit({"a": b"%d" % number, f"k{number}": b""}, (), report(number))
        # One order for both ways of writing: when this is done, so is all that was submitted before.
        store.apply({"end": b""})
        assert reports == [(number, "") for number in range(500)]
        assert store.load()["a"][0] == b"499"
        assert len(store.load()) == 502

    def test_a_submitted_write_is_there_when_it_is_reported(self, store: Store) -> None:
        """When `done` is called, the written values can be read."""
        found: list[bytes] = []
        store.submit({"a": b"1"}, (), lambda error: found.append(store.load()["a"][0]))
        store.apply({"end": b""})
        assert found == [b"1"]

    def test_apply_sees_what_was_submitted_before(self, store: Store) -> None:
        """One order for both ways of writing."""
        store.submit({"a": b"1"}, (), lambda error: None)
        store.apply({"b": b"1"})
        assert set(store.load()) == {"a", "b"}

    def test_watch(self, store: Store) -> None:
        """A watcher is called for changes under its prefix, with the versions that `load` shows, until it is ended."""
        calls: list[tuple[str, bytes | None, int]] = []
        stop = store.watch("t/", lambda key, value, version: calls.append((key, value, version)))
        store.apply({"t/a": b"1", "other": b"1"})
        version = store.load()["t/a"][1]
        store.apply({}, ("t/a", "t/never"))
        store.apply({"t/end": b""})
        assert calls[0] == ("t/a", b"1", version)
        assert calls[1][:2] == ("t/a", None)
        assert calls[2][:2] == ("t/end", b"")
        assert [each[2] for each in calls] == sorted({each[2] for each in calls})
        stop()
        store.apply({"t/b": b"1"})
        assert len(calls) == 3

    def test_a_watcher_that_fails_harms_nobody(self, store: Store) -> None:
        """The failure is another component's bug; the store continues, and so do the other watchers."""
        calls: list[str] = []

        def broken(key: str, value: bytes | None, version: int) -> None:
            raise RuntimeError("planted")

        store.watch("", broken)
        store.watch("", lambda key, value, version: calls.append(key))
        store.apply({"a": b"1"})
        store.apply({"b": b"1"})
        assert calls == ["a", "b"]
        assert set(store.load()) == {"a", "b"}
