"""Helpers: what a source would report, in few words."""

import random

from magnetar.core.ids import NONE, Position
from magnetar.pipeline import messages as m
from magnetar.pipeline.link_state import Handshake, Link
from magnetar.pipeline.pipeline_state import PipelineState
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_to_proto

ROUTES = {0: ("a:1", "b:1"), 1: ("b:1", "a:1"), 2: ("a:1", "c:1")}
LINKS = (Link(0, "a", "b"), Link(1, "b", "a"), Link(2, "a", "c"))


def pipeline_state(*links: Link, cores: int = 2) -> PipelineState:
    return PipelineState(links or LINKS[:1], random.Random(7), cores)


def at(entry: int, ledger: int = 5) -> Position:
    return Position(ledger, entry) if entry >= 0 else NONE


def state(
    topic: str = "t", *, c: int = -1, s: int = -1, gen: int = 1, last: int = 9, size: int = 1000, **more: object
) -> pb.GeoTopicState:
    return pb.GeoTopicState(
        topic=topic, incarnation=more.pop("incarnation", 5), partitions=0, last=position_to_proto(at(last)),
        cursor=pb.GeoCursor(c=position_to_proto(at(c)), s=position_to_proto(at(s)), gen=gen),
        pending_entries=max(0, last - c), pending_bytes=max(0, last - c) * size, **more,
    )  # fmt: skip


def report(of: PipelineState, *states: pb.GeoTopicState, link: int = 0, now: int = 0, **more: object) -> None:
    of.source_reported(
        link,
        pb.CommandGeoTopicsResponse(request_id=1, counter=1, topics=states, uuid=more.pop("uuid", "ua"), **more),
        now,
    )


def shake(
    of: PipelineState,
    target: str = "b",
    *,
    w: dict[str, int] | None = None,
    counter: int = 3,
    now: int = 0,
    **more: object,
) -> list[Handshake]:
    """Carry out every handshake that is due; returns what was asked."""
    asked = of.handshakes(target, now)
    for handshake in asked:
        marks = [
            pb.GeoWatermark(topic=q.topic, persisted=position_to_proto(at((w or {}).get(q.topic, -1))))
            for q in handshake.topics
        ]
        answer = pb.CommandGeoWatermarksResponse(
            request_id=1, counter=counter, uuid=more.get("uuid", "ub"), topics=marks,
            blocked=more.get("blocked"), reason=more.get("reason"),
        )  # fmt: skip
        of.handshake_answered(handshake, answer, now)
    return asked


def ready(*links: Link, states: tuple[pb.GeoTopicState, ...] = (), w: dict[str, int] | None = None) -> PipelineState:
    """A pipeline_state whose links have reported and shaken hands."""
    of = pipeline_state(*links)
    for link in links or LINKS[:1]:
        report(of, *(states or (state(),)), link=link.number)
    for target in {link.target for link in links or LINKS[:1]}:
        shake(of, target, w=w)
    return of


def ranges(of: PipelineState, query: str = "all", now: int = 0) -> list[m.Range]:
    return [part for task in of.plan(query, ROUTES, now) for part in task.ranges]


def outcome(
    part: m.Range, *, c: int | None = None, s: int | None = None, trouble: str = "", **more: object
) -> m.RangeReport:
    position = None if c is None else m.pair(at(c))
    return m.RangeReport(
        part.link, part.topic, part.incarnation, part.gen, position, m.pair(at(s)) if s is not None else part.s,
        done=c is not None and not trouble, trouble=trouble, query_generation=part.query_generation, **more,
    )  # fmt: skip


def told(of: PipelineState, query: str, *outcomes: m.RangeReport, now: int = 0) -> None:
    of.batch_reported(query, [m.TaskReport(outcomes, 10)], now)
