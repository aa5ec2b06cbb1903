"""Options of the format `pulsar`: names and meaning as in the JVM connector for Spark, checked before anything else happens.

Every mistake is one line that names the option and says what is allowed.
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.core.errors import ConfigError
from magnetar.core.numbers import whole_number
from magnetar.core.secret_file import read_token
from magnetar.spark.connection import Access, split_url
from magnetar.spark.offsets import Positions, decode, full_name

POLL_TIMEOUT_MS: Final = 120_000
"""The time for which a task waits for a broker that neither answers nor fails, as in the JVM connector."""

DISCOVERY_MS: Final = 5_000
"""The interval at which a stream looks for new topics and partitions: one lookup per topic, which is cheap but not
free.
"""

_ACCESS: Final = (
    "service.url",
    "admin.url",
    "pulsar.client.authPluginClassName",
    "pulsar.client.authParams",
    "pulsar.client.tlsTrustCertsFilePath",
    "pulsar.client.tlsAllowInsecureConnection",
    "pulsar.client.tlsHostnameVerificationEnable",
)
READ_OPTIONS: Final = (
    *_ACCESS, "topic", "topics", "topicsPattern", "startingOffsets", "endingOffsets", "startingTime", "endingTime",
    "maxMessagesPerTrigger", "maxBytesPerTrigger", "failOnDataLoss", "pollTimeoutMs", "waitingForNonExistedTopic",
    "topicsDiscoveryIntervalMs", "minPartitions", "allowDifferentTopicSchemas",
)  # fmt: skip
WRITE_OPTIONS: Final = (
    *_ACCESS, "topic", "producerName", "deduplication", "rowOrder", "pulsar.producer.compressionType",
    "pulsar.producer.batchingMaxMessages", "pulsar.producer.batchingMaxBytes", "pulsar.producer.sendTimeoutMs",
)  # fmt: skip
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "path", "queryname", "outputmode", "mode", "__processing_time"})
_STREAM_ONLY: Final = ("maxMessagesPerTrigger", "maxBytesPerTrigger", "topicsDiscoveryIntervalMs")
_BATCH_ONLY: Final = ("endingOffsets", "endingTime", "minPartitions")
_ELSEWHERE: Final = {
    "predefinedsubscription": "progress is in the checkpoint; no subscription is made",
    "subscriptionprefix": "progress is in the checkpoint; no subscription is made",
}
COMPRESSIONS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")


@dataclass(frozen=True)
class ReadOptions:
    """The options of a query that reads.

    Attributes:
        topics: full names (partitioned ones by their own); empty with `pattern`.
        pattern: of full topic names, in `namespace`.
        starting: "earliest", "latest", or positions by topic.
        ending: "latest", or positions by topic.
        starting_ms, ending_ms: publish times instead; None: not given.
        messages_max, bytes_max: limits of one trigger; 0: no limit.
        tasks_min: least number of tasks of a batch read, if there are enough entries; 0: by cores.
        raw: topics may have different schemas, and values are binary (`allowDifferentTopicSchemas`).
    """

    access: Access
    admin_url: str
    topics: tuple[str, ...]
    pattern: str
    namespace: str
    starting: "str | Positions"
    ending: "str | Positions"
    starting_ms: int | None
    ending_ms: int | None
    messages_max: int
    bytes_max: int
    fail_on_data_loss: bool
    poll_timeout_ms: int
    wait_for_topics: bool
    discovery_ms: int
    tasks_min: int
    raw: bool


@dataclass(frozen=True)
class WriteOptions:
    """The options of a query that writes.

    Attributes:
        topic: for all rows; "" if the column `__topic` names it.
        producer: the user's part of producer names; "": none.
        deduplication: "auto" (warn when the broker does not), "required" (fail), "off" (no sequence ids across attempts).
        ordered: whether rows are numbered in the order of their content, not in the order of arrival.
        compression: one of `COMPRESSIONS`, as its number.
    """

    access: Access
    admin_url: str
    topic: str
    producer: str
    deduplication: str
    ordered: bool
    compression: int
    messages_max: int
    bytes_max: int
    send_timeout_ms: int


class _Given:
    """The options of a query, whatever the case of their names."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], doing: str) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in known}
        for name in self._values:
            if name in names or name in _SPARKS_OWN:
                continue
            if name in _ELSEWHERE:
                raise ConfigError(f"option {name!r} is not needed: {_ELSEWHERE[name]}; remove it")
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {names[near[0]]!r}?" if near else f"allowed: {', '.join(sorted(known))}"
            raise ConfigError(f"option {name!r} is unknown when {doing}; {hint}")

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name.lower(), default).strip()

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def number(self, name: str, default: int, least: int = 1) -> int:
        given = self.text(name)
        if not given:
            return default
        number = whole_number(given)
        if number is None or number < least:
            raise ConfigError(f"option {name} is {given[:80]!r}: write a whole number, {least} or more")
        return number

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        given = self.text(name, default)
        for value in allowed:
            if given.lower() == value.lower():
                return value
        raise ConfigError(f"option {name} is {given!r}: write {' or '.join(allowed)}")


def _token(params: str) -> str:
    """The token that the option names. A file keeps it out of the options, which plans and Spark's pages may show."""
    if params.startswith("file:"):
        return read_token(
            params.removeprefix("file:").removeprefix("//"), "option pulsar.client.authParams: token file"
        )
    return params.removeprefix("token:")


def _access(given: _Given) -> tuple[Access, str]:
    url = given.text("service.url")
    if not url:
        raise ConfigError("option service.url is missing: write pulsar://host:port")
    for part in Access(url).addresses():
        split_url(part)
    admin = given.text("admin.url").rstrip("/")
    if admin and not re.fullmatch(r"https?://[^/]+(/.*)?", admin):
        raise ConfigError(f"option admin.url is {admin!r}: write http://host:port")
    plugin, params = given.text("pulsar.client.authPluginClassName"), given.text("pulsar.client.authParams")
    if plugin and plugin.rpartition(".")[2] not in ("AuthenticationToken", "token"):
        raise ConfigError("option pulsar.client.authPluginClassName: only AuthenticationToken is supported")
    if params and not params.startswith(("token:", "file:")):
        raise ConfigError("option pulsar.client.authParams: write file:<path of the token>, or token:<the token>")
    if bool(plugin) != bool(params):
        raise ConfigError("options pulsar.client.authPluginClassName and pulsar.client.authParams go together")
    return Access(
        url,
        _token(params),
        given.text("pulsar.client.tlsTrustCertsFilePath"),
        given.flag("pulsar.client.tlsAllowInsecureConnection", False),
        given.flag("pulsar.client.tlsHostnameVerificationEnable", False),
    ), admin


def _topics(given: _Given) -> tuple[tuple[str, ...], str, str]:
    """Names, pattern and its namespace; exactly one way to say it."""
    ways = [name for name in ("topic", "topics", "topicsPattern") if given.has(name)]
    if len(ways) != 1:
        raise ConfigError(
            f"exactly one of the options topic, topics, topicsPattern is needed; given: {', '.join(ways) or 'none'}"
        )
    text = given.text(ways[0])
    if ways[0] != "topicsPattern":
        names = [part.strip() for part in text.split(",")] if ways[0] == "topics" else [text]
        if not all(names):
            raise ConfigError(
                f"option {ways[0]} is {text!r}: write topic names" + ", separated by commas" * (ways[0] == "topics")
            )
        return tuple(dict.fromkeys(full_name(name) for name in names)), "", ""
    whole = re.fullmatch(r"(?:persistent://)?([^/]+)/([^/]+)/(.+)", text)
    tenant, namespace, local = whole.groups() if whole else ("public", "default", text)
    try:
        re.compile(local)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"option topicsPattern is {text[:80]!r}: no regular expression ({error})") from None
    return (), f"persistent://{re.escape(tenant)}/{re.escape(namespace)}/(?:{local})", f"{tenant}/{namespace}"


def _offsets(given: _Given, name: str, words: tuple[str, ...], default: str) -> "str | Positions":
    text = given.text(name, default)
    for word in words:
        if text.lower() == word:
            return word
    wrong = f"option {name} is {text[:80]!r}: write {', '.join(words)} or JSON with a position per topic"
    if not text.startswith("{"):
        raise ConfigError(wrong)
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(wrong) from None
    return decode(value, f"option {name}")


def _not_backwards(start: "str | Positions", end: "str | Positions", from_ms: int | None, until_ms: int | None) -> None:
    """Check that the end is after the start.

    Raises:
        ConfigError: it is not.
    """
    if from_ms is not None and until_ms is not None and until_ms < from_ms:
        raise ConfigError(
            f"options startingTime {from_ms} and endingTime {until_ms} contradict each other: the end is before the start"
        )
    if isinstance(start, str) or isinstance(end, str):
        return
    for topic, position in start.items():
        if topic in end and end[topic].reach < position.reach:
            raise ConfigError(
                f"options startingOffsets and endingOffsets contradict each other: {topic} would end before it starts"
            )


def read_options(options: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Check the options of a query that reads.

    Args:
        options: by name, in any case.
        streaming: whether it is a stream; None: not known yet, what depends on it is not checked.

    Raises:
        ConfigError: one line that names the option.
    """
    given = _Given(options, READ_OPTIONS, "reading")
    for name in () if streaming is None else _BATCH_ONLY if streaming else _STREAM_ONLY:
        if given.has(name):
            raise ConfigError(f"option {name} is for {'batch' if streaming else 'streaming'} queries; remove it")
    for one, other in (("startingOffsets", "startingTime"), ("endingOffsets", "endingTime")):
        if given.has(one) and given.has(other):
            raise ConfigError(f"options {one} and {other} contradict each other: give one of them")
    access, admin = _access(given)
    topics, pattern, namespace = _topics(given)
    start = _offsets(given, "startingOffsets", ("earliest", "latest"), "latest" if streaming else "earliest")
    if start == "latest" and streaming is False:
        raise ConfigError(
            "option startingOffsets is 'latest': a batch query would read nothing; write earliest or JSON"
        )
    end = _offsets(given, "endingOffsets", ("latest",), "latest")
    from_ms, until_ms = (
        given.number(name, 0, 0) if given.has(name) else None for name in ("startingTime", "endingTime")
    )
    _not_backwards(start, end, from_ms, until_ms)
    return ReadOptions(
        access, admin, topics, pattern, namespace, start, end, from_ms, until_ms,
        given.number("maxMessagesPerTrigger", 0), given.number("maxBytesPerTrigger", 0),
        given.flag("failOnDataLoss", True),
        given.number("pollTimeoutMs", POLL_TIMEOUT_MS),
        given.flag("waitingForNonExistedTopic", False),
        given.number("topicsDiscoveryIntervalMs", DISCOVERY_MS, 0),
        given.number("minPartitions", 0),
        given.flag("allowDifferentTopicSchemas", False),
    )  # fmt: skip


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a query that writes.

    Raises:
        ConfigError: one line that names the option.
    """
    given = _Given(options, WRITE_OPTIONS, "writing")
    access, admin = _access(given)
    topic = given.text("topic")
    if given.has("topic") and not topic:
        raise ConfigError("option topic is empty: write a topic name, or leave it out and fill the column __topic")
    return WriteOptions(
        access, admin, full_name(topic) if topic else "",
        given.text("producerName"),
        given.choice("deduplication", ("auto", "required", "off"), "auto"),
        given.choice("rowOrder", ("stable", "sorted"), "stable") == "sorted",
        COMPRESSIONS.index(given.choice("pulsar.producer.compressionType", COMPRESSIONS, "NONE")),
        given.number("pulsar.producer.batchingMaxMessages", 1000),
        given.number("pulsar.producer.batchingMaxBytes", 128 << 10),
        given.number("pulsar.producer.sendTimeoutMs", 30_000),
    )  # fmt: skip
