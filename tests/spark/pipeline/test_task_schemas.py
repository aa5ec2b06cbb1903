"""A task whose destination asks for schemas in the middle: asked at the source, told, however slow or gone the source is."""

from collections.abc import Iterator

import pytest

from magnetar.pipeline import messages as m
from magnetar.pipeline.tasks.link_channel import LinkChannel
from magnetar.pipeline.tasks.task_read import read_task
from magnetar.pipeline.tasks.task_write import LinkSink
from magnetar.wire import pulsar_pb2 as pb
from tests.spark.fakes import TOKEN, FakeCluster, entry_bytes

TOPIC = "persistent://public/default/t"

PONG = pb.BaseCommand(type=19, pong=pb.CommandPong())


class Registry(FakeCluster):
    """A cluster that tells schemas as a source, and wants them, once for each append, as a destination."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.mute = False
        self.asked: list[pb.CommandGeoSchemas] = []
        self.brought: list[pb.CommandGeoSchemasBrought] = []
        self.numberings: list[int] = []
        self.numbering = 7
        self._held: dict[int, tuple[pb.CommandGeoAppend, bytes]] = {}

    def _answer(self, command: pb.BaseCommand, payload: bytes) -> tuple[pb.BaseCommand, bytes]:
        if command.type == 1002:
            read, data = super()._answer(command, payload)
            read.geo_read_response.schema_numbering = self.numbering
            return read, data
        if command.type == 1014:
            self.asked.append(command.geo_schemas)
            told = pb.CommandGeoSchemasResponse(request_id=command.geo_schemas.request_id, missing=[9])
            told.found.add(version=3, schema=pb.Schema(name="S", schema_data=b"d", type=1))
            return (PONG if self.mute else pb.BaseCommand(type=1015, geo_schemas_response=told)), b""
        if command.type == 1004:
            append = command.geo_append
            self.numberings.append(append.schema_numbering)
            self._held[append.request_id] = (append, payload)
            wanted = pb.CommandGeoSchemasWanted(
                ticket=append.request_id,
                topic=append.topic,
                source=append.source,
                schema_numbering=append.schema_numbering,
                versions=[3, 9],
            )
            return pb.BaseCommand(type=1016, geo_schemas_wanted=wanted), b""
        if command.type == 1017:
            self.brought.append(command.geo_schemas_brought)
            append, data = self._held.pop(command.geo_schemas_brought.ticket)
            if command.geo_schemas_brought.reason:
                answer = pb.BaseCommand(type=1005)
                answer.geo_append_response.request_id, answer.geo_append_response.retry = append.request_id, True
                answer.geo_append_response.persisted.ledger = answer.geo_append_response.persisted.entry = -1
                answer.geo_append_response.reason = command.geo_schemas_brought.reason
                return answer, b""
            return self._append(append, data), b""
        return super()._answer(command, payload)


def fresh(address: str, token: str) -> LinkChannel:
    return LinkChannel(address, token)


def filled(pair: tuple[Registry, Registry], count: int) -> None:
    a, b = pair
    a.create(TOPIC, links=("b",))
    b.create(TOPIC)
    for number in range(count):
        a.publish(TOPIC, entry_bytes(100, sequence=number))


def task(a: Registry, b: Registry) -> m.Task:
    """One task for all there is."""
    topic = a.topics[TOPIC]
    none = (-1, -1)
    part = m.Range(0, 0, TOPIC, topic.incarnation, 1, none, none, m.pair(topic.last), 1 << 30)
    return m.Task((m.Route(0, "a", "b", a.address, b.address, a.uuid),), (part,))


def carry(work: m.Task, *, append_bytes_max: int = 1 << 20, progress_ms: int = 5000) -> dict[str, m.RangeReport]:
    """Run one task as Spark would."""
    sink = LinkSink(TOKEN, connect=fresh, append_bytes_max=append_bytes_max, progress_ms=progress_ms)
    for batch in read_task(work, TOKEN, connect=fresh, progress_ms=progress_ms):
        sink.feed(batch)
    return {report.topic: report for report in sink.finish().ranges}


@pytest.fixture
def pair() -> Iterator[tuple[Registry, Registry]]:
    a, b = Registry("a"), Registry("b")
    a.start()
    b.start()
    yield a, b
    a.stop()
    b.stop()


def test_a_question_is_passed_on_and_its_answer_back(pair: tuple[Registry, Registry]) -> None:
    a, b = pair
    filled(pair, 40)
    report = carry(task(a, b), append_bytes_max=500)[TOPIC]
    assert report.done, report
    assert b.identities(TOPIC, "a") == list(range(40))
    assert not b.violations
    assert len(a.asked) == len(b.brought) == len(b.numberings) > 1, "several were under way at once"
    assert set(b.numberings) == {7}, "the numbering that the source named with the entries"
    (one,) = {(tuple(asked.versions), asked.schema_numbering, asked.topic) for asked in a.asked}
    assert one == ((3, 9), 7, TOPIC)
    assert {(told.found[0].version, tuple(told.missing)) for told in b.brought} == {(3, (9,))}


def test_a_silent_source_is_an_excuse_and_not_the_destinations_fault(pair: tuple[Registry, Registry]) -> None:
    a, b = pair
    filled(pair, 5)
    a.mute = True
    report = carry(task(a, b), progress_ms=400)[TOPIC]
    assert (report.trouble, report.c) == (m.RETRY, None)
    assert "in time" in b.brought[0].reason
    a.mute = False
    assert carry(task(a, b))[TOPIC].done
    assert b.identities(TOPIC, "a") == list(range(5))


def test_a_source_that_died_after_it_was_read(pair: tuple[Registry, Registry]) -> None:
    a, b = pair
    filled(pair, 5)
    work = task(a, b)

    def connect(address: str, token: str) -> LinkChannel:
        return fresh("127.0.0.1:1" if address == a.address else address, token)

    sink = LinkSink(TOKEN, connect=connect)
    for batch in list(read_task(work, TOKEN, connect=fresh)):
        sink.feed(batch)
    (report,) = sink.finish().ranges
    assert report.trouble == m.RETRY
    assert "127.0.0.1:1" in report.reason


def test_schemas_that_begin_anew_cut_the_range(pair: tuple[Registry, Registry]) -> None:
    a, b = pair
    filled(pair, 30)
    numberings = iter((7, 8))

    def read(command: pb.BaseCommand, payload: bytes, answer=a._answer) -> tuple[pb.BaseCommand, bytes]:  # type: ignore[no-untyped-def]
        if command.type == 1002:
            command.geo_read.bytes_max = 1000
            a.numbering = next(numberings, 8)
        return answer(command, payload)

    a._answer = read  # type: ignore[method-assign]
    report = carry(task(a, b))[TOPIC]
    assert report.trouble == m.RETRY
    assert "began again" in report.reason
    assert set(b.numberings) == {7}
    assert report.c is not None, "what was read before is settled"
