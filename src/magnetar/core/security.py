"""The tables `[authentication]`, `[authorization]`, `[tls]` and `[client]` of clusters.toml as structs; and the tables
`[clusters.NAME.bookies]`, `[clusters.NAME.zookeeper]` and `[metadata.zookeeper]`, which secure connections to the servers that
store the data of brokers.

The file itself has no secrets: it names files and environment variables, which are read where they are used
(`runtime.security.secrets`). So the configuration may be shown, copied and logged.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from magnetar.core.errors import ConfigError
from magnetar.core.tables import read_table

Method = Literal["token", "basic", "tls"]

Count = Annotated[int, Meta(ge=1, le=10_000_000)]
Milliseconds = Annotated[int, Meta(ge=1, le=366 * 24 * 3_600_000)]
Seconds = Annotated[int, Meta(ge=0, le=3_600)]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
User = Annotated[str, Meta(max_length=256)]

ROLE_CHARACTERS_MAX: Final = 512
"""A ceiling on a role's name: it is stored with every permission and shown in errors."""

_S = TypeVar("_S", bound=Struct)
Table = Callable[[type[_S], Any, str], _S]


def check_role(role: str) -> str:
    """Return a possible role.

    Raises:
        ValueError: empty, too long, or with blanks around it or control characters; says so in a few words.
    """
    if not role:
        raise ValueError("a role is not empty")
    if len(role) > ROLE_CHARACTERS_MAX:
        raise ValueError(f"a role has at most {ROLE_CHARACTERS_MAX} characters")
    if role != role.strip() or not role.isprintable():
        raise ValueError("a role has no blanks around it and no control characters")
    return role


class AuthenticationConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[authentication]` table: how clients prove their role. Without `methods` every client may do everything."""

    methods: list[Method] = []
    """How clients may authenticate: `token` (JWT), `basic` (name and password), `tls` (a client certificate). Any of
    them switches authentication and authorisation on."""
    secret_key_files: list[Name] = []
    """Keys of tokens signed by HS256/384/512: 32 bytes or more, raw or in base64, mode 0600. Name several while a new
    key replaces an old one."""
    secret_key_env: str = ""
    """Name of an environment variable with such a key in base64, in place of a file."""
    public_key_files: list[Name] = []
    """Keys of tokens signed by RS, PS, ES or EdDSA: PEM, or DER as Pulsar's tools write it. The key's type decides the
    algorithms."""
    role_claim: Name = "sub"
    """The claim with the role; Pulsar's default."""
    audience: str = ""
    """A value that the token's audience must contain, as Pulsar's `tokenAudience`; "" accepts tokens for any
    audience."""
    audience_claim: Name = "aud"
    """The claim with the audience."""
    expiry_required: bool = False
    """Whether tokens without `exp` are refused. Off, as in Pulsar."""
    clock_skew_s: Seconds = 0
    """Allowed difference from the clock of the token's issuer, for `exp` and `nbf`. Pulsar's default."""
    token_bytes_max: Annotated[int, Meta(ge=256, le=1 << 20)] = 16_384
    """Limit of the credentials that a client presents: the largest tokens of identity providers have about 8 KiB."""
    basic_file: str = ""
    """Names and passwords, as `htpasswd -B` writes them (bcrypt); the name is the role."""
    anonymous_role: str = ""
    """The role of clients without credentials; "": they are refused."""
    proxy_roles: list[Name] = []
    """Roles that may act for another role (`original_principal`); then both need the permission."""
    refresh_ms: Milliseconds = 30_000
    """How long before its token expires a client is asked for another: a token's issuer may take seconds."""
    failed_logins_max: Count = 20
    """Limit of wrong tokens from one address, and of wrong passwords of one name from one address, within
    `failed_logins_ms`; above it further attempts are refused. Above ten times as many wrong passwords of any names,
    passwords of unproved names from that address are refused. Correct tokens are always accepted."""
    failed_logins_ms: Milliseconds = 60_000
    """The window of `failed_logins_max`, and the time for which further attempts are refused."""

    @property
    def enabled(self) -> bool:
        """Whether clients have to authenticate."""
        return bool(self.methods)


class AuthorizationConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[authorization]` table: roles that no tenant can give. It counts when there is authentication."""

    superusers: list[Name] = []
    """Roles that may do everything."""
    replicate_roles: list[Name] = []
    """Roles that may act as links for all namespaces: read and write entries with their origin. A `replicate`
    permission allows this for one namespace or topic."""
    monitor_roles: list[Name] = []
    """Roles that may read `/metrics`, the status page, `/geo/v1` and the state of brokers and clusters, and change
    nothing."""


class TlsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[tls]` table: the certificate of `pulsar_tls` and `https`. Files that change are read again while it runs."""

    certificate_file: str = ""
    """PEM: the certificate and its chain to a root."""
    key_file: str = ""
    """PEM: its private key, unencrypted, not readable by others."""
    ca_file: str = ""
    """PEM: the authorities that may sign clients' certificates. Links and commands of this installation trust them,
    too."""
    client_certificates: Literal["none", "optional", "required"] = "optional"
    """Whether clients present a certificate; only with `ca_file`. A wrong certificate always ends the connection."""
    minimum_version: Literal["1.2", "1.3"] = "1.2"
    """The lowest version of TLS; older versions are not secure."""


class ClientConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[client]` table: how `magnetar`'s own commands present themselves to brokers."""

    token_file: str = ""
    """A file with a token, mode 0600; `--token-file` and MAGNETAR_TOKEN come before it."""
    ca_file: str = ""
    """PEM: the authorities that sign the brokers' certificates; default: `ca_file` of `[tls]`, else those that the
    system trusts."""
    certificate_file: str = ""
    """PEM: a certificate of the command, for brokers that ask for one."""
    key_file: str = ""
    """PEM: its private key."""


class Security(Struct, frozen=True, kw_only=True):
    """The first four tables; their paths are absolute."""

    authentication: AuthenticationConfig = AuthenticationConfig()
    authorization: AuthorizationConfig = AuthorizationConfig()
    tls: TlsConfig = TlsConfig()
    client: ClientConfig = ClientConfig()

    @property
    def trusted_ca(self) -> str:
        """The CA file that links and commands trust, "" for the system's."""
        return self.client.ca_file or self.tls.ca_file


def build(
    table: Callable[[type[Any], Any, str], Any], tables: dict[str, dict[str, Any]], resolve: Callable[[str], Path]
) -> Security:
    """The four tables, checked.

    Args:
        table: checks one table against its struct (`core.config`).
        tables: by name.
        resolve: makes a path of the file absolute.

    Raises:
        ConfigError: names the key and what would be right.
    """

    def one(kind: type[_S], name: str) -> _S:
        made: _S = table(kind, tables.get(name, {}), name)
        changed: dict[str, Any] = {}
        for field in kind.__struct_fields__:
            value = getattr(made, field)
            if field.endswith("_file") and value:
                changed[field] = str(resolve(value))
            elif field.endswith("_files"):
                changed[field] = [str(resolve(path)) for path in value]
        return kind(**{field: changed.get(field, getattr(made, field)) for field in kind.__struct_fields__})

    security = Security(
        authentication=one(AuthenticationConfig, "authentication"),
        authorization=one(AuthorizationConfig, "authorization"),
        tls=one(TlsConfig, "tls"),
        client=one(ClientConfig, "client"),
    )
    _check(security)
    return security


def _check(security: Security) -> None:
    authentication, tls, client = security.authentication, security.tls, security.client
    keys = authentication.secret_key_files or authentication.secret_key_env or authentication.public_key_files
    if "token" in authentication.methods and not keys:
        raise ConfigError(
            'authentication.methods: "token" needs a key: write secret_key_files = ["secret.key"], public_key_files, '
            "or secret_key_env; `magnetar tokens create-secret-key` makes one"
        )
    if "basic" in authentication.methods and not authentication.basic_file:
        raise ConfigError('authentication.methods: "basic" needs basic_file = "users.htpasswd"')
    if "tls" in authentication.methods and not (tls.ca_file and tls.client_certificates != "none"):
        raise ConfigError('authentication.methods: "tls" needs ca_file in [tls], and client_certificates not "none"')
    for where, role in _roles(security):
        try:
            check_role(role)
        except ValueError as error:
            raise ConfigError(f"{where}: {role[:60]!a}: {error}") from None
    for name, one in (("tls", tls), ("client", client)):
        if bool(one.certificate_file) != bool(one.key_file):
            raise ConfigError(f"{name}: certificate_file and key_file belong together: write both")


def _roles(security: Security) -> list[tuple[str, str]]:
    authentication, authorization = security.authentication, security.authorization
    found = [("authentication.anonymous_role", authentication.anonymous_role)] if authentication.anonymous_role else []
    found += [("authentication.proxy_roles", role) for role in authentication.proxy_roles]
    found += [("authorization.superusers", role) for role in authorization.superusers]
    found += [("authorization.replicate_roles", role) for role in authorization.replicate_roles]
    return found + [("authorization.monitor_roles", role) for role in authorization.monitor_roles]


class BookieSecurity(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[clusters.NAME.bookies]` table."""

    tls: bool = False
    """Whether connections to bookies use TLS. Off, as in BookKeeper: a bookie has it only if it has a certificate
    (`tlsProviderFactoryClass`). Entries are sent as they are without it."""
    ca_file: str = ""
    """PEM: the authorities that sign the bookies' certificates; default: those that the system trusts."""
    certificate_file: str = ""
    """PEM: a certificate of the broker, for bookies that ask for one (`tlsClientAuthentication`), or that authenticate by it
    (`BookieAuthZFactory`)."""
    key_file: str = ""
    """PEM: its private key, unencrypted, not readable by others."""
    verify_hostname: bool = True
    """Whether a bookie's certificate has to name the host that the bookie has registered. `false` for certificates without
    such names: any certificate of `ca_file` is accepted then."""
    user: User = ""
    """The user for SASL, by DIGEST-MD5: `user_NAME` of the bookies' login configuration. Bookies accept by default only names
    that contain `bookkeeper` (`saslJaasClientAllowedIds`). Empty: without SASL."""
    password_file: str = ""
    """A file with the password of `user`, mode 0600."""


class ZooKeeperSecurityConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[clusters.NAME.zookeeper]` and `[metadata.zookeeper]` tables."""

    tls: bool = False
    """Whether connections to ZooKeeper use TLS. Off, as in ZooKeeper: it has TLS on a port of its own (`secureClientPort`),
    which the address has to name."""
    ca_file: str = ""
    """PEM: the authorities that sign the servers' certificates; default: those that the system trusts."""
    certificate_file: str = ""
    """PEM: a certificate of the broker. Servers ask for one by default (`ssl.clientAuth`)."""
    key_file: str = ""
    """PEM: its private key, unencrypted, not readable by others."""
    verify_hostname: bool = True
    """Whether a server's certificate has to name the host of the address, as with ZooKeeper's own clients
    (`ssl.hostnameVerification`)."""
    user: User = ""
    """The user. Empty: without authentication, except by the certificate."""
    password_file: str = ""
    """A file with the password of `user`, mode 0600. It is read at the start of the broker."""
    authentication: Literal["sasl", "digest"] = "sasl"
    """How `user` authenticates. `sasl`: by DIGEST-MD5, with a user of the servers' login configuration; a wrong password is
    refused, and the password is not sent. `digest`: any user and password, which access lists compare and which are sent as they
    are, so use TLS."""
    access: Literal["auto", "creator", "anyone"] = "auto"
    """The clients that may use the nodes that the broker makes below `store`: `creator`, those that authenticate as the same
    user, or by the same certificate; `anyone`. `auto`: `creator` if there is a `user`. Nodes below `ledgers` get the access list
    of that node instead, so that bookies and Java's tools can use them."""

    @property
    def creator_only(self) -> bool:
        """Whether the nodes are for this user alone."""
        return self.access == "creator" or (self.access == "auto" and bool(self.user))


def bookie_security(value: Any, where: str, resolve: Callable[[str], Path]) -> BookieSecurity:
    """The table for bookies, checked, with absolute paths.

    Args:
        value: of the file.
        where: name of the table.
        resolve: makes a path of the file absolute.

    Raises:
        ConfigError: names the key and what would be right.
    """
    table = read_table(BookieSecurity, value, where)
    _check_server(table, where)
    return _resolved(table, resolve)


def zookeeper_security(value: Any, where: str, resolve: Callable[[str], Path]) -> ZooKeeperSecurityConfig:
    """The table for ZooKeeper; as `bookie_security`."""
    table = read_table(ZooKeeperSecurityConfig, value, where)
    _check_server(table, where)
    if table.authentication == "digest" and ":" in table.user:
        raise ConfigError(f'{where}.user: {table.user!a}: a colon cannot be in the name of a user with "digest"')
    if table.access == "creator" and not table.user and not table.certificate_file:
        raise ConfigError(f'{where}.access: "creator" needs a user, or a certificate that ZooKeeper authenticates')
    return _resolved(table, resolve)


def _check_server(table: BookieSecurity | ZooKeeperSecurityConfig, where: str) -> None:
    if bool(table.certificate_file) != bool(table.key_file):
        raise ConfigError(f"{where}: certificate_file and key_file belong together: write both")
    if bool(table.user) != bool(table.password_file):
        raise ConfigError(f"{where}: user and password_file belong together: write both")
    if not table.user.isprintable():
        raise ConfigError(f"{where}.user: {table.user!a} has characters that cannot be printed")
    if not table.tls:
        for key in ("ca_file", "certificate_file"):
            if getattr(table, key):
                raise ConfigError(f"{where}.{key}: only with TLS: write tls = true, too")
        if not table.verify_hostname:
            raise ConfigError(f"{where}.verify_hostname: only with TLS: write tls = true, too")


def _resolved(table: _S, resolve: Callable[[str], Path]) -> _S:
    files = {key: getattr(table, key) for key in table.__struct_fields__ if key.endswith("_file")}
    return replace(table, **{key: str(resolve(path)) for key, path in files.items() if path})
