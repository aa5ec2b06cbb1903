"""Plain English in the pages for users: words and phrases that make a reader stop are not used.

Code is left out (blocks, and text between backticks), but comments in blocks are prose. Generated pages change in their
generators.
"""

import re
from collections import Counter
from functools import cache
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
PHRASES: Final = {
    r"tells?": "says, shows, reports; a cluster learns",
    r"(?:go|goes|going|gone|went) on": "continue",
    r"any more": "no longer",
    r"by (?:itself|themselves)": "automatically, separately",
    r"pass(?:es|ed|ing)? over": "ignore, skip",
    r"(?:hold|holds|held) up": "delay, block",
    r"(?:look|looks|looked) at": "check, read, compare",
    r"as far as": "if, up to",
    r"from (?:now|then) on": "after that",
    r"some [0-9]": "about",
    r"(?<!there )(?:is|are|was|were) no (?!longer|larger|more|need)": "is not a",
    r"anew|made new": "again",
}
"""Regular expressions of phrases, with what is better."""

BANNED: Final = UNCLEAR | PRIVATE | PHRASES

ALLOWED: Final = re.compile(r"takes? place|in place of|low-water")
"""The field's phrases."""


def comments(block: re.Match[str]) -> str:
    """Of a block of code, only its comments: a line's rest after `#`. Commands' output has none."""
    return "\n".join(re.findall(r"(?:^|\s)# .*$", block[0], re.MULTILINE)) if "console" not in block[0][:12] else ""


def prose(page: Path) -> str:
    """Without blocks of code (but with their comments), quoted code, addresses of links, and names of things in quotes."""
    text = re.sub(r"^```.*?^```", comments, page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?: {4}|\t)(?![-*\d]).*$", comments, text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|<[^>]*>", " ", text)
    return ALLOWED.sub(" ", text)


@cache
def texts() -> dict[str, str]:
    """Page -> its prose."""
    return {page.name: prose(page) for page in PAGES}


def found(word: str) -> Counter[str]:
    """Page -> how often it has a banned word or phrase."""
    banned = re.compile(rf"\b(?:{word})\b", re.IGNORECASE)
    return +Counter({page: len(banned.findall(text)) for page, text in texts().items()})


@pytest.mark.parametrize("word", BANNED)
def test_words_that_make_a_reader_stop_are_not_used(word: str) -> None:
    assert not found(word), f"{word!r} in {dict(found(word))}; better: {BANNED[word]}"


def test_comments_in_blocks_are_prose() -> None:
    block = "Text.\n\n```toml\na = 1  # nobody\n```\n\n    command  # somebody\n\n```console\n$ run\nwhoever\n```\n"
    text = re.sub(r"^```.*?^```", comments, block, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ {4}.*$", comments, text, flags=re.MULTILINE)
    assert text.split() == ["Text.", "#", "nobody", "#", "somebody"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_loses_its_prose(page: Path) -> None:
    """What is left out is code: most of a page has to remain, or the test sees nothing."""
    assert len(prose(page).split()) > 50
