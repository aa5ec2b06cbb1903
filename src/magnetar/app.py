"""The composition root: the only module that knows every part of a broker and puts them together."""

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from magnetar import FORM, __version__
from magnetar.admin import make_app
from magnetar.admin.http.answers import Answers
from magnetar.admin.http.gate import Gate
from magnetar.admin.metrics.runtime_settings import runtime_settings
from magnetar.admin.ports import HttpPorts
from magnetar.admin.websocket.gateway import Gateway
from magnetar.broker.admin.controller import Controller
from magnetar.broker.admin.info import BrokerInfo
from magnetar.broker.broker import Broker
from magnetar.broker.waiting.registration import NO_BROKERS
from magnetar.core.config import Config
from magnetar.core.errors import MagnetarError, StorageError
from magnetar.core.settings import BrokerEndpoints
from magnetar.effects.outbox import Outbox
from magnetar.metadata.policies.defaults import defaults_of
from magnetar.metadata.resources import Resources
from magnetar.metadata.topic_records import LAST_LEDGER_KEY
from magnetar.runtime.broker_storage import BrokerStorage, GivenUp
from magnetar.runtime.clock import SystemClock
from magnetar.runtime.driver import Driver
from magnetar.runtime.interpreter.garbage import Collector
from magnetar.runtime.interpreter.memory import keep_freed_memory
from magnetar.runtime.local_storage import open_local
from magnetar.runtime.network.connection_slots import per_address
from magnetar.runtime.network.descriptors import fitting, raise_file_limit, too_few
from magnetar.runtime.network.protocol_sniffing import Urls
from magnetar.runtime.network.server import PulsarServer
from magnetar.runtime.security.secrets import Secrets
from magnetar.storage.entries import Append, Location
from magnetar.storage.topiclog import EntryCache, LedgerIds

if TYPE_CHECKING:
    from magnetar.admin.waiting.role import WaitingRole
    from magnetar.runtime.bookkeeper.opening import Opening

logger = logging.getLogger("magnetar.broker")

FOLDER_LOOK_S: Final = 1.0
"""Between two looks whether the data folder is still this broker's, by an idle one; the log looks before it writes."""


class BrokerApp:
    """One running broker.

    Args:
        config: the whole configuration.
        name: which of its brokers this is (`Config.named_broker`).
        files: how many may be open; None: no limit.

    Raises:
        ConfigError: there is no such broker.
    """

    def __init__(self, config: Config, name: str, files: int | None = None) -> None:
        self.config = config
        self.cluster, self.endpoints = config.named_broker(name)
        self._stack = contextlib.ExitStack()
        self._answers = Answers(config.broker.http_answers_bytes_max, config.broker.http_answer_bytes_max)
        self._stack.callback(self._answers.close)
        broker = config.broker
        self._files = files
        self._connections_max, self._http_max = fitting(files, broker.connections_max, broker.http_connections_max)
        self._ports = HttpPorts(broker, self._http_max, self._answers, self._tell, lambda: self.server.urls)
        self._waiting: WaitingRole | None = None
        self._opening: Opening | None = None
        self.pulsar_port = 0
        self.http_port = 0

    async def start(self) -> None:
        """Open the data folder, recover, listen.

        Raises:
            MagnetarError: anything that keeps it from running, in one line.
            GivenUp: see `give_up`.
        """
        # Once, also by a broker that waits first: a file that is wrong when it takes over leaves what was in force.
        self._secrets = Secrets(self.config.security, self.config.replication.token_file)
        self._secrets.start()
        self._stack.callback(self._secrets.stop)
        if self.cluster.storage == "bookkeeper":
            await self._wait_for_storage()
        # Recovered objects stay: with ten thousand topics the collector's scans of them would take a third of the
        # start.
        gc.disable()
        try:
            await self._start()
            collector = Collector(asyncio.get_running_loop().call_later, lambda: self.server.received)
            collector.start()
            self._stack.callback(collector.stop)
        finally:
            gc.enable()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        config = self.config.broker
        name = self.cluster.name
        clock = SystemClock()
        storage = await self._open_storage()
        self.store, self.log = storage.store, storage.log
        stored, recovered = storage.stored, storage.recovered
        for problem in recovered.problems:
            logger.error("%s", problem)
        outbox = Outbox(now_ms=clock.now_ms())
        resources = Resources.load(stored, defaults=defaults_of(self.config.policies))
        first = resources.first_start(self.config, name, storage.uuid)
        if first.puts:
            self.store.apply(first.puts, first.deletes)
            resources.apply(first)
        self.broker = Broker(
            outbox,
            config,
            cluster=name,
            uuid=storage.uuid,
            service_url=self.endpoints.service_url,
            link_token=self._secrets.link_token,
            resources=resources,
            stored=stored,
            recovered=recovered.topics,
            ledger_ids=LedgerIds(max(recovered.last_ledger, int(stored.get(LAST_LEDGER_KEY, b"-1")))),
            cache=EntryCache(config.cache_bytes_max),
            routes=frozenset((link.source, link.target) for link in self.config.links),
            subscriptions=self.config.subscriptions,
            link_targets=tuple(link.target for link in self.config.links if link.source == name),
            deduplication=self.config.deduplication,
            metadata=self.config.metadata,
            from_file=frozenset(first.puts) - stored.keys(),
            boot=clock.now_ms(),
            service_url_tls=self.endpoints.service_url_tls,
            listeners=self.endpoints.listener_urls(),
            security=self.config.security,
            keys=self._secrets.keys,
            lost_entries=storage.lost_entries,
            admin_url=self.endpoints.admin_url,
            web_url=self.endpoints.web_url,
            admin_urls={other.name: other.admin_url for other in self.config.clusters.values()},
        )
        self.driver = Driver(loop, self.broker, outbox, self.log, self.store, clock, storage.lease)
        self._stack.callback(self.driver.shut_down)
        self.server = PulsarServer(
            loop,
            self.driver,
            self.broker,
            frame_bytes_max=self.broker.login_frame_bytes_max,
            connections_max=self._connections_max,
            connections_per_address_max=per_address(self._connections_max, config.connections_per_address_max),
            keep_alive_ms=config.keep_alive_ms,
            urls=self._urls(),
        )
        self.driver.run(lambda: None)
        self._secrets.follow(lambda keys: self.driver.run(self.broker.access.new_keys, keys), self._new_link_token)
        self._watch_storage(storage.lost)
        await self._listen(resources, storage.uuid, clock)

    async def _open_storage(self) -> BrokerStorage:
        if self._opening is None:
            return open_local(self.config, self.cluster.name, self, self._stack)
        return await asyncio.to_thread(self._opening.open, self.config.broker)

    async def _wait_for_storage(self) -> None:
        """Wait until no other broker serves with this log."""
        # A broker with a disk needs neither; kazoo is there only with the extra `zookeeper`.
        from magnetar.admin.waiting.role import WaitingRole

        try:
            from magnetar.runtime.bookkeeper.opening import Opening
        except ModuleNotFoundError as error:
            if error.name == "kazoo":
                raise StorageError('a log on BookKeeper needs kazoo: pip install "magnetar[zookeeper]"') from None
            raise
        # Ports in use are reported now, and not when the other broker has died.
        waiting = self._waiting = WaitingRole(
            self.config,
            self.cluster.name,
            self.endpoints,
            self._secrets,
            files=self._files,
            answers=self._answers,
        )
        self._opening = Opening(self.cluster, self.endpoints, self, self._stack, changed=waiting.seen)
        await waiting.start()
        await asyncio.to_thread(self._opening.register)
        taking = asyncio.ensure_future(asyncio.to_thread(self._opening.wait, self._say_that_it_waits))
        failed = asyncio.ensure_future(waiting.driver.stopped.wait())
        await asyncio.wait({taking, failed}, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            self._opening.give_up()
            with contextlib.suppress(GivenUp):
                await taking
            raise MagnetarError("the broker stops because of an error of its own, which its log describes")
        failed.cancel()
        await taking

    def _say_that_it_waits(self) -> None:
        """`magnetar up` reads this line, as the one that says that the broker is ready."""
        sys.stdout.write(f"magnetar broker {self.cluster.title(self.endpoints)} waits {self.endpoints.service_url}\n")
        sys.stdout.flush()

    def give_up(self) -> None:
        """Make `start` end if it waits for another broker of the cluster to go. It raises `GivenUp` then."""
        if self._opening is not None:
            self._opening.give_up()

    # ------------------------------------------------------------------------------------------------ reports of the log

    # The driver needs the log, and the log reports to it; it is made before the first append.

    def appended(self, batch: list[tuple[Append, Location]]) -> None:
        """See `runtime.broker_storage.LogReports`."""
        self.driver.appended(batch)

    def append_failed(self, batch: list[Append], error: str) -> None:
        """See `runtime.broker_storage.LogReports`."""
        self.driver.append_failed(batch, error)

    def healed(self) -> None:
        """See `runtime.broker_storage.LogReports`."""
        self.driver.healed()

    # ------------------------------------------------------------------------------------------------------------- parts

    def _watch_storage(self, lost: Callable[[], str]) -> None:
        """A broker whose data folder was moved, replaced or taken over ends: the log and the store write nothing more by then."""
        loop = asyncio.get_running_loop()

        handle: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal handle
            if reason := lost():
                self.driver.end(reason)
            else:
                handle = loop.call_later(FOLDER_LOOK_S, look)

        handle = loop.call_later(FOLDER_LOOK_S, look)

        def stop() -> None:
            handle.cancel()

        self._stack.callback(stop)

    def _new_link_token(self, token: bytes) -> None:
        """Links that come from now on present another secret; those that are there stay."""
        self.broker.link_token = token

    async def _listen(self, resources: Resources, uuid: str, clock: SystemClock) -> None:
        if self._waiting is not None:
            self._waiting.close_ports()  # as late as possible: until then clients get an answer
        tls = self._secrets.tls
        self.pulsar_port = await self.server.start(self.endpoints.pulsar.host, self.endpoints.pulsar.port)
        if self.endpoints.pulsar.port == 0:
            host = self.endpoints.service_url.removeprefix("pulsar://").rpartition(":")[0]
            self.broker.service_url = f"pulsar://{host}:{self.pulsar_port}"
            self.server.urls = self._urls()._replace(pulsar=self.broker.service_url)
        if tls is not None and self.endpoints.pulsar_tls is not None:
            await self.server.start(self.endpoints.pulsar_tls.host, self.endpoints.pulsar_tls.port, tls.context)
        if self._waiting is not None:
            self._waiting.hand_over(self.server)
            await self._waiting.stop()
        info = BrokerInfo(
            cluster=self.cluster.name,
            uuid=uuid,
            version=__version__,
            service_url=self.broker.service_url,
            web_url=self.endpoints.web_url,
            service_url_tls=self.endpoints.service_url_tls,
            listeners=self.endpoints.listener_urls(),
            web_url_tls=self.endpoints.web_url_tls,
            started_ms=clock.now_ms(),
            topic_auto_creation=self.config.broker.auto_create_topics,
            settings=runtime_settings(self.config, self.cluster.name, self.endpoints, resources.defaults),
        )
        application = make_app(
            Controller(self.broker, self.driver.run),
            resources,
            info,
            body_bytes_max=self.config.broker.http_body_bytes_max,
            gate=Gate(self.broker.access, self.driver.run) if self.broker.access.enabled else None,
            answers=self._answers,
            entry_bytes_max=self.broker.frame_bytes_max,
            gateway=self._gateway(clock) if self.config.broker.websocket else None,
            brokers=(lambda: NO_BROKERS) if self._opening is None else self._opening.seen,
            give_way=self.driver.give_way,
        )
        await self._ports.start(application)
        self.http_port = await self._ports.listen("http", self.endpoints.http, None)
        if tls is not None and self.endpoints.https is not None:
            await self._ports.listen("https", self.endpoints.https, tls.context)

    def _gateway(self, clock: SystemClock) -> Gateway:
        config, security = self.config.broker, self.config.security.authentication
        return Gateway(
            self.server.inside,
            self._answers,
            clock.now_ms,
            # A message in base64, with as much again for its properties as its metadata may have.
            2 * config.message_bytes_max,
            tuple(config.websocket_origins),
            certificates=security.enabled and "tls" in security.methods,
            tokens=security.enabled,
        )

    def _urls(self) -> Urls:
        own = self.endpoints
        return Urls(own.service_url, own.service_url_tls, own.web_url, own.web_url_tls)

    def _tell(self, line: str) -> None:
        self.driver.quiet.warn(line)

    async def stop(self) -> None:
        """Stop taking work, make everything durable, let go of the folder."""
        if self._waiting is not None:
            await self._waiting.stop()
        self._ports.close()
        if hasattr(self, "driver") and self.driver.ended:
            # Another broker may serve: what waits in the sockets' buffers must not reach clients while requests are finished.
            await self.server.stop()
        await self._ports.stop()
        if hasattr(self, "server"):
            await self.server.stop()
        if hasattr(self, "driver"):
            self.driver.run(self.broker.shut_down)
        self._stack.close()


async def _started(app: BrokerApp, stopping: asyncio.Event) -> bool:
    """Start the broker; returns False if it was asked to stop while it waited for another broker of its cluster."""
    starting = asyncio.ensure_future(app.start())
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        app.give_up()
    stopped.cancel()
    try:
        await starting
    except GivenUp:
        return False
    return True


async def _serve(config: Config, name: str) -> int:
    files = raise_file_limit()
    app = BrokerApp(config, name, files)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    try:
        if not await _started(app, stopping):
            return 0
        # After the start, because the reason why a broker cannot run is the only line that it writes.
        if problem := too_few(files, config.broker.connections_max + config.broker.http_connections_max):
            logger.warning("%s", problem)
        if FORM.stale:
            logger.warning("the compiled modules are not used: %s", FORM.reason)
        sys.stdout.write(
            f"magnetar broker {app.cluster.title(app.endpoints)} ready {app.broker.service_url} "
            f"http://{app.endpoints.http.host}:{app.http_port} ({FORM.name})\n"
        )
        sys.stdout.flush()
        stopped = asyncio.ensure_future(stopping.wait())
        failed = asyncio.ensure_future(app.driver.stopped.wait())
        await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
        crashed = failed.done() and not stopped.done()
        stopped.cancel()
        failed.cancel()
        return 1 if crashed else 0
    finally:
        await app.stop()


def check_exposure(config: Config, broker: BrokerEndpoints, title: str, *, insecure: bool) -> None:
    """Refuse to listen beyond this machine without authentication, unless `insecure` is set.

    Args:
        config: the whole configuration.
        broker: the addresses.
        title: the broker in messages (`ClusterConfig.title`).
        insecure: listen there all the same.

    Raises:
        MagnetarError: naming the address and the ways out.
    """
    if config.security.authentication.enabled or insecure:
        return
    for key, address in broker.listeners():
        if not address.loopback:
            raise MagnetarError(
                f"cluster {title} would listen on {address} ({key}) without authentication; write "
                "[authentication] (docs/security.md), listen on 127.0.0.1, or say --insecure if the network is closed"
            )


def warn_of_plain_text(config: Config, broker: BrokerEndpoints) -> None:
    """Say when tokens and messages would travel readable for the network."""
    for key, address in broker.listeners():
        if config.security.authentication.enabled and key in {"pulsar", "http"} and not address.loopback:
            logger.warning(
                "tokens and messages travel unencrypted on %s (%s): listen there on 127.0.0.1, and beyond by %s",
                address,
                key,
                {"pulsar": "pulsar_tls", "http": "https"}[key],
            )


def run_broker(config: Config, name: str, insecure: bool = False) -> int:
    """Run one broker in the foreground until SIGINT or SIGTERM.

    Args:
        config: the whole configuration.
        name: of the broker (`Config.named_broker`).
        insecure: listen beyond loopback although there is no authentication.

    Returns:
        The exit code: 0 after a clean stop, 1 when the broker stopped because of an error.

    Raises:
        MagnetarError: it cannot run; one line says why.
    """
    import uvloop

    cluster, broker = config.named_broker(name)
    title = cluster.title(broker)
    check_exposure(config, broker, title, insecure=insecure)
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)s {title}: %(message)s",
        stream=sys.stderr,
        force=True,
    )
    warn_of_plain_text(config, broker)
    keep_freed_memory()  # messages of 128 KB: page faults were a sixth of the processor time
    return uvloop.run(_serve(config, name))
