"""Citations resolve: every page and anchor that code or a page names is there.

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
    assert sum(1 for citation in citations() if citation.anchor) > 60


def test_planted_bugs_that_pages_name_are_planted() -> None:
    named = {
        name
        for page in sorted((ROOT / "docs" / "design").glob("*.md"))
        for sentence in re.findall(r"Planted bugs?(?: [a-z ]+)?: ([^.]*)\.", page.read_text(encoding="utf-8"))
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
