"""What is said of those who came to the wrong port."""

import pytest

from magnetar.runtime.network.listener import TIMEOUT
from magnetar.runtime.network.protocol_sniffing import Urls, handshake_failed, malformed, spoken
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import FrameDecoder, FrameError, encode

PLAIN = Urls("pulsar://h:1", "", "http://h:3", "")
FOUR = Urls("pulsar://h:1", "pulsar+ssl://h:2", "http://h:3", "https://h:4")


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n", "HTTP"),
        (b"GET ", "HTTP"),
        (encode(pb.BaseCommand(type=2, connect=pb.CommandConnect(client_version="x"))), "Pulsar"),
        (encode(pb.BaseCommand(type=18, ping=pb.CommandPing())), "Pulsar"),
        (b"", ""),
        (b"\x16", ""),
        (b"GETTING", ""),
        (b"HELO there, all of you", ""),
        (bytes(16), ""),
    ],
)
def test_protocols_are_known_by_their_first_bytes(head: bytes, what: str) -> None:
    assert spoken(head) == what


def test_a_broker_without_tls_says_so() -> None:
    for key in ("pulsar", "http"):
        assert malformed(key, b"\x16\x03\x01", "?", PLAIN).endswith("this broker has no port with TLS")


def test_what_is_known_is_told_before_what_is_wrong_with_it() -> None:
    assert "HTTP: http://h:3 and https://h:4" in malformed("pulsar", b"GET /", "malformed", FOUR)
    assert malformed("http", b"GET /", "malformed HTTP: x", FOUR).startswith("malformed HTTP: x, to the port `http`")
    assert "Pulsar's: pulsar://h:1 and pulsar+ssl://h:2" in malformed("https", bytes(8) + b"\x08", "?", FOUR)


def test_handshakes() -> None:
    assert handshake_failed("https", TIMEOUT, FOUR) == "no handshake of TLS within 10 s at the port `https`"
    assert handshake_failed("pulsar_tls", "WRONG_VERSION_NUMBER", FOUR).endswith("without TLS: pulsar://h:1")
    assert handshake_failed("pulsar_tls", "HTTP_REQUEST", FOUR).endswith("without TLS: http://h:3")
    assert handshake_failed("https", "TLSV1_ALERT_UNKNOWN_CA", FOUR).endswith("failed: tlsv1 alert unknown ca")


def test_the_decoder_gives_the_first_bytes_of_what_is_no_frame() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode(pb.BaseCommand(type=18, ping=pb.CommandPing())))
    with pytest.raises(FrameError):
        decoder.feed(b"GET / HTTP/1.1")
    assert decoder.head(5) == b"GET /"
    assert FrameDecoder().head(5) == b""
