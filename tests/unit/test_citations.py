"""Citations resolve: every page and anchor that code or a page names is there, and nothing outside the repository is named.

What a citation looks like: `docs/design/links.md#handshake` in code, `[handshake](links.md#handshake)` in a page.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).resolve()

NO_CODE: Final = frozenset({"docs", "data", "build", "dist"})
"""Folders at the root that hold no code; neither do hidden ones."""

SUFFIXES: Final = frozenset({".py", ".proto", ".pyi", ".toml", ".txt", ".sh"})
PAGES: Final = (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md")

CITED: Final = re.compile(r"(?<![\w./-])docs/[\w./-]+\.md(?:#[\w-]+)?")
"""A page from the root of the repository on, as code cites it."""

LINK: Final = re.compile(r"\]\(([^()\s]+)\)")
"""Where a link of a page leads."""

CODES_PAGES: Final = (ROOT / "docs" / "design" / "README.md", *(ROOT / "docs" / "decisions").glob("0044-*.md"))
"""The pages that may name the codes that older commits use."""

OUTSIDE: Final = re.compile(
    r"""
    \.\./shared\b | \bshared/(?:design|model)\b     # the folder beside the repository in which the design was written
    | \bFINDINGS\b | \bpulsar-facts\b               # pages of it
    | \(design,\ part | \bof\ the\ design\b         # its chapters
    | \bE1-E\d+\b | \bD1-D\d\b                      # codes of its rules
    | \((?:[A-H]\.?\d{1,2})(?:,\ [A-H]\.?\d{1,2})*\)
    """,
    re.VERBOSE,
)


class Citation(NamedTuple):
    """A page that is named somewhere.

    Attributes:
        where: file and line, for the failure.
        page: what is named.
        anchor: of the page; "": none.
    """

    where: str
    page: Path
    anchor: str


def code() -> Iterator[Path]:
    """All files of code, but for this one, which has examples of what is wrong."""
    for folder in sorted(ROOT.iterdir()):
        if folder.is_dir() and folder.name not in NO_CODE and not folder.name.startswith("."):
            for path in sorted(folder.rglob("*")):
                if path.suffix in SUFFIXES and path != HERE and "__pycache__" not in path.parts:
                    yield path


def lines(paths: Iterator[Path] | tuple[Path, ...]) -> Iterator[tuple[Path, int, str]]:
    """Path, number and text of every line."""
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            yield path, number, line


def citations() -> Iterator[Citation]:
    """Everything that is cited."""
    for path, number, line in lines(code()):
        for found in CITED.finditer(line):
            page, _, anchor = found[0].partition("#")
            yield Citation(f"{path.relative_to(ROOT)}:{number}", ROOT / page, anchor)
    for path, number, line in lines(PAGES):
        for found in LINK.finditer(line):
            target, _, anchor = found[1].partition("#")
            if "://" not in target and not target.startswith("mailto:"):
                page = (path.parent / target).resolve() if target else path
                yield Citation(f"{path.relative_to(ROOT)}:{number}", page, anchor)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Those that are written into a page, and those that GitHub makes of its headings."""
    found: set[str] = set()
    fenced = False
    for line in page.read_text(encoding="utf-8").splitlines():
        fenced ^= line.startswith("```")
        found.update(re.findall(r'<a id="([\w-]+)"></a>', line))
        if not fenced and (heading := re.match(r"#+ (.*)", line)):
            found.add(slug(heading[1]))
    return frozenset(found)


def slug(heading: str) -> str:
    """What GitHub calls a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_citation_resolves() -> None:
    missing = [
        f"{where}: {page}#{anchor}"
        for where, page, anchor in citations()
        if not page.exists() or (anchor and page.suffix == ".md" and anchor not in anchors(page))
    ]
    assert not missing, "\n".join(missing)


def test_there_is_something_to_resolve() -> None:
    assert sum(1 for citation in citations() if citation.anchor) > 100


def test_nothing_outside_of_the_repository_is_cited() -> None:
    outside = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, number, line in lines((*code(), *(page for page in PAGES if page not in CODES_PAGES)))
        if OUTSIDE.search(line)
    ]
    assert not outside, "\n".join(outside)


def test_code_names_pages_from_the_root_on() -> None:
    """A bare `links.md` could be one of two pages; links inside of generated pages are the exception."""
    bare = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, number, line in lines(tuple(path for path in code() if path.is_relative_to(ROOT / "src")))
        if re.search(r"(?<![\w./-])(?!README|CHANGELOG)[\w-]+\.md\b", line) and "](" not in line
    ]
    assert not bare, "\n".join(bare)


@pytest.mark.parametrize("line", [
    "(FINDINGS A2)", "(A8)", "(E9, E10)", "(B7): all tell all", "see ../shared/model/chain.py", "(pulsar-facts F.3)",
    "(design, part 2)", "rules E1-E11", "(A.2)",
])  # fmt: skip
def test_what_counts_as_outside(line: str) -> None:
    assert OUTSIDE.search(line)


@pytest.mark.parametrize("line", ["by design.", "(B)", "(C, S, gen)", "U64, U64", "(F1-score)", "(E0102)"])
def test_what_does_not(line: str) -> None:
    assert not OUTSIDE.search(line)


def test_planted_bugs_that_pages_name_are_planted() -> None:
    named = {
        name
        for page in sorted((ROOT / "docs" / "design").glob("*.md"))
        for sentence in re.findall(r"Planted\s+bugs?(?:\s[a-z\s]+)?:\s([^.]*)\.", page.read_text(encoding="utf-8"))
        for name in re.findall(r"`(\w+)`", sentence)
    }
    planted = {
        name
        for path in code()
        if re.search("bug|plant", str(path.relative_to(ROOT)))
        for name in re.findall(r'"(\w+)"', path.read_text(encoding="utf-8"))
    }
    assert len(named) > 50
    assert named <= planted, sorted(named - planted)


DECISIONS: Final = ROOT / "docs" / "decisions"


def decisions() -> list[Path]:
    return sorted(DECISIONS.glob("[0-9]*.md"))


@pytest.mark.parametrize("page", decisions(), ids=lambda page: page.stem[:4])
def test_a_decision_says_context_decision_and_consequence(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {int(page.stem[:4])}. ")
    parts = [text.find(f"\n**{part}.**") for part in ("Context", "Decision", "Consequence")]
    assert -1 not in parts
    assert parts == sorted(parts)
    assert len(text.splitlines()) < 80, "a page that nobody reads to its end"


def test_the_index_has_every_decision_once() -> None:
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\d+)\]\(([\w-]+\.md)\) \| \S.*\|$", index, re.MULTILINE)
    assert listed == [(str(int(page.stem[:4])), page.name) for page in decisions()]


def test_decisions_that_are_named_by_number_are_there() -> None:
    numbers = {int(page.stem[:4]) for page in decisions()}
    unknown = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, number, line in lines((*code(), *PAGES))
        for found in re.findall(r"\b[Dd]ecisions?[ /]0*(\d+)\b", line)
        if int(found) not in numbers
    ]
    assert not unknown, "\n".join(unknown)
