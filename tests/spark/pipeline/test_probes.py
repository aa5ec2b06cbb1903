"""Probes of a broken cluster always end: the poller and the greeter with brokers that leave them in the middle of one."""

import random
import threading
from collections.abc import Callable, Iterator

import pytest

from magnetar.core.settings import ReplicationLimits
from magnetar.pipeline.breaker import BreakerState
from magnetar.pipeline.handshake_worker import HandshakeWorker
from magnetar.pipeline.link_state import Link
from magnetar.pipeline.poller import Poller
from magnetar.pipeline.shared_state import Pipeline, SharedState
from magnetar.pipeline.tasks.link_channel import LinkChannel
from magnetar.runtime.clock import wall_ms
from magnetar.wire import pulsar_pb2 as pb
from tests.spark.fakes import TOKEN, FakeCluster, eventually
from tests.unit.pipeline.worlds import report

LIMITS = ReplicationLimits(answer_ms=500)


class Watched(SharedState):
    """A shared that lets a test act while a cluster is being probed.

    Attributes:
        meanwhile: called once, when the first probe has its connection.
        worked_out: how often a cluster was said to work.
    """

    def __init__(self, links: tuple[Link, ...], token: str, *clusters: FakeCluster) -> None:
        addresses = {cluster.name: cluster.address for cluster in clusters}
        super().__init__(
            Pipeline(links, addresses, token, 2, "test", LIMITS), lambda _line: None, random.Random(1), wall_ms
        )
        self.meanwhile: Callable[[], None] | None = None
        self.worked_out = 0

    def connection(self, cluster: str, kept: LinkChannel | None = None) -> LinkChannel:
        channel = super().connection(cluster, kept)
        if self.meanwhile is not None and self.state.breakers[cluster].state is BreakerState.HALF_OPEN:
            self.meanwhile, act = None, self.meanwhile
            act()
        return channel

    def worked(self, cluster: str) -> None:
        super().worked(cluster)
        self.worked_out += 1


class Cut(FakeCluster):
    """A cluster that answers so many more handshakes, then closes one connection; None: it goes on for good."""

    answers_left: int | None = None

    def _watermarks(self, asked: pb.CommandGeoWatermarks) -> pb.BaseCommand:
        if self.answers_left == 0:
            self.answers_left = None
            raise ConnectionResetError("cut")
        if self.answers_left is not None:
            self.answers_left -= 1
        return super()._watermarks(asked)


@pytest.fixture
def c() -> Iterator[Cut]:
    cluster = Cut("c")
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def running() -> Iterator[Callable[[SharedState, Poller | HandshakeWorker], None]]:
    """Run a poller or a greeter until the test is over."""
    started: list[tuple[SharedState, threading.Thread]] = []

    def run(shared: SharedState, job: Poller | HandshakeWorker) -> None:
        thread = threading.Thread(target=job.run, daemon=True)
        started.append((shared, thread))
        thread.start()

    yield run
    for shared, thread in started:
        shared.stop()
        thread.join()


def test_a_token_that_is_replaced_while_its_source_is_probed(
    clusters: Callable[..., list[FakeCluster]], running: Callable[[SharedState, Poller | HandshakeWorker], None]
) -> None:
    [a] = clusters("a")
    shared = Watched((Link(0, "a", "b"),), "the token before", a)
    shared.failed("a", "no answer")
    shared.meanwhile = lambda: shared.present(TOKEN)
    running(shared, Poller(shared, "a"))
    eventually(lambda: shared.meanwhile is None, 10)
    eventually(lambda: shared.state.breakers["a"].closed and shared.state.links[0].reported, 10)


def test_a_probe_of_which_only_the_first_handshake_is_answered(
    c: Cut, running: Callable[[SharedState, Poller | HandshakeWorker], None]
) -> None:
    shared = Watched((Link(0, "a", "c"), Link(1, "b", "c")), TOKEN, c)
    with shared.changing() as pipeline_state:
        for number in (0, 1):
            report(pipeline_state, link=number, uuid=f"u{number}")
            pipeline_state.links[number].target_uuid = c.uuid
    running(shared, HandshakeWorker(shared, "c"))
    eventually(lambda: shared.worked_out > 0, 10, "the connection is kept")
    with shared.changing() as pipeline_state:
        c.answers_left = 1
        for state in pipeline_state.links.values():
            state.checked_ms = 0  # both have something to ask
        pipeline_state.breakers["c"].failed(wall_ms(), random.Random(1), "no progress within 500 ms")
    eventually(lambda: c.answers_left is None, 10)
    eventually(lambda: pipeline_state.breakers["c"].closed, 10)
