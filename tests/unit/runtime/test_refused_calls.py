"""Calls of the system that are a courtesy: where the system refuses one (a sandbox, a strange C library), the broker goes on."""

import asyncio
import ctypes
import errno
import os
import resource
import socket
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from magnetar.cli.processes.supervisor import end_with_parent
from magnetar.runtime.interpreter import gil_yield as giveway
from magnetar.runtime.interpreter import memory
from magnetar.runtime.interpreter.gil_yield import GiveWay, ThreadState
from magnetar.runtime.log import files
from magnetar.runtime.network.descriptors import raise_file_limit, too_few
from tests.support.listener import PING, FakeDriver, serve, until

REFUSALS: Final = [errno.EINVAL, errno.ENOSYS, errno.EPERM]


def refusing(number: int) -> Any:
    """A call that fails so."""

    def call(*_arguments: Any, **_more: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call


class Busy:
    """A thread that always waits for the interpreter."""

    steps = 0
    busy = True

    def waits(self) -> bool:
        return True


@pytest.mark.parametrize("number", REFUSALS)
def test_a_pause_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(time, "sleep", refusing(number))
    way = GiveWay(Busy())
    for _ in range(100):
        way.look()


@pytest.mark.parametrize("number", REFUSALS)
def test_what_a_thread_may_not_ask_for(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "sched_setscheduler", refusing(number))
    giveway.stand_back()
    monkeypatch.setattr(os, "sched_getscheduler", refusing(number))
    giveway.stand_back()
    state = ThreadState()
    monkeypatch.setattr(os, "pread", refusing(number))
    assert not state.waits()
    monkeypatch.setattr(os, "open", refusing(number))
    assert not ThreadState().waits()


@pytest.mark.parametrize("number", REFUSALS)
def test_limits_that_are_not_told(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(resource, "setrlimit", refusing(number))
    assert raise_file_limit() == (None if before[0] == resource.RLIM_INFINITY else before[0])
    monkeypatch.setattr(resource, "getrlimit", refusing(number))
    assert raise_file_limit() is None
    assert not too_few(None, 1_000_000)


@pytest.mark.parametrize("told", ["", "x y z", "12"])
def test_proc_that_tells_something_else(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _self: told)
    assert memory.resident_bytes() == 0
    monkeypatch.setattr(Path, "read_text", refusing(errno.EACCES))
    assert memory.resident_bytes() == 0


def test_a_c_library_that_lacks_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", refusing(errno.ENOENT))
    assert end_with_parent() is None
    assert memory.keep_freed_memory() is False


@pytest.mark.parametrize("number", REFUSALS)
def test_calls_with_flags_that_a_sandbox_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int) -> None:
    file = files.OsFile(os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT))
    monkeypatch.setattr(os, "pwritev", refusing(number))
    assert file.write_through([b"ab", b"c"]) == 3
    monkeypatch.setattr(os, "preadv", refusing(number))
    with pytest.raises(BlockingIOError):
        file.pread_now(0, 3)
    assert file.pread(0, 3) == b"abc"
    file.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the socket is the transport's own")
def test_a_socket_that_takes_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        driver = FakeDriver()
        server, port = await serve(driver)
        _, client = await asyncio.open_connection("127.0.0.1", port)
        client.write(PING)
        await until(lambda: driver.count(1) == 1)
        assert driver.peers, "it was taken in as a whole"
        client.close()
        await until(lambda: not driver.peers)
        await server.stop()

    asked = 0
    usual = socket.socket.setsockopt

    def refuse(self: socket.socket, level: int, option: int, value: Any) -> None:
        nonlocal asked
        if (level, option) == (socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            asked += 1
            raise OSError(errno.EINVAL, "it is gone")
        usual(self, level, option, value)

    monkeypatch.setattr(socket.socket, "setsockopt", refuse)
    asyncio.run(go())
    assert asked
