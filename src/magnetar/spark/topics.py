"""The topics that a query reads, with their first and last positions."""

import json
import logging
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from typing import Any, Final, TypeVar
from urllib.parse import quote

from magnetar.core.addresses import BrokerAddresses
from magnetar.core.errors import ConfigError, MagnetarError
from magnetar.core.names import TopicName
from magnetar.core.tls import client_context
from magnetar.spark.client import Client, Reader, TopicGone
from magnetar.spark.connection import Down, Refused
from magnetar.spark.offsets import EARLIEST, MessagePosition, Positions
from magnetar.spark.options import ReadOptions
from magnetar.spark.planning import Span

logger: Final = logging.getLogger("magnetar.spark")

LATEST: Final = MessagePosition((1 << 63) - 1, (1 << 63) - 1)
"""The start position of a subscription that shall receive nothing."""

ADMIN_S: Final = 10.0
"""The longest time for an answer of the admin interface."""

_NOT_HERE: Final = frozenset({HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.SERVICE_UNAVAILABLE})
"""Answers of a broker that does not serve its cluster."""

T = TypeVar("T")
_PARTITION: Final = re.compile(r"-partition-\d+$")


def retried(client: Client, what: Callable[[], T]) -> T:
    """The answer, however often the connection breaks meanwhile."""
    patience = client.patient()
    while True:
        try:
            return what()
        except (Down, Refused) as error:
            patience.after(error)


def found(client: Client, options: ReadOptions, *, patient: bool = False) -> list[str]:
    """The topics to read now, partitions one by one.

    Args:
        client: to ask.
        options: which.
        patient: those that do not exist are left out.

    Raises:
        ConfigError: a topic that is named does not exist (unless it is to be waited for).
    """
    if options.pattern:
        pattern = re.compile(options.pattern)
        listed = retried(client, lambda: client.topics(options.namespace))
        bases = {_PARTITION.sub("", name) for name in listed}
        names = sorted(base for base in bases if pattern.fullmatch(base))
    else:
        names = list(options.topics)
    result: list[str] = []
    for name in names:
        if TopicName.parse(name).partition >= 0:
            result.append(name)
            continue
        partitions = retried(client, lambda: client.partitions(name))  # noqa: B023 - called at once
        if partitions is None:
            if not (patient or options.wait_for_topics or options.pattern) and options.fail_on_data_loss:
                raise ConfigError(
                    f"topic {name} does not exist; create it, or set waitingForNonExistedTopic=true to wait for it"
                )
        elif partitions:
            result.extend(f"{name}-partition-{number}" for number in range(partitions))
        else:
            result.append(name)
    return sorted(set(result))


class Ends:
    """The newest message of topics; keeps a subscription to each, which is sent nothing."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._readers: dict[str, Reader] = {}

    def last(self, topics: Iterable[str]) -> Positions:
        """The last position by topic; topics that are gone are left out."""
        positions: Positions = {}
        asked: list[tuple[str, Reader, int]] = []
        for topic in topics:
            try:
                reader = self._readers.get(topic)
                if reader is None:
                    reader = self._readers[topic] = Reader(self._client, topic, LATEST)
                asked.append((topic, reader, reader.ask_last()))
            except TopicGone:
                self._readers.pop(topic, None)
            except Down:
                if topic not in self._readers:
                    raise  # not a connection that broke: none could be made, for as long as that is tried
                self._slowly(topic, positions)
        for topic, reader, request in asked:
            try:
                positions[topic] = reader.last_answer(request)
            except (Down, Refused):
                self._slowly(topic, positions)
        return positions

    def _slowly(self, topic: str, positions: Positions) -> None:
        """Look up one topic with a new connection."""
        try:
            positions[topic] = self._readers[topic].last()
        except TopicGone:
            self._readers.pop(topic, None)

    def close(self) -> None:
        """End the subscriptions."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()


def position_at(client: Client, topic: str, time_ms: int, last: MessagePosition) -> MessagePosition:
    """The position before the first entry with at least this publish time, for reading after it; `last` if there is
    none.
    """
    reader = Reader(client, topic, after_time_ms=time_ms)
    try:
        until = time.monotonic() + client.patience_s
        while last != EARLIEST and time.monotonic() < until:
            for entry in reader.entries(0.2):
                return MessagePosition(entry.ledger, entry.entry - 1)
            if reader.caught_up():
                break
        return last
    finally:
        reader.close()


def starting(
    client: Client, options: ReadOptions, topics: Iterable[str], last: Mapping[str, MessagePosition]
) -> Positions:
    """The start position of a new query in each topic.

    Raises:
        ConfigError: `startingOffsets` names topics that are not read.
    """
    topics = list(topics)
    if options.starting_ms is not None:
        return {
            topic: position_at(client, topic, options.starting_ms, last[topic]) for topic in topics if topic in last
        }
    if options.starting == "earliest":
        return dict.fromkeys(topics, EARLIEST)
    if options.starting == "latest":
        return {topic: last.get(topic, EARLIEST) for topic in topics}
    assert not isinstance(options.starting, str)
    _none_else("startingOffsets", options.starting, topics)
    return {topic: options.starting.get(topic, EARLIEST) for topic in topics}


def ending(options: ReadOptions, topics: Iterable[str], last: Mapping[str, MessagePosition]) -> Positions:
    """The end position of a batch read in each topic: its newest message, or earlier.

    Raises:
        ConfigError: `endingOffsets` names topics that are not read.
    """
    if isinstance(options.ending, str):
        return dict(last)
    topics = list(topics)
    _none_else("endingOffsets", options.ending, topics)
    return {
        topic: min(options.ending.get(topic, last[topic]), last[topic], key=lambda position: position.reach)
        for topic in topics
        if topic in last
    }


def _none_else(option: str, named: Positions, topics: list[str]) -> None:
    others = sorted(set(named) - set(topics))
    if others:
        raise ConfigError(
            f"option {option} names {others[0]}, which is not read; it reads {', '.join(topics[:3]) or 'none'}"
        )


class _Plain(HTTPConnection):
    """Its timeout is that of connecting; an answer has `ADMIN_S`."""

    def connect(self) -> None:
        """Connect."""
        super().connect()
        self.sock.settimeout(ADMIN_S)


class _Encrypted(HTTPSConnection):
    """Likewise."""

    def connect(self) -> None:
        """Connect."""
        super().connect()
        self.sock.settimeout(ADMIN_S)


class _Handler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Makes these connections."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__(context=context)
        self._trust = context

    def http_open(self, request: urllib.request.Request) -> Any:
        """Send a request."""
        return self.do_open(_Plain, request)

    def https_open(self, request: urllib.request.Request) -> Any:
        """Send a request by TLS."""
        return self.do_open(_Encrypted, request, context=self._trust)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer: the request has the token, and goes only to addresses that the user named."""

    def redirect_request(self, *_arguments: Any) -> None:
        """Make no further request."""


def admin_get(options: ReadOptions, topic: str, what: str) -> Any:
    """One answer of the admin interface about a topic; None when it has none. Of several brokers the first that serves answers.

    Raises:
        MagnetarError: no broker answers; names every address that was tried.
    """
    name = TopicName.parse(topic)
    path = f"/admin/v2/persistent/{name.tenant}/{name.namespace}/{quote(name.local, safe='')}/{what}"
    headers = {"Authorization": f"Bearer {options.access.token}"} if options.access.token else {}
    scheme, _, rest = options.admin_url.partition("://")
    tries = BrokerAddresses([f"{scheme}://{part}" for part in rest.split(",")]).round()
    context = client_context(options.access.trust) if scheme == "https" else None
    opener = urllib.request.build_opener(_NoRedirects, _Handler(context))
    while True:
        url = tries.address + path
        try:
            request = urllib.request.Request(url, headers=headers)  # noqa: S310 - checked to be http
            with opener.open(request, timeout=tries.patience_s(ADMIN_S)) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code not in _NOT_HERE or not tries.failed(f"{url}: {error}"):
                logger.warning("%s: %s", url, error)
                return None
        except (OSError, ValueError) as error:
            silent = isinstance(error, urllib.error.URLError) and isinstance(error.reason, TimeoutError)
            if not tries.failed(f"{url} does not answer: {error}", silent=silent):
                raise MagnetarError(f"admin.url: {tries.reason}") from None


def spans(options: ReadOptions, topic: str) -> list[Span] | None:
    """A topic's ledgers, if the admin interface is known and reports them."""
    stats = admin_get(options, topic, "internalStats") if options.admin_url else None
    if not isinstance(stats, dict) or not stats.get("ledgers"):
        return None
    ledgers = stats["ledgers"]
    held = [Span(ledger["ledgerId"], ledger["entries"]) for ledger in ledgers]
    # The ledger that is open says 0 there; its own count comes separately.
    if held[-1].entries == 0:
        held[-1] = Span(held[-1].ledger, stats.get("currentLedgerEntries", 0))
    return held
