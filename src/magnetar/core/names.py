"""The grammar of all names.

A topic is `persistent://tenant/namespace/local`; the short forms `local` and `tenant/namespace/local` are completed
with `persistent://public/default/`. A partition is the topic name plus `-partition-N`. Names become keys of stores and
parts of URLs, so names that could be mistaken for a path (`.`, `..`, a backslash, a control character) are refused
here, once.
"""

import re
import sys
from functools import lru_cache
from typing import Final, NamedTuple

from magnetar.core.errors import NameNotValid

TOPIC_BYTES_MAX: Final = 512
"""A ceiling: longer names would dominate per-topic memory; Pulsar's own tools break near 255 bytes of path segment."""

LOOKED_UP_BYTES_MAX: Final = 64 * 1024
"""A ceiling on what is looked up as if it were a name: as much as fits into the head of an HTTP request."""

PART_BYTES_MAX: Final = 128
"""A ceiling for tenant, namespace and cluster names."""

SUBSCRIPTION_BYTES_MAX: Final = 256
PRODUCER_BYTES_MAX: Final = 512

PARTITIONS_MAX: Final = 4096
"""A ceiling: one request must not create an unbounded number of topics."""

NAMES_KEPT: Final = 4096
"""Names read last are kept as they were taken apart: brokers ask for the same at every poll. 2 MB at most."""

_PART: Final = re.compile(r"[-=:.\w]+", re.ASCII)
_CLUSTER: Final = re.compile(r"[a-z0-9](?:[a-z0-9_-]*[a-z0-9])?", re.ASCII)
_PARTITION: Final = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})", re.DOTALL)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

RESERVED_SUBSCRIPTIONS: Final = ("pulsar.repl", "pulsar.dedup", "pulsar.metadata", "__compaction")


def _shown(text: str) -> str:
    """A name that may be hostile, safe to print in one line."""
    shown = text if len(text) <= 80 else text[:77] + "..."
    return ascii(shown)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _part(text: str, kind: str, whole: str) -> str:
    if not _PART.fullmatch(text) or text in {".", ".."} or _size(text) > PART_BYTES_MAX:
        raise NameNotValid(
            f"{kind} in {_shown(whole)} is not valid: 1 to {PART_BYTES_MAX} of letters, digits and - = : . _ "
            "(not '.' or '..')"
        )
    return text


class NamespaceName(NamedTuple):
    """`tenant/namespace`."""

    tenant: str
    local: str

    @classmethod
    def parse(cls, text: str) -> "NamespaceName":
        """Read `tenant/namespace`.

        Raises:
            NameNotValid: not two valid parts.
        """
        parts = text.split("/")
        if len(parts) != 2:
            raise NameNotValid(f"namespace {_shown(text)} is not valid: write tenant/namespace")
        return cls(_part(parts[0], "tenant", text), _part(parts[1], "namespace", text))

    def __str__(self) -> str:
        return f"{self.tenant}/{self.local}"


@lru_cache(maxsize=1 << 14)
def _namespace_of(tenant: str, namespace: str) -> NamespaceName:
    """One object for all topics of a namespace: it is asked for each of them whenever policies change."""
    return NamespaceName(tenant, namespace)


@lru_cache(maxsize=1 << 14)
def _valid_namespace(tenant: str, namespace: str) -> bool:
    """Whether both parts are valid; a broker reads the names of a hundred thousand topics at its start."""
    try:
        NamespaceName.parse(f"{tenant}/{namespace}")
    except NameNotValid:
        return False
    return True


class TopicName(NamedTuple):
    """A fully qualified topic name; `partition` is -1 unless it names one partition."""

    domain: str
    tenant: str
    namespace: str
    local: str

    @classmethod
    def parse(cls, text: str) -> "TopicName":
        """Read a topic name, complete or short.

        Raises:
            NameNotValid: the domain is unknown, a part is missing or breaks the grammar, or the name is too long.
        """
        return _topic_name(text)

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"

    @property
    def persistent(self) -> bool:
        """Whether its messages are stored."""
        return self.domain == "persistent"

    @property
    def namespace_name(self) -> NamespaceName:
        """The namespace it belongs to."""
        return _namespace_of(self.tenant, self.namespace)

    @property
    def partition(self) -> int:
        """The partition number, or -1 when the name is not that of a partition."""
        match = _PARTITION.fullmatch(self.local)
        return int(match[2]) if match else -1

    @property
    def base(self) -> "TopicName":
        """The partitioned topic that this partition belongs to; itself if it is not a partition."""
        match = _PARTITION.fullmatch(self.local)
        return self._replace(local=match[1]) if match else self

    def with_partition(self, number: int) -> "TopicName":
        """The name of one partition of this topic."""
        return self._replace(local=f"{self.local}-partition-{number}")


def looked_up(text: str) -> TopicName:
    """The topic that a lookup names.

    Java's clients look up a pattern as if it were a name, to find the broker that watches the matching topics. So the
    part after the namespace of a persistent topic may have characters that no topic name can have, except slashes:
    Java's clients do not accept a pattern with a slash either.

    Raises:
        NameNotValid: neither a topic's name nor a pattern.
    """
    try:
        return TopicName.parse(text)
    except NameNotValid:
        domain, _, rest = text.partition("://")
        parts = rest.split("/", 2)
        if domain != "persistent" or len(parts) != 3 or not parts[2] or _CONTROL.search(text):
            raise
        if "/" in parts[2] or _size(text) > LOOKED_UP_BYTES_MAX:
            raise
        return TopicName(domain, *NamespaceName.parse(f"{parts[0]}/{parts[1]}"), parts[2])


def check_cluster(text: str) -> str:
    """Return a valid cluster name.

    Cluster names become parts of cursor names (`pulsar.repl.<cluster>`) that Pulsar takes apart at dots and at `-->`,
    and cannot hold either.

    Raises:
        NameNotValid: not 1 to 128 lower-case letters, digits, `-` and `_`, starting and ending with a letter or digit.
    """
    if not _CLUSTER.fullmatch(text) or len(text) > PART_BYTES_MAX:
        raise NameNotValid(
            f"cluster name {_shown(text)} is not valid: lower-case letters, digits, '-' and '_' inside, "
            f"at most {PART_BYTES_MAX}"
        )
    return text


def check_tenant(text: str) -> str:
    """Return a valid tenant name.

    Raises:
        NameNotValid: it breaks the grammar of a name's part.
    """
    return _part(text, "tenant", text)


def check_subscription(text: str, *, internal: bool = False) -> str:
    """Return a valid subscription name; the prefixes of internal cursors are refused unless `internal`.

    Raises:
        NameNotValid: empty, too long, with slashes or control characters, or reserved.
    """
    if not text or text in {".", ".."} or _size(text) > SUBSCRIPTION_BYTES_MAX or _CONTROL.search(text):
        raise NameNotValid(
            f"subscription name {_shown(text)} is not valid: "
            f"1 to {SUBSCRIPTION_BYTES_MAX} bytes without control characters"
        )
    if not internal and text.startswith(RESERVED_SUBSCRIPTIONS):
        raise NameNotValid(
            f"subscription name {_shown(text)} is reserved: it starts like one of {RESERVED_SUBSCRIPTIONS}"
        )
    return text


def check_producer(text: str) -> str:
    """Return a valid producer name.

    Raises:
        NameNotValid: empty, too long, or with control characters.
    """
    if not text or _size(text) > PRODUCER_BYTES_MAX or _CONTROL.search(text):
        raise NameNotValid(
            f"producer name {_shown(text)} is not valid: 1 to {PRODUCER_BYTES_MAX} bytes without control characters"
        )
    return text


def link_cursor_name(remote: str) -> str:
    """The name of the cursor of a link, as Pulsar's replicators name theirs."""
    return f"pulsar.repl.{remote}"


@lru_cache(maxsize=NAMES_KEPT)
def _topic_name(text: str) -> TopicName:
    if _size(text) > TOPIC_BYTES_MAX:
        raise NameNotValid(f"topic {_shown(text)} is too long: at most {TOPIC_BYTES_MAX} bytes")
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = "persistent", text
        if "/" not in rest:
            rest = f"public/default/{rest}"
    if domain not in {"persistent", "non-persistent"}:
        raise NameNotValid(f"topic {_shown(text)} is not valid: it starts with persistent:// or non-persistent://")
    parts = rest.split("/", 2)
    if len(parts) != 3:
        raise NameNotValid(f"topic {_shown(text)} is not valid: write {domain}://tenant/namespace/topic")
    tenant, namespace, local = parts
    if not _valid_namespace(tenant, namespace):
        _part(tenant, "tenant", text)
        _part(namespace, "namespace", text)
    # A slash in the local name would make a second name for the same REST path; Pulsar's old five-part names
    # (with a cluster in them) also end here.
    if not local or local in {".", ".."} or "/" in local or "\\" in local or _CONTROL.search(local):
        raise NameNotValid(
            f"topic {_shown(text)} is not valid: the part behind the namespace must not be empty, '.', '..' or "
            "hold slashes or control characters"
        )
    shared = _namespace_of(tenant, namespace)
    return TopicName(sys.intern(domain), shared.tenant, shared.local, local)
