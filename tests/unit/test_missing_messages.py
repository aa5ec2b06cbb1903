"""A log of which something is missing: a segment, its end, all of it. Every message that was confirmed is served, or named."""

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar import cli
from magnetar.broker.admin.controller import Controller
from magnetar.core.errors import StorageError
from magnetar.runtime.log.folder_check import LEDGER_FILE, MARK_FILE
from tests.support.folders import CLUSTER, Life, live, name_of, segments

A = [f"a{number} " + "x" * 200 for number in range(20)]
B = [f"b{number}" for number in range(3)]


def step(method: str, *given: Any) -> Callable[[Life], Any]:
    async def run(life: Life) -> Any:
        return await getattr(life, method)(*given)

    return run


async def all_texts(life: Life) -> dict[str, list[str]]:
    return {topic.rpartition("/")[2]: life.texts(topic) for topic in life.app.broker.topics}


async def figures(life: Life) -> tuple[int, int]:
    stats = Controller(life.app.broker, life.app.driver.run).statistics.broker()
    return stats["unknownTopics"], stats["lostEntries"]


async def next_index(life: Life) -> int:
    return life.app.broker.topics[name_of("a")].log.next_index


def recover(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    code = cli.run(["recover", CLUSTER, "--data-dir", str(folder), *options])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def log_of(folder: Path) -> Path:
    return folder / CLUSTER / "log"


def largest(folder: Path) -> Path:
    return max(log_of(folder).glob("*.seg"), key=lambda path: path.stat().st_size)


def lost_in(text: str, topic: str) -> int:
    """How many messages the lines about a topic say are missing."""
    found = re.findall(
        rf"topic {re.escape(name_of(topic))}: (\d+) of \d+ stored entries of ledger \d+ are not in the log", text
    )
    return sum(map(int, found))


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The folder of a broker that was killed when all was confirmed, and told a moment ago what is on the disk."""

    async def run(life: Life) -> None:
        await life.publish("a", *A)
        await life.publish("b", *B)
        await life.marked()
        life.image(tmp_path / "image")

    live(tmp_path, run)
    return tmp_path / "image"


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    live(tmp_path, step("publish", "a", *A), step("publish", "b", *B))
    return tmp_path


def test_nothing_is_missing_after_a_kill_or_a_stop(
    killed: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert live(killed, all_texts) == {"a": A, "b": B}
    assert "are not in the log" not in caplog.text
    assert recover(killed, capsys)[0] == 0


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("keep", ["nothing", "sidecar", "half", "empty"])
def test_a_segment_that_is_missing_or_cut(
    request: pytest.FixtureRequest,
    how: str,
    keep: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder: Path = request.getfixturevalue(how)
    path = largest(folder)
    data = path.read_bytes()
    if keep == "half":
        path.write_bytes(data[: len(data) // 2])
    elif keep == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
        if keep == "nothing":
            path.with_suffix(".idx").unlink(missing_ok=True)
    caplog.clear()
    found = live(folder, all_texts)
    for topic, sent in (("a", A), ("b", B)):
        served = [text for text in found[topic] if not text.startswith("!")]
        assert len(served) + lost_in(caplog.text, topic) == len(sent)
    assert lost_in(caplog.text, "a") > 0
    caplog.clear()
    told = live(folder, figures)  # it is told until somebody accepts it
    lost = lost_in(caplog.text, "a")
    assert lost > 0
    assert told == (0, lost + lost_in(caplog.text, "b"))
    assert live(folder, next_index) == len(A)
    code, printed = recover(folder, capsys)
    assert (code, lost_in(printed, "a") > 0) == (1, True)
    code, printed = recover(folder, capsys, "--accept-loss")
    assert (code, "is accepted" in printed) == (0, True)
    caplog.clear()
    assert live(folder, next_index) == len(A)
    assert "are not in the log" not in caplog.text
    assert recover(folder, capsys)[0] == 0


@pytest.mark.parametrize("gone", ["folder", "content", "folder, file of ledgers", "folder, mark"])
def test_a_log_that_is_gone_is_refused(stopped: Path, gone: str, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(log_of(stopped))
    if gone == "content":
        log_of(stopped).mkdir()
    if "ledgers" in gone:
        (stopped / CLUSTER / LEDGER_FILE).unlink()
    if "mark" in gone:
        (stopped / CLUSTER / MARK_FILE).unlink()
    for _ in range(2):
        with pytest.raises(StorageError, match=r"there is no log in .*magnetar recover a --accept-loss$") as refused:
            live(stopped)
        assert "\n" not in str(refused.value)
    assert recover(stopped, capsys)[0] == 1
    assert recover(stopped, capsys, "--accept-loss")[0] == 0
    assert live(stopped, all_texts) == {"a": [], "b": []}
    if "ledgers" not in gone:
        assert live(stopped, next_index) == len(A), "an origin index would name two messages"


def test_a_folder_without_messages_needs_no_log(tmp_path: Path) -> None:
    live(tmp_path, step("create", "a"))
    shutil.rmtree(log_of(tmp_path))
    assert live(tmp_path, all_texts) == {"a": []}


def test_what_was_deleted_is_not_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    live(tmp_path, step("publish", "a", *A), step("publish", "b", *B), step("delete", "a"))
    live(tmp_path, step("delete", "b"))
    live(tmp_path, step("publish", "a", *A))
    live(tmp_path)
    assert "are not in the log" not in caplog.text


@pytest.mark.parametrize("content", [None, b"", b"garbage" * 100])
def test_a_file_of_ledgers_that_says_nothing(
    stopped: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = stopped / CLUSTER / LEDGER_FILE
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert live(stopped, all_texts) == {"a": A, "b": B}
    assert ("the file of ledgers" in caplog.text) == (content is not None)
    largest(stopped).unlink()
    live(stopped)
    assert lost_in(caplog.text, "a") == len(A)


def test_damage_in_front_of_what_was_confirmed_is_not_taken_for_a_torn_end(
    killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No check tells that the last cycle was durable, but the file of ledgers does: one entry is lost, and nothing is cut."""
    path = largest(killed)
    data = bytearray(path.read_bytes())
    data[data.index(B[0].encode())] ^= 4
    path.write_bytes(data)
    found = live(killed, all_texts)
    assert found["a"] == A
    assert found["b"][0].startswith("!")
    assert found["b"][1:] == B[1:]
    assert path.stat().st_size >= len(data)
    assert "torn by a crash" not in caplog.text


def test_the_end_that_nobody_was_told_of_may_be_torn(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = largest(killed)
    path.write_bytes(path.read_bytes() + b"\x20\0\0\0torn")
    caplog.clear()
    assert live(killed, all_texts) == {"a": A, "b": B}
    assert "are not in the log" not in caplog.text


@pytest.mark.parametrize("seed", range(int(os.environ.get("MAGNETAR_SEEDS", "3"))))
def test_no_confirmed_message_disappears_without_a_line(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is damaged at random between lives; what is refused is accepted by the way out that was printed."""
    rng = random.Random(seed)
    confirmed: dict[str, list[str]] = {}
    number = 0
    folder = tmp_path / "0"
    copies: list[Path] = []

    async def busy(life: Life) -> None:
        nonlocal number
        for _ in range(rng.randint(1, 4)):
            topic = f"t{rng.randrange(4)}"
            if rng.random() < 0.15 and name_of(topic) in life.app.broker.topics:
                await life.delete(topic)
                confirmed.pop(topic, None)
                continue
            texts = [f"{topic} {number + each}" for each in range(rng.randint(1, 5))]
            number += len(texts)
            await life.publish(topic, *texts)
            confirmed.setdefault(topic, []).extend(texts)
        await life.marked()
        life.image(target)

    for turn in range(4):
        target = tmp_path / str(turn + 1)
        live(folder, busy)
        kept = tmp_path / f"copy{turn}"
        kept.mkdir()
        for path in (folder / CLUSTER).glob("meta.sqlite*"):
            shutil.copy(path, kept / path.name)
        copies.append(kept)
        if rng.random() < 0.6:
            folder = target  # killed
        damage(rng, folder, copies)
        before = segments(folder)
        for attempt in range(6):
            caplog.clear()
            try:
                found = live(folder, all_texts)
                break
            except StorageError as error:
                assert "\n" not in str(error)
                assert segments(folder).keys() == before.keys(), "a refused start deleted a segment"
                way = re.search(r"magnetar recover a (--[a-z-]+)", str(error))
                assert way is not None, str(error)
                recover(folder, capsys, way[1])
                assert attempt < 5, str(error)
        for topic, texts in confirmed.items():
            served = set(found.get(topic, ()))
            gone = [text for text in texts if text not in served]
            named = name_of(topic) in caplog.text
            assert not gone or named, f"{gone} of {topic} are gone, and no line says so"
        recover(folder, capsys, "--keep", "all")
        recover(folder, capsys, "--discard", "all", "--accept-loss")
        confirmed = live(folder, all_texts)
        capsys.readouterr()


def damage(rng: random.Random, folder: Path, copies: list[Path]) -> None:
    base = folder / CLUSTER
    found = [path for path in log_of(folder).glob("*.seg") if path.stat().st_size > 200]
    kind = rng.choice(("store", "wal", "flip store", "segment", "cut", "flip segment", "nothing"))
    if kind == "store":
        for path in base.glob("meta.sqlite*"):
            path.unlink()
        for path in rng.choice(copies).iterdir():
            shutil.copy(path, base / path.name)
    elif kind == "wal":
        wal = base / "meta.sqlite-wal"
        if wal.exists():
            wal.write_bytes(wal.read_bytes()[: rng.randrange(wal.stat().st_size + 1)])
    elif kind == "flip store":
        flip(rng, base / "meta.sqlite")
    elif found and kind == "segment":
        rng.choice(found).unlink()
    elif found and kind == "cut":
        path = rng.choice(found)
        path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])
    elif found and kind == "flip segment":
        flip(rng, rng.choice(found))


def flip(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        bit = rng.randrange(len(data) * 8)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
