"""The context of every part of a broker: the broker's name, its limits, its outbox, its resources.

A part gets this and, by its constructor, the other parts that it talks to. No part gets the broker.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from magnetar.core.errors import MagnetarError
from magnetar.core.hints import command
from magnetar.core.ids import Position
from magnetar.core.settings import BrokerConfig
from magnetar.effects.outbox import Outbox, Timer
from magnetar.metadata.resources import Resources

Done = Callable[[MagnetarError | None], None]
"""Called once: with None when a change is durable, else with the reason why it did not happen."""

DonePosition = Callable[[Position | None, MagnetarError | None], None]
"""Called once: with a position, or with the reason why there is none."""


@dataclass(frozen=True)
class BrokerContext:
    """One broker, as its parts see it.

    Attributes:
        outbox: where effects go; the driver drains it. It also holds the time of the event that is being handled.
        config: every limit.
        resources: tenants, namespaces, policies, partitioned topics.
        cluster: the name of the broker's cluster.
        uuid: made with its data folder; another uuid under the same name is another cluster.
        boot: the clock at the start, ms since 1970; never the same twice.
        admin_url: where this broker's REST interface answers, for commands that messages name.
        admin_urls: the same of other clusters, by name.
        web_url: where it answers without TLS; `host:port` in it is the broker's name, as in Pulsar.
    """

    outbox: Outbox
    config: BrokerConfig
    resources: Resources
    cluster: str
    uuid: str
    boot: int = 0
    admin_url: str = ""
    admin_urls: Mapping[str, str] = field(default_factory=dict)
    web_url: str = ""

    def timer(self, at_ms: int, then: Callable[[int], None]) -> None:
        """Call `then(now_ms)` at a time (ms since 1970)."""
        self.outbox.put(Timer(at_ms, then))

    def command(self, *words: str, cluster: str = "") -> str:
        """A command of `magnetar` for this broker, or another cluster's, as messages print it; see `core.hints`."""
        url = self.admin_urls.get(cluster, "") if cluster not in ("", self.cluster) else self.admin_url
        return command(*words, admin_url=url)
