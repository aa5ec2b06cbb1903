"""The record by which a broker makes itself known to the other brokers of its cluster: its name and its addresses, as JSON.

It is in ZooKeeper, where brokers of another version read it (docs/design/cluster.md#registration). So reading is tolerant:
unknown keys are ignored, a missing or unusable address counts as none, and a text that is no record is taken as a name.
"""

from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from magnetar.core.settings import BrokerEndpoints

VERSION: Final = 1
"""Version of the record. It rises when a reader of the former version would misunderstand a record."""

NAME_CHARACTERS_MAX: Final = 200
"""A ceiling on a name that is read: it is part of messages. Names in the configuration are shorter."""

URL_CHARACTERS_MAX: Final = 512
"""A ceiling on an address that is read: a host's name has at most 253 characters."""

LISTENERS_MAX: Final = 64
"""A ceiling on the listeners of a record that is read."""


class ListenerAddresses(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The addresses for clients that ask for a listener by name.

    Attributes:
        pulsar: `pulsar://host:port`, or "".
        pulsar_tls: `pulsar+ssl://host:port`, or "".
    """

    pulsar: str = ""
    pulsar_tls: str = ""


class Registration(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One broker of a cluster.

    Attributes:
        broker: its name.
        pulsar, pulsar_tls: its addresses for clients, `pulsar://host:port` and `pulsar+ssl://host:port`; "" for none.
        web, web_tls: the same of its REST interface, `http://host:port` and `https://host:port`.
        listeners: name of a listener -> its addresses.
    """

    broker: str
    pulsar: str = ""
    pulsar_tls: str = ""
    web: str = ""
    web_tls: str = ""
    listeners: dict[str, ListenerAddresses] = {}

    def encode(self) -> bytes:
        """The record as JSON."""
        return msgspec.json.encode({"version": VERSION, **msgspec.to_builtins(self)})

    def pulsar_url(self, *, tls: bool = False) -> str:
        """Its address for clients: with TLS or without, as asked, else the other one; "" for none."""
        return (self.pulsar_tls or self.pulsar) if tls else (self.pulsar or self.pulsar_tls)

    def web_url(self, *, tls: bool = False) -> str:
        """The same of its REST interface."""
        return (self.web_tls or self.web) if tls else (self.web or self.web_tls)

    def urls(self, listener: str) -> tuple[str, str] | None:
        """Its addresses for clients, without and with TLS ("" for none).

        Args:
            listener: the one that the client asked for; "": the default one.

        Returns:
            None: it has no listener of that name.
        """
        if not listener:
            return self.pulsar, self.pulsar_tls
        found = self.listeners.get(listener)
        return (found.pulsar, found.pulsar_tls) if found is not None else None


class Brokers(NamedTuple):
    """The brokers of a cluster, as one of them sees them.

    Attributes:
        serving: the one that serves; None: none does, as far as is known.
        all: all that are registered, by name.
    """

    serving: Registration | None = None
    all: tuple[Registration, ...] = ()


NO_BROKERS: Final = Brokers()


def registration_of(endpoints: BrokerEndpoints) -> Registration:
    """The record of the broker with these addresses."""
    return Registration(
        broker=endpoints.name,
        pulsar=endpoints.service_url,
        pulsar_tls=endpoints.service_url_tls,
        web=endpoints.web_url,
        web_tls=endpoints.web_url_tls,
        listeners={
            name: ListenerAddresses(pulsar=pulsar, pulsar_tls=pulsar_tls)
            for name, (pulsar, pulsar_tls) in endpoints.listener_urls().items()
        },
    )


def read_registration(data: bytes) -> Registration:
    """Read a record, also of another version; see the module.

    Args:
        data: the content of a node.
    """
    try:
        found: Any = msgspec.json.decode(data)
    except msgspec.DecodeError:
        found = None
    if not isinstance(found, dict):
        return Registration(broker=_name(data.decode(errors="replace")))
    listeners = found.get("listeners")
    return Registration(
        broker=_name(found.get("broker")),
        pulsar=_url(found, "pulsar", "pulsar://"),
        pulsar_tls=_url(found, "pulsarTls", "pulsar+ssl://"),
        web=_url(found, "web", "http://"),
        web_tls=_url(found, "webTls", "https://"),
        listeners={
            name: ListenerAddresses(
                pulsar=_url(value, "pulsar", "pulsar://"), pulsar_tls=_url(value, "pulsarTls", "pulsar+ssl://")
            )
            for name, value in list(listeners.items())[:LISTENERS_MAX]
            if isinstance(value, dict)
        }
        if isinstance(listeners, dict)
        else {},
    )


def _name(value: Any) -> str:
    """A name that can be shown in a line."""
    if not isinstance(value, str) or not value or not value.isprintable():
        return "?"
    return value[:NAME_CHARACTERS_MAX]


def _url(found: dict[str, Any], key: str, scheme: str) -> str:
    """An address that a client can be sent to, or ""."""
    value = found.get(key)
    good = (
        isinstance(value, str)
        and value.startswith(scheme)
        and len(scheme) < len(value) <= URL_CHARACTERS_MAX
        and value.isascii()
        and value.isprintable()
        and not any(character in value[len(scheme) :] for character in " /?#@")
    )
    return str(value) if good else ""
