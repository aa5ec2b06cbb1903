"""Patterns of topic names, as pattern consumers send them: RE2 regular expressions, which are matched in one pass.

A client's pattern is matched against every topic of a namespace, by the thread that serves all clients. Python's `re`
backtracks, exponentially often for malicious patterns; RE2 takes time in proportion to the name and, at worst, to the
pattern. Pulsar's brokers and Java's client use RE2 as well. Constructs that it does not have (backreferences,
lookahead) are refused, and a client whose pattern is refused asks for the whole list as before.
"""

from typing import Final

import re2

from magnetar.core.errors import MagnetarError

MEMORY_BYTES: Final = 64 * 1024
"""A ceiling on one pattern, its program and what is remembered of matching together: some 2,500 instructions, several times
what a pattern of a thousand letters becomes that repeats nothing. A thousand patterns have 64 MB."""

COMPILING_STEPS: Final = 200
"""The fixed cost of compiling a pattern, in addition to its instructions; a step is about a microsecond."""

MATCHING_STEPS: Final = 4
"""The fixed cost of matching one name."""

STEP_INSTRUCTIONS: Final = 2
"""Instructions that a name takes one step for where RE2 finds no table of states that fits its memory: measured with names of
250 letters and patterns made for it."""

SCHEME: Final = "://"


class PatternNotValid(MagnetarError):
    """A pattern that is not a regular expression of RE2, or is too large; its message is one line for the user."""


class TopicPattern:
    """A pattern of names `tenant/namespace/topic`.

    Args:
        text: as the client wrote it, `persistent://public/default/orders-.*` or without the domain.

    Attributes:
        instructions: of the program that RE2 made of it; its size.

    Raises:
        PatternNotValid: with the reason.
    """

    __slots__ = ("_compiled", "instructions", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        options = re2.Options()
        options.max_mem = MEMORY_BYTES
        options.never_capture = True
        options.log_errors = False  # to stderr
        try:
            self._compiled = re2.compile(_without_domain(text), options)
        except re2.error as error:
            said = error.args[0] if error.args else ""
            reason = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
            raise PatternNotValid(f"pattern {_shown(text)} is not valid here: {ascii(reason)[1:-1]}") from None
        self.instructions: int = self._compiled.programsize

    @property
    def making_steps(self) -> int:
        """The cost of compiling the pattern."""
        return COMPILING_STEPS + self.instructions

    @property
    def matching_steps(self) -> int:
        """The highest cost of matching one name."""
        return MATCHING_STEPS + self.instructions // STEP_INSTRUCTIONS

    def matches(self, text: str) -> bool:
        """Whether all of a text matches."""
        return self._compiled.fullmatch(text) is not None


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")


def _without_domain(text: str) -> str:
    """Remove `persistent://`: patterns are matched against names without it, as clients do. Text before the prefix
    stays.
    """
    before, separator, behind = text.partition(SCHEME)
    if not separator:
        return text
    for domain in ("non-persistent", "persistent"):
        if before.endswith(domain) and SCHEME not in behind:
            return before.removesuffix(domain) + behind
    raise PatternNotValid(
        f"pattern {_shown(text)} is not valid here: before :// write persistent or non-persistent, once"
    )
