"""The tables of security in clusters.toml: what they become, and each mistake in one line."""

from pathlib import Path

import pytest

from magnetar.app import check_exposure
from magnetar.core import config
from magnetar.core.errors import ConfigError, MagnetarError

CLUSTER = '[clusters.a]\npulsar = "127.0.0.1:6650"\nhttp = "127.0.0.1:8080"\n'
TLS = 'pulsar_tls = "0.0.0.0:6651"\nhttps = "0.0.0.0:8443"\nadvertised_tls = "a.example:6651"\n'
FILES = '[tls]\ncertificate_file = "c.pem"\nkey_file = "/k.pem"\nca_file = "ca.pem"\n'
TOKEN = '[authentication]\nmethods = ["token"]\nsecret_key_files = ["s.key"]\n'


def parse(text: str) -> config.Config:
    return config.parse(text, Path("/etc/m/clusters.toml"))


def test_off_without_methods() -> None:
    found = parse(CLUSTER)
    assert not found.security.authentication.enabled
    assert found.link_addresses("a").order() == ("127.0.0.1:6650",)
    assert found.clusters["a"].admin_url == "http://127.0.0.1:8080"


def test_paths_are_relative_to_the_file() -> None:
    found = parse(CLUSTER + TLS + FILES + TOKEN + '[client]\ntoken_file = "me.jwt"\n[replication]\ntls = true\n')
    security = found.security
    assert security.authentication.secret_key_files == ["/etc/m/s.key"]
    assert (security.tls.certificate_file, security.tls.key_file) == ("/etc/m/c.pem", "/k.pem")
    assert security.client.token_file == "/etc/m/me.jwt"
    assert security.trusted_ca == "/etc/m/ca.pem"
    cluster = found.clusters["a"]
    assert cluster.service_url_tls == "pulsar+ssl://a.example:6651"
    assert cluster.admin_url == "https://a.example:8443"
    assert found.link_addresses("a").order() == ("pulsar+ssl://a.example:6651?ca=%2Fetc%2Fm%2Fca.pem",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[authentication]\nmethods = ["token"]\n', "needs a key"),
        ('[authentication]\nmethods = ["basic"]\n', "needs basic_file"),
        ('[authentication]\nmethods = ["tls"]\n', "needs ca_file in [tls]"),
        ('[authentication]\nmethods = ["kerberos"]\n', "authentication.methods"),
        ('[authentication]\nsecret_key = "abc"\n', "authentication.secret_key: unknown key"),
        ('[authentication]\nanonymous_role = " guest"\n', "authentication.anonymous_role"),
        ('[authorization]\nsuperusers = ["a\\u0000"]\n', "authorization.superusers"),
        ('[authorization]\nsuperuser = ["a"]\n', "did you mean 'superusers'?"),
        ('[tls]\ncertificate_file = "a"\n', "certificate_file and key_file belong together"),
        ('[tls]\nminimum_version = "1.0"\n', 'expected one of "1.2", "1.3"'),
        ("[replication]\ntls = true\n", "replication.tls: cluster a has no pulsar_tls"),
    ],
)
def test_mistakes(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(CLUSTER + text)
    line = str(caught.value)
    assert said in line and "\n" not in line and line.startswith("/etc/m/clusters.toml: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TLS, "needs certificate_file and key_file in [tls]"),
        ('pulsar_tls = "127.0.0.1:6650"\n' + FILES, "port 6650 is already taken by clusters.a.pulsar"),
        ('pulsar_tls = "0.0.0.0:6651"\n' + FILES, "advertised_tls: missing"),
        ('advertised_tls = "a:1"\n', "there is no pulsar_tls"),
        ('https = "nonsense"\n' + FILES, "clusters.a.https"),
    ],
)
def test_mistakes_of_listeners(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(CLUSTER + text)
    assert said in str(caught.value)


def test_listening_beyond_this_machine_needs_authentication_or_insecure() -> None:
    open_wide = CLUSTER.replace("127.0.0.1:8080", "192.0.2.1:8080")
    bare, secured = parse(open_wide), parse(open_wide + TOKEN)
    with pytest.raises(MagnetarError, match=r"192.0.2.1:8080 \(http\) without authentication") as caught:
        check_exposure(bare, bare.cluster("a").broker(""), "a", insecure=False)
    assert "\n" not in str(caught.value) and "--insecure" in str(caught.value)
    check_exposure(bare, bare.cluster("a").broker(""), "a", insecure=True)
    check_exposure(secured, secured.cluster("a").broker(""), "a", insecure=False)
    by_tls = parse(CLUSTER + TLS + FILES)
    with pytest.raises(MagnetarError, match="pulsar_tls"):
        check_exposure(by_tls, by_tls.cluster("a").broker(""), "a", insecure=False)
