"""Finding the boundaries of the requests on one connection, and reporting malformed ones in this broker's words.

aiohttp's parser has a limit on each line of a head and none on the whole head. It returns all requests in its input at
once, and its errors quote the input, which may contain a token.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, BadStatusLine, HttpProcessingError, InvalidHeader, InvalidURLError
from aiohttp.http_exceptions import LineTooLong as LongLine
from multidict import CIMultiDict, CIMultiDictProxy

REQUEST_HEAD_BYTES_MAX: Final = 64 * 1024
"""A ceiling on the head of a request, which is kept before its sender is known. The longest token fits many times, and
unknown clients can make a broker keep no more than this for each connection.
"""

_END: Final = b"\r\n\r\n"
"""The end of a head, and of a body in chunks."""
_EMPTY: Final = re.compile(rb"[\r\n]*")
"""The bytes that may come before a head."""
_BEGIN: Final = re.compile(rb"[\r\n]*(?:[A-Z-]{3,16} |[A-Z-]{0,16}$)")
"""The beginning of a request, as far as it has arrived."""

_WRONG: Final[tuple[tuple[type[HttpProcessingError], str], ...]] = (
    (LongLine, "a line of its head is too long"),
    (BadHttpMethod, "its method is none of HTTP"),
    (InvalidURLError, "its target is none of HTTP"),
    (BadStatusLine, "its first line is none of HTTP"),
    (InvalidHeader, "a header of it is none of HTTP"),
)

_REASONS: Final = {
    "invalid method": "its method is none of HTTP",
    "invalid http version": "its version is none of HTTP",
    "invalid header": "a header of it is none of HTTP",
    "invalid content-length": "its Content-Length is not a number",
    "duplicate": "a header comes twice that may come once",
    "data after": "something comes behind its end",
    "too many headers": "it has too many headers",
    "transfer-encoding": "its Transfer-Encoding is none that is known",
    "invalid url": "its target is none of HTTP",
}
"""Beginnings or parts of the parser's own reasons, in lower case, and the texts that replace them."""


class LongHead(HttpProcessingError):
    """The head of a request is over the limit."""

    def __init__(self) -> None:
        super().__init__(code=431, message=f"the head of a request is larger than {REQUEST_HEAD_BYTES_MAX} bytes")


def wrong(fault: HttpProcessingError) -> str:
    """The error in the input, without a byte of it: it may be a credential."""
    if isinstance(fault, LongHead):
        return fault.message
    for kind, said in _WRONG:
        if isinstance(fault, kind):
            return said
    text = fault.message.lower()
    return next((said for words, said in _REASONS.items() if words in text), "its head cannot be read")


def begins(data: bytes, at: int) -> bool:
    """Whether a request may begin there."""
    return _BEGIN.match(data[at : at + 64]) is not None


class Heads:
    """aiohttp's parser of one connection, with a limit on the head of a request. It gets one request at a time.

    Args:
        parser: the parser of requests.

    Attributes:
        fault: why the bytes after the last request are not a request.
        expects: whether the sender of the last request waits for an answer before it sends the body (`Expect:
            100-continue`).
    """

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self._waiting = 0
        self._body: Any = None
        self._body_left = 0
        self._last = b""
        self._over = False
        self.fault: HttpProcessingError | None = None
        self.expects = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    @property
    def in_body(self) -> bool:
        """Whether a body is being read."""
        return self._body is not None and not self._body.is_eof() and not self._over

    def piece(self, data: bytes, at: int) -> int:
        """The end of the bytes that belong to the current request, searched from `at` on.

        The parser forgets a whole request if the bytes after it in the same input are not one. A body in chunks ends
        with an empty line, as a head does, and may contain empty lines.
        """
        in_body = self.in_body
        if in_body and self._body_left:
            return at + self._body_left
        here = len(_END) - 1  # this many bytes of the end are here if it began in the input before
        if self._last and (begun := (self._last + data[at : at + here]).find(_END)) >= 0:
            return at + begun + len(_END) - len(self._last)
        start = at if self._waiting or in_body else _EMPTY.match(data, at).end()  # type: ignore[union-attr]
        end = data.find(_END, start)
        return len(data) if end < 0 else end + len(_END)

    def feed_data(self, data: bytes) -> tuple[Sequence[Any], bool, bytes]:
        """Feed input; returns the requests that are complete.

        Raises:
            HttpProcessingError: it is not HTTP, or a head is too large; raised once.
        """
        if self._over:
            return (), False, b""
        in_body = self.in_body
        try:
            messages, upgraded, tail = self._parser.feed_data(data)
        except HttpProcessingError as error:
            self._over = True
            if not in_body:
                self.fault = error
                raise
            # A reader of the rest of the body would wait for ever; now it answers.
            self._body.set_exception(web.RequestPayloadError("what announces a chunk of it is none"))
            return (), False, b""
        if messages:
            head, self._body = messages[-1]
            self._waiting, self._last = 0, b""
            self._body_left = int(head.headers.get("Content-Length", 0))
        else:
            self._body_left = max(self._body_left - len(data), 0)
            self._waiting += 0 if in_body else len(data)
            self._last = b"" if in_body and not self.in_body else (self._last + data)[1 - len(_END) :]
        # A head that came at once counts as one that came in pieces: how the kernel cuts the bytes must decide nothing.
        if max(self._waiting, *(_size(message) for message, _ in messages), 0) > REQUEST_HEAD_BYTES_MAX:
            self._over = True
            raise LongHead
        return [(self._without_expect(head), body) for head, body in messages], upgraded, tail

    def leave(self) -> None:
        """The client is gone: the rest of a body will not arrive."""
        if self.in_body:
            self._body.set_exception(web.RequestPayloadError("its sender went"))

    def _without_expect(self, head: Any) -> Any:
        """The head without `Expect`: aiohttp would request the body before the sender is checked."""
        expected = head.headers.get("Expect", "")
        self.expects = expected.lower() == "100-continue" and head.version >= (1, 1)
        if not expected:
            return head
        kept = CIMultiDict((name, value) for name, value in head.headers.items() if name.lower() != "expect")
        return head._replace(headers=CIMultiDictProxy(kept))


def _size(message: Any) -> int:
    return len(message.path) + sum(len(name) + len(value) + 4 for name, value in message.raw_headers)
