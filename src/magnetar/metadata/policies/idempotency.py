"""Idempotency keys as a policy of a namespace or a topic; Pulsar has none (docs/design/deduplication.md#idempotency-keys)."""

from typing import Annotated, Final

from msgspec import Meta, Struct

WINDOW_S_MAX: Final = 7 * 24 * 3600
"""A ceiling: the log of a window is kept, and is read again after a crash."""

KEYS_MAX: Final = 20_000_000
"""A ceiling on the keys of one topic: some 40 bytes each, kept in memory."""

PROPERTY_CHARACTERS_MAX: Final = 256
"""A ceiling on the name of the property: it is compared with every property of every message."""


class IdempotencyPolicy(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The message property with the idempotency key, and the time for which keys are remembered.

    Attributes:
        property: name of the message property.
        window_seconds: time for which a key is remembered after its message was stored; 1 s to 7 days.
        keys_max: keys remembered per topic or partition; beyond it the oldest is forgotten. A million: some 40 MB.
        enabled: false: no keys, so that a topic can differ from its namespace.
    """

    property: Annotated[str, Meta(min_length=1, max_length=PROPERTY_CHARACTERS_MAX)] = "idempotency-key"
    window_seconds: Annotated[int, Meta(ge=1, le=WINDOW_S_MAX)] = 3600
    keys_max: Annotated[int, Meta(ge=1, le=KEYS_MAX)] = 1_000_000
    enabled: bool = True
