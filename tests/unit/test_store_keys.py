"""The page of formats names every key of the metadata store, and no other."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "storage-format.md"


def in_code() -> set[str]:
    """First parts of the keys that constants of the code begin."""
    found: set[str] = set()
    for path in (ROOT / "src" / "magnetar").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found.update(re.findall(r'^\w*(?:PREFIX|KEY): Final(?:\[str\])? = "([\w-]+)/', text, re.MULTILINE))
    return found


def in_page() -> set[str]:
    section = PAGE.read_text(encoding="utf-8").split("## Keys of the metadata store", 1)[1].split("\n## ", 1)[0]
    return {
        key for row in re.findall(r"^\| (`.*?) \| ", section, re.MULTILINE) for key in re.findall(r"`([\w-]+)/", row)
    }


def test_the_page_names_every_key() -> None:
    assert len(in_code()) > 15
    assert in_page() == in_code()
