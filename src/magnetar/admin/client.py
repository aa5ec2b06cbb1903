"""A small synchronous client of the admin REST interface, for the command line and for tests.

Standard library only: a command that prints a list must not wait until an event loop is imported. Each request has a
connection of its own. There are no proxies from the environment: a request goes only to URLs that the user named.

A cluster may have several brokers, one of which serves. A request tries their URLs in turn (docs/design/cluster.md#links). A
redirect says which URL comes next, and only among these, because a request has the user's credentials. A change whose answer did
not come is not sent again: it may have been made. While no broker serves, a request can wait for the end of the takeover.
"""

import http
import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from magnetar.core.addresses import BrokerAddresses, is_host
from magnetar.core.errors import MagnetarError, NameNotValid
from magnetar.core.names import TopicName

TIMEOUT_S: Final = 30.0
"""The timeout of one answer. A change waits for the disk, never for other clusters: after half a minute something is
stuck.
"""

TAKEOVER_S: Final = 30.0
"""How long a request waits for a broker that serves, at most. The session of a broker that died ends after 4 s; the rest is for
the recovery of the log. The whole is shorter than a person takes to look for the reason."""

TAKEOVER_LOOK_S: Final = 0.5
"""Between two rounds meanwhile; there is no event to wait for."""

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


class _Site(NamedTuple):
    """One URL of an admin interface."""

    url: str
    secure: bool
    host: str
    port: int | None
    prefix: str

    @property
    def origin(self) -> tuple[bool, str, int]:
        """The listener that it names."""
        return (self.secure, self.host, self.port or (443 if self.secure else 80))


def _site(url: str) -> _Site:
    """Raises MagnetarError: it is no URL of an admin interface."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    # http.client would find fault with a host that cannot be only when it is asked something.
    if not host or not is_host(host) or parts.scheme not in {"http", "https"} or parts.query or parts.fragment:
        raise MagnetarError(f"{_shown(url)!r} is not a URL of an admin interface: write http://host:port")
    return _Site(url.rstrip("/"), parts.scheme == "https", host, port, parts.path.rstrip("/"))


def _shown(url: str) -> str:
    return url if len(url) <= URL_SHOWN_MAX else f"{url[:URL_SHOWN_MAX]}..."


class _NotDone(MagnetarError):
    """A broker gave no answer, and the request may be sent to another one."""


class _NoneServes(MagnetarError):
    """Brokers of the cluster answer, and none serves: a takeover may be under way. The request was not carried out."""


class _Silent(_NotDone):
    """No connection was made in time."""


class AdminClient:
    """Requests to the REST interface of a broker, or of the broker of a cluster that serves.

    Args:
        base_url: such as `http://127.0.0.1:8080`; of a cluster of several brokers those of all.
        timeout_s: for connecting and for each read of the answer. Connecting to a broker is given up earlier if there is another
            one to try (`AddressRound.patience_s`).
        presented: the credentials; None: those of the process (`present`).
        waits: called with one line before a request waits for a takeover, `TAKEOVER_S` at most; None: it does not wait.

    Raises:
        MagnetarError: one is not an http or https URL with a host.
    """

    def __init__(
        self,
        base_url: str | Sequence[str],
        *,
        timeout_s: float = TIMEOUT_S,
        presented: Presented | None = None,
        waits: Callable[[str], None] | None = None,
    ) -> None:
        sites = [_site(url) for url in ([base_url] if isinstance(base_url, str) else base_url)]
        self._sites = {site.url: site for site in sites}
        self._cluster = BrokerAddresses([site.url for site in sites])
        self._timeout_s = timeout_s
        self._waits = waits
        self._presented = _presented if presented is None else presented

    @property
    def base_url(self) -> str:
        """The URL that answered last."""
        return self._cluster.order()[0]

    @property
    def brokers(self) -> int:
        """How many URLs there are to try."""
        return len(self._cluster)

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
        until_s: float | None = None
        while True:
            try:
                return self._round(method, path, body, query)
            except _NoneServes as error:
                if self._waits is None:
                    raise
                if until_s is None:
                    until_s = time.monotonic() + TAKEOVER_S
                    self._waits(f"no broker serves: {error}; waiting for one, {TAKEOVER_S:g} s at most")
                elif time.monotonic() >= until_s:
                    raise MagnetarError(f"no broker served within {TAKEOVER_S:g} s: {error}") from None
            time.sleep(TAKEOVER_LOOK_S)

    def _round(self, method: str, path: str, body: Any, query: Query | None) -> tuple[int, str, bytes]:
        """Ask the brokers in turn, until one answers as the one that serves."""
        tries = self._cluster.round()
        named: set[str] = set()
        not_ready: dict[str, tuple[int, str, bytes]] = {}
        while True:
            url, better, silent = tries.address, "", False
            try:
                patience_s = tries.patience_s(self._timeout_s)
                response, data = self._ask(self._sites[url], method, path + _encoded(query), body, patience_s)
                answer = response.status, response.headers.get("Content-Type", ""), data
                if response.status == http.HTTPStatus.TEMPORARY_REDIRECT:
                    place = response.headers.get("Location", "")
                    better = self._configured(place)
                    named.add(better)
                    reason = f"{url} does not serve this cluster"
                    if not better:
                        reason += f"; {_shown(place)!a} does, which was not named: name its URL"
                elif response.status == http.HTTPStatus.SERVICE_UNAVAILABLE and len(self._sites) > 1:
                    not_ready[url] = answer
                    reason = f"{url}: {_reason(*answer)}"
                else:
                    tries.answered()
                    return answer
            except _NotDone as error:
                reason, silent = str(error), isinstance(error, _Silent)
            if not tries.failed(reason, better, silent=silent):
                for served in named & not_ready.keys():  # the broker that serves has said so itself
                    return not_ready[served]
                # A redirect to a URL that is not among them: a broker serves.
                raise _NoneServes(tries.reason) if (named or not_ready) and all(named) else MagnetarError(tries.reason)

    def _configured(self, location: str) -> str:
        """Which of the URLs a redirect leads to; "" if to none of them."""
        try:
            parts = urlsplit(location)
            target = _site(f"{parts.scheme}://{parts.netloc}")
        except (ValueError, MagnetarError):
            return ""
        return next((site.url for site in self._sites.values() if site.origin == target.origin), "")

    def _ask(
        self, site: _Site, method: str, path: str, body: Any, patience_s: float
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Ask one broker, which may take `patience_s` to connect. Raises _NotDone if another one may be asked, otherwise
        MagnetarError.
        """
        url = site.url
        headers = {"Accept": "application/json", WORDS_HEADER: OWN_WORDS}
        if self._presented.token is not None and (token := self._presented.token()):
            headers["Authorization"] = f"Bearer {token}"
        data: bytes | None = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        elif method != "GET":
            headers["Content-Length"] = "0"
        failure: type[MagnetarError] = _NotDone
        connection = self._connection(site, patience_s)
        try:
            try:
                connection.connect()
            except TimeoutError:
                raise _Silent(f"{url} gave no answer within {patience_s:g} s") from None
            connection.sock.settimeout(self._timeout_s)
            if method != "GET":
                failure = MagnetarError  # the request may be carried out although no answer comes
            connection.request(method, site.prefix + path, body=data, headers=headers)
            response = connection.getresponse()
            answer = response.read(REPLY_BYTES_MAX + 1)
            if len(answer) > REPLY_BYTES_MAX:
                raise MagnetarError(f"{url}{path} answered more than {REPLY_BYTES_MAX} bytes")
            if response.length:
                raise failure(f"{url}{path} broke off its answer {response.length} bytes before the end")
            return response, answer
        except TimeoutError:
            raise failure(f"{url} gave no answer within {self._timeout_s:g} s") from None
        except socket.gaierror:
            raise failure(f"cannot reach {url}: no such host") from None
        except ssl.SSLCertVerificationError as error:
            raise failure(
                f"the certificate of {url} is not trusted: {error.verify_message}; "
                "set ca_file of [client] to the authority to trust"
            ) from None
        except OSError as error:
            why = error.strerror.lower() if error.strerror else "connection failed"
            raise failure(f"cannot reach {url}: {why}") from None
        except (http.client.HTTPException, ValueError):
            # ValueError: a path that is not ASCII, refused by http.client before anything is sent.
            raise failure(f"{url} does not speak HTTP as a Magnetar broker does") from None
        finally:
            connection.close()

    def _connection(self, site: _Site, timeout_s: float) -> http.client.HTTPConnection:
        if not site.secure:
            return http.client.HTTPConnection(site.host, site.port, timeout=timeout_s)
        context = self._presented.tls() if self._presented.tls is not None else None
        return http.client.HTTPSConnection(site.host, site.port, timeout=timeout_s, context=context)


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
