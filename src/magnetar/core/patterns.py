"""Patterns of topics' names, as pattern consumers bring them: regular expressions that are matched in one pass.

A client's pattern is matched against every topic of a namespace, by the thread that serves everybody. Python's `re` goes
back and tries again, exponentially often for patterns that are made for it. Here a pattern becomes a table once: one row
for each state, one column for each kind of character; then a name costs one look into the table for each character, and
less where the pattern ends in `.*` or can no longer match. What would make too large a table is refused, and so is what
no table can do (references back, looking ahead); a client whose pattern is refused asks for the whole list as before.

    text -> Parser: a tree of nodes -> core.automata: the table

The syntax is what RE2 and Java's own expressions have in common: a client filters with one of them, and must come to the
same result. What they read differently is refused. All of a name has to match. Names hold no line ends, so that `.` is
any character, and `^` and `$` are the ends of the name whatever the flags say.
"""

import re
from typing import Final, NamedTuple

from magnetar.core.automata import CODES_MAX, WORK_MAX, Node, Ranges, Table, TooComplex, build, flipped
from magnetar.core.errors import MagnetarError

REPEATS_MAX: Final = 1000
"""Of what may be repeated in `{n,m}`: RE2's own."""

NESTING_MAX: Final = 50
"""Groups in groups: each is a call in a call here. People's patterns have three."""

SCHEME: Final = "://"

_DIGITS: Final[Ranges] = ((0x30, 0x39),)
_WORDS: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_BLANKS: Final[Ranges] = ((0x09, 0x0D), (0x20, 0x20))
_CLASSES: Final[dict[str, Ranges]] = {
    "d": _DIGITS,
    "D": flipped(_DIGITS),
    "w": _WORDS,
    "W": flipped(_WORDS),
    "s": _BLANKS,
    "S": flipped(_BLANKS),
}
_ANY: Final[Ranges] = ((0, CODES_MAX),)
_CONTROLS: Final = {"t": 9, "n": 10, "f": 12, "r": 13, "a": 7}
_COUNT: Final = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}", re.ASCII)
_GROUP: Final = re.compile(r"\?(?:P?<[A-Za-z]\w*>|([A-Za-z-]*)([:)]))", re.ASCII)
_HEX: Final = re.compile(r"x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})", re.ASCII)
_FLAGS: Final = re.compile(r"[ims]*(?:-[ims]+)?", re.ASCII)


class PatternNotValid(MagnetarError):
    """A pattern that is no regular expression, or none that is served here.

    Args:
        message: one line for the user.
        work: steps that it took to find out, at most.
    """

    def __init__(self, message: str, work: int = 0) -> None:
        super().__init__(message)
        self.work = work


class Matcher(NamedTuple):
    """A pattern whose beginning is matched already: what follows is asked for again and again.

    Attributes:
        table: the pattern's.
        literal: what has to follow, character by character.
        state: behind that.
    """

    table: Table
    literal: str
    state: int

    def matches(self, text: str) -> bool:
        """Whether the pattern ends exactly with this text."""
        return text.startswith(self.literal) and self.table.accepts(text, self.state, len(self.literal))


class TopicPattern:
    """A pattern of names `tenant/namespace/topic`.

    Args:
        text: as the client wrote it, `persistent://public/default/orders-.*` or without the domain.

    Raises:
        PatternNotValid: with the place and the reason.
    """

    __slots__ = ("_table", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._table = build(_Parser(_unquoted(_without_domain(text))).parse())
        except TooComplex as error:
            raise PatternNotValid(f"pattern {_shown(text)} is too complex: {error}", WORK_MAX) from None
        except _Fault as error:
            raise PatternNotValid(f"pattern {_shown(text)} is not valid here: {error}", len(text)) from None

    @property
    def cells(self) -> int:
        """Size of the table."""
        return self._table.cells

    @property
    def work(self) -> int:
        """Steps that it took to make the table; one is about a microsecond."""
        return self._table.work

    def matches(self, text: str) -> bool:
        """Whether all of a text matches."""
        return self._table.accepts(text, self._table.start, 0)

    def behind(self, beginning: str) -> Matcher:
        """The pattern for names that all begin so."""
        state = self._table.run(beginning, self._table.start)
        literal, state = self._table.forced(state)
        return Matcher(self._table, literal, state)


class _Fault(Exception):
    """Why a pattern is refused."""


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")


def _without_domain(text: str) -> str:
    """Patterns are matched against names without `persistent://`, as clients do; what stands in front of that stays."""
    before, separator, behind = text.partition(SCHEME)
    if not separator:
        return text
    for domain in ("non-persistent", "persistent"):
        if before.endswith(domain) and SCHEME not in behind:
            return before.removesuffix(domain) + behind
    raise _Fault("in front of :// stands persistent or non-persistent, once")


def _unquoted(text: str) -> str:
    r"""The same without `\Q...\E`: what is quoted is written with backslashes."""
    if "\\Q" not in text:
        return text
    made: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\":
            made.append(text[at])
            at += 1
        elif text[at + 1 : at + 2] != "Q":
            made.append(text[at : at + 2])
            at += 2
        else:
            end = text.find("\\E", at + 2)
            end = len(text) if end < 0 else end
            if end == at + 2:
                raise _Fault("an empty quotation")
            made += [f"\\{one}" if one.isascii() and not one.isalnum() else one for one in text[at + 2 : end]]
            at = end + 2
    return "".join(made)


class _Parser:
    """Reads an expression into nodes.

    Args:
        text: without quotations.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._fold = False
        self._depth = 0

    def parse(self) -> Node:
        """All of it."""
        node = self._alternatives()
        if self._at < len(self._text):
            raise _Fault(f"a ) too many at {self._at}")
        return node

    # ---------------------------------------------------------------------------------------------------- structure

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        found = self._peek()
        if not found:
            raise _Fault("it ends too soon")
        self._at += 1
        return found

    def _alternatives(self) -> Node:
        fold = self._fold
        choices = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            choices.append(self._sequence())
        self._fold = fold  # flags hold until the end of their group
        return choices[0] if len(choices) == 1 else Node("choice", parts=tuple(choices))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in {"", "|", ")"}:
            part = self._atom()
            if part is not None:
                parts.append(self._repeated(part))
        return Node("sequence", parts=tuple(parts))

    def _atom(self) -> Node | None:
        """The next piece; None where there were only flags."""
        here = self._at
        found = self._next()
        match found:
            case "(":
                return self._group()
            case "[":
                return Node("set", ranges=self._brackets())
            case ".":
                return Node("set", ranges=_ANY)
            case "^":
                return Node("start")
            case "$":
                return Node("end")
            case "\\":
                return self._escape()
            case "*" | "+" | "?" | "{":
                raise _Fault(f"nothing to repeat at {here}")
            case _:
                return self._literal(ord(found))

    def _group(self) -> Node | None:
        if self._peek() != "?":
            return self._inside()
        found = _GROUP.match(self._text, self._at)
        if found is None:
            raise _Fault(f"no group of this kind is served, at {self._at}")
        self._at = found.end()
        if found[2] is None:
            return self._inside()
        if not _FLAGS.fullmatch(found[1]):
            raise _Fault(f"flags {found[1]!r} are not served")
        fold = self._fold
        on, _, off = found[1].partition("-")
        self._fold = ("i" in on or fold) and "i" not in off
        if found[2] == ")":
            return None
        node = self._inside()
        self._fold = fold
        return node

    def _inside(self) -> Node:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise _Fault(f"more than {NESTING_MAX} groups in each other")
        node = self._alternatives()
        self._next()  # a ): alternatives end there, or with the text
        self._depth -= 1
        return node

    def _repeated(self, node: Node) -> Node:
        """A piece with what follows it: `*`, `+`, `?`, `{n,m}`; lazy ones match the same."""
        found = self._peek()
        if not found or found not in "*+?{":
            return node
        if node.kind in {"start", "end"}:
            raise _Fault(f"nothing to repeat at {self._at}")
        least, most = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}.get(found, (0, 0))
        if found != "{":
            self._at += 1
        else:
            count = _COUNT.match(self._text, self._at)
            if count is None:
                raise _Fault(f"{{ repeats, as in {{2,5}}, or is written \\{{, at {self._at}")
            self._at = count.end()
            least = int(count[1])
            most = least if count[2] is None else int(count[3]) if count[3] else -1
            if max(least, most) > REPEATS_MAX or 0 <= most < least:
                raise _Fault(f"repeated {count[0]}: at most {REPEATS_MAX} times, and not less than the least")
        if self._peek() == "?":
            self._at += 1
        if self._peek() and self._peek() in "*+?{":
            raise _Fault(f"repeated twice at {self._at}")
        return Node("repeat", parts=(node,), least=least, most=most)

    # --------------------------------------------------------------------------------------------------- characters

    def _literal(self, code: int) -> Node:
        return Node("set", ranges=self._folded(((code, code),)))

    def _folded(self, ranges: Ranges) -> Ranges:
        """With the other case of ASCII letters, where case does not count. Of other letters clients disagree."""
        if not self._fold:
            return ranges
        more = list(ranges)
        for low, high in ranges:
            if high > 0x7F and (low, high) != (0x80, CODES_MAX):
                raise _Fault("letters beyond ASCII where case does not count")
            for first, shift in ((0x41, 32), (0x61, -32)):
                begin, end = max(low, first), min(high, first + 25)
                if begin <= end:
                    more.append((begin + shift, end + shift))
        return tuple(more)

    def _escape(self) -> Node:
        found = self._next()
        if found in _CLASSES:
            return Node("set", ranges=_CLASSES[found])
        if found == "A":
            return Node("start")
        if found in {"z", "Z"}:
            return Node("end")
        return self._literal(self._escaped(found))

    def _escaped(self, found: str) -> int:
        """The character that a backslash and this stand for."""
        if found in _CONTROLS:
            return _CONTROLS[found]
        if found in {"x", "u"}:
            digits = _HEX.match(self._text, self._at - 1)
            if digits is not None and (code := int(digits[1] or digits[2] or digits[3], 16)) <= CODES_MAX:
                self._at = digits.end()
                return code
        if found.isascii() and not found.isalnum():
            return ord(found)
        raise _Fault(f"\\{found} is not served" if found.isprintable() else "an escape that is not served")

    def _brackets(self) -> Ranges:
        """What stands between [ and ], which is read already."""
        flip = self._peek() == "^"
        if flip:
            self._at += 1
        found: list[tuple[int, int]] = []
        if self._peek() == "]":
            raise _Fault(f"] as the first in [] is written \\], at {self._at}")
        while self._peek() != "]":
            one = self._member()
            if isinstance(one, tuple):
                found += one
                continue
            last: int | Ranges = one
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in {"]", ""}:
                self._at += 1
                last = self._member()
            if isinstance(last, tuple) or last < one:
                raise _Fault(f"no range at {self._at}")
            found += self._folded(((one, last),))
        self._at += 1
        return flipped(tuple(found)) if flip else tuple(found)

    def _member(self) -> int | Ranges:
        """One character of a set, or a set in it."""
        here = self._at
        found = self._next()
        if found == "[" or self._text.startswith("&&", here):
            raise _Fault(f"[ and && inside of [] are written with \\, at {here}")
        if found != "\\":
            return ord(found)
        found = self._next()
        if found in _CLASSES:
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                raise _Fault(f"no range at {self._at}")
            return _CLASSES[found]
        return self._escaped(found)
