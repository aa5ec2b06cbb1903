"""A broker with everything switched on that protects it, the roles of its clients and their tokens."""

import base64
import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bcrypt
import jwt
import pulsar
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.support.brokers import World
from tests.support.certificates import Authority

SECRET = os.urandom(64)


RSA = rsa.generate_private_key(65537, 2048)


EC = ec.generate_private_key(ec.SECP256R1())


NAMESPACE = "/admin/v2/namespaces/public/default"


FAILED_LOGINS_MAX = 10


CONFIG = f"""
[authentication]
methods = ["token", "basic", "tls"]
secret_key_files = ["secret.key"]
public_key_files = ["rsa.pem", "ec.pem"]
basic_file = "users.htpasswd"
audience = "shop"
proxy_roles = ["proxy"]
refresh_ms = 60_000
failed_logins_max = {FAILED_LOGINS_MAX}

[authorization]
superusers = ["root"]
replicate_roles = ["linker"]
monitor_roles = ["monitor"]

[tls]
certificate_file = "server.cert.pem"
key_file = "server.key.pem"
ca_file = "ca.pem"
"""


def _pem(key: Any) -> bytes:
    return bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def _private(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o600)


def prepare(folder: Path) -> Authority:
    """Keys, passwords and certificates for `CONFIG`."""
    authority = Authority(folder)
    authority.sign("server")
    _private(folder / "secret.key", base64.b64encode(SECRET))
    _private(folder / "users.htpasswd", b"reader:" + bcrypt.hashpw(b"sesame", bcrypt.gensalt(4)) + b"\n")
    (folder / "rsa.pem").write_bytes(_pem(RSA))
    (folder / "ec.pem").write_bytes(_pem(EC))
    return authority


def token(role: str, key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    """A token for a role."""
    return jwt.encode({"sub": role, "aud": "shop"} | claims, key, algorithm=algorithm)


class Secured:
    """A broker with everything switched on, and the authority of its certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = prepare(folder)
        self.world = World(folder, ["solo"], CONFIG, tls=True)
        self.broker = self.world["solo"]
        self.broker.headers["Authorization"] = f"Bearer {token('root')}"

    def client(self, authentication: Any = None, *, url: str = "", timeout_s: int = 20, **options: Any) -> Any:
        """An official client."""
        logger = logging.getLogger("pulsar-client")
        logger.setLevel(logging.CRITICAL)
        extra = {"authentication": authentication} if authentication is not None else {}
        return pulsar.Client(
            url or self.broker.url, operation_timeout_seconds=timeout_s, logger=logger, **extra, **options
        )

    def by_tls(self, authentication: Any = None, **options: Any) -> Any:
        """An official client by TLS."""
        url = self.broker.url_tls
        return self.client(authentication, url=url, tls_trust_certs_file_path=str(self.authority.file), **options)

    def grant(self, role: str, *actions: str, place: str = NAMESPACE) -> None:
        """Give a role permissions."""
        self.broker.rest("POST", f"{place}/permissions/{role}", list(actions))

    def log(self) -> str:
        """What the broker logged so far."""
        return self.broker.log.read_text()


@contextmanager
def closing(client: Any) -> Iterator[Any]:
    """A client that is closed whatever happens."""
    try:
        yield client
    finally:
        client.close()


def as_role(secured: Secured, role: str) -> Callable[..., int]:
    """Asks REST as a role; the status."""

    def ask(method: str, path: str, body: object = None) -> int:
        request = urllib.request.Request(
            secured.broker.web + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token(role)}"} if role else {}),
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            assert "reason" in json.loads(error.read())
            return error.code

    return ask
