"""A BookKeeper cluster with everything switched on that protects it: TLS with certificates of both sides, and users, in ZooKeeper
and in the bookies. ZooKeeper's nodes are for the cluster's user alone.

The bookies and Java's tools use ZooKeeper's other port, which wants a user, too: Java takes seconds for its first TLS.
"""

from pathlib import Path
from typing import Final

from kazoo.client import KazooClient

from magnetar.bookkeeper.network.zookeeper_client import ZooKeeperSecurity, make_client
from magnetar.core.tls import client_context
from tests.support.apache_bookkeeper.kit import SESSION_S, Protection
from tests.support.certificates import Authority
from tests.support.zookeeper import QUIET

USER: Final = "bookkeeper"
"""Of the bookies, their tools and the brokers: `zkEnableSecurity` makes nodes that only their creator may use."""

PASSWORD: Final = 'a "quoted" pass\\word'

LOGIN: Final = """
Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_bookkeeper="%(password)s"; };
Client { org.apache.zookeeper.server.auth.DigestLoginModule required username="bookkeeper" password="%(password)s"; };
Bookie { org.apache.zookeeper.server.auth.DigestLoginModule required user_bookkeeper="%(password)s"; };
BookKeeper { org.apache.zookeeper.server.auth.DigestLoginModule required username="bookkeeper" password="%(password)s"; };
"""
"""The sections that ZooKeeper, its clients, bookies and their clients read."""


class Protected:
    """The files that protect a cluster, and what they add to its configuration.

    Args:
        folder: for the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.certificate, self.key = self.authority.sign("server")
        self.client_certificate, self.client_key = self.authority.sign("broker")
        self.password_file = self.secret("password", PASSWORD)
        parts = [path.read_text() for path in (self.key, self.certificate)]
        # As ZooKeeper reads them.
        self._store = self.secret("server.store.pem", "".join(parts))
        escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        self._login = self.secret("login.conf", LOGIN % {"password": escaped})

    def secret(self, name: str, text: str) -> Path:
        """A file that only its owner may read."""
        path = self.folder / name
        path.write_text(text + "\n")
        path.chmod(0o600)
        return path

    def protection(self) -> Protection:
        """For the kit."""
        authority = str(self.authority.file)
        package = "org.apache.bookkeeper.sasl"
        return Protection(
            zookeeper={
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.keyStore.location": str(self._store),
                "ssl.trustStore.location": authority,
                "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
                "sessionRequireClientSASLAuth": "true",
            },
            bookie={
                "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
                "tlsProvider": "JDK",
                "tlsKeyStoreType": "PEM",
                "tlsKeyStore": str(self.key),
                "tlsCertificatePath": str(self.certificate),
                "tlsTrustStoreType": "PEM",
                "tlsTrustStore": authority,
                "tlsClientAuthentication": "true",
                "bookieAuthProviderFactoryClass": f"{package}.SASLBookieAuthProviderFactory",
                "zkEnableSecurity": "true",
                # On a busy machine Java's login takes longer than the kit's usual session.
                "zkTimeout": "30000",
            },
            # Without TLS: Java's client begins its authentication before TLS (docs/design/bookkeeper.md#authentication).
            tools={
                "clientAuthProviderFactoryClass": f"{package}.SASLClientProviderFactory",
                "zkEnableSecurity": "true",
            },
            properties={"java.security.auth.login.config": self._login},
            secure_port=True,
            connect=self.connect,
        )

    def security(self) -> ZooKeeperSecurity:
        """Of a client of ZooKeeper that is allowed everything."""
        context = client_context(str(self.authority.file), str(self.client_certificate), str(self.client_key))
        return ZooKeeperSecurity(lambda: context, (USER, PASSWORD))

    def connect(self, hosts: str) -> KazooClient:
        """A client of ZooKeeper without TLS that is not started."""
        return make_client(hosts, SESSION_S, QUIET, ZooKeeperSecurity(sasl=(USER, PASSWORD)))

    def tables(self, cluster: str = "one") -> str:
        """The tables of clusters.toml."""
        tls = (
            f'tls = true\nca_file = "{self.authority.file}"\ncertificate_file = "{self.client_certificate}"\n'
            f'key_file = "{self.client_key}"\n'
        )
        user = f'user = "{USER}"\npassword_file = "{self.password_file}"\n'
        return "".join(f"[clusters.{cluster}.{name}]\n{tls}{user}" for name in ("bookies", "zookeeper"))
