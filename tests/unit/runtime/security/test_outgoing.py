"""The security of connections to bookies and ZooKeeper: from files, which are followed, and refused in one line."""

import logging
import ssl
from pathlib import Path

import pytest

from magnetar.core.errors import ConfigError
from magnetar.core.security import BookieSecurity, ZooKeeperSecurityConfig
from magnetar.runtime.security.outgoing import ClientTls, bookie_security, zookeeper_security
from tests.support.certificates import Authority


def secret(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def table(folder: Path, **more: object) -> BookieSecurity:
    """TLS with a certificate of both sides."""
    authority = Authority(folder)
    certificate, key = authority.sign("broker")
    given = {"tls": True, "ca_file": str(authority.file), "certificate_file": str(certificate), "key_file": str(key)}
    return BookieSecurity(**(given | more))  # type: ignore[arg-type]


def test_without_anything_nothing_is_secured() -> None:
    assert bookie_security(BookieSecurity(), "t").tls is None
    assert bookie_security(BookieSecurity(), "t").authentication is None
    found = zookeeper_security(ZooKeeperSecurityConfig(), "t")
    assert (found.tls, found.sasl, found.digest, found.creator_only) == (None, None, None, False)


@pytest.mark.parametrize("verify", [True, False])
def test_the_context_is_that_of_a_client(tmp_path: Path, verify: bool) -> None:
    tls = bookie_security(table(tmp_path, verify_hostname=verify), "t").tls
    assert tls is not None
    context = tls()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname is verify
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert len(context.get_ca_certs()) == 1, "the system's authorities are not trusted in addition"


def test_a_user_authenticates_by_sasl_or_digest(tmp_path: Path) -> None:
    password = secret(tmp_path / "p", "top secret\n")
    sasl = zookeeper_security(ZooKeeperSecurityConfig(user="m", password_file=password), "t")
    assert (sasl.sasl, sasl.digest, sasl.creator_only) == (("m", "top secret"), None, True)
    digest = zookeeper_security(
        ZooKeeperSecurityConfig(user="m", password_file=password, authentication="digest", access="anyone"), "t"
    )
    assert (digest.sasl, digest.digest, digest.creator_only) == (None, ("m", "top secret"), False)
    assert "secret" not in f"{sasl} {digest}"


def test_the_bookies_password_may_be_replaced(tmp_path: Path) -> None:
    made = bookie_security(BookieSecurity(user="m", password_file=secret(tmp_path / "p", "one")), "t").authentication
    assert made is not None
    challenge = b'realm="r",nonce="n",charset=utf-8,algorithm=md5-sess'
    for password in ("one", "two"):
        secret(tmp_path / "p", password)
        login = made()
        assert login.first() == b""
        assert b'username="m"' in (login.next(challenge) or b"")
    (tmp_path / "p").unlink()
    with pytest.raises(ConfigError, match="^t: password file .* cannot be read: No such file or directory$"):
        made()


@pytest.mark.parametrize("key", ["ca_file", "certificate_file", "key_file"])
def test_a_file_that_is_missing_is_one_line(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bookie_security(table(tmp_path, **{key: "/nowhere.pem"}), "clusters.one.bookies")
    line = str(caught.value)
    assert line.startswith("clusters.one.bookies: ")
    assert "/nowhere.pem" in line
    assert line.endswith(": No such file or directory")


def test_a_file_that_is_none_or_open_to_others_is_one_line(tmp_path: Path) -> None:
    junk = secret(tmp_path / "junk", "no certificate")
    with pytest.raises(ConfigError, match="^t: ca_file .*junk cannot be used: "):
        bookie_security(table(tmp_path, ca_file=junk), "t")
    readable = table(tmp_path)
    Path(readable.key_file).chmod(0o644)
    with pytest.raises(ConfigError, match="^t: private key .* can be read by others: chmod 600 "):
        bookie_security(readable, "t")


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("", 0o600, "is empty: it should hold a password"),
        ("\n", 0o600, "is empty: it should hold a password"),
        ("one\ntwo", 0o600, "holds more than one line of text"),
        ("one", 0o644, "can be read by others: chmod 600"),
    ],
)
def test_a_wrong_password_file_is_one_line(tmp_path: Path, content: str, mode: int, words: str) -> None:
    wrong = ZooKeeperSecurityConfig(user="m", password_file=secret(tmp_path / "p", content, mode))
    with pytest.raises(ConfigError) as caught:
        zookeeper_security(wrong, "metadata.zookeeper")
    line = str(caught.value)
    assert line.startswith(f"metadata.zookeeper: password file {tmp_path / 'p'} ")
    assert words in line
    assert "one" not in line.replace("one line", "")


def test_replaced_certificates_count_for_later_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = table(tmp_path)
    tls = ClientTls(given, "t")
    before = tls.context()
    assert tls.context() is before
    other = tmp_path / "other"
    other.mkdir()
    Path(given.ca_file).write_bytes(Authority(other).file.read_bytes())
    after = tls.context()
    assert after.get_ca_certs(binary_form=True) != before.get_ca_certs(binary_form=True)
    with caplog.at_level(logging.ERROR):
        Path(given.ca_file).write_text("no certificate at all")
        assert [tls.context() for _ in range(3)] == [after] * 3
    assert [record.getMessage().partition(": t: ca_file")[0] for record in caplog.records] == [
        "the files have changed, but the former ones stay in force"
    ]
