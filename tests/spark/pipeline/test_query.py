"""The replication query on a real Spark session, between clusters in memory over real sockets."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from magnetar.core.ids import NONE
from magnetar.core.settings import ReplicationLimits
from magnetar.pipeline.link_state import ALL
from magnetar.pipeline.once import Once
from magnetar.pipeline.planner import BULK, TAIL
from tests.spark.conftest import Running
from tests.spark.fakes import FakeCluster, entry_bytes, eventually

# The first test here starts Java, and a deadline for all only ends what hangs.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

T = "persistent://public/default/t"
Start = Callable[..., list[FakeCluster]]
Pipe = Callable[..., Running]


def publish(cluster: FakeCluster, count: int, *, topic: str = T, size: int = 100, start: int = 0) -> None:
    for number in range(start, start + count):
        cluster.publish(topic, entry_bytes(size, producer=cluster.name, sequence=number))


def arrived(target: FakeCluster, source: FakeCluster, count: int, topic: str = T) -> Callable[[], bool]:
    return lambda: target.identities(topic, source.name) == list(range(count))


def test_a_mesh_of_three(clusters: Start, pipeline: Pipe) -> None:
    mesh = clusters("a", "b", "c")
    for cluster in mesh:
        cluster.create(T, links=tuple(other.name for other in mesh if other is not cluster), partitions=0)
        publish(cluster, 100)
    running = pipeline(*mesh, queries=(TAIL, BULK))
    for source in mesh:
        for target in mesh:
            if target is not source:
                eventually(arrived(target, source, 100), what=f"{source.name} -> {target.name}")
    # Every cursor ends behind what came from others, too: nothing holds data back.
    eventually(lambda: all(
        cursor.c == cluster.topics[T].last for cluster in mesh for cursor in cluster.topics[T].cursors.values()
    ))  # fmt: skip
    status = running.coordinator.status()
    assert status["links"]["a -> b"]["messages"] == 100
    assert status["links"]["a -> b"]["duplicates"] == 0
    assert status["links"]["a -> b"]["lag_entries"] == 0
    assert not status["troubles"]


def test_a_filter_drops_entries_and_never_control_rows(clusters: Start, pipeline: Pipe) -> None:
    a, b, c = clusters("a", "b", "c")
    a.create(T, links=("b", "c"))
    for number in range(60):
        a.publish(T, entry_bytes(10, sequence=number, key="k" if number % 3 == 0 else None))
    running = pipeline(a, b, c, links=("a:b", "a:c"), filters={"a:b": "key is not null and first_index >= 30"})
    eventually(arrived(c, a, 60), what="the link without filter")
    eventually(lambda: b.identities(T, "a") == list(range(30, 60, 3)), what="the link with filter")
    eventually(lambda: a.topics[T].cursors["b"].c == a.topics[T].last, what="C behind what was filtered")
    assert a.topics[T].cursors["b"].s.entry == 57
    a.publish(T, entry_bytes(10, sequence=60))  # filtered
    a.publish(T, entry_bytes(10, sequence=61, key="k"))
    eventually(lambda: b.identities(T, "a")[-1] == 61)
    # A word goes over the loopback address from the writer of a task to its reader (pipeline.long.hand_over).
    plan = running.queries.running[ALL]._jsq.explainInternal(False)
    assert "MicroBatchScan" in plan
    assert "Exchange" not in plan, "a task has its reader and its writer on one host"


def test_a_cluster_that_is_down_catches_up_and_the_others_do_not_wait(clusters: Start, pipeline: Pipe) -> None:
    a, b, c = clusters("a", "b", "c")
    a.create(T, links=("b", "c"))
    publish(a, 10)
    running = pipeline(a, b, c, links=("a:b", "a:c"))
    eventually(arrived(b, a, 10))
    eventually(arrived(c, a, 10))
    b.silent = True
    publish(a, 10, start=10)
    eventually(arrived(c, a, 20), what="the link to the living cluster")
    eventually(lambda: any("cluster b: down" in line for line in running.lines), what="a line about b")
    worst = 0.0
    for number in range(20, 30):
        began = time.monotonic()
        publish(a, 1, start=number)
        eventually(arrived(c, a, number + 1))
        worst = max(worst, time.monotonic() - began)
    assert worst < 3, "b costs the others a deadline once, not each time"
    b.silent = False
    eventually(arrived(b, a, 30), what="b caught up")
    eventually(lambda: "cluster b: works again" in running.lines)


def test_a_killed_source_and_a_killed_destination_come_back(clusters: Start, pipeline: Pipe) -> None:
    a, b = clusters("a", "b")
    a.create(T, links=("b",))
    publish(a, 5)
    pipeline(a, b, links=("a:b",))
    eventually(arrived(b, a, 5))
    for cluster in (a, b):
        cluster.stop()
        publish(a, 5, start=a.topics[T].next_index)
        cluster.start()
        eventually(arrived(b, a, a.topics[T].next_index))


def test_a_destination_that_lost_its_disk_gets_everything_again(clusters: Start, pipeline: Pipe) -> None:
    a, b = clusters("a", "b")
    a.create(T, links=("b",))
    publish(a, 20)
    pipeline(a, b, links=("a:b",))
    eventually(arrived(b, a, 20))
    eventually(lambda: a.topics[T].cursors["b"].c == a.topics[T].last)
    b.lose_everything()
    publish(a, 1, start=20)  # refused: leads to the handshake
    eventually(arrived(b, a, 21), what="everything again")
    assert a.topics[T].cursors["b"].gen == 2


def test_one_blocked_topic_leaves_the_others_alone_and_heals(clusters: Start, pipeline: Pipe) -> None:
    a, b = clusters("a", "b")
    bad = T + "-bad"
    for name in (T, bad):
        a.create(name, links=("b",))
        publish(a, 5, topic=name)
    b.create(bad)
    b.block[bad] = ("size", "entry of 6 MB, at most 5 MB are accepted")
    running = pipeline(a, b, links=("a:b",))
    eventually(arrived(b, a, 5))
    eventually(lambda: a.topics[bad].cursors["b"].blocked == "size", what="told to the source")
    assert any(f"a -> b, {bad}: blocked: size: entry of 6 MB" in line for line in running.lines)
    once = Once(running.coordinator)
    eventually(lambda: once.left() is not None)
    left = once.left()
    assert left is not None
    assert len(left) == 1
    assert "blocked: size" in left[0]
    del b.block[bad]
    eventually(arrived(b, a, 5, bad), what="it goes on by itself")
    eventually(lambda: a.topics[bad].cursors["b"].blocked == "", what="told to the source")


PATIENT = ReplicationLimits(progress_ms=60_000)
"""Looking through all processes for the one to kill keeps a request waiting, and is not to look like a cluster that is down."""


def sender(cluster: FakeCluster) -> psutil.Process | None:
    """The process whose request this thread of the cluster answers; None: it is dead."""
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it ended meanwhile
            if any(held.laddr == cluster.serving.peer for held in one.net_connections("tcp")):
                return one
    return None


def kill_a_sender(cluster: FakeCluster, kills: int = 1) -> list[int]:
    """The next ones to append die, each with its request on its way; their process ids, as they are killed."""
    killed: list[int] = []

    def kill(_: Any) -> None:
        if len(killed) < kills and (victim := sender(cluster)) is not None:
            victim.kill()
            killed.append(victim.pid)

    cluster.append_hook = kill
    return killed


def replicating(clusters: Start, pipeline: Pipe) -> tuple[FakeCluster, FakeCluster, Any, Any]:
    """Two clusters with a link that has carried five messages, what runs it, and its query."""
    a, b = clusters("a", "b")
    a.create(T, links=("b",))
    publish(a, 5)
    running = pipeline(a, b, links=("a:b",), limits=PATIENT)
    eventually(arrived(b, a, 5))
    (query,) = running.queries.running.values()
    return a, b, running, query


def test_a_killed_python_worker_does_not_end_the_query(clusters: Start, pipeline: Pipe) -> None:
    """One worker: what Spark has idle besides is alive, so that exactly one attempt at the task fails."""
    a, b, _, query = replicating(clusters, pipeline)
    killed = kill_a_sender(b)
    publish(a, 50, start=5)
    # C stands there only when a task came to its end and its batch was committed.
    eventually(
        lambda: not query.isActive or (arrived(b, a, 55)() and a.topics[T].cursors["b"].c == a.topics[T].last),
        what="the task ran again, or the query ended",
    )
    assert query.isActive, query.exception()
    assert len(killed) == 1


def test_workers_killed_more_often_than_spark_tries(clusters: Start, pipeline: Pipe) -> None:
    """The query ends with its fourth failure, is started again, and nothing is there twice."""
    a, b, running, query = replicating(clusters, pipeline)
    killed = kill_a_sender(b, 5)
    publish(a, 50, start=5)
    eventually(
        lambda: arrived(b, a, 55)() and a.topics[T].cursors["b"].c == a.topics[T].last,
        what="a new query finished it",
    )
    assert len(killed) == 5
    assert not query.isActive
    assert [line for line in running.lines if "restarting" in line], running.lines


def test_a_checkpoint_that_is_gone_costs_nothing(clusters: Start, pipeline: Pipe, tmp_path: Path) -> None:
    a, b = clusters("a", "b")
    a.create(T, links=("b",))
    publish(a, 10)
    first = pipeline(a, b, links=("a:b",))
    eventually(arrived(b, a, 10))
    eventually(lambda: a.topics[T].cursors["b"].c != NONE)
    first.stop()
    shutil.rmtree(tmp_path / "checkpoint-0")
    publish(a, 10, start=10)
    second = pipeline(a, b, links=("a:b",))
    eventually(arrived(b, a, 20))
    assert second.coordinator.status()["links"]["a -> b"]["duplicates"] == 0


def test_a_paused_link_and_a_throttled_one(clusters: Start, pipeline: Pipe) -> None:
    a, b = clusters("a", "b")
    a.create(T, links=("b",)).cursors["b"].paused = True
    other = T + "-2"
    a.create(other, links=("b",))
    a.throttle_rate = 20_000
    publish(a, 3)
    publish(a, 60, topic=other, size=1000)
    began = time.monotonic()
    pipeline(a, b, links=("a:b",))
    eventually(arrived(b, a, 60, other))
    assert time.monotonic() - began > 1.5, "60 KB at 20 KB/s, of which one second's worth at once"
    assert b.identities(T, "a") == []
    with a.lock:
        a.topics[T].cursors["b"].paused = False
        a._touch(a.topics[T])
    eventually(arrived(b, a, 3))
