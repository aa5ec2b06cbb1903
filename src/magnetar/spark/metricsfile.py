"""The pipeline's metrics file: a line of JSON for each look at it, the newest ones."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

METRICS_BYTES_MAX: Final = 16 << 20
"""Of the file and of the one before it, as of Spark's log (log4j2.properties): with a line a second 7 hours of two links, 40
minutes of thirty. Without a bound it is 57 to 570 MB a day, where the brokers have their data."""


def former(path: Path) -> Path:
    """Where the lines before those of a metrics file are; there may be none."""
    return path.with_name(path.name + ".1")


class MetricsFile:
    """A metrics file, open for appending; when it is full it becomes the `former` one.

    Args:
        path: of the file.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a")

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line.

        Raises:
            OSError: it cannot be written, or what is full cannot be renamed.
        """
        line = json.dumps(record) + "\n"
        # Looked at anew each time: others may cut the file, too.
        if 0 < os.fstat(self._file.fileno()).st_size > METRICS_BYTES_MAX - len(line):
            self._rotate()
        self._file.write(line)
        self._file.flush()

    def _rotate(self) -> None:
        with suppress(FileNotFoundError):  # somebody moved it away
            self._path.replace(former(self._path))
        file = self._path.open("a")
        self._file.close()
        self._file = file

    def close(self) -> None:
        """Close the file."""
        self._file.close()
