"""Listening: connections by TLS are accepted beside each other, and who fails is told of."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
import uvloop

from magnetar.core.errors import MagnetarError
from magnetar.runtime.network import listener as module
from magnetar.runtime.network.listener import TIMEOUT, Listener, shown
from tests.support.certificates import Authority


class Echo(asyncio.Protocol):
    """Says back what it hears."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server, and of a client that trusts it."""
    authority = Authority(folder)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.sign("server"))
    return server, ssl.create_default_context(cafile=str(authority.file))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_handshake_that_waits_holds_up_no_other(tmp_path: Path, run, monkeypatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.5)
    server, client = contexts(tmp_path)
    failed: list[tuple[str, str]] = []

    async def story() -> None:
        listener = await Listener.open(
            Echo, "127.0.0.1", 0, key="x_tls", tls=server, failed=lambda *told: failed.append(told)
        )
        silent_reader, silent = await asyncio.open_connection("127.0.0.1", listener.port)
        for number in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=client)
            writer.write(b"%d" % number)
            assert await reader.readexactly(1) == b"%d" % number
            writer.close()
        assert failed == []
        assert await silent_reader.read() == b""
        assert failed == [(shown(silent.get_extra_info("sockname")), TIMEOUT)]
        silent.close()
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", listener.port)

    run(story())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("by_tls", [False, True])
def test_a_port_in_use_is_one_line(tmp_path: Path, run, by_tls: bool) -> None:
    tls = contexts(tmp_path)[0] if by_tls else None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MagnetarError, match=rf"cannot listen on 127.0.0.1:{port} \(http\): .*in use"):
            run(Listener.open(Echo, "127.0.0.1", port, key="http", tls=tls))


def test_a_name_with_several_addresses(tmp_path: Path) -> None:
    server, client = contexts(tmp_path)

    async def story() -> None:
        listener = await Listener.open(Echo, "localhost", 0, key="x", tls=server)
        _reader, writer = await asyncio.open_connection("localhost", listener.port, ssl=client)
        writer.close()
        listener.close()

    asyncio.run(story())
