"""A small synchronous client of the admin REST interface, for the command line and for tests.

Standard library only: a command that prints a list must not wait until an event loop is imported. Each request has a
connection of its own. There are no proxies from the environment and no redirects: the request goes to the URL that the
user named.
"""

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from magnetar.core.addresses import is_host
from magnetar.core.errors import MagnetarError, NameNotValid
from magnetar.core.names import TopicName

TIMEOUT_S: Final = 30.0
"""The timeout of one answer. A change waits for the disk, never for other clusters: after half a minute something is
stuck.
"""

REPLY_BYTES_MAX: Final = 64 << 20
"""A ceiling: the names of 100,000 topics of 512 bytes are 50 MB; anything longer is not an answer of ours."""

URL_SHOWN_MAX: Final = 100
"""Characters of an invalid URL that are shown; more say no more."""

REASON_MAX: Final = 500
"""The most characters of a reason that are shown; a peer that is not a broker may answer with a page of HTML."""


class Presented(NamedTuple):
    """The credentials of this process's requests.

    Attributes:
        token: returns the token, "" for none; called when the first request is made.
        tls: makes the context of https connections; None: the system's certificates are trusted.
    """

    token: Callable[[], str] | None = None
    tls: Callable[[], ssl.SSLContext] | None = None


_presented = Presented()


def present(presented: Presented) -> None:
    """Say once, at the start of a command, how all its requests present themselves."""
    global _presented  # noqa: PLW0603 - one command, one user
    _presented = presented


Query = Mapping[str, str | int | bool | None]


WORDS_HEADER: Final = "X-Magnetar-Words"
OWN_WORDS: Final = "own"
"""Asks for refusals in our words, which name what is wrong; others get those that Pulsar's tools look for
(`admin.http.wording`)."""


class AdminError(MagnetarError):
    """The broker refused a request.

    Args:
        status: the HTTP status.
        reason: one line of the broker.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def segment(name: str) -> str:
    """A name as one segment of a path, percent-encoded completely.

    Raises:
        NameNotValid: it has bytes that are not text.
    """
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise NameNotValid(f"name {name[:80]!a} is not valid: it is not UTF-8 text") from None


def topic_path(topic: TopicName | str, *rest: str | int) -> str:
    """The admin path of a topic: `/admin/v2/persistent/tenant/namespace/topic[/rest...]`.

    Raises:
        NameNotValid: `topic` is a text that is no topic name.
    """
    name = topic if isinstance(topic, TopicName) else TopicName.parse(topic)
    parts = [name.domain, name.tenant, name.namespace, name.local, *(str(part) for part in rest)]
    return "/admin/v2/" + "/".join(segment(part) for part in parts)


class AdminClient:
    """Requests to one broker's REST interface.

    Args:
        base_url: such as `http://127.0.0.1:8080`.
        timeout_s: for connecting and for each read of the answer.
        presented: the credentials; None: those of the process (`present`).

    Raises:
        MagnetarError: `base_url` is not an http or https URL with a host.
    """

    def __init__(self, base_url: str, *, timeout_s: float = TIMEOUT_S, presented: Presented | None = None) -> None:
        try:
            parts = urlsplit(base_url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        # http.client would find fault with a host that cannot be only when it is asked something.
        if not host or not is_host(host) or parts.scheme not in {"http", "https"} or parts.query or parts.fragment:
            shown = base_url if len(base_url) <= URL_SHOWN_MAX else f"{base_url[:URL_SHOWN_MAX]}..."
            raise MagnetarError(f"{shown!r} is not a URL of an admin interface: write http://host:port")
        self.base_url = base_url.rstrip("/")
        self._secure = parts.scheme == "https"
        self._host = host
        self._port = port
        self._prefix = parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self._presented = _presented if presented is None else presented

    def get(self, path: str, query: Query | None = None) -> Any:
        """The JSON answer to a GET.

        Args:
            path: with names percent-encoded (`segment`, `topic_path`).
            query: parameters; None values are left out.

        Raises:
            AdminError: the broker refuses.
            MagnetarError: it cannot be reached, or what answers is no Magnetar.
        """
        return self.request("GET", path, query=query)

    def put(self, path: str, body: Any = None, query: Query | None = None) -> Any:
        """Like `get`, for a PUT with a JSON body (None: no body)."""
        return self.request("PUT", path, body, query)

    def post(self, path: str, body: Any = None, query: Query | None = None) -> Any:
        """Like `get`, for a POST with a JSON body (None: no body)."""
        return self.request("POST", path, body, query)

    def delete(self, path: str, query: Query | None = None) -> Any:
        """Like `get`, for a DELETE."""
        return self.request("DELETE", path, query=query)

    def request(self, method: str, path: str, body: Any = None, query: Query | None = None) -> Any:
        """One request; see `get`. The answer's JSON, or None when it has no body."""
        status, content_type, data = self.raw(method, path, body, query)
        if status >= 400:
            raise AdminError(status, _reason(status, content_type, data))
        if not data:
            return None
        if not content_type.startswith("application/json"):
            if status < 300 and content_type.startswith("text/plain"):
                return data.decode("utf-8", "replace")
            raise MagnetarError(f"{self.base_url}{path} answered {status} {content_type or 'without a type'}, not JSON")
        try:
            return json.loads(data)
        except ValueError:
            raise MagnetarError(f"{self.base_url}{path} answered with JSON that cannot be read") from None

    def raw(self, method: str, path: str, body: Any = None, query: Query | None = None) -> tuple[int, str, bytes]:
        """One request as it is: status, content type, bytes of the answer. Refusals are not raised.

        Raises:
            MagnetarError: as `get`.
        """
        connection = self._connection()
        headers = {"Accept": "application/json", WORDS_HEADER: OWN_WORDS}
        if self._presented.token is not None and (token := self._presented.token()):
            headers["Authorization"] = f"Bearer {token}"
        data: bytes | None = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        elif method != "GET":
            headers["Content-Length"] = "0"
        try:
            connection.request(method, self._prefix + path + _encoded(query), body=data, headers=headers)
            response = connection.getresponse()
            answer = response.read(REPLY_BYTES_MAX + 1)
            if len(answer) > REPLY_BYTES_MAX:
                raise MagnetarError(f"{self.base_url}{path} answered more than {REPLY_BYTES_MAX} bytes")
            if response.length:
                raise MagnetarError(
                    f"{self.base_url}{path} broke off its answer {response.length} bytes before the end"
                )
            return response.status, response.headers.get("Content-Type", ""), answer
        except TimeoutError:
            raise MagnetarError(f"{self.base_url} gave no answer within {self._timeout_s:g} s") from None
        except socket.gaierror:
            raise MagnetarError(f"cannot reach {self.base_url}: no such host") from None
        except ssl.SSLCertVerificationError as error:
            raise MagnetarError(
                f"the certificate of {self.base_url} is not trusted: {error.verify_message}; "
                "set ca_file of [client] to the authority to trust"
            ) from None
        except OSError as error:
            why = error.strerror.lower() if error.strerror else "connection failed"
            raise MagnetarError(f"cannot reach {self.base_url}: {why}") from None
        except (http.client.HTTPException, ValueError):
            # ValueError: a path that is not ASCII, refused by http.client before anything is sent.
            raise MagnetarError(f"{self.base_url} does not speak HTTP as a Magnetar broker does") from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        context = self._presented.tls() if self._presented.tls is not None else None
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)


def _encoded(query: Query | None) -> str:
    if not query:
        return ""
    items: Sequence[tuple[str, str]] = [
        (key, str(value).lower() if isinstance(value, bool) else str(value))
        for key, value in query.items()
        if value is not None
    ]
    return "?" + urlencode(items) if items else ""


def _reason(status: int, content_type: str, data: bytes) -> str:
    if content_type.startswith("application/json"):
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if isinstance(answer, dict) and isinstance(answer.get("reason"), str):
            text = " ".join(answer["reason"].split())
            return text[:REASON_MAX]
    return f"HTTP {status} without a reason: this is hardly a Magnetar broker"
