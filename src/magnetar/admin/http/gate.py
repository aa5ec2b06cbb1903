"""Authentication and authorization of REST requests: the sender's role, and its permission for the route.

One table has the operation that each route needs (`RULES`, first match; the operations are those of
`broker.security.authorization`). A route without a rule is for superusers. Credentials are `Authorization: Bearer
TOKEN`, `Authorization: Basic ...` or the client certificate of TLS; they are checked, counted and refused like those of
the Pulsar port.
"""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from magnetar.admin.http.call import names_of
from magnetar.admin.http.replies import refusal, status_of
from magnetar.broker.security.access import Access
from magnetar.broker.security.authorization import Operation, Where
from magnetar.broker.security.credentials import Identity, basic_from_header, denied
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.names import NamespaceName, TopicName, looked_up
from magnetar.runtime.security.tls import common_name

if TYPE_CHECKING:
    from magnetar.admin.http.routing import Route

_D: Final = "(?:persistent|non-persistent)"
_TOPIC: Final = rf"/admin/v2/{_D}/{{tenant}}/{{namespace}}/{{topic}}"
_NAMESPACE: Final = r"/admin/v2/namespaces/{tenant}/{namespace}"
_SCHEMAS: Final = r"/admin/v2/schemas/{tenant}/{namespace}/{topic}"
_ANY: Final = r"(?:/.*)?"

RULES: Final[tuple[tuple[str, str, Operation], ...]] = (
    # Brokers and clusters
    ("GET", r"/admin/v2/brokers/(?:health|ready|version)|/status\.html", Operation.IDENTIFIED),
    ("GET", rf"/admin/v2/(?:brokers|broker-stats){_ANY}", Operation.MONITOR),
    ("GET", r"/admin/v2/clusters", Operation.IDENTIFIED),
    ("GET", rf"/admin/v2/clusters/{{cluster}}{_ANY}", Operation.MONITOR),
    ("GET", rf"/lookup/v2/\w+/{_D}/{{tenant}}/{{namespace}}/{{topic}}(?:/bundle)?", Operation.LOOK),
    # Tenants and namespaces
    ("GET", r"/admin/v2/tenants/{tenant}", Operation.TENANT),
    ("GET", r"/admin/v2/namespaces/{tenant}", Operation.TENANT),
    ("GET", rf"{_NAMESPACE}/topics", Operation.LOOK),
    ("GET", _NAMESPACE, Operation.ADMIN),
    ("*", _NAMESPACE, Operation.TENANT),  # to create and to delete it
    ("*", rf"{_NAMESPACE}/.*", Operation.ADMIN),
    ("GET", rf"/admin/v2/{_D}/{{tenant}}/{{namespace}}(?:/partitioned)?", Operation.LOOK),
    # Topics: reading them is their producers' and consumers' matter, subscriptions are their consumers'
    ("GET", rf"{_TOPIC}/(?:partitions|stats|internalStats|partitioned-(?:stats|internalStats))", Operation.LOOK),
    ("GET", rf"{_TOPIC}/(?:internal-info|properties)", Operation.LOOK),
    ("GET", rf"{_TOPIC}/(?:lastMessageId|subscriptions|examinemessage|messageid/.*|ledger/.*)", Operation.CONSUME),
    ("PUT", rf"{_TOPIC}/backlogSize", Operation.CONSUME),
    ("*", rf"{_TOPIC}/subscription/{{subscription}}/dispatchRate", Operation.ADMIN),  # a policy of the topic's
    ("*", rf"{_TOPIC}/subscription/.*", Operation.CONSUME),
    ("*", rf"{_TOPIC}{_ANY}", Operation.ADMIN),
    ("GET", rf"{_SCHEMAS}/(?:schema|schemas|metadata|schema/.*)", Operation.LOOK),
    ("POST", rf"{_SCHEMAS}/(?:compatibility|version)", Operation.LOOK),
    ("POST", rf"{_SCHEMAS}/schema", Operation.PRODUCE),
    ("*", rf"{_SCHEMAS}{_ANY}", Operation.ADMIN),
    # Functions, IO and packages, of which there are none
    ("GET", r"/admin/v3/(?:functions|sources?|sinks?)/\w+", Operation.IDENTIFIED),
    (
        "*",
        rf"/admin/v3/(?:functions|sources?|sinks?|packages/{{type}})/{{tenant}}/{{namespace}}{_ANY}",
        Operation.ADMIN,
    ),
    # Ours
    ("GET", r"/geo/v1/schemas/{tenant}/{namespace}", Operation.LOOK),
    ("*", rf"/geo/v1/(?:namespaces|persistent|schemas)/{{tenant}}/{{namespace}}{_ANY}", Operation.ADMIN),
    ("GET", r"/geo/v1/failover/persistent/{tenant}/{namespace}/{topic}/.*", Operation.CONSUME),
    ("*", r"/geo/v1/failover/persistent/{tenant}/{namespace}/{topic}/.*", Operation.ADMIN),
    ("GET", r"/geo/v1/.*", Operation.MONITOR),
    ("GET", r"/metrics|/", Operation.MONITOR),
    ("GET", r"/openapi\.json", Operation.IDENTIFIED),
)
"""Method (`*`: any), pattern of a route's path, what it needs."""

_COMPILED: Final = tuple(
    (method, re.compile(re.sub(r"\{(\w+)\}", r"\\{\1\\}", pattern)), operation) for method, pattern, operation in RULES
)

OWN_LOGIN: Final = "/ws/"
"""Below this path credentials may be in the URL, and the broker's session checks them (`admin.websocket`)."""

IDENTITY: Final = web.RequestKey("identity", Identity)


def operation_of(method: str, path: str) -> Operation:
    """The operation that a route needs, by its method and its path with `{names}`."""
    for wanted, pattern, operation in _COMPILED:
        if wanted in {"*", method} and pattern.fullmatch(path):
            return operation
    return Operation.SUPER


class Gate:
    """Lets requests in.

    Args:
        access: of the broker.
        run: enters the broker's machines (`Driver.run`).
    """

    def __init__(self, access: Access, run: Callable[..., None]) -> None:
        self._access = access
        self._run = run
        schemes = ['Bearer realm="magnetar"'] if "token" in access.config.methods else []
        # A browser asks its user for a name and password only where the broker would take them.
        schemes += ['Basic realm="magnetar", charset="UTF-8"'] if "basic" in access.config.methods else []
        self._schemes = schemes

    def check(self, request: web.Request, route: "Route") -> None:
        """Refuse a request that the sender has no permission for.

        Raises:
            BrokerError: AuthorizationError. NameNotValid: a name in the path is not valid.
        """
        if self._access.enabled:
            self._access.check(
                request[IDENTITY],
                operation_of(route.method, route.path),
                _where(request, route),
                names_of(request, route).get("subscription", ""),
            )

    def require(self, request: web.Request, operation: Operation) -> None:
        """Refuse a request to a path that is no route, as of a broker that does not serve.

        Raises:
            BrokerError: AuthorizationError.
        """
        self._access.check(request[IDENTITY], operation)

    def superuser(self, request: web.Request) -> bool:
        """Whether the sender may do everything."""
        return not self._access.enabled or self._access.authorizer.allowed(request[IDENTITY], Operation.SUPER)

    def middleware(self) -> Middleware:
        """Authenticates each request, before anything else is checked."""

        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self._access.enabled and not request.path.startswith(OWN_LOGIN):
                try:
                    request[IDENTITY] = await self._identify(request)
                except BrokerError as error:
                    answer = refusal(status_of(error), str(error))
                    if error.code is ErrorCode.AUTHENTICATION:
                        answer.headers.extend(("WWW-Authenticate", scheme) for scheme in self._schemes)
                    return answer
            return await handler(request)

        return middleware

    async def _identify(self, request: web.Request) -> Identity:
        transport = request.transport
        address, certificate = sender(request)
        method, data = presented(request, certificate=bool(certificate) and "tls" in self._access.config.methods)
        future: asyncio.Future[Identity] = asyncio.get_running_loop().create_future()

        def then(identity: Identity | None, error: BrokerError | None) -> None:
            if future.done():
                return
            if identity is None:
                future.set_exception(error or denied("nobody"))
            else:
                future.set_result(identity)

        def wanted() -> bool:
            return transport is not None and not transport.is_closing()

        self._run(partial(self._access.login, wanted=wanted), address, method, data, certificate, then)
        identity = await future
        return self._access.speak_for(identity, request.headers.get("X-Original-Principal", ""))


def sender(request: web.Request) -> tuple[str, str]:
    """The sender of a request: the address with its port, and the common name of the certificate that TLS checked (""
    without).
    """
    transport = request.transport
    certificate = common_name(transport.get_extra_info("peercert")) if transport is not None else ""
    peer: Any = transport.get_extra_info("peername") if transport is not None else None
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "?", certificate


def presented(request: web.Request, *, certificate: bool) -> tuple[str, bytes]:
    """The method of authentication and the data that a request's headers present; "" and nothing without any.

    Args:
        request: of HTTP, also one that asks for a WebSocket.
        certificate: a client certificate is there and counts as credentials.

    Raises:
        BrokerError: AUTHENTICATION: they are of no known kind.
    """
    header = request.headers.get("Authorization")
    if header is None:
        return ("tls", b"") if certificate else ("", b"")
    scheme, _, value = header.strip().partition(" ")
    match scheme.lower():
        case "bearer":
            return "token", value.strip().encode("utf-8", "replace")
        case "basic":
            return "basic", basic_from_header(value.strip())
        case _:
            raise denied("the Authorization header is neither Bearer nor Basic")


def _where(request: web.Request, route: "Route") -> Where:
    """The scope of a request, by the names in its path."""
    names = names_of(request, route)
    if "tenant" not in names:
        return None
    if "namespace" not in names:
        return names["tenant"]
    namespace = NamespaceName.parse(f"{names['tenant']}/{names['namespace']}")
    if "topic" not in names:
        return namespace
    domain = "non-persistent" if "/non-persistent/" in route.path else "persistent"
    parse = looked_up if route.path.startswith("/lookup/") else TopicName.parse
    return parse(f"{domain}://{namespace}/{names['topic']}")
