"""Recognises clients that speak another protocol than the port, and names the address of this broker where theirs is right.

A user who confuses `pulsar://` and `pulsar+ssl://`, or the two ports, sees a closed connection. The broker's log has the
line that helps: the protocol that came, the port, and the right address.
"""

import re
from typing import Final, NamedTuple

from magnetar.runtime.network.listener import HANDSHAKE_S, TIMEOUT

HEAD_BYTES: Final = 16
"""The first bytes of a connection by which a protocol is recognised."""

_HTTP: Final = re.compile(rb"(GET|HEAD|POST|PUT|DELETE|OPTIONS|TRACE|CONNECT|PATCH|PRI) ")
_TLS: Final = b"\x16\x03"
"""A record with a handshake, of any version since SSL 3."""

_PULSAR_BYTES_MAX: Final = 1 << 24
"""A first frame is never so large: sizes below begin with a zero byte, which no text does."""

_PLAIN: Final = {"pulsar_tls": "pulsar", "https": "http"}
"""The port without TLS for the same."""

_NO_TLS: Final = frozenset(
    {
        "HTTP_REQUEST",
        "HTTPS_PROXY_REQUEST",
        "WRONG_VERSION_NUMBER",
        "RECORD_LAYER_FAILURE",
        "PACKET_LENGTH_TOO_LONG",
        "UNEXPECTED_MESSAGE",
        "UNEXPECTED_RECORD",
        "INVALID_RECORD_TYPE",
        "UNKNOWN_PROTOCOL",
    }
)
"""OpenSSL's reasons for bytes that are not its protocol."""


class Urls(NamedTuple):
    """Where a broker is reached, by the keys of the configuration; "" where it is not."""

    pulsar: str = ""
    pulsar_tls: str = ""
    http: str = ""
    https: str = ""

    def of(self, *keys: str) -> str:
        """The addresses that exist, for a sentence."""
        return " and ".join(url for key in keys if (url := getattr(self, key)))


def spoken(head: bytes) -> str:
    """Which protocol begins so: "TLS", "HTTP", "Pulsar", or "" for none of these."""
    if head.startswith(_TLS):
        return "TLS"
    if _HTTP.match(head):
        return "HTTP"
    if len(head) >= 9 and int.from_bytes(head[:4], "big") < _PULSAR_BYTES_MAX and head[4] == 0 and head[8] == 0x08:
        return "Pulsar"
    return ""


def malformed(key: str, head: bytes, fault: str, urls: Urls) -> str:
    """The line for a connection whose first bytes are not of its port's protocol.

    Args:
        key: of the port, as in the configuration.
        head: its first bytes.
        fault: what is wrong with them, if they are no other protocol that is known.
        urls: of the broker.
    """
    here = f"the port `{key}`, which is for {urls.of(key)}"
    match spoken(head):
        case "TLS":
            there = urls.of(*(other for other in ("pulsar_tls", "https") if other != key))
            return f"it speaks TLS to {here}; " + (f"TLS: {there}" if there else "this broker has no port with TLS")
        case "HTTP" if key in {"pulsar", "pulsar_tls"}:
            return f"it speaks HTTP to {here}; HTTP: {urls.of('http', 'https')}"
        case "Pulsar" if key in {"http", "https"}:
            return f"it speaks Pulsar's protocol to {here}; Pulsar's: {urls.of('pulsar', 'pulsar_tls')}"
    return f"{fault}, to {here}"


def handshake_failed(key: str, reason: str, urls: Urls) -> str:
    """The line for a handshake of TLS that failed.

    Args:
        key: of the port, as in the configuration.
        reason: OpenSSL's.
        urls: of the broker.
    """
    if reason == TIMEOUT:
        return f"no handshake of TLS within {HANDSHAKE_S:.0f} s at the port `{key}`"
    if reason in _NO_TLS:
        what = "HTTP without TLS" if reason == "HTTP_REQUEST" else "no TLS"
        said = f"it speaks {what} to the port `{key}`, which is for {urls.of(key)}"
        plain = urls.of("http" if reason == "HTTP_REQUEST" else _PLAIN[key])
        return f"{said}; without TLS: {plain}" if plain else said
    return f"the handshake of TLS at the port `{key}` failed: {reason.replace('_', ' ').lower()}"
