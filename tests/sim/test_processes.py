import gc
import os
from pathlib import Path

from magnetar_sim.host.processes import pool


class Client:
    """An object of a library that only the process that made it can end."""

    def __init__(self, note: Path) -> None:
        self.note, self.itself = note, self
        self.process = os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.process:
            self.note.write_text("ended in another process")


def look_for_garbage(number: int) -> int:
    gc.collect()
    return number


def test_garbage_of_the_parent_is_left_to_it(tmp_path: Path) -> None:
    """A client of Pulsar that was garbage when worlds began made their processes wait for threads that they did not have."""
    note = tmp_path / "note"
    gc.disable()
    try:
        Client(note)
        with pool(2) as processes:
            assert sorted(processes.imap_unordered(look_for_garbage, range(8))) == list(range(8))
    finally:
        gc.enable()
    assert not note.exists()
