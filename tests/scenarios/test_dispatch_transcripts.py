"""Stories of dispatch as text: commands and exact replies, in `dispatch_*.txt` beside this file.

    # a comment
    > command arguments
    reply
    reply

`REGENERATE_SCENARIOS=1 pytest tests/scenarios` writes the replies anew; commit only what you can explain.

Commands: `consumer NAME TYPE [permits=N] [priority=N] [ranges=A-B,C-D]`, `publish KEY...` (`!` is a marker, `-` no key,
`KEY*N` a batch of N, `KEY@MS` delivered at MS), `flow NAME N`, `ack NAME E...`, `cumulative NAME E`, `nack NAME E...`,
`redeliver NAME`, `leave NAME`, `pause NAME`, `resume NAME`, `advance MS`, `seek E|earliest|latest`, `skip N`, `show`.
Entries are named by their entry id; the topic has one ledger.
"""

import os
from pathlib import Path

import pytest

from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.core.errors import BrokerError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.storage.entries import NewEntry
from magnetar.wire import pulsar_pb2 as pb
from tests.support.subscriptions import FIRST_LEDGER, Received, World, entry

FOLDER = Path(__file__).parent
TYPES = {"exclusive": 0, "shared": 1, "failover": 2, "key_shared": 3}


class Story:
    """Runs the commands of one file."""

    def __init__(self) -> None:
        self.world = World()
        self.world.on_message = self.message
        self.world.on_command = self.command
        self.consumers: dict[str, Consumer] = {}
        self.names: dict[int, str] = {}
        self.replies: list[str] = []

    def message(self, connection: int, message: Received) -> None:
        again = f" again={message.redelivery}" if message.redelivery else ""
        bits = f" left={message.ack_set[0]:b}" if message.ack_set else ""
        payload = message.payload.decode()
        self.replies.append(f"{self.names[connection]} <- {message.position.entry} {payload}{again}{bits}")

    def command(self, connection: int, command: pb.BaseCommand) -> None:
        name = self.names[connection]
        if command.type == 31:
            self.replies.append(f"{name} is {'active' if command.active_consumer_change.is_active else 'standby'}")
        else:
            assert command.type == 16
            self.replies.append(f"{name} is told to close and come back")
            del self.consumers[name]

    def run(self, line: str) -> list[str]:
        self.replies = []
        verb, *words = line.split()
        try:
            getattr(self, f"do_{verb}")(*words)
        except BrokerError as error:
            self.replies.append(f"error {error.code.name}: {error.message}")
        return self.replies

    def at(self, word: str) -> Position:
        return Position(FIRST_LEDGER, int(word))

    def do_consumer(self, name: str, kind: str, *options: str) -> None:
        wanted = dict(option.split("=") for option in options)
        consumer = self.world.new_consumer(name, SubType(TYPES[kind]), priority=int(wanted.get("priority", "0")))
        self.names[consumer.connection] = name
        ranges = (
            [tuple(map(int, each.split("-"))) for each in wanted["ranges"].split(",")] if "ranges" in wanted else []
        )
        self.world.connect(consumer, ranges=[(first, last) for first, last in ranges])
        self.consumers[name] = consumer
        if "permits" in wanted:
            self.world.flow(consumer, int(wanted["permits"]))

    def do_publish(self, *words: str) -> None:
        self.world.publish(*map(self.entry_of, words))

    def entry_of(self, word: str) -> NewEntry:
        if word == "!":
            return entry(marker=True)
        word, _, time = word.partition("@")
        key, _, count = word.partition("*")
        return entry(
            key.encode(),
            key=None if key == "-" else key,
            count=int(count or 1),
            deliver_at=int(time) if time else None,
        )

    def do_flow(self, name: str, permits: str) -> None:
        self.world.flow(self.consumers[name], int(permits))

    def do_ack(self, name: str, *entries: str) -> None:
        self.world.ack(self.consumers[name], *map(self.at, entries))

    def do_cumulative(self, name: str, last: str) -> None:
        self.world.ack(self.consumers[name], self.at(last), cumulative=True)

    def do_nack(self, name: str, *entries: str) -> None:
        self.world.redeliver(self.consumers[name], *map(self.at, entries))

    def do_redeliver(self, name: str) -> None:
        self.world.redeliver(self.consumers[name])

    def do_leave(self, name: str) -> None:
        self.world.leave(self.consumers.pop(name))

    def do_pause(self, name: str) -> None:
        self.world.subscription.pause(self.consumers[name].connection)

    def do_resume(self, name: str) -> None:
        self.world.subscription.resume(self.consumers[name].connection)
        self.world.pump()

    def do_advance(self, ms: str) -> None:
        self.world.advance(int(ms))

    def do_seek(self, where: str) -> None:
        target = {"earliest": EARLIEST, "latest": LATEST}.get(where)
        self.world.subscription.seek_to(target if target is not None else self.at(where))
        self.world.pump()

    def do_skip(self, count: str) -> None:
        self.replies.append(f"skipped {self.world.subscription.skip(int(count))}")
        self.world.pump()

    def do_show(self) -> None:
        stats = self.world.stats()
        internal = self.world.internal_stats()
        self.replies.append(
            f"mark-delete {internal['markDeletePosition']} holes {internal['individuallyDeletedMessages']} "
            f"backlog {stats['msgBacklog']} waiting {stats['msgInReplay']} delayed {stats['msgDelayed']}"
        )
        for consumer in self.world.subscription.consumers:
            pending = " ".join(str(position.entry) for position in consumer.pending) or "nothing"
            self.replies.append(f"{consumer.name}: permits {consumer.permits} pending {pending}")


def tell(text: str) -> str:
    """The story with the replies that the machine gives."""
    story = Story()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("> "):
            lines += [line, *story.run(line[2:])]
        elif not line or line.startswith("#"):
            lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("dispatch_*.txt")), ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    written = path.read_text()
    told = tell(written)
    if os.environ.get("REGENERATE_SCENARIOS"):
        path.write_text(told)
    else:
        assert told == written


def test_there_are_stories() -> None:
    assert len(list(FOLDER.glob("dispatch_*.txt"))) >= 3
