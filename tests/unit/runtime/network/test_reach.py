"""Whether another broker accepts connections, on real sockets."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from magnetar.runtime.network import reach as reaches
from magnetar.runtime.network.reach import BrokerReach
from tests.support.brokers import free_port


class Served:
    """A port that accepts connections, and counts them."""

    def __init__(self) -> None:
        self.accepted = 0
        self.server: asyncio.Server | None = None

    async def start(self) -> str:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"pulsar://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _serve(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        writer.close()


def run(event: Callable[..., None], *arguments: Any) -> None:
    event(*arguments)


def asked(reach: BrokerReach, url: str) -> asyncio.Future[bool]:
    found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    reach.reach(url, found.set_result)
    return found


def test_a_port_that_accepts_connections_and_one_that_does_not() -> None:
    async def test() -> None:
        reach = BrokerReach(asyncio.get_running_loop(), run)
        async with asyncio.timeout(30):
            assert await asked(reach, await Served().start())
            assert not await asked(reach, f"pulsar://127.0.0.1:{free_port()}")
            assert not await asked(reach, "pulsar+ssl://no.such.host.invalid:1")
            assert await asked(reach, "")
        reach.close()

    asyncio.run(test())


def test_one_attempt_is_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaches, "KNOWN_S", 3_600.0)

    async def test() -> None:
        reach, served = BrokerReach(asyncio.get_running_loop(), run), Served()
        url = await served.start()
        async with asyncio.timeout(30):
            assert all(await asyncio.gather(*(asked(reach, url) for _ in range(100))))
            assert await asked(reach, url)
        assert served.accepted < 2

    asyncio.run(test())


def test_nothing_is_reported_after_the_end() -> None:
    async def test() -> None:
        reach = BrokerReach(asyncio.get_running_loop(), run)
        found = asked(reach, await Served().start())
        reach.close()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})  # type: ignore[arg-type]
        assert not found.done()

    asyncio.run(test())
