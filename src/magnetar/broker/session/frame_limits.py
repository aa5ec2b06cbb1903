"""The largest frames that a broker accepts, by what it knows of the sender."""

from typing import Final, NamedTuple

from magnetar.core.security import Security
from magnetar.core.settings import BrokerConfig
from magnetar.wire.frames import FRAME_PADDING_BYTES

LINK_FRAME_EXTRA_BYTES: Final = 8 * 1024 * 1024
"""Links carry many entries in a frame: in addition to their bytes, the command with some 40 bytes for each."""

LOGIN_FRAME_EXTRA_BYTES: Final = 64 * 1024
"""A ceiling on a frame before CONNECT is answered, in addition to the tokens in it: names, addresses, a certificate's.
Unknown clients must not be able to make ten thousand connections hold the largest message each.
"""


class FrameLimits(NamedTuple):
    """Limits in bytes.

    Attributes:
        login: a frame before CONNECT is accepted.
        client: a frame of a client.
        command: the command in it.
        link: a frame of a link.
    """

    login: int
    client: int
    command: int
    link: int


def frame_limits(config: BrokerConfig, security: Security) -> FrameLimits:
    """The limits that follow from the configuration."""
    # A proxy's CONNECT has two tokens: its own, and that of whom it speaks for.
    tokens = 2 * security.authentication.token_bytes_max
    return FrameLimits(
        login=LOGIN_FRAME_EXTRA_BYTES + tokens,
        client=config.message_bytes_max + FRAME_PADDING_BYTES,
        command=max(config.command_bytes_max, tokens),
        link=config.link_read_bytes_max + config.message_bytes_max + LINK_FRAME_EXTRA_BYTES,
    )
