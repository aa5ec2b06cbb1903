"""What is found again after a crash, and after the disk has changed its mind about what it was told."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.core.errors import StorageError
from magnetar.core.ids import Position
from magnetar.runtime.log.files import OsFiles
from magnetar.storage.entries import Append
from magnetar.storage.ledger import SEGMENT_MAX
from magnetar.storage.log import SegmentLog
from magnetar.storage.records import CHECK, SEGMENT_MAGIC, pack_check, pack_seal, pack_start
from magnetar.storage.recovery import index_name, recover, segment_name
from magnetar.storage.topiclog import EntryCache, LedgerIds, TopicLog
from magnetar_sim.host.memory_files import MemoryFile, MemoryFiles
from tests.unit.storage.harness import FOLDER, INCARNATION, TOPIC, Log, entry, stored

SEGMENT = FOLDER / segment_name(1)
INDEX = FOLDER / index_name(1)


def filled(count: int = 10) -> tuple[Log, TopicLog, list[Append]]:
    """A log with one entry a cycle."""
    log = Log()
    topic = log.topic()
    return log, topic, [log.append(topic, f"message {number}") for number in range(count)]


def place(topic: TopicLog, entry: int) -> int:
    return topic.locations(Position(INCARNATION, entry), 1, 1)[0].offset


def served(log: Log) -> dict[int, str]:
    """Entry id -> its text, or the error that reading it gives."""
    topic = log.topics.get(TOPIC) or log.topic()
    found: dict[int, str] = {}
    position: Position | None = topic.first
    while position is not None:
        try:
            found[position.entry] = log.thread.read(topic.locations(position, 1, 1))[0].data.decode()
        except StorageError as error:
            found[position.entry] = f"! {error}"
        position = topic.next_after(position)
    return found


def damage_body(data: bytearray, at: int) -> None:
    data[at + 52] ^= 0x10


def damage_length(data: bytearray, at: int) -> None:
    data[at + 2] ^= 0x40


def test_a_damaged_body_in_the_open_segment_costs_one_entry() -> None:
    log, topic, _ = filled()
    damage_body(log.files.content(SEGMENT), place(topic, 4))
    again = log.restart()
    assert again.recovered.problems == [
        f"segment 1, offset {place(topic, 4)}: a record of 59 bytes is damaged: entry 1000:4"
    ]
    found = served(again)
    assert {entry: text for entry, text in found.items() if entry != 4} == {
        entry: f"message {entry}" for entry in range(10) if entry != 4
    }
    assert found[4].startswith("! corrupt: entry 1000:4 in segment 1")
    assert again.topics[TOPIC].next_index == 10
    assert again.topics[TOPIC].identity_of(Position(INCARNATION, 4)) is None
    assert again.topics[TOPIC].origin_index_of(Position(INCARNATION, 5)) == 5
    again.stop()


def test_a_damaged_length_costs_what_lies_up_to_the_next_check() -> None:
    log, topic, _ = filled()
    damage_length(log.files.content(SEGMENT), place(topic, 4))
    again = log.restart()
    assert any(f"offset {place(topic, 4)}: damaged" in problem for problem in again.recovered.problems)
    assert any("ledger 1000: 1 entries are lost to damage" in problem for problem in again.recovered.problems)
    found = served(again)
    assert found.pop(4) == "! corrupt: entry 1000:4 is lost; the log was damaged where it lay"
    assert found == {entry: f"message {entry}" for entry in range(10) if entry != 4}
    again.stop()


@pytest.mark.parametrize("damage", [damage_body, damage_length])
@pytest.mark.parametrize("sidecar", [True, False])
def test_damage_in_a_closed_segment(damage: Callable[[bytearray, int], None], sidecar: bool) -> None:
    log, topic, _ = filled()
    second = log.restart()
    if not sidecar:
        second.files.unlink(INDEX)
    assert (index_name(1) in second.files.names(FOLDER)) == sidecar
    damage(second.files.content(SEGMENT), place(topic, 4))
    third = second.restart()
    assert bool(third.recovered.problems) != sidecar, "a sidecar spares the scan; the reader finds the damage"
    found = served(third)
    assert found.pop(4).startswith("! corrupt: entry 1000:4")
    assert found == {entry: f"message {entry}" for entry in range(10) if entry != 4}
    third.stop()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.clear(),
        lambda data: data.__delitem__(slice(30, None)),
        lambda data: data.__setitem__(40, data[40] ^ 1),
    ],
)
def test_a_spoiled_sidecar_costs_a_scan(spoil: Callable[[bytearray], None]) -> None:
    log, _, _ = filled()
    second = log.restart()
    spoil(second.files.content(INDEX))
    third = second.restart()
    assert third.recovered.problems == []
    assert served(third) == {entry: f"message {entry}" for entry in range(10)}
    third.stop()


@pytest.mark.parametrize("keep", [0, 1, 7, 30, 58])
def test_a_torn_tail_is_cut_and_is_no_damage(keep: int) -> None:
    log, topic, _ = filled()
    log.thread.stop()
    data = log.files.content(SEGMENT)
    at = place(topic, 9)
    data[at + keep :] = b""
    again = Log(log.files)
    assert again.recovered.problems == []
    assert len(again.recovered.notes) == bool(keep)
    assert served(again) == {entry: f"message {entry}" for entry in range(9)}
    assert again.topics[TOPIC].next_index == 9
    third = again.restart()
    assert third.recovered.notes == []
    assert len(served(third)) == 9
    third.stop()


def test_what_follows_a_hole_in_the_torn_tail_is_cut_too() -> None:
    """An entry behind a lost one would move the watermark of its link past what is not here."""
    log = Log()
    topic = log.topic()
    log.append(topic, "a")
    append = log.append(
        topic, "lost", "whole", "whole", origin="west", incarnation=7, first_index=0, source=Position(1, 1)
    )
    log.files.content(SEGMENT)[place(topic, append.entries[0].entry) + 20] ^= 1
    again = Log(log.files.crash())
    assert stored(again.files) == [Position(INCARNATION, 0)]
    assert again.topic().watermarks() == {}
    log.stop()
    again.stop()


@pytest.mark.parametrize("torn", [False, True])
def test_what_recovery_takes_from_memory_alone_is_durable_before_it_counts(torn: bool) -> None:
    """Killed between write and sync: the entries are there, are told on, and must outlive a power cut from then on."""
    for seed in range(10):
        files = MemoryFiles(random.Random(seed))
        log = SegmentLog(files, FOLDER, segment_bytes=4096, disk_free_bytes_min=0, salt=lambda: b"saltsalt")
        log.begin(recover(files, FOLDER))
        topic = TopicLog(TOPIC, INCARNATION, LedgerIds(-1), EntryCache(1), fresh=True)
        log.write([topic.stage([entry("a")], 1000)], through=True)
        log.write([topic.stage([entry(text)], 1000) for text in ("b", "c")])
        if torn:
            files.content(SEGMENT)[-1:] = b""
        told = stored(files)
        assert [position.entry for position in told] == ([0, 1] if torn else [0, 1, 2])
        assert stored(files.crash()) == told


@pytest.mark.parametrize("torn", [False, True])
def test_what_a_failed_sync_left_in_memory_is_written_again(torn: bool) -> None:
    """The system takes it for clean: another sync alone would tell that it is on the disk."""
    files = MemoryFiles(random.Random(1))
    log = SegmentLog(files, FOLDER, segment_bytes=4096, disk_free_bytes_min=0, salt=lambda: b"saltsalt")
    log.begin(recover(files, FOLDER))
    topic = TopicLog(TOPIC, INCARNATION, LedgerIds(-1), EntryCache(1), fresh=True)
    log.write([topic.stage([entry("a")], 1000)], through=True)
    files.fail_next("sync", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output"):
        log.write([topic.stage([entry(text)], 1000) for text in ("b", "c")], through=True)
    # The process is killed here, before it can seal what it did not confirm.
    if torn:
        files.content(SEGMENT)[-1:] = b""
    told = stored(files)
    assert [position.entry for position in told] == ([0, 1] if torn else [0, 1, 2])
    assert stored(files.crash()) == told


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_tail_that_cannot_be_made_durable_is_refused(operation: str) -> None:
    log, _, _ = filled(2)
    log.thread.stop()
    log.files.fail_next(operation, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(StorageError, match=r"cannot recover the log: segment /log/0+1\.seg: Input/output error"):
        recover(log.files, FOLDER)


def test_after_a_clean_stop_damage_at_the_very_end_is_not_taken_for_a_torn_tail() -> None:
    log, topic, _ = filled()
    log.thread.stop()
    damage_body(log.files.content(SEGMENT), place(topic, 9))
    again = Log(log.files)
    assert "entry 1000:9" in again.recovered.problems[0]
    again.stop()


def test_a_client_cannot_forge_a_check() -> None:
    """What looks like one inside a message has the wrong salt, so that the torn tail stays a torn tail."""
    log = Log()
    topic = log.topic()
    log.append(topic, "a")
    forged = pack_check(b"guessed!", 1 << 40)
    append = log.append(topic, "torn", forged * 3, "x")
    log.files.content(SEGMENT)[place(topic, append.entries[0].entry) + 20] ^= 1
    again = Log(log.files.crash())
    assert again.recovered.problems == []
    assert stored(again.files) == [Position(INCARNATION, 0)]
    log.stop()
    again.stop()


def test_a_damaged_opening_makes_its_entries_nobodys() -> None:
    log, _, _ = filled()
    data = log.files.content(SEGMENT)
    data[data.index(b"persistent://")] ^= 1
    again = log.restart()
    assert any("whose opening is lost" in problem for problem in again.recovered.problems)
    assert again.recovered.topics == {}
    assert again.recovered.last_ledger == INCARNATION, "its id is taken all the same"
    again.stop()


@pytest.mark.parametrize("closed", [True, False])
def test_a_damaged_start_is_reported_and_the_rest_served(closed: bool) -> None:
    """Also of the last segment, of which nobody can tell then what was durable: nothing of it is cut."""
    log, _, _ = filled()
    if closed:
        log = log.restart()
        log.files.unlink(INDEX)
    log.files.content(SEGMENT)[len(SEGMENT_MAGIC) + 12] ^= 1
    again = log.restart()
    assert any("its start is damaged" in problem for problem in again.recovered.problems)
    assert served(again) == {entry: f"message {entry}" for entry in range(10)}
    again.stop()


ZEROS, NOISE = bytes(512), bytes((7 * at + 3) % 251 for at in range(512))


@pytest.mark.parametrize("sector", [ZEROS, NOISE])
def test_a_lost_first_sector_costs_what_lies_in_it_where_there_is_a_sidecar(sector: bytes) -> None:
    log, topic, _ = filled(20)
    second = log.restart()
    second.files.content(SEGMENT)[: len(sector)] = sector
    lost = [entry for entry in range(20) if place(topic, entry) < len(sector)]
    assert 0 < len(lost) < 20
    for _ in range(2):
        second = second.restart()
        assert second.recovered.problems == ["segment 1, offset 0: its start is damaged"]
        found = served(second)
        assert all(found.pop(entry).startswith(f"! corrupt: entry 1000:{entry} in segment 1") for entry in lost)
        assert found == {entry: f"message {entry}" for entry in range(20) if entry not in lost}
        assert second.topics[TOPIC].next_index == 20
    second.stop()


@pytest.mark.parametrize("sector", [ZEROS, NOISE])
@pytest.mark.parametrize("closed", [True, False])
def test_a_lost_first_sector_is_told_and_nothing_is_deleted_or_cut(sector: bytes, closed: bool) -> None:
    log, _, _ = filled(20)
    if closed:
        log = log.restart()
        log.files.unlink(INDEX)
    log.files.content(SEGMENT)[: len(sector)] = sector
    log.thread.stop()
    size = len(log.files.content(SEGMENT))
    for _ in range(2):
        again = Log(log.files)
        assert "segment 1, offset 0: its start is damaged" in again.recovered.problems
        assert len(log.files.content(SEGMENT)) == size
        again.stop()


def test_a_lost_first_sector_takes_no_other_segment_with_it() -> None:
    """The openings in it are lost too: entries in other segments must not pass for those of deleted ledgers."""
    log = Log(segment_bytes=4096)
    topic = log.topic()
    while log.thread._log.segment < 4:
        log.append(topic, "x" * 600)
    log.thread.stop()
    names = [segment_name(number) for number in range(1, 5)]
    log.files.unlink(INDEX)
    log.files.content(SEGMENT)[:512] = ZEROS
    again = Log(log.files, segment_bytes=4096)
    assert set(names) <= set(again.files.names(FOLDER))
    assert any("whose opening is lost" in problem for problem in again.recovered.problems)
    again.stop()


@pytest.mark.parametrize("size", [0, 40, 70])
def test_a_segment_that_was_emptied_is_damage_where_a_sidecar_tells_of_more(size: int) -> None:
    log, _, _ = filled()
    second = log.restart()
    second.thread.stop()
    second.files.content(SEGMENT)[:] = bytes(size)
    third = Log(second.files)
    assert any("its start is damaged" in problem for problem in third.recovered.problems)
    assert segment_name(1) in third.files.names(FOLDER)
    third.stop()


def test_what_lies_behind_a_seal_never_happened() -> None:
    log, topic, _ = filled()
    log.thread.stop()
    files = log.files
    cut = place(topic, 6)
    sealed = files.create(FOLDER / segment_name(2))
    sealed.writev([SEGMENT_MAGIC, pack_start(2, b"saltsalt", 1000), pack_seal(1, cut)])
    sealed.sync()
    files.sync_folder(FOLDER)
    again = Log(files)
    assert served(again) == {entry: f"message {entry}" for entry in range(6)}
    # The seal's own segment may go now.
    assert len(files.content(SEGMENT)) == cut
    third = again.restart()
    assert len(served(third)) == 6
    third.stop()


@pytest.mark.parametrize("kept", [0, 1, 22])
def test_a_torn_tail_is_one_also_when_the_seal_that_cuts_it_is_torn(kept: int) -> None:
    """After a failed sync the next segment holds the seal; the power may fail before that is durable, and leave its start."""
    log, topic, _ = filled(8)
    log.append(topic, "torn", "whole")
    files = log.files.crash()  # all is there, but nothing says of the last cycle that it was durable
    log.stop()
    damage_body(files.content(SEGMENT), place(topic, 8))
    sealed = files.create(FOLDER / segment_name(2))
    sealed.writev([(SEGMENT_MAGIC + pack_start(2, b"saltsalt", 1000)) + pack_seal(1, place(topic, 8))[:kept]])
    again = Log(files)
    assert again.recovered.problems == []
    assert served(again) == {entry: f"message {entry}" for entry in range(8)}
    again.stop()


@pytest.mark.parametrize("size", [0, 5, 16, 20, 40])
def test_a_segment_that_was_never_begun_is_nothing(size: int) -> None:
    log, _, _ = filled()
    log.thread.stop()
    file = log.files.create(FOLDER / segment_name(2))
    file.writev([(SEGMENT_MAGIC + pack_start(2, b"saltsalt", 5))[:size]])
    again = Log(log.files)
    assert again.recovered.problems == []
    assert len(served(again)) == 10
    again.stop()


def test_another_version_is_refused_in_one_line() -> None:
    files = MemoryFiles(random.Random(1))
    file = files.create(SEGMENT)
    file.writev([SEGMENT_MAGIC[:-1] + b"\x03" + bytes(100)])
    with pytest.raises(StorageError, match="another version") as caught:
        recover(files, FOLDER)
    assert "\n" not in str(caught.value)
    assert len(files.content(SEGMENT)) > 100, "what is not understood is left alone"


def test_a_record_of_an_unknown_type_is_refused() -> None:
    log, _, _ = filled()
    log.thread.stop()
    record = bytearray(pack_check(b"saltsalt", 0))
    record[8] = 99
    from crc32c import crc32c

    record[4:8] = crc32c(bytes(record[8:]), crc32c(bytes(record[:4]))).to_bytes(4, "little")
    log.files.content(SEGMENT).extend(record)
    with pytest.raises(StorageError, match="unknown type 99"):
        recover(log.files, FOLDER)


def test_any_single_flipped_bit_is_survived() -> None:
    """Whatever byte of the open segment changes: no crash, every entry as it was or reported, none invented."""
    log, _, _ = filled(4)
    log.thread.stop()
    whole = bytes(log.files.content(SEGMENT))
    assert CHECK in whole
    for at in range(len(SEGMENT_MAGIC), len(whole)):
        files = MemoryFiles(random.Random(1))
        file = files.create(SEGMENT)
        file.writev([whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :]])
        file.sync()
        files.sync_folder(FOLDER)
        recovered = recover(files, FOLDER)
        lost = 0
        topic = recovered.topics.get((TOPIC, INCARNATION))
        entries = topic.ledgers[INCARNATION].entries if topic and INCARNATION in topic.ledgers else 0
        if entries < 4:
            lost = 4 - entries
        assert entries <= 4
        if lost:
            assert recovered.problems or recovered.notes, f"byte {at}: {lost} entries vanished silently"


def test_ten_thousand_problems_are_told_as_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.storage.recovery.PROBLEMS_MAX", 2)
    log, topic, _ = filled()
    for number in range(5):
        damage_body(log.files.content(SEGMENT), place(topic, number))
    again = log.restart()
    assert again.recovered.problems[2:] == ["and 3 more damaged positions in the log"]
    again.stop()


def test_other_files_in_the_folder_are_left_alone() -> None:
    log, _, _ = filled()
    stranger = log.files.create(FOLDER / "notes.txt")
    stranger.writev([b"mine"])
    assert isinstance(FOLDER, Path)
    again = log.restart()
    assert len(served(again)) == 10
    assert "notes.txt" in again.files.names(FOLDER)
    again.stop()


def bad_pages(monkeypatch: pytest.MonkeyPatch, spoilt: Path, first: int, end: int) -> None:
    """The disk does not give back some bytes of a file."""
    pread = MemoryFile.pread

    def refused(file: MemoryFile, offset: int, size: int) -> bytes:
        if file.path == spoilt and offset < end and offset + size > first:
            raise OSError(errno.EIO, "Input/output error")
        return pread(file, offset, size)

    monkeypatch.setattr(MemoryFile, "pread", refused)


def test_a_page_that_the_disk_does_not_give_back_costs_what_lies_there(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    topic = log.topic()
    for number in range(20):
        log.append(topic, f"{number:05}" * 500)
    bad = place(topic, 9) + 100
    second = log.restart()
    second.append(second.topic("persistent://public/default/other", 2000), "behind")
    second.files.unlink(INDEX)
    files = second.files
    second.stop()
    bad_pages(monkeypatch, SEGMENT, bad // 4096 * 4096, (bad // 4096 + 1) * 4096)
    again = Log(files)
    assert any("segment 1" in problem for problem in again.recovered.problems)
    found = again.topic()
    whole = [
        number
        for number in range(20)
        if not (place(topic, number) // 4096 <= bad // 4096 <= (place(topic, number) + 2600) // 4096)
    ]
    assert 9 not in whole
    assert len(whole) >= 16
    for number in whole:
        position = Position(INCARNATION, number)
        assert again.thread.read(found.locations(position, 1, 1))[0].data == (f"{number:05}" * 500).encode()
    assert found.next_index == 20
    again.stop()


def test_what_cannot_be_read_at_the_torn_end_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be confirmed; the segment is named, for the disk has to be looked at."""
    log = Log()
    topic = log.topic()
    for number in range(10):
        log.append(topic, f"{number:05}" * 500)
    files = log.files.crash()
    size = files.size(SEGMENT)
    with monkeypatch.context() as patch:
        bad_pages(patch, SEGMENT, size - 1, size)
        with pytest.raises(StorageError, match=r"0001\.seg: Input/output error"):
            recover(files, FOLDER)
    assert len(stored(files)) == 10
    log.stop()


def test_a_sidecar_that_cannot_be_read_costs_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    log, _, _ = filled()
    second = log.restart()
    assert index_name(1) in second.files.names(FOLDER)
    files = second.files
    second.stop()
    bad_pages(monkeypatch, INDEX, 0, 1)
    again = Log(files)
    assert served(again) == {entry: f"message {entry}" for entry in range(10)}
    assert not again.recovered.problems
    again.stop()


# ------------------------------------------------------------------------------------------ odd files among the segments


@pytest.mark.parametrize(
    "name",
    [
        "99999999999999999999.seg",
        "18446744073709551616.seg",
        segment_name(SEGMENT_MAX + 1),
        segment_name(0),
        "1.seg",
        "000000000000000000001.seg",
        "-0000000000000000001.seg",
        "+0000000000000000001.seg",
        "\u0660" * 19 + "\u0661.seg",
        "\u00b2" * 20 + ".seg",
        ".seg",
        "a b\nc.seg",
        "\udcff.seg",
        segment_name(1) + ".seg",
    ],
)
def test_a_name_that_no_segment_has_is_told_and_left_alone(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also as a copy of a segment: it is not read a second time."""
    log, _, _ = filled()
    log.stop()
    path = FOLDER / name
    log.files.create(path).writev([bytes(log.files.content(SEGMENT))])
    before = bytes(log.files.content(path))
    again = log.restart()
    assert len(served(again)) == 10
    assert again.recovered.problems == []
    assert len(again.recovered.odd) == 1
    assert ascii(name) in again.recovered.odd[0]
    assert again.recovered.odd[0].isprintable()
    assert again.recovered.last_segment == 1
    assert log.files.content(path) == before
    again.append(again.topics[TOPIC], "more")
    again.stop()


@pytest.mark.parametrize("number", [2, 3, 7, 5_000, SEGMENT_MAX])
def test_a_copy_of_a_segment_under_another_number(number: int) -> None:
    """It is in nobody's way: not that of the next segments either."""
    log, _, _ = filled()
    log.stop()
    path = FOLDER / segment_name(number)
    log.files.create(path).writev([bytes(log.files.content(SEGMENT))])
    before = bytes(log.files.content(path))
    again = log.restart()
    for _ in range(6):
        again = again.restart()
    assert "says that it is segment 1" in again.recovered.odd[0]
    assert served(again) == {at: f"message {at}" for at in range(10)}
    assert log.files.content(path) == before
    again.stop()


@pytest.mark.parametrize("number", [2, 900, 5_000, SEGMENT_MAX])
def test_a_segment_that_was_renamed_is_served(number: int) -> None:
    log, _, _ = filled()
    log.stop()
    moved = log.files.create(FOLDER / segment_name(number))
    moved.writev([bytes(log.files.content(SEGMENT))])
    log.files.unlink(SEGMENT)
    again = log.restart()
    assert "says that it is segment 1, which is not there" in again.recovered.odd[0]
    assert served(again) == {at: f"message {at}" for at in range(10)}
    again.append(again.topics[TOPIC], "more")
    again = again.restart().restart()
    assert served(again) == {0: "more"} | {at: f"message {at}" for at in range(1, 10)}  # it is 0 of another ledger
    again.stop()


@pytest.mark.parametrize("content", [b"", b"M", b"\xaa" * 300, bytes(5_000)])
@pytest.mark.parametrize("number", [4, 900, SEGMENT_MAX])
def test_a_file_with_the_name_of_a_later_segment(number: int, content: bytes) -> None:
    """The log goes on with a number that leaves room for more."""
    log, _, _ = filled()
    log.stop()
    log.files.create(FOLDER / segment_name(number)).writev([content])
    again = log.restart()
    assert served(again) == {at: f"message {at}" for at in range(10)}
    for _ in range(6):
        again = again.restart()
    assert again.recovered.last_segment < 2_000
    assert served(again) == {at: f"message {at}" for at in range(10)}
    again.stop()


def test_a_log_without_numbers_that_are_left_is_refused_in_one_line() -> None:
    files = MemoryFiles(random.Random(1))
    head = SEGMENT_MAGIC + pack_start(SEGMENT_MAX, b"saltsalt", -1)
    files.create(FOLDER / segment_name(SEGMENT_MAX)).writev([head])
    with pytest.raises(StorageError, match="no number is left for a segment"):
        Log(files)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "dangling link", "loop"])
def test_what_is_no_file_under_the_name_of_a_segment_is_named(tmp_path: Path, kind: str) -> None:
    Log(OsFiles(), tmp_path).stop()
    path = tmp_path / segment_name(77)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"link": tmp_path / segment_name(1), "loop": path}.get(kind, tmp_path / "nothing"))
    with pytest.raises(StorageError, match=f"segment {path}: ") as refused:
        Log(OsFiles(), tmp_path)
    assert "\n" not in str(refused.value)
    assert os.path.lexists(path)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "empty"])
def test_what_lies_in_the_place_of_a_sidecar_costs_a_scan(tmp_path: Path, kind: str) -> None:
    log = Log(OsFiles(), tmp_path)
    log.append(log.topic(), "kept")
    log.stop()
    other, path = tmp_path / "somebody's", tmp_path / index_name(1)
    other.write_text("precious")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(other)
    else:
        path.touch()
    for _ in range(3):
        log = Log(OsFiles(), tmp_path)
        assert served(log) == {0: "kept"}
        log.stop()
    assert other.read_text() == "precious"
