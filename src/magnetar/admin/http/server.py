"""The web application of one broker, put together from the route table."""

import asyncio
import re
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgspec
from aiohttp import web

from magnetar.admin.http.answers import SMALL_BYTES, Answers, Large
from magnetar.admin.http.building import Building
from magnetar.admin.http.call import Call, Services
from magnetar.admin.http.gate import Gate
from magnetar.admin.http.guard import clean_names, errors_in_one_shape, no_strangers, quiet_headers
from magnetar.admin.http.reference import openapi
from magnetar.admin.http.routing import Handler, Route, Routes
from magnetar.admin.metrics.page import site
from magnetar.admin.routes.broker_stats import broker_stats
from magnetar.admin.routes.brokers import balancers, brokers, lookup
from magnetar.admin.routes.clusters import clusters, own_tenants, tenants
from magnetar.admin.routes.compaction import compaction
from magnetar.admin.routes.damage import damage
from magnetar.admin.routes.failover import failover
from magnetar.admin.routes.geo import geo
from magnetar.admin.routes.messages import messages
from magnetar.admin.routes.metadata import metadata
from magnetar.admin.routes.namespace_properties import namespace_properties
from magnetar.admin.routes.namespace_wide import namespacewide
from magnetar.admin.routes.namespaces import namespaces
from magnetar.admin.routes.operations import operations
from magnetar.admin.routes.page import page
from magnetar.admin.routes.permissions import permissions
from magnetar.admin.routes.policies import (
    deduplication,
    idempotency,
    non_persistent_policies,
    own_policies,
    own_topic_policies,
    policies,
    topic_policies,
)
from magnetar.admin.routes.properties import properties
from magnetar.admin.routes.replicated import replicated, replicated_geo
from magnetar.admin.routes.schemas import own_schemas, schema_policies, schemas
from magnetar.admin.routes.sequence_ids import sequence_ids
from magnetar.admin.routes.subscriptions import subscriptions
from magnetar.admin.routes.topics import own_topics, topics
from magnetar.admin.unsupported.never_set import never_set
from magnetar.admin.unsupported.no_io import no_io
from magnetar.admin.websocket.gateway import Gateway
from magnetar.broker.admin.controller import Controller
from magnetar.broker.admin.info import BrokerInfo
from magnetar.broker.waiting.registration import NO_BROKERS, Brokers
from magnetar.metadata.errors import PreconditionFailed
from magnetar.metadata.resources import Resources

BODY_BYTES_MAX: Final = 1 << 20
"""A ceiling on a request's body (`http_body_bytes_max`): the largest sensible one is a list of names."""

ENTRY_BYTES_MAX: Final = 5 << 20
"""The default size of the largest stored message."""

own = Routes("Descriptions", own=True)


@own.add("GET", "/openapi.json", "This interface, described for programs.", reply="OpenAPI 3.1")
async def describe_interface(call: Call) -> web.StreamResponse:
    """Made from the route table, once."""
    return Large(_interface(call.info.version))


@cache
def _interface(version: str) -> bytes:
    """The description, as all who ask are sent it: it takes long to make, and is large."""
    return msgspec.json.encode(openapi(GROUPS, version))


GROUPS: Final = (
    brokers,
    broker_stats,
    balancers,
    lookup,
    clusters,
    tenants,
    own_tenants,
    namespaces,
    namespace_properties,
    namespacewide,
    policies,
    own_policies,
    schema_policies,
    topics,
    own_topics,
    subscriptions,
    messages,
    properties,
    topic_policies,
    own_topic_policies,
    non_persistent_policies,
    never_set,
    no_io,
    compaction,
    deduplication,
    idempotency,
    sequence_ids,
    damage,
    permissions,
    schemas,
    own_schemas,
    replicated,
    replicated_geo,
    geo,
    metadata,
    failover,
    operations,
    site,
    page,
    own,
)
"""Every group of routes, in the order in which they are matched and described."""

ROUTES: Final[tuple[Route, ...]] = tuple(route for group in GROUPS for route in group.routes)


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _handler(route: Route, services: Services, gate: Gate | None) -> Callable[[web.Request], Any]:
    async def handle(request: web.Request) -> web.StreamResponse:
        if gate is not None:
            gate.check(request, route)
        call = Call(request, route, services)
        return await answered(call, route.handler)

    return handle


async def answered(call: Call, handler: Handler) -> web.StreamResponse:
    """A call's answer. If a large one has to wait for memory, it is dropped and made again afterwards.

    Raises:
        MagnetarError: as the handler refuses. PreconditionFailed: it is over the limit. BrokerError: TOO_MANY_REQUESTS.
    """
    answers = call.services.answers
    answer = await _made(call, handler)
    size = len(_body(answer))
    if size <= SMALL_BYTES:
        return answer
    if size > answers.answer_bytes_max:
        raise PreconditionFailed(
            f"the answer would have {size} bytes, over http_answer_bytes_max ({answers.answer_bytes_max}); ask for less of it"
        )
    held = answers.hold_now(size)
    if held is None:
        again = not call.route.changes
        if again:
            del answer
        held = await answers.hold(size)
        if again:
            try:
                answer = await _made(call, handler)
            except BaseException:
                held.release()
                raise
            held.resize(len(_body(answer)))
    large = Large(_body(answer), status=answer.status, held=held)
    large.headers.update(answer.headers)
    return large


async def _made(call: Call, handler: Handler) -> web.StreamResponse:
    call.building = building = Building(call.services.answers, call.services.give_way)
    try:
        answer = await handler(call)
        if answer is None:
            return web.Response(status=204)
        if isinstance(answer, web.StreamResponse):
            return answer
        body = await building.encoded(answer)
        return web.Response(body=body, status=call.route.ok, content_type="application/json")
    finally:
        building.end()


def _body(answer: web.StreamResponse) -> bytes:
    """An answer's body, if it is there as a whole; others have been counted."""
    return answer.body if isinstance(answer, web.Response) and isinstance(answer.body, bytes) else b""


def make_app(
    control: Controller,
    resources: Resources,
    info: BrokerInfo,
    *,
    body_bytes_max: int = BODY_BYTES_MAX,
    now_ms: Callable[[], int] = _wall_clock_ms,
    gate: Gate | None = None,
    answers: Answers | None = None,
    entry_bytes_max: int = ENTRY_BYTES_MAX,
    gateway: Gateway | None = None,
    brokers: Callable[[], Brokers] = lambda: NO_BROKERS,
    give_way: Callable[[], None] = lambda: None,
) -> web.Application:
    """The application; run it in the loop that owns the broker. Its runner decides where it listens.

    Args:
        control: the broker; its methods are called on the loop's thread.
        resources: the broker's resources; only `control.policies.apply` changes it.
        info: the broker's name and addresses. A loopback `web_url` makes it refuse other names in `Host`.
        body_bytes_max: ceiling on a request's body.
        now_ms: the wall clock.
        gate: authentication and authorization; None: every request is allowed.
        answers: the memory of answers.
        entry_bytes_max: approximate size of the largest stored message.
        gateway: the gateway of WebSockets; None: there are none.
        brokers: the brokers of the cluster that are registered.
        give_way: see `Services`.
    """
    application = web.Application(
        middlewares=[
            errors_in_one_shape(),
            no_strangers(info),
            clean_names,
            *([gate.middleware()] if gate is not None else []),
        ],
        client_max_size=body_bytes_max,
    )
    services = Services(control, resources, info, body_bytes_max, now_ms, asyncio.Lock(), answers or Answers())
    services = services._replace(entry_bytes_max=entry_bytes_max, brokers=brokers, give_way=give_way)
    if gate is not None:
        services = services._replace(superuser=gate.superuser)
    for route in ROUTES:
        # aiohttp's own pattern for a segment leaves out braces, which names may hold.
        pattern = re.sub(r"{(\w+)}", r"{\1:[^/]+}", route.path)
        if not route.own:
            pattern += "{slash:/?}"  # as Pulsar's brokers take it
        handler = _handler(route, services, gate)
        application.router.add_route(route.method, pattern, handler)
        if route.method == "GET":
            application.router.add_route("HEAD", pattern, handler)
    if gateway is not None:
        gateway.routes(application)
    application.on_response_prepare.append(quiet_headers)
    return application
