"""The route table: paths, parameters and answers. The server, `/openapi.json`, the reference page and the tests are all
made from it, so they cannot contradict each other.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from magnetar.admin.http.call import Call

Handler = Callable[[Call], Awaitable[Any]]
"""Answers a call: a value is sent as JSON, None as an empty answer, a web response as it is."""


@dataclass(frozen=True, slots=True)
class Route:
    """One operation.

    Attributes:
        method: the HTTP method.
        path: with `{names}`; a name is one segment, percent-encoded.
        handler: makes the answer.
        summary: one line for the reference.
        ok: the status of success.
        errors: statuses of refusals that a correct client can get, in addition to 400, 403, 408, 413 and 415 for
            malformed requests and 500, 503, 504 for a broker in trouble.
        query: parameter -> its effect.
        body: the type of the JSON body, None for none.
        body_needed: whether leaving the body out is an error.
        reply: content of the answer, for the reference.
        may_be_unset: a GET that answers 204 if nothing is set.
        own: not a path of Pulsar's but one of ours.
        returns: type of the JSON answer of success, if it is described; None: `reply` describes it in words.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    ok: int = 200
    errors: tuple[int, ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    body_needed: bool = True
    reply: str = ""
    may_be_unset: bool = False
    own: bool = False
    returns: Any = None

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method not in {"GET", "HEAD"}

    @property
    def name(self) -> str:
        """Method and path."""
        return f"{self.method} {self.path}"


class Routes:
    """Routes of one module, in the order in which they are matched.

    Args:
        title: of the group in the reference.
        prefixes: every route of the group exists below each of them.
        own: paths of ours.
    """

    def __init__(self, title: str, *prefixes: str, own: bool = False) -> None:
        self.title = title
        self.routes: list[Route] = []
        self._prefixes = prefixes or ("",)
        self._own = own

    def add(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        ok: HTTPStatus | int = 200,
        errors: tuple[int, ...] = (),
        query: Mapping[str, str] | None = None,
        body: Any = None,
        body_needed: bool = True,
        reply: str = "",
        may_be_unset: bool = False,
        returns: Any = None,
    ) -> Callable[[Handler], Handler]:
        """Decorate the function that answers `method path`."""

        def register(handler: Handler) -> Handler:
            for prefix in self._prefixes:
                self.routes.append(
                    Route(
                        method,
                        prefix + path,
                        handler,
                        summary,
                        int(ok),
                        errors,
                        query or {},
                        body,
                        body_needed,
                        reply,
                        may_be_unset,
                        self._own,
                        returns,
                    )
                )
            return handler

        return register
