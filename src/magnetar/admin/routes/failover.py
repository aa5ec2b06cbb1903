"""Planned failover of a subscription: the steps of `magnetar failover`, one request each, at the source or the target.

Every request names one subscription. For a partitioned topic it means the subscription of all partitions, and the
answer has a row for each. All requests may be repeated.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct

from magnetar.admin.http.call import Call, position_of
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.topics import partitions_of
from magnetar.broker.admin.failovers import Step
from magnetar.broker.context import Done
from magnetar.broker.failover.drain_window import GRACE_MS
from magnetar.broker.failover.final_state import ASKED_RUNS_MAX, RUNS_MAX
from magnetar.broker.failover.waiting import WAIT_MS_MAX
from magnetar.core.names import check_cluster
from magnetar.core.numbers import whole_number
from magnetar.metadata.errors import BadRequest

failover = Routes("Failover", "/geo/v1/failover/persistent/{tenant}/{namespace}/{topic}/{subscription}", own=True)

WAIT = {"wait_ms": f"time of a long poll, at most {WAIT_MS_MAX} ms; default 0."}


class Begin(Struct):
    """Body of fence.

    Attributes:
        to: the target cluster.
        above: the latest failover that the target knows of (`token` or `given_up` of its state).
        grace_ms: how long acknowledgements of what was sent are awaited; longer, up to 10 s, while they come fast enough to be
            all there by then.
        tokens: topic or partition -> the token that its failover shall have: `next` of its state, or a later one of this
            cluster. With it the failover can be called off when no answer comes.
    """

    to: str
    above: str = ""
    grace_ms: int = GRACE_MS
    tokens: dict[str, str] = {}


class OfToken(Struct):
    """Body of a step: the failover's token, as `fence` answered it for this partition.

    Attributes:
        tokens: topic or partition -> token.
    """

    tokens: dict[str, str]


def _number(call: Call, name: str) -> int:
    text = call.parameter(name) or "0"
    number = whole_number(text)
    if number is None:
        raise BadRequest(f"parameter {name} is a whole number from 0 on, not {text[:40]!a}")
    return number


def _topics(call: Call) -> list[str]:
    return [str(part) for part in partitions_of(call, call.topic())]


def _states(call: Call) -> list[dict[str, Any]]:
    name = call.subscription()
    return [call.control.failovers.state(topic, name) for topic in _topics(call)]


@failover.add("GET", "", "A subscription as a failover sees it.", errors=(404, 412), reply="[FailoverState, ...]")
async def state(call: Call) -> Any:
    """One row for each partition."""
    return _states(call)


@failover.add(
    "GET",
    "/wait",
    "One topic's or partition's row, when its version is above `since`.",
    errors=(400, 404, 412),
    query={"since": "the known version; default 0."} | WAIT,
    reply="FailoverState",
)
async def wait(call: Call) -> Any:
    """Answered when something changed, or when the time is over."""
    (topic,), name = _one(call), call.subscription()
    since, wait_ms = _number(call, "since"), _number(call, "wait_ms")
    return await call.value(lambda done: call.control.failovers.wait(topic, name, since, wait_ms, done))


async def _each(topics: list[str], start: Callable[[str, Done], None], call: Call) -> None:
    """Do it to all topics, also when one refuses; the first refusal is raised when all are through."""
    tasks = [call.done(partial(start, topic)) for topic in topics]
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _one(call: Call) -> list[str]:
    topics = _topics(call)
    if len(topics) != 1:
        raise BadRequest("the topic is partitioned: ask for one partition")
    return topics


@failover.add(
    "GET",
    "/merged",
    "At the target: whether everything up to a position of the source is stored and merged here (one topic or partition).",
    errors=(400, 412),
    query={"source": "cluster.", "position": "ledger:entry in the source's topic."} | WAIT,
    reply='{"topic": "...", "merged": true, "watermark": "1763700000000:17", "exists": true}',
)
async def merged(call: Call) -> Any:
    """Answered when it is, or when the time is over; also for a topic that is not here yet."""
    namespace = call.namespace()
    topic, name = f"persistent://{namespace}/{call.name('topic')}", call.subscription()
    source, position = check_cluster(call.parameter("source") or ""), position_of(call.parameter("position") or "")
    wait_ms = _number(call, "wait_ms")
    return await call.value(lambda done: call.control.failovers.merged(topic, name, source, position, wait_ms, done))


@failover.add(
    "POST",
    "/fence",
    "At the source: stop dispatching, accept the last acknowledgements, write the final state.",
    errors=(400, 404, 409, 412),
    body=Begin,
    reply="[FailoverState, ...]",
)
async def fence(call: Call) -> Any:
    """A failover to the same target that is under way is joined."""
    body: Begin = await call.body()
    name, to = call.subscription(), check_cluster(body.to)
    topics = _topics(call)
    await _each(
        topics,
        lambda topic, done: call.control.failovers.begin(
            topic, name, to, body.above, body.grace_ms, done, named=body.tokens.get(topic, "")
        ),
        call,
    )
    return _states(call)


def _step(name: Step, summary: str, errors: tuple[int, ...] = (400, 404, 409, 412)) -> None:
    async def take(call: Call) -> Any:
        body: OfToken = await call.body()
        subscription, topics = call.subscription(), _topics(call)
        if missing := [topic for topic in topics if topic not in body.tokens]:
            raise BadRequest(f"tokens names no failover of {missing[0]}")
        await _each(
            topics,
            lambda topic, done: call.control.failovers.step(name, topic, subscription, body.tokens[topic], done),
            call,
        )
        return _states(call)

    failover.add("POST", f"/{name}", summary, errors=errors, body=OfToken, reply="[FailoverState, ...]")(take)


_step("activate", "At the target, when it has merged the final state: activate the subscription here.")
_step("complete", "At the source, when the target is active: send the consumers there.")
_step("put-back", "At the source: cancel the failover and restore the former state.")
_step("give-up", "At the target: cancel the failover; it can no longer activate the subscription here.")
_step(
    "call-off",
    "At the source, if `fence` was not answered: cancel this failover, or refuse it when it arrives. Other "
    "failovers continue.",
    errors=(400, 404, 412),  # whatever phase it is in
)


RUNS = '{"runs": [["us-west", 1763700000000, 17, 20]]}'


class Runs(Struct):
    """Messages by identity.

    Attributes:
        runs: (origin cluster, topic incarnation there, first index, last); at most ASKED_RUNS_MAX. Overlapping runs
            count once.
    """

    runs: list[tuple[str, int, int, int]]


@failover.add(
    "GET",
    "/unacknowledged",
    "Messages that the subscription has not acknowledged here, in runs of [origin, incarnation, first, last] (one topic "
    f"or partition; the lowest {RUNS_MAX} runs).",
    errors=(400, 404, 412),
    reply=RUNS,
)
async def unacknowledged(call: Call) -> Any:
    """For a comparison with another cluster's."""
    (topic,), name = _one(call), call.subscription()
    return {"runs": call.control.failovers.unacknowledged(topic, name)}


@failover.add(
    "POST",
    "/acknowledged",
    "How many of these messages are here and acknowledged (one topic or partition).",
    errors=(400, 404, 412),
    body=Runs,
    reply='{"messages": 0}',
)
async def acknowledged(call: Call) -> Any:
    """The messages that another cluster has not acknowledged and this one has."""
    (topic,), name = _one(call), call.subscription()
    body: Runs = await call.body()
    if len(body.runs) > ASKED_RUNS_MAX:
        raise BadRequest(f"runs has {len(body.runs)} runs; at most {ASKED_RUNS_MAX} in one request")
    for origin, incarnation, first, last in body.runs:
        if not (origin and 0 < incarnation < 2**63 and 0 <= first <= last < 2**63):
            raise BadRequest(f"runs has {[origin, incarnation, first, last]}, which is not a run of messages")
    return {"messages": call.control.failovers.acknowledged_of(topic, name, body.runs)}


@failover.add(
    "POST",
    "/unfence",
    "End a fence regardless of the other cluster. Both may then be active, and messages are delivered twice.",
    errors=(404, 412),
    reply="[FailoverState, ...]",
)
async def unfence(call: Call) -> Any:
    """Harmless when nothing is fenced."""
    name = call.subscription()
    await _each(_topics(call), lambda topic, done: call.control.failovers.unfence(topic, name, done), call)
    return _states(call)
