"""A broker as the clients' own tests expect their server to be: on Pulsar's usual ports, with their keys and namespaces."""

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import bcrypt

START_S: Final = 30
"""How long a broker may take until it is ready."""

CLUSTER: Final = """
[broker]
{settings}

[clusters.standalone]
pulsar = "127.0.0.1:{pulsar}"
http = "127.0.0.1:{http}"
"""

TLS: Final = """
pulsar_tls = "127.0.0.1:{pulsar_tls}"
https = "127.0.0.1:{https}"
advertised = "localhost:{pulsar}"
advertised_tls = "localhost:{pulsar_tls}"
{listeners}

[tls]
certificate_file = "{certificate}"
key_file = "{folder}/broker-key.pem"
ca_file = "{ca}"
"""

AUTHENTICATION: Final = """
[authentication]
methods = ["token", "basic", "tls"]
secret_key_files = ["{folder}/secret.key"]
basic_file = "{folder}/passwords"
anonymous_role = "anonymous"

[authorization]
superusers = ["superUser", "admin", "localhost"]
"""


class Keys(NamedTuple):
    """Of a broker with TLS.

    Attributes:
        certificate, key, ca: its certificate with its key, and who vouches for clients' certificates.
        authentication: whether it asks who somebody is, and what they may do.
        secret: the key of tokens; None: one is made.
        token: where a token for "token-principal" belongs, or None.
    """

    certificate: Path
    key: Path
    ca: Path
    authentication: bool = True
    secret: Path | None = None
    token: Path | None = None


class Ports(NamedTuple):
    """Where a broker listens; Pulsar's own by default."""

    pulsar: int = 6650
    pulsar_tls: int = 6651
    http: int = 8080
    https: int = 8443


def magnetar(*arguments: str) -> None:
    """Run a command of ours.

    Raises:
        CalledProcessError: it failed.
    """
    subprocess.run([sys.executable, "-m", "magnetar", *arguments], check=True, stdout=subprocess.DEVNULL)


def namespace(*roles: str, **policies: object) -> str:
    """What PUT takes for a namespace in which these roles may do everything with topics."""
    may = {role: ["produce", "consume"] for role in roles}
    return json.dumps({"auth_policies": {"namespace_auth": may}, "replication_clusters": ["standalone"]} | policies)


OPEN: Final = '{"adminRoles": ["anonymous"], "allowedClusters": ["standalone"]}'
CLOSED: Final = '{"adminRoles": [], "allowedClusters": ["standalone"]}'

USUAL: Final = (
    ("PUT", "tenants/public", OPEN),
    ("POST", "tenants/public", OPEN),
    ("PUT", "namespaces/public/default", None),
    ("POST", "namespaces/public/default/permissions/anonymous", '["produce", "consume"]'),
    ("PUT", "tenants/private", CLOSED),
    ("PUT", "namespaces/private/auth", namespace("token-principal", "chained-client")),
)
"""What all suites want: whoever comes may use public/default, and only who has a token private/auth."""


@contextmanager
def broker(
    folder: Path,
    keys: Keys | None = None,
    *,
    ports: Ports = Ports(),  # noqa: B008 - immutable
    settings: str = "",
    listeners: str = "",
    requests: Sequence[tuple[str, str, str | None]] = USUAL,
) -> Iterator[None]:
    """A broker that runs.

    Args:
        folder: for its files.
        keys: None: without TLS and authentication.
        ports: where it listens.
        settings: lines of the configuration's `[broker]`.
        listeners: lines of its cluster, with the addresses of listeners that have names.
        requests: method, path below /admin/v2 and body of what is set up; what is there already stays.

    Raises:
        SystemExit: it does not start, refuses a request, or ended while the suite ran.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text, token = CLUSTER.format(settings=settings, **ports._asdict()), ""
    if keys is not None:
        token = _credentials(folder, keys)
        text += TLS.format(
            folder=folder, certificate=keys.certificate, ca=keys.ca, listeners=listeners, **ports._asdict()
        )
        text += AUTHENTICATION.format(folder=folder) if keys.authentication else ""
    config, log = folder / "clusters.toml", folder / "broker.log"
    config.write_text(text)
    with log.open("wb") as out:
        command = [sys.executable, "-m", "magnetar", "broker", "standalone", "-c", str(config)]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_S
        while "ready" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"no broker: {log.read_text().strip()}")
            time.sleep(0.1)
        for method, path, body in requests if keys is not None else ():
            _ask(f"http://localhost:{ports.http}/admin/v2/{path}", method, body, token)
        yield
        if process.poll() is not None:
            raise SystemExit(f"the broker ended with {process.returncode}: {log.read_text()[-2000:]}")
    finally:
        process.kill()
        process.wait()


def _credentials(folder: Path, keys: Keys) -> str:
    """Make the files of a broker that asks who somebody is; a superuser's token."""
    key, secret, passwords = folder / "broker-key.pem", folder / "secret.key", folder / "passwords"
    shutil.copyfile(keys.key, key)
    passwords.write_text("admin:" + bcrypt.hashpw(b"123456", bcrypt.gensalt()).decode() + "\n")
    if keys.secret is None:
        magnetar("tokens", "create-secret-key", "--output", str(secret))
    else:
        shutil.copyfile(keys.secret, secret)
    for file in (key, passwords, secret):
        file.chmod(0o600)
    made = [("superUser", folder / "super.jwt")]
    if keys.token is not None:
        keys.token.unlink(missing_ok=True)
        made.append(("token-principal", keys.token))
    for role, file in made:
        magnetar("tokens", "create", "--secret-key", str(secret), "--subject", role, "--output", str(file))
    return (folder / "super.jwt").read_text().strip()


def _ask(url: str, method: str, body: str | None, token: str) -> None:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, method=method, data=(body or "").encode(), headers=headers)
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise SystemExit(f"{method} {url}: {error.code} {error.read().decode()}") from None
