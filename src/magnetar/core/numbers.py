"""Parsing of numbers that a user wrote as text."""

from typing import Final

DIGITS_MAX: Final = 19
"""A ceiling: 2^63 has 19 digits; longer texts are not parsed at all, which takes long, and from 4,300 digits on is an error."""


def whole_number(text: str) -> int | None:
    """A whole number from 0 to 2^63-1; None when a text is no such number."""
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        return None
    number = int(text)
    return number if number < 2**63 else None
