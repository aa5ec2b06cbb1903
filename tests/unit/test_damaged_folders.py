"""A metadata store that is not as it was left: nothing is deleted that it does not say was deleted, and every way out works."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar import cli
from magnetar.broker.catalog import deletion_proofs as proofs
from magnetar.broker.catalog.deletion_proofs import DELETION_PREFIX, PROVES_KEY, proven
from magnetar.core.errors import StorageError
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.policies.namespace import Policies, TenantInfo
from magnetar.runtime.log.folder_check import MARK_FILE, STORE_ID_KEY, salvage
from magnetar.runtime.stores.mark import SLOT_BYTES, StoreMark
from magnetar.runtime.stores.sqlite import SqliteStore
from tests.support.folders import CLUSTER, Life, config_of, live, name_of, segments

A, B = ["a1", "a2", "a3"], ["b1", "b2"]


def step(method: str, *given: Any) -> Callable[[Life], Any]:
    async def run(life: Life) -> Any:
        return await getattr(life, method)(*given)

    return run


async def all_texts(life: Life) -> dict[str, list[str]]:
    return {topic.rpartition("/")[2]: life.texts(topic) for topic in life.app.broker.topics}


async def unknown(life: Life) -> list[tuple[str, int]]:
    return [(each.topic, each.messages) for each in life.app.broker.proofs.unknown]


def recover(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    """Exit code, and everything printed."""
    code = cli.run(["recover", CLUSTER, "--data-dir", str(folder), *options])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def copy_store(source: Path, target: Path) -> None:
    for path in target.glob("meta.sqlite*"):
        path.unlink()
    for path in source.glob("meta.sqlite*"):
        shutil.copy(path, target / path.name)


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """Topic a, then a copy of the store; then topic b, and a is deleted; then the copy is put back."""
    live(tmp_path, step("publish", "a", *A))
    shutil.copytree(tmp_path / CLUSTER, tmp_path / "copy")
    live(tmp_path, step("publish", "b", *B), step("delete", "a"))
    copy_store(tmp_path / "copy", tmp_path / CLUSTER)
    return tmp_path


def test_an_older_store_is_refused_and_nothing_is_deleted(older: Path) -> None:
    before = segments(older)
    with pytest.raises(StorageError, match=r"went back in time: .*magnetar recover a --accept-store$") as refused:
        live(older)
    assert "\n" not in str(refused.value)
    assert segments(older) == before


def test_what_an_older_store_does_not_know_is_kept_until_somebody_decides(
    older: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    code, printed = recover(older, capsys)
    assert code == 1
    assert "went back in time" in printed
    assert f"topic {name_of('b')} " in printed
    code, printed = recover(older, capsys, "--accept-store")
    assert code == 1
    for _ in range(2):  # also at the next start, when the highest incarnation is above its own
        caplog.clear()
        assert live(older, step("publish", "c", "c1"), unknown) == [(name_of("b"), 2)]
        assert f"topic {name_of('b')} (incarnation" in caplog.text
        assert "see magnetar recover a" in caplog.text
    code, printed = recover(older, capsys, "--keep", "b")
    assert (code, "is back with 2 messages" in printed) == (0, True)
    assert live(older, all_texts)["b"] == B
    assert live(older, unknown) == []
    assert recover(older, capsys)[0] == 0


def test_without_its_mark_an_older_store_deletes_nothing_either(older: Path) -> None:
    (older / CLUSTER / MARK_FILE).unlink()
    assert live(older, unknown) == [(name_of("b"), 2)]
    assert live(older, unknown) == [(name_of("b"), 2)]


def test_what_is_discarded_is_deleted(older: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recover(older, capsys, "--accept-store", "--discard", name_of("b"))[0] == 0
    live(older)
    assert live(older, unknown) == []
    assert "b" not in live(older, all_texts)
    assert not any(b"b1" in path.read_bytes() for path in (older / CLUSTER / "log").glob("*.seg"))


def test_who_is_kept_under_a_name_that_another_topic_has(older: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recover(older, capsys, "--accept-store")
    live(older, step("publish", "b", "new"))
    code, printed = recover(older, capsys, "--keep", "all")
    assert code == 1
    assert f"--discard {name_of('b')}" in printed
    assert "Traceback" not in printed
    assert recover(older, capsys, "--discard", "all")[0] == 0
    assert live(older, all_texts)["b"] == ["new"]


def test_a_topic_that_nobody_reads_after_its_store_went_back_is_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its subscriptions may be what was lost: retention would delete what they had not consumed."""
    live(tmp_path, step("publish", "a", *A))
    shutil.copytree(tmp_path / CLUSTER, tmp_path / "copy")
    live(tmp_path, step("subscribe", "a"))
    copy_store(tmp_path / "copy", tmp_path / CLUSTER)
    code, printed = recover(tmp_path, capsys, "--accept-store")
    assert (code, "recovered holds its messages" in printed) == (0, True)

    async def holders(life: Life) -> list[str]:
        return list(life.app.broker.topics[name_of("a")].subscriptions)

    assert live(tmp_path, holders) == ["recovered"]


def test_a_partition_comes_back_with_what_it_belongs_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live(tmp_path)
    shutil.copytree(tmp_path / CLUSTER, tmp_path / "copy")
    topic = "persistent://shop/orders/t-partition-1"

    async def make(life: Life) -> None:
        resources = life.app.broker.resources
        for make_one in (
            lambda: resources.create_tenant("shop", TenantInfo(allowed_clusters=[CLUSTER])),
            lambda: resources.create_namespace(NamespaceName.parse("shop/orders"), Policies()),
            lambda: resources.create_partitioned(TopicName.parse(topic).base, 2, {}),
        ):
            made = make_one()
            life.app.store.apply(made.puts)
            resources.apply(made)
        await life.publish(topic, "kept")

    live(tmp_path, make)
    copy_store(tmp_path / "copy", tmp_path / CLUSTER)
    code, printed = recover(tmp_path, capsys, "--accept-store", "--keep", topic)
    assert (code, "namespace shop/orders is made again" in printed) == (0, True)

    async def partitions(life: Life) -> Any:
        return life.app.broker.resources.partitions(TopicName.parse(topic).base), life.texts(topic)

    assert live(tmp_path, partitions) == (2, ["kept"])


@pytest.mark.parametrize("left", [0.0, 0.3, 0.9, 1.0])
def test_a_write_ahead_log_that_is_lost_or_cut_after_a_kill(tmp_path: Path, left: float) -> None:
    """Whatever of it is left: what was confirmed is served, or kept, or the start is refused."""
    live(tmp_path, step("publish", "a", *A))
    image = tmp_path / "image"

    async def killed(life: Life) -> None:
        await life.publish("b", *B)
        await life.subscribe("b")
        life.image(image)

    live(tmp_path, killed)
    wal = image / CLUSTER / "meta.sqlite-wal"
    data = wal.read_bytes()
    assert data
    wal.write_bytes(data[: int(len(data) * left)])
    before = segments(image)
    if left == 1.0:
        assert live(image, all_texts) == {"a": A, "b": B}
    else:
        with pytest.raises(StorageError, match="went back in time|is not the one"):
            live(image)
        assert segments(image) == before
        (image / CLUSTER / MARK_FILE).unlink()
        found, lost = live(image, all_texts), live(image, unknown)
        assert found["a"] == A
        assert found.get("b") == B or lost == [(name_of("b"), 2)]


def test_another_store_is_refused(tmp_path: Path) -> None:
    """Of another cluster that ran longer, so that its number of transactions is higher."""
    live(tmp_path, step("publish", "a", *A))
    other = tmp_path / "other"
    live(other, *[step("publish", f"x{number}", "1") for number in range(20)])
    copy_store(other / CLUSTER, tmp_path / CLUSTER)
    with pytest.raises(StorageError, match="is not the one that this data folder was used with"):
        live(tmp_path)


# ------------------------------------------------------------------------------------------------- proof of deletions


def test_a_deleted_topic_is_cleared_away_after_a_kill_and_its_proof_after_it(tmp_path: Path) -> None:
    image = tmp_path / "image"

    async def killed(life: Life) -> None:
        await life.publish("a", *A)
        await life.publish("b", *B)
        await life.delete("a")
        life.image(image)

    live(tmp_path, killed)

    async def proofs(life: Life) -> int:
        return len(proven({key: value for key, (value, _) in life.app.store.load().items()}))

    for _ in range(2):
        assert live(image, unknown) == []
        assert live(image, all_texts) == {"b": B}
    assert live(image, proofs) == 1  # the segment holds b as well
    live(image, step("delete", "b"))
    live(image)
    live(image, step("settled"))
    assert live(image, proofs) == 0


def test_many_proofs_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "SINGLE_MAX", 4)
    monkeypatch.setattr(proofs, "CHUNKS_MAX", 3)

    async def keys(life: Life) -> list[str]:
        await life.settled()
        return [key for key in life.app.store.load() if key.startswith(DELETION_PREFIX)]

    async def come_and_go(life: Life) -> None:
        await life.publish("stays", "s")
        for number in range(18):
            await life.publish(f"t{number}", "x")
            await life.delete(f"t{number}")

    found = live(tmp_path, come_and_go, keys)
    assert len([key for key in found if "from-" in key]) == 3
    assert len(found) == 5
    # Of the four whose proof was given up nobody can tell: they are kept.
    assert live(tmp_path, unknown) == [(name_of(f"t{number}"), 1) for number in range(4)]
    assert live(tmp_path, unknown) == [(name_of(f"t{number}"), 1) for number in range(4)]


def as_before(folder: Path) -> None:
    """The data folder as a version without marks and proofs leaves it."""
    (folder / CLUSTER / MARK_FILE).unlink()
    connection = sqlite3.connect(folder / CLUSTER / "meta.sqlite", isolation_level=None)
    connection.execute(
        "DELETE FROM entries WHERE key LIKE ? OR key IN (?, ?)", (f"{DELETION_PREFIX}%", PROVES_KEY, STORE_ID_KEY)
    )
    connection.execute(
        "CREATE TABLE old (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID"
    )
    connection.execute("INSERT INTO old SELECT key, value, version FROM entries")
    connection.execute("DROP TABLE entries")
    connection.execute("ALTER TABLE old RENAME TO entries")
    connection.execute("PRAGMA user_version=1")
    connection.close()


def test_a_folder_of_a_version_without_marks_opens(tmp_path: Path) -> None:
    live(tmp_path, step("publish", "a", *A), step("publish", "b", *B), step("delete", "a"))
    as_before(tmp_path)
    assert live(tmp_path, unknown) == []
    assert live(tmp_path, all_texts) == {"b": B}
    assert live(tmp_path, step("publish", "c", "c1"), unknown) == []


def test_a_copy_of_the_store_that_such_a_version_made(tmp_path: Path) -> None:
    live(tmp_path, step("publish", "a", *A))
    as_before(tmp_path)
    shutil.copytree(tmp_path / CLUSTER, tmp_path / "copy")
    live(tmp_path, step("publish", "b", *B))
    copy_store(tmp_path / "copy", tmp_path / CLUSTER)
    with pytest.raises(StorageError, match="is not the one"):
        live(tmp_path)
    (tmp_path / CLUSTER / MARK_FILE).unlink()
    assert live(tmp_path, unknown) == [(name_of("b"), 2)]


# ------------------------------------------------------------------------------------------------------ damaged stores


def filled_store(path: Path) -> dict[str, tuple[bytes, int]]:
    store = SqliteStore(path)
    for number in range(40):
        store.apply(
            {f"topics/persistent://public/default/t{number}": b'{"incarnation":%d}' % (1_700_000_000_000 + number)}
        )
        store.apply({f"cursors/t{number}/s": bytes(range(200))}, (f"cursors/t{number - 20}/s",))
    found = store.load()
    store.close()
    return found


@pytest.mark.parametrize("block", range(4))
def test_any_flipped_bit_of_the_store_is_noticed_or_harmless(tmp_path: Path, block: int) -> None:
    path = tmp_path / "meta.sqlite"
    written = filled_store(path)
    data = path.read_bytes()
    rng = random.Random(block)
    refused = 0
    for _ in range(40):
        bit = rng.randrange(len(data) * 8)
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        for each in tmp_path.glob("meta.sqlite*"):
            each.unlink()
        path.write_bytes(flipped)
        try:
            store = SqliteStore(path, way_out="; the way out")
            try:
                assert store.load() == written, f"bit {bit} changed what is read"
                store.apply({"more": b"1"})
            finally:
                store.close()
        except StorageError as error:
            refused += 1
            assert "\n" not in str(error)
            assert "the way out" in str(error) or "has format" in str(error), str(error)
            try:
                salvage(path, CLUSTER)
            except StorageError as hopeless:
                assert "magnetar recover a --accept-store --keep all" in str(hopeless)
                continue
            again = SqliteStore(path)
            assert again.load().items() <= written.items()
            assert again.version >= max(version for _, version in again.load().values())
            again.close()
    assert refused > 10


def test_a_damaged_store_is_salvaged_and_what_it_lost_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live(tmp_path, step("publish", "a", *A), step("publish", "b", *B))
    path = tmp_path / CLUSTER / "meta.sqlite"
    data = bytearray(path.read_bytes())
    at = data.index(b"topics/" + name_of("b").encode())
    data[at + len("topics/")] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"damaged: .*magnetar recover a --salvage$"):
        live(tmp_path)
    code, printed = recover(tmp_path, capsys, "--salvage")
    assert (code, "1 were not" in printed) == (1, True)
    assert live(tmp_path, unknown) == [(name_of("b"), 2)]
    assert recover(tmp_path, capsys, "--keep", "all")[0] == 0
    assert live(tmp_path, all_texts) == {"a": A, "b": B}


def test_a_store_of_which_nothing_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live(tmp_path, step("publish", "a", *A))
    path = tmp_path / CLUSTER / "meta.sqlite"
    path.write_bytes(bytes(5000))
    with pytest.raises(StorageError, match="--salvage"):
        live(tmp_path)
    code, printed = recover(tmp_path, capsys, "--salvage")
    assert code == 1
    assert "--accept-store --keep all" in printed
    path.rename(tmp_path / "aside")
    assert recover(tmp_path, capsys, "--accept-store", "--keep", "all")[0] == 0
    assert live(tmp_path, all_texts) == {"a": A}


# ---------------------------------------------------------------------------------------------------- marks and uuids


@pytest.mark.parametrize("content", [b"", b"x", bytes(2 * SLOT_BYTES), b"\xff" * 10_000])
def test_a_mark_that_says_nothing_is_told(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    live(tmp_path, step("publish", "a", *A))
    (tmp_path / CLUSTER / MARK_FILE).write_bytes(content)
    assert live(tmp_path, all_texts) == {"a": A}
    assert ("store.mark of the data folder is damaged" in caplog.text) == bool(content)
    mark = StoreMark(tmp_path / CLUSTER / MARK_FILE)
    assert mark.found is not None
    mark.close()


def test_a_torn_slot_leaves_the_other(tmp_path: Path) -> None:
    path = tmp_path / "store.mark"
    mark = StoreMark(path)
    mark.begin("s" * 36, 5)
    for version in range(6, 11):
        mark.keep(version)
    mark.close()
    data = path.read_bytes()
    for torn in range(2):
        path.write_bytes(data[: torn * SLOT_BYTES + 20] + bytes(20) + data[torn * SLOT_BYTES + 40 :])
        again = StoreMark(path)
        assert again.found is not None
        assert again.found.version in (9, 10)
        again.close()


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_mark_that_is_no_file_is_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "store.mark"
    path.mkdir() if kind == "folder" else path.symlink_to(tmp_path / "other")
    with pytest.raises(StorageError, match="cannot use .*store.mark"):
        StoreMark(path)
    assert not (tmp_path / "other").exists()


def test_a_uuid_is_made_again_from_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def uuid(life: Life) -> str:
        return life.app.broker.uuid

    before = live(tmp_path, uuid)
    (tmp_path / CLUSTER / "uuid").write_text("")
    with pytest.raises(StorageError, match="magnetar recover a --uuid"):
        live(tmp_path)
    assert recover(tmp_path, capsys, "--uuid")[0] == 0
    assert live(tmp_path, uuid) == before


def test_the_uuid_of_another_cluster_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def uuid(life: Life) -> str:
        return life.app.broker.uuid

    before = live(tmp_path, uuid)
    (tmp_path / CLUSTER / "uuid").write_text("550e8400-e29b-41d4-a716-446655440000\n")
    with pytest.raises(StorageError, match=f"knows a as {before}: .*magnetar recover a --uuid$"):
        live(tmp_path)
    assert recover(tmp_path, capsys, "--uuid")[0] == 0
    assert live(tmp_path, uuid) == before


def test_recovering_beside_a_broker_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def beside(life: Life) -> tuple[int, str]:
        return recover(tmp_path, capsys)

    code, printed = live(tmp_path, beside)
    assert code == 1
    assert "in use by another broker" in printed
    code, printed = recover(tmp_path / "nothing", capsys)
    assert (code, "is not a data folder" in printed) == (1, True)
    assert config_of(tmp_path).cluster_dir(CLUSTER).exists()
