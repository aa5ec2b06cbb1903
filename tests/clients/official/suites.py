"""The tests of the Go, C++, Node.js and Rust clients: how each is built, listed and run, and why some do not pass."""

import json
import os
import re
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar, Final

from tests.clients.official.hosting import CLOSED, USUAL, Keys, Ports, broker, namespace
from tests.clients.official.outcomes import Outcome, Reasons

BUILD_S: Final = 1_800
"""Deadline of a build, not a wait."""

STAND_INS: Final = Path(__file__).resolve().parents[1] / "stand_ins"

CLIENT_ONLY: Final = "the client itself; no broker is involved"
IDENTITY: Final = "needs a third-party identity server"


class Suite(ABC):
    """The tests of one client.

    Args:
        checkout: of its repository; programs are built in it, nothing else is changed.
        folder: for files of the run.
    """

    language: ClassVar[str]
    repository: ClassVar[str]
    known_by: ClassVar[str]
    """A file that only this repository has."""
    about: ClassVar[str]
    """What the page says of the broker, as a sentence."""
    reasons: ClassVar[Reasons]
    seconds: ClassVar[int] = 120
    """How long one test may take."""
    at_once: ClassVar[int] = 4
    """How many run at the same time."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.checkout = checkout
        self.folder = folder

    @abstractmethod
    def build(self) -> list[str]:
        """Build the tests; their names.

        Raises:
            SystemExit: that failed.
        """

    @abstractmethod
    def command(self, test: str) -> list[str]:
        """What runs a test."""

    @abstractmethod
    def brokers(self) -> AbstractContextManager[None]:
        """Brokers as the suite expects them."""

    @property
    def cwd(self) -> Path:
        """Where tests run."""
        return self.checkout

    @property
    def env(self) -> dict[str, str]:
        """Their environment."""
        return dict(os.environ)

    def skipped(self, said: str) -> bool:
        """Whether a test that succeeded says that it did nothing."""
        return False

    def complaint(self, said: str) -> str:
        """The line in which a failed test says why."""
        said = re.sub(r"^.*level=.*$", "", said, flags=re.MULTILINE)  # what the client logs
        lines = [
            line.strip() for line in said.splitlines() if re.search(r"Error:|Failure|panicked|expected|FAIL", line)
        ]
        return lines[0][:200] if lines else (said.strip().splitlines() or ["it says nothing"])[-1][:200]

    def run(self, test: str) -> Outcome:
        """One test, in a process of its own."""
        try:
            done = subprocess.run(
                self.command(test),
                cwd=self.cwd,
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=self.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(test, "failed", f"not over after {self.seconds} s")
        if done.returncode < 0:
            return Outcome(test, "failed", f"the client ended its process (signal {-done.returncode})")
        if done.returncode:
            return Outcome(test, "failed", self.complaint(done.stdout))
        return Outcome(test, "skipped", "skips itself") if self.skipped(done.stdout) else Outcome(test, "passed", "")

    def _made(self, command: list[str], cwd: Path, **more: str) -> str:
        """A step of the build; what it says."""
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=BUILD_S, check=False, env=os.environ | more
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command[:3])} failed in {cwd}:\n{(done.stdout + done.stderr).strip()[-3000:]}")
        return done.stdout


class Go(Suite):
    """apache/pulsar-client-go, the package `pulsar`, of which most tests need a broker."""

    language = "Go"
    repository = "apache/pulsar-client-go"
    known_by = "pulsar/client_impl_test.go"
    about = (
        "The broker has the settings that the suite has for Pulsar: authentication, authorisation and TLS, messages of 1 MiB, "
        "a check of quotas every five seconds."
    )
    reasons = (
        (r"^TestTxn_", "transactions are not served"),
        (
            r"KeepReconnectingAndThenCallClose$|OnMaxReconnect$|^TestReconnect|TimeoutWhileReconnecting$",
            "starts a Pulsar of its own in a container",
        ),
        (
            r"SchemaNotFound$",
            "asserts that messages cannot be read after their schema was deleted; Magnetar keeps the schema",
        ),
        (r"^TestMessageSingleRouter$", "is empty"),
    )

    def build(self) -> list[str]:
        """One program."""
        self._made(["go", "test", "-c", "-o", str(self._program), "."], self.cwd)
        return [
            line for line in self._made([str(self._program), "-test.list", "."], self.cwd).split() if "Test" in line
        ]

    @property
    def _program(self) -> Path:
        return self.folder / "go-tests"

    @property
    def cwd(self) -> Path:
        """The package's folder: the tests find their keys from there."""
        return self.checkout / "pulsar"

    def command(self, test: str) -> list[str]:
        """By its whole name."""
        return [str(self._program), "-test.v", f"-test.run=^{test}$", f"-test.timeout={self.seconds}s"]

    def skipped(self, said: str) -> bool:
        """As `go test` says it."""
        return "--- SKIP" in said

    @contextmanager
    def brokers(self) -> Iterator[None]:
        """One."""
        files = self.checkout / "integration-tests"
        certificates = files / "certs"
        keys = Keys(
            certificates / "broker-cert.pem",
            certificates / "broker-key.pem",
            certificates / "cacert.pem",
            secret=files / "tokens" / "secret.key",
        )
        settings = "message_bytes_max = 1048576\nretention_interval_ms = 5000"
        with broker(self.folder / "broker", keys, settings=settings):
            yield


class Cpp(Suite):
    """apache/pulsar-client-cpp, of which Python's and Node.js's client are made."""

    language = "C++"
    repository = "apache/pulsar-client-cpp"
    known_by = "tests/BasicEndToEndTest.cc"
    about = (
        "Two brokers have the settings that the suite has for Pulsar: authentication, authorisation and TLS, messages of "
        "at most 1,024,000 bytes, schemas enforced in public/default, encryption required in public/default-4; one has a "
        "certificate for another name."
    )
    reasons = (
        (r"^AuthPluginTest\.(testOauth2|testOauth2CredentialFile|testInitialize)$", IDENTITY),
        (
            r"^AuthPluginToken\.testNoAuth",
            "asserts the text of a refusal; Magnetar's text names the role and the topic",
        ),
        (
            r"^BasicEndToEndTest\.testMessageTooBig$",
            "expects at most 32 bytes of metadata per message; this broker gives producers longer names",
        ),
        (r"^ClientTest\.testConnectTimeout$", "asserts how a network without a route behaves; no broker is involved"),
        (
            r"^ClientTest\.testWrongListener$",
            "asserts `ConnectError`; Magnetar answers [another error](compatibility.md#errors)",
        ),
        (
            r"^ClientTest\.testCloseClient$",
            "asserts that a client can be closed while it closes a producer; it cannot, and Magnetar opens producers fast",
        ),
        (
            r"^KeySharedConsumerTest\.(testMultiTopics|testKeyBasedBatching)$",
            "asserts which consumer has which key without consistent hashing, which is not Pulsar's default",
        ),
        (
            r"^ReaderConfigurationTest\.",
            CLIENT_ONLY + ": its process ends by a segmentation fault",
        ),
        (
            r"LookupServiceTest\.testGetKeyValueSchema/1$",
            CLIENT_ONLY + ": Boost 1.74 ends the schema that it puts together with a line feed",
        ),
        (
            r"^RetryableOperationCacheTest\.testRetry$",
            CLIENT_ONLY + ": it asks whether a cache is empty while that may still be emptied",
        ),
        (r"^TableViewTest\.testNotSupportNonPersistentTopic$", CLIENT_ONLY + ": it looks for a topic without a domain"),
    )

    def build(self) -> list[str]:
        """The program is there: cmake makes it, in whatever way the machine's libraries want."""
        if not self._program.is_file():
            raise SystemExit(
                f"{self._program} is not there; build it: cmake -B build -DBUILD_TESTS=ON && cmake --build build"
            )
        found, group = [], ""
        for line in self._made([str(self._program), "--gtest_list_tests"], self.cwd).splitlines():
            name = line.split("#")[0].rstrip()
            if name.startswith("  "):
                found.append(group + name.strip())
            elif name.endswith("."):
                group = name
        return found

    @property
    def _program(self) -> Path:
        return self.checkout / "build" / "tests" / "pulsar-tests"

    @property
    def cwd(self) -> Path:
        """The folder that tests find their keys from."""
        return self.checkout / "build" / "tests"

    def command(self, test: str) -> list[str]:
        """By its whole name."""
        return [str(self._program), f"--gtest_filter={test}"]

    def skipped(self, said: str) -> bool:
        """As GoogleTest says it."""
        return "[  SKIPPED ]" in said

    @contextmanager
    def brokers(self) -> Iterator[None]:
        """Two, of which the second is somebody else's, by its certificate."""
        conf = self.checkout / "test-conf"
        other, ca = conf / "hn-verification", conf / "cacert.pem"
        settings = "message_bytes_max = 1024000"
        one, two = self.folder / "one", self.folder / "two"
        one.mkdir()
        keys = Keys(conf / "broker-cert.pem", conf / "broker-key.pem", ca, token=self.checkout / ".test-token.txt")
        requests = (
            *USUAL,
            ("POST", "namespaces/public/default/schemaValidationEnforced", "true"),
            *(
                ("PUT", f"namespaces/public/{name}", namespace("anonymous"))
                for name in ("default-2", "default-3", "test-backlog-quotas")
            ),
            ("PUT", "namespaces/public/default-4", namespace("anonymous", encryption_required=True)),
        )
        private = (("PUT", "tenants/private", CLOSED), USUAL[-1])
        with ExitStack() as both:
            both.enter_context(broker(one, keys, settings=settings, requests=requests))
            mim = Keys(other / "broker-cert.pem", other / "broker-key.pem", ca, secret=one / "secret.key")
            ports = Ports(6652, 6653, 8081, 8444)
            both.enter_context(broker(two, mim, ports=ports, settings=settings, requests=private))
            yield


class Node(Suite):
    """apache/pulsar-client-node, a binding of the C++ client."""

    language = "Node.js"
    repository = "apache/pulsar-client-node"
    known_by = "tests/end_to_end.test.js"
    about = (
        "The broker has the settings that the suite has for Pulsar: TLS, listeners with names. Containers that a test "
        "starts are Magnetar brokers, too."
    )
    reasons = (
        (
            r"Dead Letter topic$",
            "asserts that dead letters are sent after a subscription comes that begins with the latest; topics open fast here",
        ),
    )
    at_once = 1  # tests share topics, and names of producers

    def build(self) -> list[str]:
        """The native part is there: npm makes it, against an installed C++ client. Jest tells the names of what it leaves out."""
        if not (self.checkout / "lib" / "binding" / "pulsar.node").is_file():
            raise SystemExit(
                f"the client of {self.checkout} is not built: npm install --build-from-source (it needs libpulsar), "
                "with LD_LIBRARY_PATH where that is not where the linker looks"
            )
        said = json.loads(self._made([*self._jest, "--json", "--testNamePattern=^$NONE"], self.checkout))
        if broken := [file["name"] for file in said["testResults"] if not file["assertionResults"]]:
            raise SystemExit(f"Jest finds no tests in {', '.join(broken)}")
        names = [
            f"{Path(file['name']).name}::{test['fullName']}"
            for file in said["testResults"]
            for test in file["assertionResults"]
        ]
        return sorted(set(names), key=names.index)

    @property
    def _jest(self) -> list[str]:
        return ["node", str(self.checkout / "node_modules" / "jest" / "bin" / "jest.js")]

    @property
    def env(self) -> dict[str, str]:
        """With what stands in for containers."""
        path = os.pathsep.join([str(STAND_INS / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        return dict(os.environ) | {"PATH": path, "MAGNETAR_STAND_IN_DATA": str(self.folder)}

    def command(self, test: str) -> list[str]:
        """By its file and whole name."""
        file, _, name = test.partition("::")
        pattern = re.sub(r"([^\w\s])", r"\\\1", name)
        return [*self._jest, "--verbose", f"--testNamePattern=^{pattern}$", f"tests/{file}"]

    def complaint(self, said: str) -> str:
        """What Jest tells below the test's name, of which the parts stand behind each other."""
        told = re.split("\u25cf (?!Validation).*", said)[-1]
        lines = [line.strip() for line in told.splitlines() if line.strip()]
        return lines[0][:200] if lines else super().complaint(said)

    @contextmanager
    def brokers(self) -> Iterator[None]:
        """One, whose listeners have the names that the suite asks for; that of HTTPS leads to the port for messages by TLS."""
        certificates = self.checkout / "tests" / "certificate"
        certificate = certificates / "server.crt"
        keys = Keys(certificate, certificates / "server.key", certificate, authentication=False)
        tls = ", ".join(f'localhost{port} = "localhost:6651"' for port in (6651, 8443))
        listeners = f"advertised_listeners_tls = {{ {tls} }}"
        with broker(self.folder / "broker", keys, listeners=listeners):
            try:
                yield
            finally:
                subprocess.run(["docker", "stop-all"], env=self.env, check=True)


class Rust(Suite):
    """streamnative/pulsar-rs, which is made from nothing of the others."""

    language = "Rust"
    repository = "streamnative/pulsar-rs"
    known_by = "src/executor.rs"
    about = "The broker has no settings of its own: no authentication, no TLS."
    reasons = (
        (
            r"^reader::tests::reader$",
            "asserts that it is not the first consumer of its process; here each test has its own",
        ),
    )

    def build(self) -> list[str]:
        """One program; its definitions of commands are made by `protoc`, for which Python's stands in where there is none."""
        more = {}
        if shutil.which("protoc") is None:
            stand_in = self.folder / "protoc"
            stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} -m grpc_tools.protoc "$@"\n')
            stand_in.chmod(0o755)
            more["PROTOC"] = str(stand_in)
        said = self._made(["cargo", "test", "--no-run", "--lib", "--message-format=json"], self.checkout, **more)
        made = [json.loads(line).get("executable") for line in said.splitlines() if line.startswith("{")]
        self._program = next(program for program in made if program)
        listed = self._made([self._program, "--list"], self.checkout).splitlines()
        return [line.removesuffix(": test") for line in listed if line.endswith(": test")]

    def command(self, test: str) -> list[str]:
        """By its whole name."""
        return [self._program, "--exact", test]

    @contextmanager
    def brokers(self) -> Iterator[None]:
        """One."""
        with broker(self.folder / "broker"):
            yield


SUITES: Final[tuple[type[Suite], ...]] = (Go, Cpp, Node, Rust)
