"""The coordinator's threads and its socket, with tasks run by hand: what needs no Spark."""

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from magnetar.core.settings import ReplicationLimits
from magnetar.pipeline import messages as m
from magnetar.pipeline import poller as module
from magnetar.pipeline import rpc
from magnetar.pipeline.coordinator import PipelineCoordinator
from magnetar.pipeline.link_state import ALL, Link
from magnetar.pipeline.shared_state import Pipeline
from magnetar.pipeline.tasks.direct import task_rows
from magnetar.pipeline.tasks.task_write import write_task
from tests.spark.fakes import TOKEN, FakeCluster, entry_bytes, eventually

T = "persistent://public/default/t"


@pytest.fixture
def pair() -> Iterator[tuple[FakeCluster, FakeCluster]]:
    a, b = FakeCluster("a").start(), FakeCluster("b").start()
    a.create(T, links=("b",))
    yield a, b
    for cluster in (a, b):
        cluster.silent = False
        cluster.stop()
        assert not cluster.violations


def no_rows(_task: m.Task) -> Iterator[pa.RecordBatch]:
    """No link has a filter: the writer reads everything itself."""
    raise AssertionError


@pytest.fixture
def conduct(pair: tuple[FakeCluster, FakeCluster]) -> Iterator[Callable[[], tuple[PipelineCoordinator, list[str]]]]:
    started: list[PipelineCoordinator] = []
    ended = threading.Event()

    def start(token: str = TOKEN, limits: ReplicationLimits = m.DEFAULTS) -> tuple[PipelineCoordinator, list[str]]:
        lines: list[str] = []
        addresses = {cluster.name: cluster.address for cluster in pair}
        pipeline = Pipeline((Link(0, "a", "b"),), addresses, token, 2, "test", limits)
        coordinator = PipelineCoordinator(pipeline, lines.append).start()
        started.append(coordinator)

        def work() -> None:
            while not ended.is_set():
                if rpc.request(coordinator.socket_path, "wait", ALL, 100):
                    tasks = [m.decode_task(packed) for packed in rpc.request(coordinator.socket_path, "plan", ALL)]
                    reports = [m.encode(write_task(task_rows(task, (), frozenset(), no_rows), TOKEN)) for task in tasks]
                    rpc.request(coordinator.socket_path, "committed", ALL, reports)

        worker = threading.Thread(target=work)
        worker.start()
        started_workers.append(worker)
        return coordinator, lines

    started_workers: list[threading.Thread] = []
    yield start
    ended.set()
    for worker in started_workers:
        worker.join()
    for coordinator in started:
        coordinator.stop()


def test_everything_is_told_to_the_source(
    pair: tuple[FakeCluster, FakeCluster], conduct: Callable[[], tuple[PipelineCoordinator, list[str]]]
) -> None:
    a, b = pair
    for number in range(30):
        a.publish(T, entry_bytes(10, sequence=number))
    coordinator, lines = conduct()
    eventually(lambda: b.identities(T, "a") == list(range(30)))
    eventually(lambda: a.topics[T].cursors["b"].c == a.topics[T].last)
    assert coordinator.settle(5000)
    assert a.topics[T].cursors["b"].learned == b.destination_counter
    assert not lines


def test_a_lost_long_poll_is_no_alarm(
    pair: tuple[FakeCluster, FakeCluster],
    conduct: Callable[..., tuple[PipelineCoordinator, list[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = pair
    monkeypatch.setattr(module, "POLL_MS", 100)
    a.lost_polls = 2
    _, lines = conduct(limits=ReplicationLimits(answer_ms=400))
    eventually(lambda: a.lost_polls == 0)
    a.publish(T, entry_bytes(10))
    eventually(lambda: b.identities(T, "a") == [0])
    assert not lines


def test_a_restarted_source_is_asked_for_everything(
    pair: tuple[FakeCluster, FakeCluster], conduct: Callable[[], tuple[PipelineCoordinator, list[str]]]
) -> None:
    a, b = pair
    _, lines = conduct()
    for number in range(5):
        a.stop()
        a.publish(T, entry_bytes(10, sequence=number))
        a.start()
        eventually(lambda n=number: b.identities(T, "a") == list(range(n + 1)))
    assert any("cluster a: down" in line for line in lines)
    eventually(lambda: "cluster a: works again" in lines)


def test_a_topic_that_goes_while_its_source_is_away_is_forgotten(
    pair: tuple[FakeCluster, FakeCluster], conduct: Callable[[], tuple[PipelineCoordinator, list[str]]]
) -> None:
    a, b = pair
    other = f"{T}-other"
    a.create(other, links=("b",))
    coordinator, _ = conduct()
    eventually(lambda: coordinator.status()["links"]["a -> b"]["topics"] == 2)
    a.stop()
    a.publish(other, entry_bytes(10))
    del a.topics[other]
    a.publish(T, entry_bytes(10))
    a.start()
    eventually(lambda: b.identities(T, "a") == [0])
    with coordinator.reading() as state:
        assert set(state.links[0].topics) == {T}


def test_a_wrong_token_is_told_in_one_line(
    pair: tuple[FakeCluster, FakeCluster], conduct: Callable[..., tuple[PipelineCoordinator, list[str]]]
) -> None:
    _, lines = conduct("guessed")
    eventually(lambda: any("does not accept this link token" in line for line in lines))
    assert all("\n" not in line for line in lines)


def test_drain_plans_nothing_more(
    pair: tuple[FakeCluster, FakeCluster], conduct: Callable[[], tuple[PipelineCoordinator, list[str]]]
) -> None:
    a, b = pair
    coordinator, _ = conduct()
    a.publish(T, entry_bytes(10))
    eventually(lambda: b.identities(T, "a") == [0])
    assert coordinator.drain(5000)
    a.publish(T, entry_bytes(10, sequence=1))
    assert not coordinator.wait(ALL, 50)
    assert coordinator.plan(ALL) == []


def test_the_socket_is_for_this_user_alone_and_goes_away(pair: tuple[FakeCluster, FakeCluster]) -> None:
    from pathlib import Path

    addresses = {cluster.name: cluster.address for cluster in pair}
    coordinator = PipelineCoordinator(Pipeline((Link(0, "a", "b"),), addresses, TOKEN, 2, "test")).start()
    folder = Path(coordinator.socket_path).parent
    assert folder.stat().st_mode & 0o077 == 0
    assert TOKEN not in repr(coordinator.pipeline)
    coordinator.stop()
    assert not folder.exists()
    with pytest.raises(rpc.CoordinatorGone, match="does not answer"):
        rpc.request(coordinator.socket_path, "wait", ALL, 1)
