"""The token that the links of a pipeline present. It follows its file: an operator can replace it while the pipeline runs.

The coordinator's own connections take the new token at once. A streaming query pickles the token for its tasks once, at its
start. So the queries are started again, between two batches. Progress is in the cursors: nothing is lost or sent twice by that.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from magnetar.core.errors import ConfigError
from magnetar.core.secret_file import file_state, read_link_token

LOOK_MS: Final = 1_000
"""How often the file is checked, as brokers check theirs: a `stat` costs nothing."""


class LinkToken:
    """The token as it is now.

    Args:
        path: of the file.
        value: its content when the pipeline read it.
        on_line: gets one line for the operator when it changed.

    Attributes:
        value: the token to present.
    """

    def __init__(self, path: Path, value: str, on_line: Callable[[str], None]) -> None:
        self._path, self._say = path, on_line
        self._seen: tuple[int, ...] | None = None  # the first look reads it: it may have changed since
        self.value = value

    def changed(self) -> bool:
        """Check the file once; whether there is another token. A file that is wrong changes nothing."""
        now = file_state(self._path)
        if now == self._seen:
            return False
        self._seen = now
        try:
            token = read_link_token(self._path)
        except ConfigError as error:
            self._say(f"the links' token changed, but the former one stays in force: {error}")
            return False
        if token == self.value:
            return False
        self.value = token
        self._say(f"link token {self._path}: read again")
        return True
