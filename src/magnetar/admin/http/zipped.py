"""Compressed text for clients that accept it, as Prometheus does: a page of metrics is then a fifteenth of its size."""

import gzip
from typing import Final

from aiohttp import web

from magnetar.admin.http.call import Call

ZIP_BYTES_MIN: Final = 4096
"""Shorter text goes as it is: it fits a few packets in any case."""

LEVEL: Final = 1
"""The quickest: higher ones take three times as long for a tenth less."""


def wants_gzip(header: str) -> bool:
    """Whether `Accept-Encoding` names gzip, or anything, with a weight above 0."""
    found: dict[str, bool] = {}
    for each in header.lower().split(","):
        name, _, weight = each.partition(";")
        value = weight.strip().removeprefix("q=").strip()
        found[name.strip()] = value.strip("0.") != "" if weight.strip() else True
    return found.get("gzip", found.get("x-gzip", found.get("*", False)))


async def text_answer(call: Call, text: str, content_type: str) -> web.Response:
    """An answer of text. If it is long and the client accepts compression, it is compressed outside the event loop."""
    headers = {"Content-Type": content_type, "Vary": "Accept-Encoding"}
    body = text.encode()
    if len(body) >= ZIP_BYTES_MIN and wants_gzip(call.request.headers.get("Accept-Encoding", "")):
        body = await call.services.answers.beside(_gzip, body)
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, headers=headers)


def _gzip(body: bytes) -> bytes:
    return gzip.compress(body, LEVEL, mtime=0)
