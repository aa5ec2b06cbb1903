"""Java's hash of texts, by which official Java clients choose partitions."""

import pytest

from magnetar.admin.websocket.publisher import java_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    # As "...".hashCode() of OpenJDK 17 answers.
    [
        ("", 0),
        ("a", 97),
        ("abc", 96354),
        ("key-1", 101943363),
        ("grün", 3185949),
        ("😀", 1772899),
        ("x" * 100, 1680682496),
    ],
)
def test_it_is_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected % (1 << 32)
