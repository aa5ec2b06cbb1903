"""The tables `[authentication]`, `[authorization]`, `[tls]` and `[client]` of clusters.toml as structs.

The file itself has no secrets: it names files and environment variables, which are read where they are used
(`runtime.security.secrets`). So the configuration may be shown, copied and logged.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta, Struct

from magnetar.core.errors import ConfigError

Method = Literal["token", "basic", "tls"]

Count = Annotated[int, Meta(ge=1, le=10_000_000)]
Milliseconds = Annotated[int, Meta(ge=1, le=366 * 24 * 3_600_000)]
Seconds = Annotated[int, Meta(ge=0, le=3_600)]
Name = Annotated[str, Meta(min_length=1, max_length=512)]

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
    """All four tables; their paths are absolute."""

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
