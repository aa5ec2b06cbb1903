"""Plain English in the pages for users: words that make a reader stop, as ceilings that only fall.

Code is left out: blocks, and what stands between backticks. Generated pages change in their generators.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = (
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
)

UNCLEAR: Final = {
    "whoever": "name who it is: a client that, a cluster that",
    "whomever": "name who it is",
    "nobody": "turn the sentence round: no client, no cluster, or the passive",
    "somebody": "a client, an operator, another cluster",
    "anybody": "a client, an operator, any cluster",
    "everybody": "every client, all clusters",
    "anew": "again",
    "in vain": "without success, or what happened",
    "beside": "in addition to, compared with, while",
}
PRIVATE: Final = {
    "told": "say who sends what: learns, gets, is sent, published, written",
    "desk": "SharedState",
    "book": "PipelineState",
    "teller": "CommitSender",
    "greeter": "HandshakeWorker",
    "seat": "the host of a machine",
    "cover": "the verb: contains, includes; or the checkpoint",
    "waters": "low-water marks",
    "lives": "incarnations, or the verb: runs, is, lies",
    "place": "position",
}
CEILINGS: Final = dict.fromkeys(UNCLEAR | PRIVATE, 0)
"""How often each may stand there. A ceiling only falls."""

ALLOWED: Final = re.compile(r"takes? place|in place of|low-water")
"""The field's phrases."""


def prose(page: Path) -> str:
    """Without blocks of code, quoted code, addresses of links, and names of things in quotes."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?: {4}|\t)(?![-*\d]).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|<[^>]*>", " ", text)
    return ALLOWED.sub(" ", text)


def found() -> dict[str, Counter[str]]:
    """Word -> page -> how often."""
    counts: dict[str, Counter[str]] = {word: Counter() for word in CEILINGS}
    for page in PAGES:
        text = prose(page)
        for word, pages in counts.items():
            if number := len(re.findall(rf"\b{word}\b", text, re.IGNORECASE)):
                pages[page.name] = number
    return counts


@pytest.mark.parametrize("word", CEILINGS)
def test_words_that_make_a_reader_stop_only_become_fewer(word: str) -> None:
    pages = found()[word]
    better = (UNCLEAR | PRIVATE)[word]
    assert pages.total() <= CEILINGS[word], f"{word!r} in {dict(pages)}; better: {better}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_loses_its_prose(page: Path) -> None:
    """What is left out is code: most of a page has to remain, or the test sees nothing."""
    assert len(prose(page).split()) > 50
