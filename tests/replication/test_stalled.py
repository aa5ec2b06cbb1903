"""A destination stands still for 30 s and continues: the other links of the pipeline do not notice, and memory stays bounded."""

import contextlib
import signal
import statistics
import time
import uuid

import psutil
import pulsar
import pytest

from tests.replication.conftest import Mesh
from tests.support.brokers import eventually
from tests.support.traffic import contents
from tests.support.workers import workers

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

STILL_S = 30.0
"""Longer than a source holds a question (15 s), and much longer than a destination may take no byte (0.5 s). The long batches
have a turn in this time (every 28.5 s)."""

LARGE = 1 << 20
PUBLISHED = 160
"""Messages of 1 MiB for the cluster that stands still: five times what may be under way and not confirmed (32 MiB)."""

SLACK_BYTES = 96 << 20
"""The window, the buffer of a destination, and what Arrow and its allocator keep: less than what is published."""


class Pings:
    """Messages from a to c, one at a time: each is sent when the one before has arrived."""

    def __init__(self, mesh: Mesh, topic: str) -> None:
        self._consumer = mesh.client("c").subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        self._producer = mesh.client("a").create_producer(topic, batching_enabled=False)

    def ages_s(self, until: float) -> list[float]:
        """The ages of messages until a time, and of 20 at least."""
        ages: list[float] = []
        while len(ages) < 20 or time.monotonic() < until:
            began = time.monotonic()
            self._producer.send(b"x")
            self._consumer.acknowledge(self._consumer.receive(60_000))
            ages.append(time.monotonic() - began)
        return ages


def memory(mesh: Mesh) -> dict[int, int]:
    """Bytes that the Python processes of the pipeline's tasks have for themselves, by process."""
    found = {}
    for one in workers(mesh.pipeline):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            found[one.pid] = one.memory_full_info().uss
    return found


def growth(before: dict[int, int], now: dict[int, int]) -> int:
    """Bytes by which processes have grown.

    Spark ends idle processes. They are left out, because they would hide what others hold. A new process is compared with the
    largest one before.
    """
    largest = max(before.values())
    return sum(max(0, size - before.get(number, largest)) for number, size in now.items())


def test_a_destination_that_stands_still_delays_no_other_link(mesh: Mesh) -> None:
    small, large = (f"persistent://public/default/{name}-{uuid.uuid4().hex[:8]}" for name in ("small", "large"))
    pings = Pings(mesh, small)
    producer = mesh.client("a").create_producer(large, batching_enabled=False, block_if_queue_full=True)
    producer.send(bytes(LARGE), replication_clusters=["b"])
    eventually(lambda: contents(mesh.client("b"), large), within_s=60, every_s=0.2, what="the link to b works")
    pings.ages_s(0)  # what is done once is done
    before, had = pings.ages_s(time.monotonic() + 3), memory(mesh)
    still = mesh["b"].process
    assert still is not None
    still.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        for number in range(PUBLISHED):
            body = b"%d " % number
            producer.send_async(body.ljust(LARGE, b"x"), lambda *_: None, replication_clusters=["b"])
        producer.flush()
        during = pings.ages_s(began + STILL_S)
        grown = growth(had, memory(mesh))
    finally:
        still.send_signal(signal.SIGCONT)
    assert statistics.median(during) < 4 * statistics.median(before), "a link that waits for b takes 0.5 s at least"
    assert grown < SLACK_BYTES, f"{grown >> 20} MiB"
    eventually(
        lambda: mesh["a"].rest("GET", "/geo/v1/links/b")["lag_messages"] == 0, within_s=90, what="b has caught up"
    )
    stored = [data.split()[0] for data in contents(mesh.client("b"), large)[1:]]
    assert stored == [b"%d" % number for number in range(PUBLISHED)]
