"""Three clusters where everybody has to say who they are: links by TLS with a token of their own, commands with another."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pulsar
import pytest

from magnetar import cli
from magnetar.runtime.network.link_client import LinkClient, LinkRefused
from tests.replication.conftest import Mesh
from tests.support.brokers import World, eventually
from tests.support.certificates import Authority
from tests.support.pipelines import Pipeline
from tests.support.secured import closing

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(400)]

CONFIG = """
[authentication]
methods = ["token"]
public_key_files = ["public.pem"]

[authorization]
superusers = ["root"]
replicate_roles = ["links"]

[tls]
certificate_file = "server.cert.pem"
key_file = "server.key.pem"
ca_file = "ca.pem"

[replication]
token_file = "links.jwt"
tls = true

[client]
token_file = "root.jwt"
"""


def magnetar(folder: Path, *arguments: str, code: int = 0, environment: dict[str, str] | None = None) -> str:
    """A command as a user types it in the folder of clusters.toml; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "magnetar", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | (environment or {}),
        check=False,
    )
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Three clusters and their pipeline."""
    folder = tmp_path_factory.mktemp("secured")
    Authority(folder).sign("server")
    private = str(folder / "private.pem")
    assert cli.run(["tokens", "create-key-pair", "--private", private, "--public", str(folder / "public.pem")]) == 0
    for role in ("root", "links", "app", "stranger"):
        file = str(folder / f"{role}.jwt")
        assert cli.run(["tokens", "create", "--private-key", private, "--subject", role, "--output", file]) == 0
    world = World(folder, ["a", "b", "c"], CONFIG, tls=True).start()
    mesh = Mesh(world, Pipeline(world.config))
    try:
        mesh.pipeline.start()
        yield mesh
    finally:
        mesh.close()


def client(mesh: Mesh, cluster: str, role: str) -> pulsar.Client:
    """An official client by TLS, with the token of a role from its file."""
    folder = mesh.world.folder
    return pulsar.Client(
        mesh.world[cluster].url_tls,
        authentication=pulsar.AuthenticationToken(lambda: (folder / f"{role}.jwt").read_text().strip()),
        tls_trust_certs_file_path=str(folder / "ca.pem"),
        operation_timeout_seconds=30,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


def processes() -> str:
    """The arguments of every process of this machine."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return "\n".join(lines)


def test_messages_cross_links_that_say_who_they_are(secured: Mesh) -> None:
    folder = secured.world.folder
    topic = "persistent://public/default/secured"
    sent = [b"%d" % number for number in range(20)]
    magnetar(folder, "permissions", "grant", "public/default", "app", "--actions", "produce,consume", "--everywhere")
    with closing(client(secured, "a", "app")) as a, closing(client(secured, "b", "app")) as b:
        producer = a.create_producer(topic, batching_enabled=False)
        for data in sent:
            producer.send(data)
        reader = b.create_reader(topic, pulsar.MessageId.earliest)
        assert [reader.read_next(90_000).data() for _ in sent] == sent
    with closing(client(secured, "b", "stranger")) as b, pytest.raises(pulsar.AuthorizationError):
        b.create_reader(topic, pulsar.MessageId.earliest)

    def drained() -> bool:
        rows = json.loads(magnetar(folder, "status", "--json"))
        return "lag" in json.dumps(rows) and all(row.get("lag_messages", 0) == 0 for row in rows.get("links", []))

    eventually(drained, within_s=60)
    assert "can be switched off" in magnetar(folder, "drain", "a")
    assert json.loads(magnetar(folder, "verify", topic, "--json"))


def test_commands_without_a_token_are_told_so_in_one_line(secured: Mesh) -> None:
    folder = secured.world.folder
    said = magnetar(folder, "--token-file", "stranger.jwt", "tenants", "list", code=1)
    assert said.count("\n") == 1 and "role stranger may not administer this cluster" in said
    secret = (folder / "root.jwt").read_text().strip()
    assert "public" in magnetar(folder, "tenants", "list", environment={"MAGNETAR_TOKEN": secret})
    (folder / "root.jwt").chmod(0o644)
    try:
        assert "can be read by others: chmod 600" in magnetar(folder, "tenants", "list", code=1)
    finally:
        (folder / "root.jwt").chmod(0o600)


def test_tokens_and_their_key_change_while_the_pipeline_runs(secured: Mesh) -> None:
    """A new key pair and new tokens: a broker that starts afterwards lets in nobody with the old ones, and links reach it."""
    folder, world = secured.world.folder, secured.world
    private, aside = str(folder / "private.pem"), folder / "aside"
    (folder / "private.pem").unlink()
    aside.mkdir()
    assert cli.run(["tokens", "create-key-pair", "--private", private, "--public", str(aside / "public.pem")]) == 0
    for role in ("root", "links", "app"):
        file = str(aside / f"{role}.jwt")
        assert cli.run(["tokens", "create", "--private-key", private, "--subject", role, "--output", file]) == 0
    old = (folder / "links.jwt").read_text().strip()
    for file in aside.iterdir():
        file.replace(folder / file.name)
    eventually(lambda: "read again" in secured.pipeline.output(), what="the pipeline read its token again")
    for name in ("a", "b"):
        eventually(lambda name=name: "new keys are in force" in world[name].log.read_text())  # type: ignore[misc]
        world[name].stop()
        world[name].start()
    with pytest.raises(LinkRefused, match="signature is not by a key"):
        LinkClient.connect(f"pulsar+ssl://localhost:{world['b'].pulsar_tls_port}?ca={folder / 'ca.pem'}", old)
    topic = "persistent://public/default/renewed"
    with closing(client(secured, "a", "app")) as a, closing(client(secured, "b", "app")) as b:
        producer = a.create_producer(topic)
        producer.send(b"by the new token")
        reader = b.create_reader(topic, pulsar.MessageId.earliest)
        assert reader.read_next(90_000).data() == b"by the new token"


def test_no_secret_shows_anywhere(secured: Mesh) -> None:
    folder = secured.world.folder
    secrets = [(folder / f"{role}.jwt").read_text().strip() for role in ("root", "links")]
    secrets += [line for line in (folder / "private.pem").read_text().splitlines() if len(line) > 40]
    shown = processes()
    assert "magnetar" in shown
    logs = [path for path in folder.rglob("*") if path.is_file() and path.suffix in {".log", ".out"}]
    logs += [path for path in (folder / "data").rglob("checkpoints/**/*") if path.is_file()]
    assert any("spark" in path.name for path in logs) and len(logs) > 5
    assert not any(secret in shown for secret in secrets)
    for path in logs:
        with suppress(FileNotFoundError):  # the pipeline goes on, and renames its checkpoints' files
            text = path.read_bytes()
            assert not any(secret.encode() in text for secret in secrets), path
