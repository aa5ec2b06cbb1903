"""Puts the parts of a broker together that answer until it serves: another broker of its cluster does, or it is taking over.

Its ports are later those of the serving broker. They are opened at the start, so that a port in use is reported then, and not
when the other broker has died.
"""

import asyncio
import contextlib

from magnetar import __version__
from magnetar.admin.http.answers import Answers
from magnetar.admin.http.gate import Gate
from magnetar.admin.ports import HttpPorts
from magnetar.admin.waiting.site import WaitingSite
from magnetar.broker.admin.info import BrokerInfo
from magnetar.broker.waiting.broker import WaitingBroker
from magnetar.broker.waiting.registration import Brokers, registration_of
from magnetar.broker.waiting.takeover import Takeover
from magnetar.core.config import Config
from magnetar.core.settings import BrokerEndpoints
from magnetar.effects.outbox import Outbox
from magnetar.runtime.clock import SystemClock
from magnetar.runtime.network.connection_slots import per_address
from magnetar.runtime.network.protocol_sniffing import Urls
from magnetar.runtime.network.reach import BrokerReach
from magnetar.runtime.network.relay import OwnerRelay, fitting_with_relay
from magnetar.runtime.network.server import PulsarServer
from magnetar.runtime.security.secrets import Secrets
from magnetar.runtime.waiting_driver import WaitingDriver


class WaitingRole:
    """A broker until it serves.

    Args:
        config: the whole configuration.
        cluster: the name of the cluster.
        endpoints: the addresses of this broker.
        secrets: keys, the links' secret, certificates.
        files: how many may be open; None: no limit.
        answers: the memory of answers by HTTP.

    Attributes:
        driver: of the machine; `driver.stopped` is set when it failed.
    """

    def __init__(
        self,
        config: Config,
        cluster: str,
        endpoints: BrokerEndpoints,
        secrets: Secrets,
        *,
        files: int | None,
        answers: Answers,
    ) -> None:
        connections_max, http_connections_max, relayed_max = fitting_with_relay(
            files, config.broker.connections_max, config.broker.http_connections_max
        )
        self._loop = loop = asyncio.get_running_loop()
        clock = SystemClock()
        outbox = Outbox(now_ms=clock.now_ms())
        own = registration_of(endpoints)
        takeover = Takeover(cluster, own)
        self._endpoints = endpoints
        self._tls = secrets.tls
        self.driver = WaitingDriver(loop, outbox, clock)
        security = config.security
        trust = {
            "ca": security.trusted_ca,
            "cert": security.client.certificate_file,
            "key": security.client.key_file,
        }
        self._relay = OwnerRelay(loop, self.driver.run, trust, relayed_max)
        self._reach = BrokerReach(loop, self.driver.run)
        self._broker = WaitingBroker(
            outbox, config.broker, security, secrets.keys, secrets.link_token, takeover, self._relay, self._reach
        )
        urls = Urls(own.pulsar, own.pulsar_tls, own.web, own.web_tls)
        limits = self._broker.limits
        self._server = PulsarServer(
            loop,
            self.driver,
            self._broker,
            frame_bytes_max=limits.login,
            connections_max=connections_max,
            connections_per_address_max=per_address(connections_max, config.broker.connections_per_address_max),
            keep_alive_ms=config.broker.keep_alive_ms,
            urls=urls,
        )
        info = BrokerInfo(
            cluster=cluster,
            uuid="",
            version=__version__,
            service_url=own.pulsar,
            web_url=own.web,
            started_ms=clock.now_ms(),
            service_url_tls=own.pulsar_tls,
            web_url_tls=own.web_tls,
        )
        gate = Gate(self._broker.access, self.driver.run) if self._broker.access.enabled else None
        self._site = WaitingSite(self._broker, takeover, info, gate)
        self._ports = HttpPorts(config.broker, http_connections_max, answers, self.driver.quiet.warn, lambda: urls)
        secrets.follow(lambda keys: self.driver.run(self._broker.access.new_keys, keys), self._broker.new_link_token)

    async def start(self) -> None:
        """Listen.

        Raises:
            MagnetarError: a port is in use or may not be bound, in one line.
        """
        own = self._endpoints
        await self._server.start(own.pulsar.host, own.pulsar.port)
        if self._tls is not None and own.pulsar_tls is not None:
            await self._server.start(own.pulsar_tls.host, own.pulsar_tls.port, self._tls.context)
        await self._ports.start(self._site.application())
        await self._ports.listen("http", own.http, None)
        if self._tls is not None and own.https is not None:
            await self._ports.listen("https", own.https, self._tls.context)

    def seen(self, brokers: Brokers) -> None:
        """The brokers of the cluster have changed. May be called on any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(self.driver.run, self._broker.seen, brokers)

    def close_ports(self) -> None:
        """Close the ports, so that the broker can listen there when it serves. Connections stay."""
        self._server.listen_no_more()
        self._ports.close()

    def hand_over(self, server: PulsarServer) -> None:
        """The broker serves: another server continues the connections of the clients that have been let in."""
        server.take(self._server, self._broker.to_repeat)

    async def stop(self) -> None:
        """Close the ports and all connections that are not handed over. May be called twice."""
        await self._server.stop()
        await self._ports.stop()
        self._relay.close()
        self._reach.close()
        self.driver.shut_down()
