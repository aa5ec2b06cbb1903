"""TLS contexts from files: the certificate to present, the CA to trust, the protocol versions. No sockets here."""

import ssl

from magnetar.core.errors import ConfigError


def load_certificate(context: ssl.SSLContext, certificate_file: str, key_file: str) -> None:
    """Give a context its own certificate.

    Raises:
        ConfigError: names the files.
    """
    try:
        # A callback for the passphrase: without one OpenSSL would ask at the terminal.
        context.load_cert_chain(certificate_file, key_file, password=lambda: "")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"certificate {certificate_file} with private key {key_file} cannot be used: {_reason(error)}"
        ) from None


def load_trust(context: ssl.SSLContext, ca_file: str) -> None:
    """Say whose certificates a context trusts.

    Raises:
        ConfigError: names the file.
    """
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"ca_file {ca_file} cannot be used: {_reason(error)}") from None


def client_context(ca_file: str = "", certificate_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """The context of a client. It always checks the server's certificate and name.

    Raises:
        ConfigError: a file is missing or wrong.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file:
        load_trust(context, ca_file)
    else:
        context.load_default_certs()
    if certificate_file:
        load_certificate(context, certificate_file, key_file)
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "it is not in PEM").replace("_", " ").lower()
        return "the key is encrypted or not a key" if "pem lib" in reason or "bad decrypt" in reason else reason
    return (error.strerror if isinstance(error, OSError) else "") or "it is not in PEM"
