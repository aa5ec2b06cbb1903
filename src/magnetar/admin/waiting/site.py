"""REST of a broker that waits to take over: every request is sent on to the broker that serves.

    /metrics, /status.html, /admin/v2/brokers...    about brokers: answered here
    everything else                                 307 to the same path of the broker that serves; 503 while none does

A waiting broker is healthy, so that a supervisor leaves it alone, and it is not ready, so that a load balancer sends no clients.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from magnetar.admin.http.gate import Gate
from magnetar.admin.http.guard import clean_names, errors_in_one_shape, no_strangers, quiet_headers
from magnetar.admin.http.replies import json_reply, refusal
from magnetar.admin.metrics import families as table
from magnetar.admin.metrics.exposition import CONTENT_TYPE, Writer
from magnetar.admin.metrics.host import HOST
from magnetar.admin.metrics.page import serving_rows
from magnetar.admin.routes.brokers import leader_answer, web_addresses
from magnetar.broker.admin.info import BrokerInfo
from magnetar.broker.security.authorization import Operation
from magnetar.broker.waiting.broker import WaitingBroker
from magnetar.broker.waiting.takeover import Takeover

RETRY_AFTER_S: Final = 2
"""When a client should ask again after 503: a takeover takes a session (4 s) at most, and the recovery of the log."""

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WaitingSite:
    """Answers requests.

    Args:
        broker: the waiting broker.
        takeover: which broker serves.
        info: name and addresses of this broker.
        gate: authentication; None: every request is allowed.
    """

    def __init__(self, broker: WaitingBroker, takeover: Takeover, info: BrokerInfo, gate: Gate | None) -> None:
        self._broker = broker
        self._takeover = takeover
        self._info = info
        self._gate = gate

    def application(self) -> web.Application:
        """The application; its runner decides where it listens."""
        application = web.Application(
            middlewares=[
                errors_in_one_shape(),
                no_strangers(self._info),
                clean_names,
                *([self._gate.middleware()] if self._gate is not None else []),
            ]
        )
        own: tuple[tuple[str, Answer, Operation], ...] = (
            ("/metrics", self._metrics, Operation.MONITOR),
            ("/status.html", self._ready, Operation.IDENTIFIED),
            ("/admin/v2/brokers/health", self._healthy, Operation.IDENTIFIED),
            ("/admin/v2/brokers/ready", self._ready, Operation.IDENTIFIED),
            ("/admin/v2/brokers/version", self._version, Operation.IDENTIFIED),
            ("/admin/v2/brokers", self._list, Operation.MONITOR),
            ("/admin/v2/brokers/leaderBroker", self._leader, Operation.MONITOR),
            (f"/admin/v2/brokers/{self._info.cluster}", self._list, Operation.MONITOR),
            (f"/admin/v2/brokers/{self._info.cluster}/leaderBroker", self._leader, Operation.MONITOR),
        )
        for path, answer, operation in own:
            # The cluster's name has no character that a pattern would take for one of its own.
            pattern = path + ("{slash:/?}" if path.startswith("/admin/") else "")
            application.router.add_route("GET", pattern, self._allowed(answer, operation))
            application.router.add_route("HEAD", pattern, self._allowed(answer, operation))
        application.router.add_route("*", "/{path:.*}", self._redirect)
        application.on_response_prepare.append(quiet_headers)
        return application

    def _allowed(self, answer: Answer, operation: Operation) -> Answer:
        async def handle(request: web.Request) -> web.StreamResponse:
            if self._gate is not None:
                self._gate.require(request, operation)
            return await answer(request)

        return handle

    def _unready(self) -> web.Response:
        answer = refusal(503, self._takeover.state)
        answer.headers["Retry-After"] = str(RETRY_AFTER_S)
        return answer

    async def _redirect(self, request: web.Request) -> web.StreamResponse:
        serving = self._takeover.serving
        if serving is None:
            return self._unready()
        base = serving.web_url(tls=request.secure)
        if not base:
            return self._unready()
        # As it came: names in it may hold percent-encoded slashes. A proxy's request has a whole URL in its first line.
        path = request.raw_path if request.raw_path.startswith("/") else str(request.rel_url)
        answer = refusal(307, f"broker {serving.broker} serves, at {base}")
        answer.headers["Location"] = f"{base}{path}"
        return answer

    async def _healthy(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok")

    async def _ready(self, _request: web.Request) -> web.StreamResponse:
        return self._unready()

    async def _version(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._info.version)

    async def _list(self, _request: web.Request) -> web.StreamResponse:
        return json_reply(web_addresses(self._takeover.brokers))

    async def _leader(self, _request: web.Request) -> web.StreamResponse:
        serving = self._takeover.brokers.serving
        return self._unready() if serving is None else json_reply(leader_answer(serving.web_url()))

    async def _metrics(self, _request: web.Request) -> web.StreamResponse:
        process = await asyncio.to_thread(HOST.process)
        writer = Writer(self._info.cluster)
        counters = self._broker.counters
        parts = [
            writer.simple(table.BUILD, [((self._info.version,), 1)]),
            *(
                writer.simple(family, [((), {"ready": 0, "connections": counters.made - counters.ended}[family.key])])
                for family in table.BROKER
                if family.key in {"ready", "connections"}
            ),
            *(writer.simple(family, [((), getattr(counters, family.key))]) for family in table.CONNECTIONS),
            *(
                writer.simple(family, [] if (value := getattr(process, family.key)) is None else [((), value)])
                for family in table.PROCESS
            ),
            writer.simple(table.SERVING, serving_rows(self._takeover.brokers)),
        ]
        return web.Response(body="".join(parts).encode(), headers={"Content-Type": CONTENT_TYPE})
