"""What one replicated subscription costs a broker, beside an ordinary one: processor time and function calls a message.

    python -m bench.subscriptions_cpu [--rounds 40] [--calls] [--keep]

Two real brokers in one process with a link each way and a disk of memory. Producers, consumers and links are the same for both
kinds of subscription, which take turns (off on on off), each with a topic of its own; only the publishing broker's events count.
There are no sockets and no Spark in it: they would cost the same for both, so the ratio is above that of real brokers
(`bench.subscriptions`), and it is exact where that one's clock has a tick of 2 us a message. With --calls cProfile counts the
function calls instead of taking the time: these are the same in every run, however busy the machine is.

Acknowledgements come as the official clients send them: grouped for 100 ms, as many ids in one frame as there are
("grouped"); and as the worst that a client may do, one frame a message ("single"); and cumulative ones.
"""

import argparse
import cProfile
import json
import os
import pstats
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

from tests.support.geoworld import Client, Node, World

from bench.results import RESULTS
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame

MESSAGES: Final = 6_000
BURST: Final = 50
"""Messages that arrive with one read of the socket."""
BURST_MS: Final = 2
GROUP_MS: Final = 100
"""The official clients' grouping of acknowledgements."""
KINDS: Final = ("grouped", "single", "cumulative")
PAYLOAD: Final = b"x" * 1024


class Metered(Node):
    """A node that counts what its events cost, without the checks of tests."""

    spent = 0.0
    profile: cProfile.Profile | None = None

    def handle(self, event: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """One event, measured."""
        if self.profile is not None:
            self.profile.enable()
            event(*arguments)
            self.profile.disable()
        else:
            began = time.process_time_ns()
            event(*arguments)
            self.spent += (time.process_time_ns() - began) / 1000

    def check(self) -> None:
        """Nothing: it would be measured by whatever it leaves behind."""


def send_frames(producer: int, first: int, count: int) -> list[Frame]:
    """SENDs of one burst."""
    frames = []
    for number in range(first, first + count):
        about = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        command = pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=producer, sequence_id=number, num_messages=1))
        frames.append(Frame(command, metadata.build(about, PAYLOAD)))
    return frames


def turn(node: Metered, topic: str, kind: str, *, replicated: bool) -> None:
    """Publish, receive and acknowledge everything, and let the links follow."""
    world = node.world
    node.create(topic)
    consumer, producer = node.client(), node.client()
    number = consumer.subscribe("s", 1 if kind != "cumulative" else 0, topic=topic, replicated=replicated)
    producer.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=topic, producer_id=1, request_id=1)))
    world.settle()
    consumer.flow(number, 2 * MESSAGES)
    ids: list[Any] = []
    for first in range(0, MESSAGES, BURST):
        node.run(node.broker.frames, producer.number, send_frames(1, first, BURST))
        world.work()
        ids += consumer.take(number)
        if kind == "single":
            for message in ids:
                consumer.ack(number, message)
            ids.clear()
        if (first // BURST) % (GROUP_MS // BURST_MS) == GROUP_MS // BURST_MS - 1:
            _group(consumer, number, kind, ids)
            world.advance(BURST_MS)
        else:
            world.advance(BURST_MS, links=False)
    ids += consumer.take(number)
    _group(consumer, number, kind, ids)
    world.advance(1_000)
    cursor = node.broker.topics[topic].subscriptions["s"]
    assert cursor.backlog_entries() == 0, "not everything was acknowledged"
    for client in (consumer, producer):
        node.run(node.broker.disconnected, client.number)


def _group(consumer: Client, number: int, kind: str, ids: list[Any]) -> None:
    if ids and kind == "cumulative":
        consumer.ack(number, ids[-1], cumulative=True)
    elif ids:
        consumer.ack(number, *ids)
    ids.clear()


def world_of_two() -> tuple[World, Metered]:
    """Clusters a and b, of which a is looked at."""

    class TwoOfThem(World):
        pass

    world = TwoOfThem("ab", limits={"cursor_flush_ms": 1_000})
    world["a"].__class__ = Metered
    for node in world.nodes.values():
        node.broker.validate = lambda: None  # type: ignore[method-assign]  # the checks of tests
    found = world["a"]
    assert isinstance(found, Metered)
    return world, found


def times(kind: str, rounds: int) -> dict[str, Any]:
    """Microseconds of processor time a message, in turns."""
    spent: dict[bool, list[float]] = {False: [], True: []}
    for number in range(4 * rounds):
        on = number % 4 in (1, 2)
        if number % 4 == 0:
            _, node = world_of_two()  # four turns each, so that what topics leave behind does not add up
        node.spent = 0.0
        turn(node, f"persistent://public/default/t{number}", kind, replicated=on)
        spent[on].append(node.spent / MESSAGES)
    quarter = {on: statistics.quantiles(spent[on], n=4)[0] for on in spent}
    ratios = sorted(
        (spent[True][at] + spent[True][at + 1]) / (spent[False][at] + spent[False][at + 1])
        for at in range(0, 2 * rounds, 2)
    )
    return {
        "ordinary_us": round(quarter[False], 2),
        "replicated_us": round(quarter[True], 2),
        "extra_us": round(quarter[True] - quarter[False], 2),
        "ratio": round(quarter[True] / quarter[False], 4),
        "median_ratio_of_rounds": round(statistics.median(ratios), 4),
    }


def calls(kind: str, *, top: int = 0) -> dict[str, Any]:
    """Function calls a message, Python's and C's."""
    found = {}
    for on in (False, True):
        _, node = world_of_two()
        turn(node, "persistent://public/default/warm", kind, replicated=on)
        node.profile = cProfile.Profile()
        turn(node, "persistent://public/default/t", kind, replicated=on)
        stats = pstats.Stats(node.profile)
        found[on] = stats.total_calls / MESSAGES  # type: ignore[attr-defined]  # of pstats, not in its stub
        if top:
            stats.sort_stats("tottime").print_stats(top)
    return {
        "ordinary": round(found[False], 2),
        "replicated": round(found[True], 2),
        "ratio": round(found[True] / found[False], 4),
    }


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="of four turns each")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--calls", action="store_true", help="count calls only")
    parser.add_argument("--top", type=int, default=0, help="with --calls: so many of the costliest functions")
    parser.add_argument("--keep", action="store_true", help="write bench/results/subscriptions-cpu.json")
    options = parser.parse_args()
    result: dict[str, Any] = {}
    for kind in options.kind or KINDS:
        result[kind] = {"calls": calls(kind, top=options.top)}
        if not options.calls:
            result[kind]["time"] = times(kind, options.rounds)
        print(kind, json.dumps(result[kind]), flush=True)
    if options.keep:
        kept = {
            "command": f"python -m bench.subscriptions_cpu --rounds {options.rounds} --keep",
            "cpus": os.cpu_count(),
        }
        (RESULTS / "subscriptions-cpu.json").write_text(json.dumps(kept | result, indent=2) + "\n")


if __name__ == "__main__":
    main()
