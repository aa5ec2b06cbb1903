"""A broker's life in this process, without clients, and what can happen to its data folder between two lives."""

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Coroutine, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import magnetar.app as application
from magnetar.app import BrokerApp
from magnetar.core.config import Config, single
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, NONE
from magnetar.core.names import TopicName
from magnetar.effects.outbox import Sync
from magnetar.runtime.log.folder_check import MARK_FILE
from magnetar.storage.entries import Append, NewEntry
from tests.support.brokers import free_port

CLUSTER = "a"
WAIT_S = 60


class _NoCollector:
    """In place of `runtime.interpreter.garbage.Collector`. See `leaving_garbage`."""

    def __init__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


@contextlib.contextmanager
def leaving_garbage() -> Iterator[None]:
    """A broker that starts in this process leaves Python's collector alone.

    It would walk through the objects of ten thousand tests at each start, and unfreeze them at its end (`tests/conftest.py`
    froze them): some tests took twenty times as long in a whole run as alone.
    """
    with mock.patch.object(application, "Collector", _NoCollector):
        yield


def name_of(topic: str) -> str:
    return topic if "://" in topic else f"persistent://public/default/{topic}"


class Life:
    """One life of a broker: everything it answers is durable."""

    def __init__(self, config: Config) -> None:
        self.app = BrokerApp(config, CLUSTER)
        self.folder = config.cluster_dir(CLUSTER)

    async def _answer(self, ask: Callable[[Callable[..., None]], None]) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(*given: Any) -> None:
            errors = [each for each in given if isinstance(each, MagnetarError) or (isinstance(each, str) and each)]
            if errors:
                answer.set_exception(errors[0] if isinstance(errors[0], MagnetarError) else AssertionError(errors[0]))
            else:
                answer.set_result(given[0] if given else None)

        self.app.driver.run(lambda: ask(done))
        return await asyncio.wait_for(answer, WAIT_S)

    async def create(self, topic: str) -> Any:
        """The topic; made if it is not there."""
        name = TopicName.parse(name_of(topic))
        return await self._answer(lambda done: self.app.broker.catalog.open(name, create=True, then=done))

    async def publish(self, topic: str, *texts: str) -> None:
        """Confirmed when it returns."""
        made = await self.create(topic)

        def ask(done: Callable[..., None]) -> None:
            def told(_append: Append, error: str) -> None:
                done(error)

            made.append([NewEntry(text.encode(), 0, 1, 5) for text in texts], told)

        await self._answer(ask)

    async def subscribe(self, topic: str, name: str = "s") -> None:
        made = await self.create(topic)
        await self._answer(lambda done: self.app.broker.catalog.create_subscription(made, name, EARLIEST, done))

    async def delete(self, topic: str) -> None:
        made = self.app.broker.topics[name_of(topic)]
        await self._answer(lambda done: self.app.broker.catalog.delete(made, force=True, done=done))

    async def settled(self) -> None:
        """What was given to the log and to the store before is done, deletions of segments too."""
        await self._answer(lambda done: self.app.broker.outbox.put(Sync(done)))
        self.app.store.apply({})

    async def marked(self) -> None:
        """The file of ledgers knows what was confirmed."""
        while any(  # noqa: ASYNC110
            lane._log.unmarked for lane in (self.app.log._usual, self.app.log._large)
        ):
            await asyncio.sleep(0.01)  # another thread's; it has no event

    def texts(self, topic: str) -> list[str]:
        """What a topic holds; an entry that cannot be read is the error."""
        log = self.app.broker.topics[name_of(topic)].log
        found: list[str] = []
        position = log.first if log.first != NONE else None
        while position is not None:
            try:
                found.append(self.app.log.read(log.locations(position, 1, 1))[0].data.decode())
            except MagnetarError as error:
                found.append(f"! {error}")
            position = log.next_after(position)
        return found

    def image(self, target: Path) -> Path:
        """The data folder as it would be found if the process were killed now, in another place."""

        def copy(source: str, copied: str) -> None:
            with contextlib.suppress(FileNotFoundError):  # an empty segment is deleted beside us
                shutil.copy(source, copied)

        # The mark follows the store. One that was read after the store was copied may confirm changes that the copy lacks.
        mark = (self.folder / MARK_FILE).read_bytes()
        shutil.copytree(self.folder, target / CLUSTER, copy_function=copy)
        (target / CLUSTER / MARK_FILE).write_bytes(mark)
        return target


@cache
def _ports() -> tuple[int, int]:
    """Lives in one process come one after the other."""
    return free_port(), free_port()


def config_of(folder: Path) -> Config:
    return single(CLUSTER, folder, *_ports())


def live(folder: Path, *steps: Callable[[Life], Coroutine[Any, Any, Any]]) -> Any:
    """Start a broker on a folder, take the steps, stop it in good order; what the last one returned."""

    async def run() -> Any:
        life = Life(config_of(folder))
        result = None
        try:
            await life.app.start()
            for step in steps:
                result = await step(life)
            await life.settled()
        finally:
            await life.app.stop()
        return result

    with leaving_garbage():
        return asyncio.run(run())


def segments(folder: Path) -> dict[str, int]:
    """Sizes of all segments that hold more than their start."""
    found = {path.name: path.stat().st_size for path in (folder / CLUSTER / "log").glob("*.seg")}
    return {name: size for name, size in found.items() if size > 200}
