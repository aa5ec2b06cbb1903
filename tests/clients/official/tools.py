"""The tests of administration tools made of Go's library: how each is built, listed and run, and why some do not pass."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

from tests.clients.official.hosting import Keys, broker
from tests.clients.official.outcomes import Outcome
from tests.clients.official.suites import Suite

HERE: Final = Path(__file__).parent

LIBRARY: Final = "github.com/apache/pulsar-client-go"
LIBRARY_VERSION: Final = "v0.19.0"
"""Which stands in for a version that is not to be had, such as one of a commit that no release has."""

TERRAFORM: Final = "github.com/hashicorp/terraform@v1.13.3"
OURS: Final = "TestBroker"
"""How the names of tests begin that are ours (`GoTool.overlay`)."""

NO_FUNCTIONS: Final = "Pulsar Functions, connectors and packages are not supported"
NO_OFFLOADING: Final = "sets when and where to offload, which is refused: there is no tiered storage"
NOT_DYNAMIC: Final = "a broker is configured by clusters.toml, which is read at its start"


class GoTool(Suite):
    """A tool in Go.

    Attributes:
        packages: those with tests, below the checkout.
    """

    packages: ClassVar[tuple[str, ...]]
    overlay: ClassVar[dict[str, Path]] = {}
    """Files of ours that are compiled with a package, as if they lay in it."""
    at_once = 1  # tests share namespaces
    tests: Sequence[str] = ()
    """Of the last build."""

    def build(self) -> list[str]:
        """A program for each package; tests are named by package and function."""
        self._modules = self._with_library()
        overlaid = self.folder / "overlay.json"
        replaced = {str(self.checkout / place): str(file) for place, file in self.overlay.items()}
        overlaid.write_text(json.dumps({"Replace": replaced}))
        found = []
        for package in self.packages:
            program = self._program(package)
            build = ["go", "test", "-c", *self._modules, f"-overlay={overlaid}", "-o", str(program), f"./{package}"]
            self._made(build, self.checkout, GOWORK="off")
            listed = self._made([str(program), "-test.list", "."], self.checkout / package).split()
            ours = [name for name in listed if name.startswith(OURS) and self.overlay]
            found += [f"{package}::{name}" for name in listed if name.startswith("Test") and name not in ours]
            found += self._ours(package) if ours else []
        return found

    def _ours(self, package: str) -> list[str]:
        """The tests of our own files in a package, each case by itself."""
        told = self._made(
            [str(self._program(package)), "-test.v", f"-test.run=^{OURS}"], self.checkout / package, MAGNETAR_LIST="1"
        )
        names = re.findall(r"^=== RUN\s+(\S+)$", told, re.MULTILINE)
        return [f"{package}::{name}" for name in names if not any(other.startswith(name + "/") for other in names)]

    def _with_library(self) -> list[str]:
        """What `go` is told so that it finds all modules: nothing, or a file of modules with another version of Go's library."""
        wanted = ["go", "mod", "download", LIBRARY]
        done = subprocess.run(
            wanted, cwd=self.checkout, env=os.environ | {"GOWORK": "off"}, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return []
        if LIBRARY not in done.stderr:
            raise SystemExit(f"{' '.join(wanted)} failed in {self.checkout}:\n{done.stderr.strip()[-3000:]}")
        modules = self.folder / "library.mod"
        for suffix in (".mod", ".sum"):
            shutil.copyfile(self.checkout / f"go{suffix}", modules.with_suffix(suffix))
        version = os.environ.get("PULSAR_CLIENT_GO", f"{LIBRARY}@{LIBRARY_VERSION}")
        self._made(["go", "mod", "edit", f"-replace={LIBRARY}={version}", str(modules)], self.checkout)
        return [f"-modfile={modules}", "-mod=mod"]

    def _program(self, package: str) -> Path:
        return self.folder / (package.replace("/", "_") + ".test")

    def run(self, test: str) -> Outcome:
        """In the package's folder, from which tests find their files."""
        self._package = test.partition("::")[0]
        return super().run(test)

    @property
    def cwd(self) -> Path:
        """The package's folder."""
        return self.checkout / self._package

    def command(self, test: str) -> list[str]:
        """By its whole name."""
        package, _, name = test.partition("::")
        pattern = "/".join(f"^{part}$" for part in name.split("/"))
        return [str(self._program(package)), "-test.v", f"-test.run={pattern}", f"-test.timeout={self.seconds}s"]

    def skipped(self, said: str) -> bool:
        """As `go test` says it."""
        return "--- SKIP" in said and "--- PASS" not in said

    @contextmanager
    def brokers(self) -> Iterator[None]:
        """One, without authentication."""
        with broker(self.folder / "broker"):
            yield


class PulsarAdmin(GoTool):
    """Go's library itself."""

    language = "pulsaradmin"
    repository = LIBRARY.removeprefix("github.com/")
    known_by = "pulsaradmin/pkg/admin/topic_test.go"
    about = "The broker has the settings that the suite has for Pulsar: authentication, authorisation and TLS."
    packages = ("pulsaradmin/pkg/admin", "pulsaradmin/pkg/utils", "pulsaradmin/pkg/rest")
    reasons = (
        (r"TestUpdateDynamicConfiguration(EscapedValueE2E|WithCustomURL)?$", NOT_DYNAMIC),
        (r"Offload", NO_OFFLOADING),
        (r"BookieAffinityGroup$", "sets an affinity to bookies, which is refused: there are none"),
        (
            r"Test(Namespaces_SetSchemaCompatibilityStrategy|SetTopicAutoCreation)$",
            "asserts 404 for a tenant that is not there; a role that may not administer it gets 403, as for one that exists",
        ),
        (
            r"TestPeekMessagesWithProperties$",
            "peeks at a subscription that is not there, which Pulsar makes for it; here a request to read makes nothing",
        ),
    )

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


class Pulsarctl(GoTool):
    """streamnative/pulsarctl."""

    language = "pulsarctl"
    repository = "streamnative/pulsarctl"
    known_by = "pkg/ctl/topic/create_test.go"
    about = "BookKeeper's commands, and tests that start Pulsar in a container, are left out."
    packages = ()
    reasons = (
        (r"/(functions|functionsworker|sinks|sources|packages)::", NO_FUNCTIONS),
        (r"::Test(Update|Delete)DynamicConfig$", NOT_DYNAMIC),
        (r"::TestDump(AllocatorStats|MBeans)$", "of Java's virtual machine; there is none"),
        (
            r"::TestDumpLoadReport$",
            "asserts a report without topics; a broker that has just started has some of its own",
        ),
        (r"FailureDomain", "a cluster has one broker: no part of it can fail separately"),
        (r"nsisolationpolicy::", "a cluster has one broker: there is nothing to isolate"),
        (r"::TestResourceQuota$", "a cluster has one broker: there is nothing to balance"),
        (
            r"::Test(CreateNs|CreateNsForBundles|CreateNsForPositiveBundles|SplitBundle|Upload|GetBundleRangeCmd)$",
            "asserts how many bundles a namespace has, or names one of several; here it has one",
        ),
        (r"::Test(ClearBacklog|Unsubscribe)OnNonExistingNs$", "names one of several bundles; here a namespace has one"),
        (r"::TestOffload(DeletionLag|Threshold)Cmd$", NO_OFFLOADING),
        (r"::TestExpireCmd$", "asserts that expiring is refused where nothing is left to expire; here it succeeds"),
        (
            r"::Test(GetInternalStatsCmd|OffloadCmd)$",
            "looks for the ledger of a topic without messages; here a topic has none before its first message",
        ),
        (r"::TestGetNonExistingTopicInternalInfo$", "asserts that Pulsar answers 500; here it is 404"),
        (
            r"::TestGet(Per)?Partition(ed)?Stats(Cmd|WithNewFlags)$",
            "asserts that statistics of a partitioned topic do not say whether it deduplicates; here they do",
        ),
        (
            r"::Test(GetClusterData|LookupTopicCmd)$",
            "asserts that addresses have letters and digits alone; those of this run have dots",
        ),
    )

    def build(self) -> list[str]:
        """All packages with tests of its commands."""
        folders = {file.parent.relative_to(self.checkout) for file in (self.checkout / "pkg").rglob("*_test.go")}
        left_out = ("pkg/bkctl", "pkg/bookkeeper", "pkg/test")
        self.packages = tuple(sorted(str(one) for one in folders if not str(one).startswith(left_out)))  # type: ignore[misc]
        return super().build()


class Terraform(GoTool):
    """streamnative/terraform-provider-pulsar: its acceptance tests, with Terraform."""

    language = "terraform-provider-pulsar"
    repository = "streamnative/terraform-provider-pulsar"
    known_by = "pulsar/resource_pulsar_topic.go"
    about = f"Terraform is the one on the PATH, or {TERRAFORM}."
    packages = ("pulsar",)
    reasons = (
        (r"(Function|Sink|Source|Package)", NO_FUNCTIONS),
        (
            r"::TestNamespace(WithUpdate|ExternallyRemoved|ReplicationClustersDrift)?$",
            NO_OFFLOADING + "; all else of the namespace is applied",
        ),
        (
            r"_UpgradeFromV011",
            "gets an old version of the provider from Terraform's registry, which is not to be reached here",
        ),
        (
            r"::TestNonPersistentTopicWith(ReplicationClusters|Properties)Fails$",
            "the provider tries for 15 minutes, whatever the broker, before it fails as the test expects",
        ),
    )
    seconds = 120

    def build(self) -> list[str]:
        """With Terraform."""
        program = shutil.which("terraform")
        if program is None:
            folder = self.folder / "bin"
            self._made(["go", "install", TERRAFORM], self.folder, GOBIN=str(folder))
            program = str(folder / "terraform")
        self._terraform = program
        return super().build()

    @property
    def env(self) -> dict[str, str]:
        """That turns acceptance tests on."""
        more = {"TF_ACC": "1", "TF_ACC_TERRAFORM_PATH": self._terraform, "CHECKPOINT_DISABLE": "1"}
        return dict(os.environ) | more


class Operator(GoTool):
    """streamnative/pulsar-resources-operator: the package by which it asks a broker."""

    language = "pulsar-resources-operator"
    repository = "streamnative/pulsar-resources-operator"
    known_by = "pkg/admin/impl.go"
    about = (
        "Its package `pkg/admin` makes all requests to a broker. Its own tests need no broker, so a file of Magnetar is "
        "compiled with them: it applies and removes everything that the resources can have (`TestBroker…`)."
    )
    packages = ("pkg/admin",)
    reasons = (
        (r"/Offload", NO_OFFLOADING),
        (r"/BookieAffinityGroup$", "sets an affinity to bookies, which is refused: there are none"),
    )
    overlay: ClassVar[dict[str, Path]] = {"pkg/admin/broker_test.go": HERE / "operator" / "broker_test.go"}


TOOLS: Final[tuple[type[GoTool], ...]] = (Terraform, Operator, Pulsarctl, PulsarAdmin)
