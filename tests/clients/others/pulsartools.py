"""Pulsar's own command-line tools, `pulsar-admin` and `pulsar-client`, in one process."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.clients.others.conversation import java_program

OPTIONS: Final = ("-Xmx400m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off")


def program() -> list[str]:
    """The command that starts them, built.

    Raises:
        Missing: there is no toolchain or no registry.
    """
    return java_program("tools", "Tools", OPTIONS)


class Tools:
    """The tools, told of one broker.

    Args:
        command: how the program starts.
        folder: for its configuration.
        settings: of its client.conf.
    """

    def __init__(self, command: list[str], folder: Path, **settings: str) -> None:
        self.conf = folder / "client.conf"
        self.conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self.process = subprocess.Popen(
            [*command, str(self.conf)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, which: str, line: str) -> tuple[int, str]:
        """A command of "admin" or "client": the exit code, and what the tool printed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"tool": which, "words": shlex.split(line)}) + "\n")
        answer = json.loads(self.process.stdout.readline())
        lines = [
            one for one in answer["text"].splitlines() if "in test mode" not in one and "HashedWheelTimer" not in one
        ]
        return int(answer["code"]), "\n".join(lines).strip()

    def admin(self, line: str) -> str:
        """`pulsar-admin ...`, which succeeds; what it printed."""
        code, text = self.ask("admin", line)
        assert code == 0, f"pulsar-admin {line}: {text}"
        return text

    def json(self, line: str) -> Any:
        """The same, of what prints JSON."""
        return json.loads(self.admin(line))

    def refused(self, line: str) -> str:
        """`pulsar-admin ...`, which fails in one line (said twice, as that tool does)."""
        code, text = self.ask("admin", line)
        assert code == 1, f"pulsar-admin {line} did not fail: {text}"
        assert "\tat " not in text, text
        return text.partition("\n")[0]

    def client(self, line: str) -> str:
        """`pulsar-client ...`, which succeeds."""
        code, text = self.ask("client", line)
        assert code == 0, f"pulsar-client {line}: {text}"
        return text

    def close(self) -> None:
        """End the program."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)
