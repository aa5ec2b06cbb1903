"""Stories of one link a -> b as text: commands and exact replies, in `link_*.txt` beside this file.

    # a comment
    > command arguments
    reply

`REGENERATE_SCENARIOS=1 pytest tests/scenarios/test_link_transcripts.py` writes the replies anew; commit only what you can
explain. Entries are named by their number in a's log, 0, 1, 2, ...; `-` is none.

Commands: `publish N...` (with `:foreign` for one that came from elsewhere), `handshake`, `send P N...` (entries after P),
`disk` / `diskfails` (b's), `commit C S gen=G`, `store` (a's metadata), `read`, `lose` (b's topic), `delete N` (in a, up to
entry N's ledger, by quota), `skip N`, `show`.
"""

import os
from pathlib import Path

import pytest

from magnetar.core.ids import NONE, LinkCursor, Position
from magnetar.replication.link.destination import LinkDestination
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_from_proto
from tests.unit.replication.link.rig import TOPIC, Link, Rig, append_request, message

FOLDER = Path(__file__).parent


class Story:
    """Runs the commands of one file."""

    def __init__(self) -> None:
        self.link = Link(ledger_entries=2)
        self.rig = Rig()
        self.b = LinkDestination(self.rig.outbox, cluster="b", uuid="b-1", host=self.rig, boot=1_000)
        self.positions: list[Position] = []
        self.replies: list[str] = []

    def number(self, position: Position) -> str:
        return "-" if position == NONE else str(self.positions.index(position))

    def position(self, text: str) -> Position:
        return NONE if text == "-" else self.positions[int(text)]

    def run(self, line: str) -> list[str]:
        self.replies = []
        verb, *words = line.split()
        noted = len(self.link.rig.notes)
        getattr(self, f"do_{verb}")(*words)
        self.replies += [note.text.replace(TOPIC, "t").replace(str(NONE), "-") for note in self.link.rig.notes[noted:]]
        self.link.machine.validate()
        self.b.validate()
        return [self.named(reply) for reply in self.replies]

    def named(self, text: str) -> str:
        for number, position in reversed(list(enumerate(self.positions))):
            text = text.replace(str(position), str(number))
        return text

    def do_publish(self, *words: str) -> None:
        for word in words:
            count, _, foreign = word.partition(":")
            self.positions += self.link.topic.publish(message(count=int(count), origin="c" if foreign else ""))

    def do_handshake(self) -> None:
        told = self.link.told()
        request = pb.CommandGeoWatermarks(request_id=1, source="a", uuid="a-1", counter=0)
        request.topics.add(topic=TOPIC, incarnation=told.incarnation, partitions=0, start=told.cursor.c)
        got: list[pb.CommandGeoWatermarksResponse] = []
        self.b.watermarks(request, got.append)
        self.rig.store()
        watermark = position_from_proto(got[0].topics[0].persisted)
        self.replies.append(f"b has {self.number(watermark)}")
        self.link.learn(watermark)

    def do_send(self, p: str, *numbers: str) -> None:
        disk = self.link.topic.disk
        positions = [self.position(number) for number in numbers]
        request, data = append_request([message() for _ in positions], positions, self.position(p))
        entries = [disk[position] for position in positions]
        for name in ("counts", "first_indexes", "sizes"):
            del getattr(request, name)[:]
        request.counts.extend(entry.count for entry in entries)
        request.first_indexes.extend(entry.first_index for entry in entries)
        request.sizes.extend(len(entry.data) for entry in entries)
        data = b"".join(entry.data for entry in entries)
        self.b.append(1, request, data, lambda told: self.answered(" ".join(numbers), told), self.replies.append)
        self.rig.pump()

    def answered(self, what: str, told: pb.CommandGeoAppendResponse) -> None:
        word = "refused" if told.refused else "retry" if told.retry else told.blocked or "stored"
        again = f", {told.duplicates} known" if told.duplicates else ""
        self.replies.append(f"{what}: {word}, b has {self.number(position_from_proto(told.persisted))}{again}")

    def do_disk(self) -> None:
        self.rig.sync()

    def do_diskfails(self) -> None:
        self.rig.fail()

    def do_commit(self, c: str, s: str, gen: str) -> None:
        ignored = self.link.commit(self.position(c), self.position(s), int(gen.removeprefix("gen="))).ignored
        self.replies.append("ignored" if ignored else "taken")

    def do_store(self) -> None:
        self.link.rig.later(100)
        self.link.rig.store()

    def do_read(self) -> None:
        positions, response, _ = self.link.read(self.link.state.cursor.c)
        self.replies.append(
            f"{' '.join(map(self.number, positions)) or 'nothing'}, up to {self.number(position_from_proto(response.end))}"
        )

    def do_lose(self) -> None:
        del self.rig.topics[TOPIC]
        self.b.removed(TOPIC)

    def do_delete(self, number: str) -> None:
        self.link.rig.trim(keep_after=self.position(number))
        self.link.machine.trimmed(TOPIC)

    def do_skip(self, number: str) -> None:
        lost = self.link.machine.operations.skip(TOPIC, self.position(number), lambda _error: None)
        self.replies.append(f"{lost} messages given up")
        self.link.rig.pump()

    def do_show(self) -> None:
        cursor: LinkCursor = self.link.state.cursor
        low = self.link.machine.durable_low(TOPIC) or NONE
        state = self.link.state
        self.replies.append(
            f"C {cursor.c} S {cursor.s} gen {cursor.gen}, a may delete up to {low}, gap {state.gap}, "
            f"skipped {state.skipped}".replace(str(NONE), "-")
        )


@pytest.mark.parametrize("path", sorted(FOLDER.glob("link_*.txt")), ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    story = Story()
    written: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("> "):
            written.append(line)
            written += story.run(line[2:])
        elif not line or line.startswith("#"):
            written.append(line)
    text = "\n".join(written) + "\n"
    if os.environ.get("REGENERATE_SCENARIOS"):
        path.write_text(text)
    assert path.read_text() == text
