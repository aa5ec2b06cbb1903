"""Processor time of a broker's events for each message, compiled and in pure Python, in turns.

    python -m bench.forms [--rounds 5] [--tree DIR]

The broker is a real one in one process with a disk in memory, without sockets and threads: compiled modules cannot change what
those cost. Messages of 1 KB come singly, 50 with each read of the socket, and each is acknowledged by a frame of its own. Counted
are the decoding of what clients send, and the broker's events. A turn is a process; both forms have as many, in turns, and the
least of each counts, because other work on the machine can only add. `make setup` has to have compiled the modules.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.support.geoworld import Client, Node, World

from bench.results import Figure, store
from magnetar import FORM
from magnetar.runtime.interpreter.compiled import COMPILED, PURE, VARIABLE
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import FRAME_BYTES_MAX, FrameDecoder, encode, encode_with_payload

HERE: Final = Path(__file__).resolve().parents[1]
MESSAGES: Final = 10_000
BURST: Final = 50
KINDS: Final = {"exclusive": 0, "shared": 1, "key_shared": 3}


class Metered(Node):
    """A node that measures its events, without the checks of tests.

    Attributes:
        spent: ns of processor time by the connection whose frames were handled; None: all other events.
    """

    spent: dict[int | None, int]

    def handle(self, event: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """One event, measured."""
        began = time.process_time_ns()
        event(*arguments)
        whose = arguments[0] if event == self.broker.frames else None
        self.spent[whose] = self.spent.get(whose, 0) + time.process_time_ns() - began

    def check(self) -> None:
        """Nothing: it would be measured by whatever it leaves behind."""


def sends(first: int, *, plain: bool) -> bytes:
    """The bytes of a burst of SENDs, whose messages are recognised by their bytes (`wire.plain_sends`), or have a property."""
    found: list[bytes | memoryview] = []
    for number in range(first, first + BURST):
        about = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        if not plain:
            about.properties.add(key="k", value="v")
        command = pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=number, num_messages=1))
        found += encode_with_payload(command, [metadata.build(about, b"x" * 1024)])
    return b"".join(found)


def incoming(node: Metered, client: Client, decoder: FrameDecoder, data: bytes) -> None:
    """Bytes of a client, decoded and handled."""
    began = time.process_time_ns()
    frames = decoder.feed(data)
    node.spent[client.number] = node.spent.get(client.number, 0) + time.process_time_ns() - began
    node.run(node.broker.frames, client.number, frames)


def turn(node: Metered, topic: str, kind: int | None, *, plain: bool = True) -> tuple[float, float]:
    """Publish everything, and receive and acknowledge it if there is a kind of subscription.

    Returns:
        Microseconds a message: of all but acknowledgements, and of these.
    """
    node.create(topic)
    producer, consumer = node.client(), node.client()
    opening = pb.CommandProducer(topic=topic, producer_id=1, request_id=1, producer_name="p")  # as its messages say
    producer.send(pb.BaseCommand(type=5, producer=opening))
    number = consumer.subscribe("s", kind, topic=topic, replicated=False) if kind is not None else 0
    node.world.settle()
    if kind is not None:
        consumer.flow(number, 2 * MESSAGES)
    publishing, acknowledging = FrameDecoder(), FrameDecoder()
    for decoder in (publishing, acknowledging):
        decoder.limit(FRAME_BYTES_MAX)  # a broker's have one
    node.spent = {}
    for first in range(0, MESSAGES, BURST):
        incoming(node, producer, publishing, sends(first, plain=plain))
        node.world.work()
        if kind is not None:
            acks = []
            for message in consumer.take(number):
                where = pb.MessageIdData(ledgerId=message.position[0], entryId=message.position[1])
                ack = pb.CommandAck(consumer_id=number, ack_type=0, message_id=[where])
                acks.append(encode(pb.BaseCommand(type=10, ack=ack)))
            incoming(node, consumer, acknowledging, b"".join(acks))
        node.world.advance(2, links=False)
    spent = {whose: ns / 1000 / MESSAGES for whose, ns in node.spent.items()}
    if kind is not None:
        backlog = node.broker.topics[topic].subscriptions["s"].backlog_entries()
        assert backlog == 0, f"{backlog} messages were not acknowledged"
    acknowledged = spent.pop(consumer.number, 0.0)
    for client in (consumer, producer):
        node.run(node.broker.disconnected, client.number)
    return sum(spent.values()), acknowledged


def measure() -> dict[str, float]:
    """Microseconds a message in this process: name of a part -> the least of two turns."""
    found: dict[str, float] = {}
    world = World("a")
    node = world["a"]
    node.__class__ = Metered
    assert isinstance(node, Metered)
    node.spent = {}
    for repeat in range(2):
        alone, _ = turn(node, f"persistent://public/default/alone{repeat}", None)
        with_properties, _ = turn(node, f"persistent://public/default/properties{repeat}", None, plain=False)
        figures = {"publish": alone, "publish, with a property": with_properties}
        for kind, number in KINDS.items():
            together, acknowledged = turn(node, f"persistent://public/default/{kind}{repeat}", number)
            figures[f"publish and dispatch, {kind}"] = together
            figures[f"acknowledge, {kind}"] = acknowledged
        for part, us in figures.items():
            found[part] = min(us, found.get(part, us))
    return found


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each form")
    parser.add_argument("--tree", type=Path, default=HERE, help="the checkout whose sources and compiled modules run")
    parser.add_argument("--one", action="store_true", help="measure in this process, and print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps({"form": FORM.name, "us": measure()}))
        return
    best: dict[str, dict[str, float]] = {PURE: {}, COMPILED: {}}
    for number in range(2 * options.rounds):
        wanted = (PURE, COMPILED)[number % 4 in (1, 2)]
        environment = os.environ | {
            VARIABLE: "no" if wanted == PURE else "",
            "PYTHONPATH": os.pathsep.join([str(options.tree / "src"), str(HERE), str(HERE / "simulator" / "src")]),
        }
        done = subprocess.run(
            [sys.executable, "-m", "bench.forms", "--one"],
            env=environment, cwd=HERE, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(done.stderr)
        answer = json.loads(done.stdout)
        if answer["form"] != wanted:
            sys.exit("bench.forms: there are no compiled modules of these sources: run `make setup`")
        for part, us in answer["us"].items():
            best[wanted][part] = min(us, best[wanted].get(part, us))
    figures = [
        Figure(part, round(best[COMPILED][part], 2), "us/message", detail={
            "pure Python": round(us, 2), "to pure Python": round(best[COMPILED][part] / us, 3),
        })
        for part, us in best[PURE].items()
    ]  # fmt: skip
    store("forms", figures, sys.argv)


if __name__ == "__main__":
    main()
