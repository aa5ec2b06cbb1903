"""One request: its checked names, numbers and body, and waiting for the broker's answer."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote_plus

import msgspec
from aiohttp import web

from magnetar.admin.http.answers import Answers
from magnetar.admin.http.bodies import read_body
from magnetar.admin.http.building import Building
from magnetar.admin.http.replies import LateError
from magnetar.broker.admin.controller import Controller
from magnetar.broker.admin.info import BrokerInfo
from magnetar.broker.context import Done
from magnetar.broker.waiting.registration import NO_BROKERS, Brokers
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.names import NamespaceName, TopicName, check_subscription, looked_up
from magnetar.core.numbers import whole_number
from magnetar.metadata.change import Change
from magnetar.metadata.errors import BadRequest, InFlight
from magnetar.metadata.resources import Resources

if TYPE_CHECKING:
    from magnetar.admin.http.routing import Route

CHANGE_TIMEOUT_S: Final = 30.0
"""The timeout of a change. It waits only for the disk; after half a minute the disk is stuck, and the caller gets an
error.
"""

BUSY_TIMEOUT_S: Final = 5.0
"""The time for which a change waits for another change of the same object: a transaction, or the creation of a
partitioned topic.
"""

_T = TypeVar("_T")


PLUS_IS_SPACE: Final = ("topic", "subscription")
"""Names of Pulsar's paths in which `+` is a space and `%2B` is the plus: its Java and Go tools encode them as HTML
forms do, and its brokers decode them so, except after `/permissions/`.
"""


def names_of(request: web.Request, route: "Route") -> Mapping[str, str]:
    """The names in a request's path, decoded."""
    names: Mapping[str, str] = request.match_info
    path = request.rel_url.raw_path
    if route.own or "+" not in path:
        return names
    encoded = dict(zip(route.path.partition("/permissions/")[0].split("/"), path.split("/"), strict=False))
    meant = {key: unquote_plus(encoded[f"{{{key}}}"]) for key in PLUS_IS_SPACE if f"{{{key}}}" in encoded}
    return {**names, **meant}


class Services(NamedTuple):
    """The services that every call may use.

    Attributes:
        control: the broker.
        resources: clusters, tenants, namespaces; changed through `control.policies.apply` only.
        info: the broker's name and addresses.
        body_bytes_max: ceiling on a request's body.
        now_ms: the wall clock.
        changing: held while a change of resources is in flight: each is validated against the result of the one before.
        answers: the memory of answers.
        superuser: whether the sender of a request is one; without authentication every sender is.
        entry_bytes_max: approximate size of the largest stored message.
        brokers: the brokers of the cluster that are registered; none where a broker is alone.
        give_way: lets the log's thread have the interpreter if it waits for it. Called between turns of a long answer: the loop's
            thread, which is never at rest then, would keep the interpreter until the answer is made
            (`runtime.interpreter.gil_yield`).
    """

    control: Controller
    resources: Resources
    info: BrokerInfo
    body_bytes_max: int
    now_ms: Callable[[], int]
    changing: asyncio.Lock
    answers: Answers
    superuser: Callable[[web.Request], bool] = lambda _request: True
    entry_bytes_max: int = 5 << 20
    brokers: Callable[[], Brokers] = lambda: NO_BROKERS
    give_way: Callable[[], None] = lambda: None


class Call:
    """One request to a route.

    Args:
        request: of aiohttp.
        route: that it matched.
        services: of the application.
    """

    def __init__(self, request: web.Request, route: "Route", services: Services) -> None:
        self.request = request
        self.route = route
        self.services = services
        self.control = services.control
        self.resources = services.resources
        self.info = services.info
        self.building = Building(services.answers, services.give_way)
        self._names = names_of(request, route)

    # ----------------------------------------------------------------------------------------------- names and numbers

    def name(self, key: str) -> str:
        """A name of the path, decoded."""
        return self._names[key]

    def namespace(self) -> NamespaceName:
        """`{tenant}/{namespace}` of the path.

        Raises:
            NameNotValid: either breaks the grammar.
        """
        return NamespaceName.parse(f"{self.name('tenant')}/{self.name('namespace')}")

    def existing_namespace(self) -> NamespaceName:
        """`{tenant}/{namespace}` of the path, which exists.

        Raises:
            NameNotValid. NotFound.
        """
        namespace = self.namespace()
        self.resources.policies(namespace)
        return namespace

    @property
    def domain(self) -> str:
        """`persistent` or `non-persistent`, as the route says."""
        return "non-persistent" if "/non-persistent/" in self.route.path else "persistent"

    def topic(self) -> TopicName:
        """The topic that the path names, whose namespace exists.

        Raises:
            NameNotValid. NotFound: the namespace.
        """
        namespace = self.namespace()
        name = TopicName.parse(f"{self.domain}://{namespace}/{self.name('topic')}")
        self.resources.policies(namespace)
        return name

    def looked_up(self) -> TopicName:
        """The same of a lookup: it may name a pattern.

        Raises:
            NameNotValid. NotFound: the namespace.
        """
        namespace = self.namespace()
        name = looked_up(f"{self.domain}://{namespace}/{self.name('topic')}")
        self.resources.policies(namespace)
        return name

    def subscription(self) -> str:
        """The subscription that the path names.

        Raises:
            NameNotValid.
        """
        return check_subscription(self.name("subscription"))

    def path_number(self, key: str, least: int = 0) -> int:
        """A number of the path.

        Raises:
            BadRequest: no number, or below `least`.
        """
        return _number(key, self.name(key), least)

    @property
    def by_superuser(self) -> bool:
        """Whether a superuser sent it: for what only some values of a body need."""
        return self.services.superuser(self.request)

    # ----------------------------------------------------------------------------------------------------- parameters

    def parameter(self, key: str) -> str | None:
        """A query parameter, or None."""
        return self.request.query.get(key)

    def flag(self, key: str, default: bool = False) -> bool:
        """A query parameter that is true or false.

        Raises:
            BadRequest: it is something else.
        """
        text = self.parameter(key)
        if text is None:
            return default
        if text.lower() not in {"true", "false"}:
            raise BadRequest(f"parameter {key} is true or false, not {text[:40]!a}")
        return text.lower() == "true"

    def number(self, key: str, default: int, least: int = 0) -> int:
        """A query parameter that is a number.

        Raises:
            BadRequest: no number, or below `least`.
        """
        text = self.parameter(key)
        return default if text is None else _number(key, text, least)

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """A query parameter that is one of a few words.

        Raises:
            BadRequest: it is another one.
        """
        text = self.parameter(key) or default
        if text not in choices:
            raise BadRequest(f"parameter {key} is one of {', '.join(choices)}, not {text[:40]!a}")
        return text

    async def data(self) -> bytes:
        """The request's body as it is, inflated.

        Raises:
            As `body`, unless it is not JSON.
        """
        return await read_body(self.request, self.services.body_bytes_max)

    async def body(self) -> Any:
        """The request's JSON body, of the type that the route names; None when it is left out, or null, and need not be there.

        Null fields of objects are as if left out, for Pulsar's tools of some languages send them.

        Raises:
            BadRequest: no body, no JSON, not of the type, or not all of it came.
            TooLargeError: over the limit. SlowError: it takes too long. EncodingError: it is compressed in another way.
        """
        data = await self.data()
        if not data.strip():
            if self.route.body_needed:
                raise BadRequest("the request needs a JSON body")
            return None
        try:
            # Not strictly: "3" is a number where one is needed, as in Pulsar; the Rust client's users create partitions so.
            value = _without_nulls(msgspec.json.decode(data))
            return (
                None
                if value is None and not self.route.body_needed
                else msgspec.convert(value, self.route.body, strict=False)
            )
        except msgspec.ValidationError as error:
            raise BadRequest(f"the body is not right: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from None
        except RecursionError:
            raise BadRequest("the body is not JSON that can be read: nested too deeply") from None

    # -------------------------------------------------------------------------------------------------------- waiting

    async def others(self) -> None:
        """Let others have their turn: a long answer must not hold up a publish."""
        await self.building.end_turn()

    async def done(self, start: Callable[[Done], None]) -> None:
        """Start a change and wait until it is durable.

        Raises:
            MagnetarError: as the broker refuses. LateError.
        """

        def with_value(finish: Callable[[None, MagnetarError | None], None]) -> None:
            start(lambda error: finish(None, error))

        await self.value(with_value)

    async def value(self, start: Callable[[Callable[[_T | None, MagnetarError | None], None]], None]) -> _T | None:
        """Start something that ends with a value, and wait for it; raises as `done`."""
        future: asyncio.Future[_T | None] = asyncio.get_running_loop().create_future()

        def finish(value: _T | None, error: MagnetarError | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)

        await self._unhindered(lambda: start(finish))
        try:
            async with asyncio.timeout(CHANGE_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise LateError(
                f"the storage did not answer within {CHANGE_TIMEOUT_S:g} s; the change may still happen"
            ) from None

    async def _unhindered(self, start: Callable[[], None]) -> None:
        """Start a change as soon as no other one, such as synchronisation, is in flight for the same objects.

        Raises:
            InFlight: another one still is after `BUSY_TIMEOUT_S`.
        """
        until = asyncio.get_running_loop().time() + BUSY_TIMEOUT_S
        while True:
            try:
                return start()
            except InFlight:
                if not await self._one_ended(until):
                    raise

    async def _one_ended(self, until: float) -> bool:
        """Wait for the end of any change in flight; False when it did not come until then."""
        ended = asyncio.Event()
        self.resources.when_one_ended(ended.set)
        try:
            async with asyncio.timeout_at(until):
                return await ended.wait()
        except TimeoutError:
            return False

    async def each(self, topics: Sequence[TopicName], start: Callable[[str, Done], None]) -> None:
        """Do the same to several topics and wait for all; the first error, if any, is raised when all have ended."""
        tasks: list[Coroutine[Any, Any, None]] = [
            self.done(lambda done, topic=str(topic): start(topic, done))  # type: ignore[misc]
            for topic in topics
        ]
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def apply(self, make: Callable[[], Change]) -> None:
        """Validate a change of resources, store it, apply it.

        Raises:
            Refused: as `make` refuses. MagnetarError: the store does.
        """
        async with self.services.changing:
            await self.done(lambda done: self.control.policies.apply(make(), done))


def position_of(text: str) -> Position:
    """A position written `ledger:entry`.

    Raises:
        BadRequest: it is not.
    """
    ledger, separator, entry = text.partition(":")
    if not separator:
        raise BadRequest(f"{text[:40]!a} is not a position: write ledger:entry")
    return Position(_number("ledger", ledger, 0), _number("entry", entry, 0))


def _number(key: str, text: str, least: int) -> int:
    number = whole_number(text)
    if number is None or number < least:
        raise BadRequest(f"{key} is a whole number from {least} on, not {text[:40]!a}")
    return number


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value
