"""Patterns of topics' names: what they match, what is refused, and that no pattern is slow."""

import random
import re

import pytest

from magnetar.core.automata import CELLS_MAX, CODES_MAX, flipped
from magnetar.core.patterns import PatternNotValid, TopicPattern

BEFORE = "public/default/"

MATCHES = [
    ("persistent://public/default/a.*", ["a", "abc", "a-partition"], ["b", "ba", ""]),
    ("public/default/a.*", ["a", "abc"], ["b"]),
    ("non-persistent://public/default/a", ["a"], ["aa"]),
    ("(?i)persistent://public/default/Foo", ["foo", "FOO"], ["fo"]),
    (".*", ["", "x", "ä", "\U0001f600"], []),
    ("[a-z]+/[a-z]+/x", ["x"], ["y"]),
    ("public/default/\\Qa.b*\\E+", ["a.b*", "a.b***"], ["axb*", "a.b"]),
    ("public/default/\\Qa.b", ["a.b"], ["axb"]),
    ("public/default/(a|b)+-\\d{2,3}", ["ab-12", "b-123"], ["ab-1", "c-12", "a-1234"]),
    ("public/default/[^a-c]x", ["dx", "éx", "-x"], ["ax", "x"]),
    ("public/default/[-a][b-][\\d.]", ["-b1", "a-."], ["bb1", "abx"]),
    ("public/default/\\w\\W\\s\\S\\D", ["a- -x", "_. ää"], ["--  x", "a- -1"]),
    ("^public/default/a$", ["a"], ["ab"]),
    ("\\Apublic/default/a\\z", ["a"], ["b"]),
    ("public/default/a^b|public/default/a$b", [], ["ab", "a"]),
    ("public/default/(^|x)a($|y)", ["xa", "xay"], ["a", "ay", "xayy"]),
    ("public/default/(?:a(?i)b)c", ["abc", "aBc"], ["aBC", "Abc"]),
    ("public/default/(?i:a(?-i)b)", ["ab", "Ab"], ["AB"]),
    ("public/default/(?<one>a)(?P<two>b)(c)", ["abc"], ["ab"]),
    ("public/default/a|", ["a"], ["b"]),
    ("public/default/(|a)*b", ["b", "aab"], ["c"]),
    ("public/default/a{0}b{2}c{1,}d{0,1}e??", ["bbc", "bbccde"], ["abbc", "bc", "bbcdd"]),
    ("public/default/\\x41\\x{e9}\\u0042\\.", ["AéB."], ["AeB.", "AéBx"]),
    ("public/default/[\\x{10000}-\\x{10ffff}]", ["\U0001f600"], ["x", "\uffff"]),
]


@pytest.mark.parametrize(("pattern", "those", "others"), MATCHES, ids=[one[0] for one in MATCHES])
def test_what_matches(pattern: str, those: list[str], others: list[str]) -> None:
    made = TopicPattern(pattern)
    behind = made.behind(BEFORE)
    for name in those:
        assert made.matches(BEFORE + name) and behind.matches(name), name
    for name in others:
        assert not made.matches(BEFORE + name) and not behind.matches(name), name


REFUSED = {
    "(": "ends too soon",
    "a)": r"a \) too many at 1",
    "[a": "ends too soon",
    "\\": "ends too soon",
    "*a": "nothing to repeat at 0",
    "a|+": "nothing to repeat at 2",
    "^*": "nothing to repeat",
    "a**": "repeated twice",
    "a*+": "repeated twice",  # Java's, that give nothing back
    "a{2}{3}": "repeated twice",
    "a{2": "or is written",
    "a{,3}": "or is written",
    "a{3,2}": "not less than the least",
    "a{1001}": "at most 1000",
    "(?=a)": "no group of this kind",
    "(?!a)": "no group of this kind",
    "(?<=a)": "no group of this kind",
    "(?>a)": "no group of this kind",
    "(?": "no group of this kind",
    "(?x)a": "flags 'x'",
    "(a)\\1": r"\\1 is not served",
    "\\ba": r"\\b is not served",
    "\\p{L}": r"\\p is not served",
    "\\x4": r"\\x is not served",
    "\\x{110000}": r"\\x is not served",
    "[[:alpha:]]": r"\[ and && inside",
    "[a&&b]": r"\[ and && inside",
    "[]a]": "the first",
    "[z-a]": "no range",
    "[a-\\d]": "no range",
    "[\\d-a]": "no range",
    "\\Q\\E": "an empty quotation",
    "(?i)é": "where case does not count",
    "http://public/default/a": "in front of ://",
    "persistent://a://b": "in front of ://",
    "(" * 51 + ")" * 51: "in each other",
    "((a{999}){999})": "too complex",
    ".*(a|b).{12}": "too complex",
    "(.*a){300}.*b": "too complex",
}


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_is_refused(pattern: str) -> None:
    with pytest.raises(PatternNotValid, match=REFUSED[pattern]) as caught:
        TopicPattern(pattern)
    assert "\n" not in str(caught.value) and str(caught.value).isascii() and len(str(caught.value)) < 250


def expression(chance: random.Random, depth: int) -> str:
    """Any of those that mean the same to Python."""
    kind = chance.random()
    if depth == 0 or kind < 0.3:
        return chance.choice(["a", "b", "c", ".", "[ab]", "[^a]", "\\w", "\\.", "-", "^", "$", ""])
    if kind < 0.5:
        return expression(chance, depth - 1) + expression(chance, depth - 1)
    if kind < 0.65:
        return f"({expression(chance, depth - 1)}|{expression(chance, depth - 1)})"
    if kind < 0.85:
        many = chance.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}?", "{1,}", "+?"])
        return f"(?:{expression(chance, depth - 1)}){many}"
    return "".join(expression(chance, depth - 1) for _ in range(3))


@pytest.mark.parametrize("seed", range(200))
def test_the_same_as_python_finds(seed: int) -> None:
    chance = random.Random(seed)
    text = expression(chance, 4)
    made, twin = TopicPattern(text), re.compile(text, re.ASCII)
    assert made.cells <= CELLS_MAX
    for _ in range(30):
        name = "".join(chance.choices("abc.-xé", k=chance.randrange(8)))
        wanted = twin.fullmatch(name) is not None
        assert made.matches(name) is wanted, (text, name)
        cut = chance.randrange(len(name) + 1)
        assert made.behind(name[:cut]).matches(name[cut:]) is wanted, (text, name, cut)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*)*b", ".*.*.*.*.*.*.*.*.*.*b", "(a?){60}b|a+b"]
)
def test_patterns_that_take_others_for_ever(pattern: str) -> None:
    """Python's `re` is at the shortest of these until the end of the world."""
    made = TopicPattern(pattern)
    assert not made.matches("a" * 512)
    assert made.matches("a" * 100 + "b")


@pytest.mark.parametrize(
    "pattern",
    [
        "persistent://public/default/" + "|".join(f"department-{number}-orders-.*" for number in range(40)),
        "persistent://public/default/(" + "|".join(f"[a-z]+-{number:03}-.*" for number in range(60)) + ")",
        "persistent://acme/production/" + "long-" * 90 + "[0-9]{1,8}",
        "persistent://acme/production/.*(alpha|beta|gamma|delta)-(us|eu|ap)-.*(orders|payments)-v[0-9]+(-[a-z]{2,8})?",
    ],
)
def test_long_ones_of_people_are_served(pattern: str) -> None:
    assert TopicPattern(pattern).cells < CELLS_MAX


def test_a_flip_is_everything_else() -> None:
    assert flipped(()) == ((0, CODES_MAX),)
    assert flipped(((0, CODES_MAX),)) == ()
    assert flipped(((5, 9), (3, 6), (0, 0))) == ((1, 2), (10, CODES_MAX))
    assert flipped(flipped(((3, 6), (5, 9)))) == ((3, 9),)
