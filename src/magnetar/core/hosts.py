"""Parsing of hosts and ports that a user wrote as text."""

from typing import Final

from magnetar.core.numbers import whole_number

HOST_CHARACTERS_MAX: Final = 253
"""The longest name in the domain name system."""


def is_host(text: str) -> bool:
    """Whether a text may be a host's name or address, an IPv6 one without its brackets: one that can be looked up at all."""
    if not text or len(text) > HOST_CHARACTERS_MAX:
        return False
    if any(character.isspace() or not character.isprintable() or character in "/[]" for character in text):
        return False
    try:
        text.encode("idna")  # as sockets do, which raise no OSError for an empty or too long label
    except UnicodeError:
        return False
    return True


def port_of(text: str) -> int:
    """The TCP port in a text; 0 if the text is not one."""
    number = whole_number(text) or 0
    return number if number < 65536 else 0
