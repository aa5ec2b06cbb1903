"""Plain English in the sources: docstrings and comments have none of the patterns that make a reader stop, but for `KEPT`.

The messages that the sources print still have some; there the patterns only become fewer.

`tests/unit/test_words.py` does the same for the pages. Text between backticks and the names of parameters are left out.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.support.sources import PACKAGE

UNCLEAR: Final = {
    "person": (r"\b(nobody|somebody|anybody|everybody|whoever|whomever)\b", "nobody is served"),
    "told": (r"\b(tells?|told)\b", "it is told"),
    "life": (r"\b(lives|life)\b", "a life of it"),
    "place": (r"\bplaces?\b", "the place of a cursor"),
    "beside": (r"\bbesides?\b", "beside the log"),
    "anew": (r"\banew\b", "made anew"),
    "behind": (r"\bbehind\b", "the entry behind it"),
    "go on": (r"\b(go(es|ing)? on|went on)\b", "it goes on"),
    "any more": (r"\bany ?more\b", "not any more"),
    "so much": (r"\bso (many|much|long)\b(?! as)", "for so long"),
    "pass over": (r"\bpass(es|ed|ing)? over\b", "passed over"),
    "opener": (r"\A(What|Who|Whose|Whom|Of)\b", "What it is"),
}
"""Name -> (pattern, a text that has it)."""

BETTER: Final = {
    "person": "name who it is, or use the passive",
    "told": "reports, announces, answers, sends; distinguishes",
    "life": "incarnation, data folder, run; the verb: is, exists, runs",
    "place": "position, location, slot, index",
    "beside": "in addition to, next to, while",
    "anew": "again",
    "behind": "after, later than; only a lag may be 'behind'",
    "go on": "continues",
    "any more": "no longer, from now on",
    "so much": "this many, for this time",
    "pass over": "ignores, skips",
    "opener": "begin with a noun or a verb: the keys of ..., check that ...",
}

KEPT: Final[dict[tuple[str, str], int]] = {
    # a clock, a file, a cluster or a link that lags is behind
    ("cli", "behind"): 2,
    ("core", "behind"): 2,
    ("storage", "behind"): 1,
}
"""(package, name of a pattern) -> how often the docstrings and comments of the package may have it. Only falls."""

MESSAGES: Final = {
    "person": 10,
    "told": 2,
    "life": 1,
    "place": 7,
    "beside": 0,
    "anew": 0,
    "behind": 25,
    "go on": 1,
    "any more": 0,
    "so much": 0,
    "pass over": 1,
    "opener": 0,
}
"""How often it may stand in literals of more than one word, which is what the sources print. Only falls."""

ALLOWED: Final = re.compile(r"takes? place|in place of", re.IGNORECASE)
"""The field's phrases."""

Counts = dict[str, Counter[tuple[str, str]]]
"""Name of a pattern -> (package, file:line) -> how often."""


def plain(text: str) -> str:
    """Without quoted code, the field's phrases, and names of parameters in front of their descriptions."""
    text = re.sub(r"`[^`]*`", " ", text)
    text = re.sub(r"^ +\w+(, \w+)*: ", " ", text, flags=re.MULTILINE)
    return ALLOWED.sub(" ", re.sub(r"\s*\n\s*", " ", text).strip())


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Those of modules, classes and functions, and of attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement.value


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments, those on consecutive lines as one: line, text."""
    block: list[str] = []
    line = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != line + 1:
            yield line, plain("\n".join(block))
            block = []
        line = token.start[0]
        block.append(token.string.lstrip("# "))
    if block:
        yield line, plain("\n".join(block))


def notes(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and comments: line, text."""
    source = path.read_text(encoding="utf-8")
    for constant in docstrings(ast.parse(source)):
        yield constant.lineno, plain(str(constant.value))
    yield from comments(source)


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Literals of more than one word that are no docstrings, and the fixed parts of f-strings: line, text."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    known = set(docstrings(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in known:
            if " " in node.value.strip():
                yield node.lineno, plain(node.value)


def package_of(path: Path) -> str:
    """`broker` has one for each of its rooms."""
    parts = path.relative_to(PACKAGE).parts
    return "/".join(parts[:2]) if parts[0] == "broker" and len(parts) > 2 else parts[0]


@cache
def counted() -> tuple[Counts, Counts]:
    """In docstrings and comments, and in messages."""
    found: tuple[Counts, Counts] = ({name: Counter() for name in UNCLEAR}, {name: Counter() for name in UNCLEAR})
    for path in sorted(PACKAGE.rglob("*.py")):
        package = package_of(path)
        if path.name.endswith("_pb2.py"):
            continue
        for counts, texts in zip(found, (notes(path), messages(path)), strict=True):
            for line, text in texts:
                for name, (pattern, _) in UNCLEAR.items():
                    if number := len(re.findall(pattern, text, 0 if name == "opener" else re.IGNORECASE)):
                        counts[name][package, f"{path.relative_to(PACKAGE)}:{line}"] += number
    return found


@pytest.mark.parametrize("name", UNCLEAR)
def test_docstrings_and_comments(name: str) -> None:
    found: dict[str, Counter[str]] = {}
    for (package, where), number in counted()[0][name].items():
        found.setdefault(package, Counter())[where] += number
    for package, here in sorted(found.items()):
        assert here.total() <= KEPT.get((package, name), 0), f"{dict(here)}; better: {BETTER[name]}"


@pytest.mark.parametrize("name", UNCLEAR)
def test_messages(name: str) -> None:
    found = counted()[1][name]
    assert found.total() <= MESSAGES[name], f"{dict(found)}; better: {BETTER[name]}"


@pytest.mark.parametrize("name", UNCLEAR)
def test_a_pattern_finds_its_example(name: str) -> None:
    pattern, example = UNCLEAR[name]
    assert re.search(pattern, plain(example))


def test_the_sources_have_prose() -> None:
    """A reader that sees no text would find nothing."""
    texts = [text for path in sorted((PACKAGE / "wire").glob("*.py")) for _, text in notes(path)]
    assert len(texts) > 300 and sum(len(text.split()) for text in texts) > 3_000
    assert sum(1 for path in (PACKAGE / "cli").rglob("*.py") for _ in messages(path)) > 200
