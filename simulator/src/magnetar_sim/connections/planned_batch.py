"""One planned batch of a pipeline that has long batches as well: it carries topics with a backlog."""

import random
from collections.abc import Callable

from msgspec.structs import replace

from magnetar.core.ids import Position
from magnetar.pipeline import messages as m
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.positions import position_from_proto, position_to_proto
from magnetar_sim.connections.link_filter import LinkFilter
from magnetar_sim.connections.link_peer import Peer
from magnetar_sim.connections.long_task import PATIENCE_MS, LongHost
from magnetar_sim.connections.ranges import DIED, READ_BYTES, Range, Task, chain, fill, second_attempt_ms
from magnetar_sim.connections.workers import Workers
from magnetar_sim.context import WorldContext


class PlannedBatch:
    """One batch, a `RangeHost` for its tasks.

    Args:
        host: the link.
        ranges: as planned.
        uuid: of the source.
        ended: called with the reports of all ranges, once all are over.
    """

    def __init__(
        self,
        host: LongHost,
        ranges: list[m.Range],
        uuid: str,
        ended: "Callable[[PlannedBatch, list[m.RangeReport]], None]",
    ) -> None:
        self.context: WorldContext = host.context
        self.rng: random.Random = host.faults.rng
        self.workers: Workers = host.workers
        self.filter: LinkFilter = host.filter
        self.source = host.source
        self._host, self._ended = host, ended
        self._query_generation = ranges[0].query_generation
        self._ranges = [
            Range(one.topic, one.incarnation, uuid, one.gen, m.position(one.after), m.position(one.s)) for one in ranges
        ]
        self._reports: dict[Range, m.RangeReport] = {}
        self._read_by: Peer | None = None
        self._zombies: list[Task] = []

    @property
    def task_dies(self) -> float:
        """How often a task dies at a step."""
        return self._host.faults.task_dies

    @property
    def busy(self) -> bool:
        """Whether any attempt is still at work."""
        return len(self._reports) < len(self._ranges) or any(not task.over for task in self._zombies)

    def start(self) -> None:
        """Read all ranges."""
        self._read_by = self.workers.peer(self.source, self._lost_source)
        for work in self._ranges:
            if not self._read_by.open:
                self._report(work, trouble=m.SOURCE_DOWN, reason="it is down")
                continue
            size = self.rng.choice(READ_BYTES)

            def body(request_id: int, work: Range = work, size: int = size) -> pb.CommandGeoRead:
                return pb.CommandGeoRead(
                    request_id=request_id, topic=work.topic, to=self._host.target, after=position_to_proto(work.c),
                    bytes_max=size,
                )  # fmt: skip

            def then(frame: Frame, work: Range = work) -> None:
                self._read(work, frame)

            self._read_by.ask(pb.GEO_READ, "geo_read", body, then)
        self.context.clock.after(PATIENCE_MS, self._silent)

    def _silent(self) -> None:
        if self._read_by is not None and any(not work.read for work in self._ranges):
            self._read_by.close()
            self._lost_source()

    def _lost_source(self) -> None:
        for work in self._ranges:
            if not work.read and work not in self._reports:
                self._report(work, trouble=m.SOURCE_DOWN, reason="the connection is lost")

    def _read(self, work: Range, frame: Frame) -> None:
        response = frame.command.geo_read_response
        if work in self._reports:
            return
        if frame.command.type != pb.GEO_READ_RESPONSE or response.error:
            self._report(work, trouble=m.RETRY, reason="an error")
        elif response.blocked:
            self._report(work, trouble=m.BLOCKED, kind=response.blocked, reason=response.message)
        elif work.other_incarnation(response) or position_from_proto(response.end) <= work.c:
            self._report(work)
        else:
            fill(work, response, frame.payload)
            chain(work, self)
            faults = self._host.faults
            if faults.chance(faults.twice):
                zombie = Task(self, work, zombie=True)
                self._zombies.append(zombie)
                self.context.clock.after(second_attempt_ms(self.rng), zombie.start)
            self.context.clock.after(self.pause_ms(), Task(self, work).start)

    # ------------------------------------------------------------------------------------------------- what tasks need

    def pause_ms(self) -> int:
        """How long a task takes for nothing."""
        return self._host.faults.pause_ms()

    def refused(self, _work: Range, _watermark: Position, /) -> None:
        """The destination refused a piece: the range's report says so."""

    def ended(self, task: Task, trouble: str, reason: str) -> None:
        """An attempt is over: what it confirmed may follow in this very event."""
        if task.zombie:
            return
        if trouble == DIED:  # Spark runs it again, with the same range
            again = Task(self, task.work)
            self.context.clock.after(self.pause_ms(), again.start)
            return
        self._report(task.work, trouble=trouble, kind=task.blocked, reason=reason, done=not trouble)

    def commit(self, work: Range, c: Position, s: Position) -> None:
        """What an attempt confirmed: it is reported with the batch."""
        if (found := self._reports.get(work)) is not None and found.c is None:
            self._reports[work] = replace(found, c=m.pair(c), s=m.pair(s), entries=1)

    def _report(self, work: Range, *, trouble: str = "", kind: str = "", reason: str = "", done: bool = False) -> None:
        if trouble:
            self.context.count(f"planned range: {trouble}")
        self._reports[work] = m.RangeReport(
            0, work.topic, work.incarnation, work.gen, None, m.pair(work.s), done=done, trouble=trouble, kind=kind,
            reason=reason, query_generation=self._query_generation,
        )  # fmt: skip
        if len(self._reports) == len(self._ranges):
            if self._read_by is not None:
                self._read_by.close()
            self.context.clock.after(0, lambda: self._ended(self, list(self._reports.values())))
