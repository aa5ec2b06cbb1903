"""Official clients of other languages, each a small program that obeys commands.

A command is one line of JSON with `op` and what belongs to it; each is answered by one line (`stream` by two). Of a
published message the payload is its number in decimal digits, filled up with dots to `size` bytes; its key is
`key-{number % 7}`, and the property `number` is the number again.

    publish      topic, from, count, size, batch, chunk, compression: publishes, answers when all have a receipt
    subscribe    topic, subscription, type, retries: opens the one consumer (from the earliest message), closing another
                 before; with retries above 0 it consumes the retry topic as well, and a message that has been there so
                 often goes to the dead letter topic
    pattern      topic, subscription, type, period: the same for all topics whose names match `topic`; the client asks for a
                 new list every `period` seconds, unless it is told of changes (Java's alone)
    consume      count, acknowledge ("individual", "cumulative", "negative", "later" or ""): receives so many, answers them.
                 "later" publishes them again to the subscription's retry topic, with a delay
    seek         the consumer goes to the earliest message
    read         topic: a reader's messages from the earliest to the last
    stream       as publish, while the consumer consumes and acknowledges: {"half": true} half way, then what came
    unsubscribe  removes the consumer's subscription
"""

import json
import os
import re
import select
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
BUILT: Final = HERE.parents[2] / ".cache" / "clients"
"""Where the programs are built: a folder git does not see, kept so that only the first run takes minutes."""
ANSWER_S: Final = 120
BUILD_S: Final = 900
"""Deadlines, not waits. A first build fetches and compiles some hundred packages."""


LOGS_TO_STDERR: Final = "-Dorg.slf4j.simpleLogger.logFile=System.err"
"""For Java, whose answers are on standard output."""

UNREACHABLE: Final = re.compile(
    r"dial tcp|no such host|lookup .* on |i/o timeout|TLS handshake timeout|connection (refused|reset)"  # go
    r"|Could not transfer artifact|Unknown host|UnknownHostException|[Cc]onnect timed out"  # mvn
    r"|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ERR_SOCKET_TIMEOUT|network request to .* failed"  # npm
)
"""What the tools say when a registry is not to be reached; all else that fails, fails by our fault."""


class Missing(Exception):
    """A toolchain, or the registry with what it needs, is not there: the reason, in one line."""


def run(command: list[str], folder: Path) -> None:
    """A step of a build.

    Raises:
        AssertionError: it failed: our program does not compile.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False)
    said = (done.stdout + done.stderr).strip()
    assert done.returncode == 0, f"{' '.join(command[:3])} failed:\n{said[-3000:]}"


def fetch(command: list[str], folder: Path) -> None:
    """A step of a build that gets what our program needs from a registry.

    Raises:
        Missing: the registry is not to be reached; with the line that says so.
        AssertionError: it failed otherwise, such as by asking for what there is not.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if done.returncode:
        said = done.stdout + done.stderr
        for line in said.splitlines():
            if UNREACHABLE.search(line):
                raise Missing(f"{' '.join(command[:3])} failed: {line.strip()[:200]}")
        raise AssertionError(f"{' '.join(command[:3])} failed:\n{said.strip()[-3000:]}")


def tool(name: str) -> str:
    """A program on the path."""
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not installed")
    return found


def prepared(language: str) -> Path:
    """A folder with the language's sources, to build in."""
    folder = BUILT / language
    shutil.copytree(HERE / language, folder, dirs_exist_ok=True)
    return folder


def build_go() -> list[str]:
    """The Go client: compiled from its modules."""
    go = tool("go")
    folder = prepared("go")
    fetch([go, "mod", "download"], folder)
    run([go, "build", "-o", "client", "."], folder)
    return [str(folder / "client")]


def java_program(sources: str, main: str, options: Sequence[str]) -> list[str]:
    """A Java program: jars by Maven, the one file with its main class compiled against them.

    Args:
        sources: the folder, with its `pom.xml`.
        main: the class.
        options: of the machine that runs it.
    """
    maven, compiler, java = tool("mvn"), tool("javac"), tool("java")
    folder = prepared(sources)
    fetch([maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"], folder)
    run([compiler, "-cp", "lib/*", "-d", "classes", f"{main}.java"], folder)
    return [java, *options, "-cp", f"{folder}/classes:{folder}/lib/*", main]


def build_java() -> list[str]:
    """The Java client."""
    return java_program("java", "Main", ("-Xmx256m", LOGS_TO_STDERR))


def build_node() -> list[str]:
    """The Node.js client: a package with a native part, which is fetched built, or built against an installed C++ client."""
    node, npm = tool("node"), tool("npm")
    folder = prepared("node")
    if not (folder / "node_modules" / "pulsar-client" / "lib" / "binding" / "pulsar.node").exists():
        # Else node-gyp fetches headers, from a server that not everybody reaches.
        installed = Path(node).resolve().parents[1]
        headers = [f"--nodedir={installed}"] if (installed / "include" / "node" / "node.h").is_file() else []
        fetch([npm, "install", "--no-audit", "--no-fund", *headers], folder)
    loaded = subprocess.run(
        [node, "-e", "require('pulsar-client')"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    # A binding that was built against an installed C++ client ends as that is removed, or lies where the linker does not look.
    if absent := re.search(r"(\S+): cannot open shared object file", loaded.stderr):
        raise Missing(
            f"the client's native part needs {absent[1]}, which is not there: install it, or set LD_LIBRARY_PATH"
        )
    assert loaded.returncode == 0, f"the client does not load:\n{loaded.stderr[-3000:]}"
    return [node, str(folder / "main.js")]


BUILDS: Final[dict[str, Callable[[], list[str]]]] = {"go": build_go, "java": build_java, "node": build_node}


class Conversation:
    """One running program.

    Args:
        command: how it starts; the broker's address is added.
        url: the broker's `pulsar://` address.
        log: where its standard error goes.
    """

    def __init__(self, command: list[str], url: str, log: Path) -> None:
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [*command, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=os.environ, bufsize=0
            )
        self.rest = b""

    def tell(self, op: str, **what: Any) -> None:
        """Send a command."""
        defaults = {"topic": "", "subscription": "", "type": "Shared", "compression": "", "acknowledge": "", "from": 0}
        defaults |= {"count": 0, "size": 20, "batch": False, "chunk": False, "retries": 0, "period": 0}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(defaults | {"op": op} | what).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        """The next answer; an AssertionError with the program's log when it is an error or does not come."""
        assert self.process.stdout is not None
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_S)
            more = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
            if not more:
                raise AssertionError(f"no answer of {self.process.args}:\n{self.log.read_text()[-3000:]}")
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, f"{answer['error']}\n{self.log.read_text()[-3000:]}"
        return answer

    def ask(self, op: str, **what: Any) -> dict[str, Any]:
        """A command and its answer."""
        self.tell(op, **what)
        return self.hear()

    def close(self) -> None:
        """End the program."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
