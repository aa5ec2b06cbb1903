"""Patterns of topics' names: what they match, what is refused, and that no pattern is slow."""

import pytest

from magnetar.core.patterns import MATCHING_STEPS, PatternNotValid, TopicPattern

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
    ("public/default/\\x41\\x{e9}B\\.", ["AéB."], ["AeB.", "AéBx"]),
    ("public/default/[\\x{10000}-\\x{10ffff}]", ["\U0001f600"], ["x", "\uffff"]),
]


@pytest.mark.parametrize(("pattern", "those", "others"), MATCHES, ids=[one[0] for one in MATCHES])
def test_what_matches(pattern: str, those: list[str], others: list[str]) -> None:
    made = TopicPattern(pattern)
    for name in those:
        assert made.matches(BEFORE + name), name
    for name in others:
        assert not made.matches(BEFORE + name), name


REFUSED = {
    "(": "missing [)]",
    "a)": "unexpected [)]",
    "[a": "missing ]",
    "\\": "trailing",
    "*a": "no argument for repetition operator",
    "a|+": "no argument for repetition operator",
    "a*+": "bad repetition operator",  # Java's, that give nothing back
    "a{3,2}": "invalid repetition size",
    "a{1001}": "invalid repetition size",
    "(?=a)": "invalid perl operator",
    "(?!a)": "invalid perl operator",
    "(?<=a)": "invalid",
    "(?>a)": "invalid perl operator",
    "(a)\\1": "invalid escape sequence",
    "[z-a]": "invalid character class range",
    "http://public/default/a": "before ://",
    "persistent://a://b": "before ://",
    "((a{99}){99})": "invalid repetition size",
    ".*a.{1000}": "too large",
    "(?i)é(": "missing",
}


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_is_refused(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PatternNotValid, match=REFUSED[pattern]) as caught:
        TopicPattern(pattern)
    assert "\n" not in str(caught.value) and str(caught.value).isascii() and len(str(caught.value)) < 250
    assert capfd.readouterr().err == "", "nor does the library write a line of its own"


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
    made = TopicPattern(pattern)
    assert not made.matches("public/default/")
    assert made.making_steps < 2_000


def test_a_larger_program_counts_for_more() -> None:
    small, large = TopicPattern("a.*"), TopicPattern("(.*a){200}.*b")
    assert MATCHING_STEPS <= small.matching_steps < 30
    assert 500 < large.matching_steps < 2_000
