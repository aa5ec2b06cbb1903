"""How soon the things that follow links are in the other clusters: positions in exact mode, a planned failover, metadata.

    python -m bench.follow positions|failover|metadata [--tail short-batches] [--seconds 30] [--one-way SECONDS]

`--one-way 0.04` puts b and c 80 ms of round trip away from the pipeline and from a (tests/support/delaying_proxy.py).

Three real brokers and the real pipeline on this machine's processors, with long batches. One command takes at most two minutes.

positions   Ten subscriptions acknowledge 1,000 messages a second in A, each message in a frame of its own. The time is from the
            moment at which the client sends the acknowledgement to the moment at which REST of B shows it, for one subscription.
failover    Planned moves there and back of a subscription with a consumer that acknowledges at once, under 200 messages a second
            that are published in C. The pause is the one that the command reports: from the fence to the activation. (Official
            clients hold acknowledgements for up to 100 ms. A failover waits for those, so they are not in this figure.)
metadata    A policy of a namespace is changed in A. The time is from the beginning of the request to the moment at which REST of
            both other clusters shows it.
"""

import argparse
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from tests.support.brokers import BrokerProcess, World, eventually

from bench.links import client_of, full_name
from bench.measuring import Admin, clusters, paced, percentile
from bench.metadata import ON
from bench.results import Figure, store
from bench.subscriptions import backlogs, publish
from magnetar.admin.client import AdminClient
from magnetar.cli.commands.failover import Move
from magnetar.core.names import TopicName
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import FrameDecoder, encode

ACKS_PER_S: Final = 1_000
SUBSCRIPTIONS: Final = 10
WARM_S: Final = 2.0
"""Acknowledgements of the first seconds do not count: the link has just carried the backlog, and the time for which
acknowledgements are collected follows its speed (`broker.replicated_subscriptions.ack_interval`)."""

PERMITS: Final = 100
PAUSE_S: Final = 0.001
"""Between two looks: a look costs the broker a tenth of that."""


class Consumers:
    """Consumers of replicated subscriptions of one topic, all on one connection, that acknowledge each message by itself."""

    def __init__(self, broker: BrokerProcess, topic: str, names: list[str]) -> None:
        self._socket = socket.create_connection(("127.0.0.1", broker.pulsar_port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder()
        self._send(pb.BaseCommand(type=2, connect=pb.CommandConnect(client_version="bench", protocol_version=20)))
        for number, name in enumerate(names):
            subscribe = pb.CommandSubscribe(
                topic=full_name(topic), subscription=name, subType=1, consumer_id=number, request_id=number + 1,
                initialPosition=1, replicate_subscription_state=True, durable=True,
            )  # fmt: skip
            self._send(pb.BaseCommand(type=4, subscribe=subscribe))
            while not any(frame.command.type == 13 for frame in self._decoder.feed(self._socket.recv(1 << 16))):
                pass
        for number in range(len(names)):
            self._flow(number, PERMITS)
        self._acknowledged = [0] * len(names)

    def _flow(self, consumer: int, permits: int) -> None:
        self._send(pb.BaseCommand(type=11, flow=pb.CommandFlow(consumer_id=consumer, messagePermits=permits)))

    def _send(self, command: pb.BaseCommand) -> None:
        self._socket.sendall(encode(command))

    def messages(self) -> Iterator[pb.CommandMessage]:
        """The messages as they come, until the connection is closed."""
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                return
            if not data:
                return
            for frame in self._decoder.feed(data):
                if frame.command.type == 9:
                    yield frame.command.message
                elif frame.command.type == 18:
                    self._send(pb.BaseCommand(type=19, pong=pb.CommandPong()))

    def acknowledge(self, message: pb.CommandMessage) -> None:
        """Acknowledge one message, and let more come now and then."""
        consumer = message.consumer_id
        ack = pb.CommandAck(consumer_id=consumer, ack_type=0, message_id=[message.message_id])
        self._send(pb.BaseCommand(type=10, ack=ack))
        self._acknowledged[consumer] += 1
        if self._acknowledged[consumer] % (PERMITS // 2) == 0:
            self._flow(consumer, PERMITS // 2)

    def close(self) -> None:
        """Cut the connection."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def failover_path(topic: str, subscription: str) -> str:
    """What the failover command asks of a subscription: the cheapest answer that has its backlog."""
    return f"/geo/v1/failover/persistent/public/default/{topic}/{subscription}"


def positions(world: World, seconds: int, topic: str = "positions") -> list[Figure]:
    """Staleness of positions."""
    each = ACKS_PER_S // SUBSCRIPTIONS * seconds
    names = [f"s{number}" for number in range(SUBSCRIPTIONS)]
    publish(world["a"], topic, 1)
    consumers = Consumers(world["a"], topic, names)
    publish(world["a"], topic, each - 1)
    eventually(
        lambda: all(backlogs(world["b"], topic).get(name, 0) == each for name in names),
        within_s=60,
        what=f"{topic} and its subscriptions in b",
    )
    acked: list[float] = []
    samples: list[float] = []
    looks = 0

    def acknowledge() -> None:
        for _, message in zip(paced(each * SUBSCRIPTIONS, ACKS_PER_S), consumers.messages(), strict=False):
            if message.consumer_id == 0:
                acked.append(time.perf_counter())
            consumers.acknowledge(message)

    # Messages of one subscription after the other would make a burst of each: they are acknowledged in the order of arrival, in
    # which the subscriptions alternate because they are dispatched together.
    worker = threading.Thread(target=acknowledge, daemon=True)
    admin, path = Admin(world["b"]), failover_path(topic, names[0])
    seen, began = 0, time.perf_counter()
    worker.start()
    while seen < each:
        assert time.perf_counter() - began < 60 + 2 * seconds, f"b shows {seen} of {each}"
        shown = each - admin.look(path)[0]["backlog"]
        now = time.perf_counter()
        shown = min(shown, len(acked))
        samples += [(now - acked[number]) * 1000 for number in range(seen, shown) if acked[number] - began >= WARM_S]
        seen = max(seen, shown)
        looks += 1
        time.sleep(PAUSE_S)
    look_ms = (time.perf_counter() - began) / looks * 1000
    worker.join(30)
    consumers.close()
    detail = {"acks_per_s": ACKS_PER_S, "subscriptions": SUBSCRIPTIONS, "look_ms": look_ms, "max_ms": max(samples)}
    return [
        Figure("exact mode, 1,000 acknowledgements a second: staleness p50", percentile(samples, 0.5), "ms", "< 20", detail),
        Figure("exact mode, 1,000 acknowledgements a second: staleness p99", percentile(samples, 0.99), "ms", "< 60"),
    ]  # fmt: skip


def failovers(world: World, seconds: int) -> list[Figure]:
    """Planned moves there and back."""
    topic, over = "moving", threading.Event()
    client = client_of(world["c"])
    producer = client.create_producer(full_name(topic), batching_enabled=False)
    received: list[float] = []

    def produce() -> None:
        while not over.wait(0.005):
            producer.send_async(b"x" * 100, lambda _result, _id: None)
        producer.flush()

    def consume(consumers: Consumers) -> None:
        for message in consumers.messages():
            received.append(time.perf_counter())
            try:
                consumers.acknowledge(message)
            except OSError:
                return  # closed by the one who moves

    def follow(broker: BrokerProcess) -> Consumers:
        consumers = Consumers(broker, topic, ["s"])
        threading.Thread(target=consume, args=(consumers,), daemon=True).start()
        return consumers

    def moves(source: str, target: str) -> int:
        clients = [AdminClient(f"http://127.0.0.1:{world[name].http_port}") for name in (source, target)]
        move = Move(TopicName.parse(full_name(topic)), "s", source, target, *clients, say=lambda _text: None)
        move.plan(force=True)
        return move.run(30.0, 1_000).pause_ms

    producing = threading.Thread(target=produce, daemon=True)
    producing.start()
    consumers = follow(world["a"])
    eventually(lambda: len(received) > 200, within_s=60, what="messages")
    eventually(lambda: "s" in backlogs(world["b"], topic), within_s=60, what="the subscription in b")
    pauses: list[float] = []
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until or number < 4:
        source, target = ("a", "b") if number % 2 == 0 else ("b", "a")
        pause_ms = moves(source, target)
        if number > 1:  # the first there and back open connections
            pauses.append(pause_ms)
        consumers.close()
        consumers = follow(world[target])
        before = len(received)
        eventually(lambda before=before: len(received) > before + 50, within_s=60, what="messages")  # type: ignore[misc]
        number += 1
    over.set()
    producing.join(10)
    consumers.close()
    client.close()
    detail = {"moves": len(pauses), "max_ms": max(pauses)}
    return [
        Figure("planned failover: pause p50", percentile(pauses, 0.5), "ms", "", detail),
        Figure("planned failover: pause p99", percentile(pauses, 0.99), "ms", "< 60"),
    ]


def metadata(world: World, seconds: int) -> list[Figure]:
    """Single changes of a policy, at random times."""
    tenant, rng = "follow", random.Random(1)
    others = [Admin(world[name]) for name in "bc"]
    world["a"].rest("PUT", f"/admin/v2/tenants/{tenant}", {"allowedClusters": ["a", "b", "c"], "adminRoles": []})
    world["a"].rest("PUT", f"/admin/v2/namespaces/{tenant}/n", {"replication_clusters": ["a", "b", "c"]})
    path = f"/admin/v2/namespaces/{tenant}/n/messageTTL"
    samples: list[float] = []

    def change(value: int) -> float:
        began = time.perf_counter()
        world["a"].rest("POST", path, value)
        for other in others:
            while other.look(path) != value:
                assert time.perf_counter() - began < 60, f"{value} is not everywhere"
                time.sleep(PAUSE_S)
        return (time.perf_counter() - began) * 1000

    for value in range(1, 11):
        change(value)  # connections open, the JVM compiles
    until, value = time.monotonic() + seconds, 100
    while time.monotonic() < until:
        value += 1
        samples.append(change(value))
        time.sleep(0.02 + rng.random() * 0.1)
    detail = {"changes": len(samples), "max_ms": max(samples)}
    return [
        Figure("a change of metadata is in all three clusters: p50", percentile(samples, 0.5), "ms", "", detail),
        Figure("a change of metadata is in all three clusters: p99", percentile(samples, 0.99), "ms", "< 60"),
    ]


PARTS: Final[dict[str, Callable[[World, int], list[Figure]]]] = {
    "positions": positions,
    "failover": failovers,
    "metadata": metadata,
}


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--tail", choices=("long-batches", "short-batches"), default="long-batches")
    parser.add_argument("--seconds", type=int, default=30, help="of measuring (default: 30)")
    parser.add_argument(
        "--one-way", type=float, default=0.0, help="to b and c in each direction, in seconds (default: 0)"
    )
    options = parser.parse_args()
    if options.seconds <= WARM_S:
        parser.error(
            f"--seconds {options.seconds}: it should be more than {WARM_S:.0f}, because the first ones do not count"
        )
    far = dict.fromkeys("bc", options.one_way) if options.one_way else None
    with clusters("abc", f'{ON}[replication]\ntail = "{options.tail}"\n', far=far) as (world, _):
        if options.part == "positions":
            positions(world, 5, "warm")
        figures = PARTS[options.part](world, options.seconds)
    if far:
        aim = f"< {options.one_way * 1000 + 60:.0f}" if options.part == "positions" else ""
        figures = [replace(one, aim=aim if one.name.endswith("p99") else "") for one in figures]
    name = "follow" if options.tail == "long-batches" else f"follow, {options.tail}"
    store(f"{name} {options.part}{' far' if far else ''}".replace(", ", "_").replace(" ", "_"), figures, sys.argv)


if __name__ == "__main__":
    main()
