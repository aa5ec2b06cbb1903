"""Writes docs/reference/rest.md from the route table of `magnetar.admin`; `--check` fails when the page is not current."""

import sys
from pathlib import Path

from magnetar.admin.http.reference import markdown
from magnetar.admin.http.server import GROUPS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "rest.md"


def main() -> int:
    """Write the page, or check it."""
    text = markdown(GROUPS)
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            sys.stderr.write("rest.md is not what the route table gives: run `make docs`\n")
            return 1
        return 0
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
