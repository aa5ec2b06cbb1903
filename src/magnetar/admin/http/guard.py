"""Checks before every request: web pages of other sites are refused, names are UTF-8, errors have one shape."""

import ipaddress
import logging
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from magnetar.admin.http.replies import refusal, status_of
from magnetar.admin.http.wording import worded
from magnetar.admin.unsupported.not_built import has_others, reason
from magnetar.broker.admin.info import BrokerInfo
from magnetar.core.errors import MagnetarError
from magnetar.metadata.errors import Forbidden, PreconditionFailed

logger = logging.getLogger("magnetar.admin")

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

NOT_BUILT: Final = ("/admin/", "/lookup/", "/ws/", "/topics/")
"""Unknown paths below these are Pulsar's and are answered with 501, so that its tools can distinguish them from a wrong
name.
"""


def errors_in_one_shape() -> Middleware:
    """Turns every error into `{"reason": "..."}`. A bug becomes a 500 with one line for the caller and a traceback in
    the log.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except MagnetarError as error:
            status = status_of(error)
            if status >= 500:
                logger.warning("%s %s: %s", request.method, ascii(request.path), ascii(str(error)))
            return refusal(status, worded(request, str(error)))
        except web.HTTPMethodNotAllowed as error:
            if has_others(request.method, request.path):
                return refusal(501, reason(request.method, request.path))
            allowed = ", ".join(sorted(error.allowed_methods))
            answer = refusal(405, f"{request.method} is not possible here; {allowed} is")
            answer.headers["Allow"] = allowed
            return answer
        except web.HTTPNotFound:
            if f"{request.path}/".startswith(NOT_BUILT):
                return refusal(501, reason(request.method, request.path))
            return refusal(404, f"there is nothing at {request.path}; /openapi.json lists what there is")
        except web.HTTPException as error:
            return refusal(error.status, error.reason)
        except Exception as error:
            logger.exception("%s %s: unexpected %s", request.method, ascii(request.path), type(error).__name__)
            return refusal(500, "an error of the broker's own, which its log describes")

    return middleware


def no_strangers(info: BrokerInfo) -> Middleware:
    """Refuses requests that a page of another site makes a browser send: a browser adds the credentials of its user.

    A browser names the page's origin in `Origin` with every request that may change something; it must be this server.
    A name that an attacker points to 127.0.0.1 would be accepted as this server, also for reading. A broker that is
    reached on loopback therefore answers only to numeric addresses and `localhost`. Programs do not send `Origin`.
    """
    urls = [url for url in (info.web_url, info.web_url_tls) if url]
    loopback = all(_is_loopback(urlsplit(url).hostname or "") for url in urls)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get("Host", "")
        if host and loopback and not _is_local_name(host):
            raise Forbidden(f"this broker does not answer to the name {host[:80]!a}; use {info.web_url}")
        if request.method not in SAFE_METHODS:
            origin = request.headers.get("Origin")
            if origin is not None and urlsplit_netloc(origin) != host.lower():
                raise Forbidden(f"requests that change something are not taken from pages of {origin[:80]!a}")
            if request.headers.get("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"}:
                raise Forbidden("requests that change something are not taken from pages of another site")
        return await handler(request)

    return middleware


def urlsplit_netloc(origin: str) -> str:
    """`host:port` of an origin in lower case, or "" when there is none (`null` of a sandboxed page, nonsense)."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _host_of(netloc: str) -> str:
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_local_name(netloc: str) -> bool:
    host = _host_of(netloc)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return True


@web.middleware
async def clean_names(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses a path whose percent-encoding is not UTF-8: two spellings of one name must not meet two topics."""
    try:
        unquote_to_bytes(request.raw_path.partition("?")[0]).decode()
    except UnicodeDecodeError:
        raise PreconditionFailed("the path is not UTF-8 in percent-encoding") from None
    return await handler(request)


async def quiet_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Headers that forbid caching, framing, sniffing and referrers."""
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("X-Frame-Options", "DENY")
    response.headers.setdefault("Referrer-Policy", "no-referrer")
