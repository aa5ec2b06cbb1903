"""Protocol versions: the commands that a peer of a version may be sent (docs/design/pulsar.md#versions).

A version says what the peer understands; both sides use the smaller of the two. No old client is refused: commands that
it does not understand are not sent.
"""

from typing import Final

PROTOCOL_VERSION: Final = 21
"""The newest version that Magnetar speaks."""

LAST_MESSAGE_ID_VERSION: Final = 12
"""The lowest version with GET_LAST_MESSAGE_ID, ACTIVE_CONSUMER_CHANGE, GET_TOPICS_OF_NAMESPACE, and acknowledgements of
many ids.
"""

AUTH_CHALLENGE_VERSION: Final = 14
ACK_RECEIPT_VERSION: Final = 17
BROKER_ENTRY_METADATA_VERSION: Final = 18
TOPIC_MIGRATED_VERSION: Final = 20

_PUSHED_FROM: Final[dict[int, int]] = {
    31: LAST_MESSAGE_ID_VERSION,  # ACTIVE_CONSUMER_CHANGE
    36: AUTH_CHALLENGE_VERSION,  # AUTH_CHALLENGE
    68: TOPIC_MIGRATED_VERSION,  # TOPIC_MIGRATED
}

_NEVER_PUSHED: Final = frozenset((27, 66))
"""REACHED_END_OF_TOPIC and WATCH_TOPIC_UPDATE: the C++ client closes its connection when it receives them, and no
version says whether the peer is a C++ client (docs/design/pulsar.md#connection). A client's name may say it
(`broker.connection.Connection.learns_end`), and a client that asked for updates (WATCH_TOPIC_LIST)
understands them.
"""


def agreed(peer_version: int) -> int:
    """The version that both sides use; an impossible one counts as 0."""
    return max(0, min(peer_version, PROTOCOL_VERSION))


def may_push(command_type: int, version: int) -> bool:
    """Whether a command that the peer did not ask for may be sent to a peer of an agreed version."""
    return command_type not in _NEVER_PUSHED and version >= _PUSHED_FROM.get(command_type, 0)
