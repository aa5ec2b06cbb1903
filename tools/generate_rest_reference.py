"""Writes docs/reference/rest.md from the route table of `magnetar.admin`. A test fails when the page is not current."""

from pathlib import Path

from magnetar.admin.http.reference import markdown
from magnetar.admin.http.server import GROUPS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "rest.md"


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(markdown(GROUPS), encoding="utf-8")


if __name__ == "__main__":
    main()
