"""The pipeline's metrics file: one line of JSON per measurement, the newest ones."""

import errno
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, Final

METRICS_BYTES_MAX: Final = 16 << 20
"""Size of the file and of the one before it, as of Spark's log (log4j2.properties): with a line per second 7 hours of two links,
40 minutes of thirty. Without a bound it is 57 to 570 MB per day, on the disk of the brokers' data."""


def former(path: Path) -> Path:
    """Where the lines before those of a metrics file are; there may be none."""
    return path.with_name(path.name + ".1")


class MetricsFile:
    """A metrics file, open for appending; when it is full it becomes the `former` one.

    A line that cannot be written is left out: replication needs no room for its metrics.

    Args:
        path: of the file.
        on_line: gets one line when lines cannot be written, and no second one until a line was written again.
    """

    def __init__(self, path: Path, on_line: Callable[[str], None]) -> None:
        self._path = path
        self._on_line = on_line
        self._file: FileIO | None = None
        self._failing = False

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line, if that can be done."""
        try:
            self._append((json.dumps(record) + "\n").encode())
        except OSError as error:
            self.close()
            if not self._failing:
                why = error.strerror or error
                self._on_line(f"metrics are not written, replication continues: {self._path}: {why}")
            self._failing = True
        else:
            self._failing = False

    def _append(self, line: bytes) -> None:
        if self._file is None:
            self._file = self._open()
        # Read each time: others may cut the file, too.
        size = os.fstat(self._file.fileno()).st_size
        if 0 < size > METRICS_BYTES_MAX - len(line):
            self._rotate()
            size = os.fstat(self._file.fileno()).st_size
        # Unbuffered: else an unwritten line would come with the next one, or when the file is closed.
        if self._file.write(line) < len(line):
            self._file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self) -> FileIO:
        return self._path.open("ab", buffering=0)

    def _rotate(self) -> None:
        with suppress(FileNotFoundError):  # it was moved away
            self._path.replace(former(self._path))
        self.close()
        self._file = self._open()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
