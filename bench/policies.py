"""How soon a change of policies reaches live topics, and how exactly rates hold.

    python -m bench.policies [--quick]

The first figure is what an administrator and an application see together: from the moment the request is sent to the moment
that an official client's consumer, which its topic's dispatch rate had stopped, is given the next message. With few topics,
and with ten thousand in the namespace that changes.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pulsar
from tests.support.brokers import BrokerProcess, World

from bench.links import client_of
from bench.results import Figure, store

NAMESPACE = "public/default"
STOPPED = {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 86_400}


def _policy(broker: BrokerProcess, value: Any) -> None:
    path = f"/admin/v2/namespaces/{NAMESPACE}/dispatchRate"
    if value is None:
        broker.rest("DELETE", path)
    else:
        broker.rest("POST", path, value)


def reach(broker: BrokerProcess, client: pulsar.Client, rounds: int) -> dict[str, Any]:
    """Milliseconds from the request to the message, and to the administrator's answer."""
    topic = f"persistent://{NAMESPACE}/live-{time.monotonic_ns()}"
    consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
    got, answered = [], []
    for number in range(rounds):
        _policy(broker, {**STOPPED, "dispatchThrottlingRateInMsg": 1 + number % 2})
        for _ in range(2 + number % 2):
            producer.send(b"x")
        for _ in range(1 + number % 2):
            consumer.acknowledge(consumer.receive(10_000))
        try:
            consumer.receive(50)
        except pulsar.Timeout:
            pass
        else:
            raise AssertionError("the rate let a message through that it should hold back")
        began = time.perf_counter()
        _policy(broker, None)
        answered.append((time.perf_counter() - began) * 1000)
        consumer.acknowledge(consumer.receive(10_000))
        got.append((time.perf_counter() - began) * 1000)
    consumer.close()
    producer.close()
    got.sort()
    return {
        "p50": statistics.median(got),
        "max": got[-1],
        "answered_p50": statistics.median(answered),
        "rounds": rounds,
    }


def rate_holds(broker: BrokerProcess, client: pulsar.Client, wanted: int, seconds: int) -> dict[str, Any]:
    """Messages stored per second by a client that sends as fast as it may, once the burst is over."""
    local = f"rate-{time.monotonic_ns()}"
    topic = f"persistent://{NAMESPACE}/{local}"
    producer = client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=100, send_timeout_millis=0
    )
    broker.rest("POST", f"/admin/v2/persistent/{NAMESPACE}/{local}/publishRate", {"publishThrottlingRateInMsg": wanted})
    stored: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        producer.send_async(b"x" * 100, lambda result, _id: stored.append(time.perf_counter()))
    # The second half: the burst is over, and what the bucket filled up with while it went out.
    later = [at for at in stored if at > end - seconds / 2]
    rate = (len(later) - 1) / (later[-1] - later[0])
    broker.rest("DELETE", f"/admin/v2/persistent/{NAMESPACE}/{local}/publishRate")
    producer.close()
    return {"wanted": wanted, "stored_per_s": rate, "messages": len(stored)}


def main(arguments: list[str]) -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(arguments[1:]).quick
    topics = 2_000 if quick else 10_000
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), ["solo"]).start()
        try:
            broker = world["solo"]
            client = client_of(broker)
            few = reach(broker, client, 10 if quick else 30)
            held = rate_holds(broker, client, 1000, 4 if quick else 8)
            for number in range(topics // 1000):
                broker.rest("PUT", f"/admin/v2/persistent/{NAMESPACE}/many-{number}/partitions", 1000)
            many = reach(broker, client, 10 if quick else 30)
            client.close()
        finally:
            world.close()
    store(
        "policies",
        [
            Figure("a policy change reaches a live topic", few["max"], "ms", "< 100", few),
            Figure(f"the same with {topics:,} topics in the namespace", many["max"], "ms", "< 100", many),
            Figure(
                "publish rate held, stored / wanted",
                held["stored_per_s"] / held["wanted"],
                "ratio",
                "0.98 to 1.02",
                held,
            ),
        ],
        arguments,
    )


if __name__ == "__main__":
    main(sys.argv)
