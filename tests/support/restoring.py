"""The job that restores a cluster from its peers, in one process: rows go straight into brokers in memory."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from magnetar.core.ids import Position
from magnetar.jobs import restore as job
from magnetar.jobs.restore_plan import chosen_by, compare
from magnetar.replication.link.reading import Reading
from magnetar.runtime.network.link_client import Entries, LinkDown
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import Node, World


class Direct:
    """What the job needs of a link client, straight into a broker; each request may be the last."""

    def __init__(
        self,
        node: Node,
        accident: Callable[[bool], None] = lambda _before: None,
        twice: Callable[[], bool] = lambda: False,
        peer: Node | None = None,
    ) -> None:
        self.node, self.accident, self.twice, self.peer = node, accident, twice, peer

    def read(self, topic: str, after: Position, *, origin: str, bytes_max: int) -> Entries:
        broker, answers = self.node.broker, []
        reading = Reading(
            broker.outbox, broker.topics[topic].log, cluster=broker.cluster, to="", request_id=1, after=after, up_to=None,
            bytes_max=min(bytes_max, 300), reply=lambda told, data: answers.append((told, b"".join(data))),
            failed=lambda _position, _error: None, origin=origin,
        )  # fmt: skip
        self.node.run(reading.start)
        self.node.world.work()
        answers[0][0].schema_numbering = broker.links.schemas.numbering(topic)
        return Entries(*answers[0])

    def _ask(self, connection: int) -> Callable[[pb.CommandGeoSchemasWanted], None]:
        """The peer tells what schemas its versions mean."""

        def ask(wanted: pb.CommandGeoSchemasWanted) -> None:
            assert self.peer is not None
            told = self.peer.broker.links.schemas.answer(
                pb.CommandGeoSchemas(
                    request_id=1, topic=wanted.topic, schema_numbering=wanted.schema_numbering, versions=wanted.versions
                )
            )
            brought = pb.CommandGeoSchemasBrought(ticket=wanted.ticket, found=told.found, missing=told.missing)
            self.node.run(self.node.broker.links.restores.machine.schemas.brought, connection, brought)

        return ask

    def restore(self, request: pb.CommandGeoRestore, buffers: Sequence[bytes]) -> pb.CommandGeoRestoreResponse:
        self.accident(True)
        answers: list[pb.CommandGeoRestoreResponse] = []
        request = pb.CommandGeoRestore.FromString(request.SerializeToString())
        restorer = self.node.broker.links.restores.machine
        self.node.run(lambda: restorer.restore(1, request, b"".join(buffers), answers.append, self._ask(1)))
        if self.twice():  # a task that Spark took for dead
            self.node.run(lambda: restorer.restore(2, request, b"".join(buffers), lambda _answer: None, self._ask(2)))
        self.accident(False)
        self.node.world.work()
        if not answers:
            raise LinkDown("the broker died")
        return answers[0]

    def close(self) -> None:
        """Nothing to close."""


def plan(world: World, peer: str) -> list[Any]:
    return compare(world[peer].control.links.held("a"), world["a"].control.links.held("a"), chosen_by(()))


def restore(world: World, peer: str, *accidents: Any) -> None:
    """The job, in one process."""

    def rows() -> Iterator[pa.RecordBatch]:
        for one in plan(world, peer):
            work = job.Work(one.topic, one.partitions, one.ours())
            yield from job.read_topic(lambda: Direct(world[peer]), work, "a")  # type: ignore[arg-type, return-value]

    for _ in job.send_rows(rows(), lambda: Direct(world["a"], *accidents, peer=world[peer]), "a", peer):  # type: ignore[arg-type, return-value]
        pass
