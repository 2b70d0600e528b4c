"""`tls:` of the configuration file: the certificate that the client port shows, read whole and tried before it is used.

What is tried is a handshake with ourselves, in memory: it proves that this certificate and this key work together as a
server's, and it is how Python tells what a certificate says. One that has expired is used all the same, and said to
everybody who looks: a port that doesn't open would help nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slotproxy.config_keys import TlsKeys
from slotproxy.config_yaml import Place, one_line, text_of

DAY: Final = 86400.0  # seconds
SOON: Final = 14 * DAY  # who renews by itself does so long before
_CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"
_NO_CHECK_TIME: Final = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python has no name for
_STEPS: Final = 10  # messages of a handshake each way; TLS 1.3 needs two


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """`digest` is of the certificate: one that was renewed is another setting. Times since the epoch."""

    certificate: Path
    key: Path
    digest: str = field(repr=False)
    begins: float
    expires: float
    context: ssl.SSLContext = field(compare=False, repr=False)

    def trouble(self) -> str:
        """What clients will hold against this certificate by its dates, now or soon; empty: nothing."""
        now = time.time()
        if self.expires <= now:
            return f"the certificate {self.certificate} has expired on {day(self.expires)}: clients refuse it"
        if self.begins > now:
            return f"the certificate {self.certificate} isn't valid before {day(self.begins)}: clients refuse it"
        left = self.expires - now
        if left < min(SOON, (self.expires - self.begins) / 3):
            return f"the certificate {self.certificate} expires in {left / DAY:.1f} days, on {day(self.expires)}"
        return ""

    def warnings(self) -> list[str]:
        """What somebody should know who looks at the configuration."""
        exposed = [self.exposed] if self.open_to_others() else []
        return [*filter(None, [self.trouble()]), *exposed]

    @property
    def exposed(self) -> str:
        return f"whoever is on this machine may read the certificate's key {self.key}"

    def valid(self) -> bool:
        """By its dates, now."""
        return self.begins <= time.time() < self.expires

    def open_to_others(self) -> bool:
        """Whether everybody on this machine may read the key; one that isn't there any more isn't anybody's to read."""
        try:
            return bool(self.key.stat().st_mode & stat.S_IROTH)
        except OSError:
            return False


def day(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(moment))


def tls_of(keys: TlsKeys | None, at: Place) -> TlsSettings | None:
    """Raises ConfigError."""
    if keys is None:
        return None
    path = keys.key or keys.certificate
    certificate = text_of(keys.certificate, at / "certificate")
    if _CERTIFICATE not in certificate:
        raise (at / "certificate").wrong(
            f"{keys.certificate} holds no certificate in PEM ({_CERTIFICATE}); name the file with the whole chain"
        )
    key = text_of(path, at / "key")
    _expect_plain_key(key, path, at / "key")
    context = _context(keys.certificate, path, at)
    told = _tried(context, certificate, keys.certificate, at / "certificate")
    return TlsSettings(
        certificate=keys.certificate,
        key=path,
        digest=hashlib.sha256(certificate.encode()).hexdigest(),
        begins=ssl.cert_time_to_seconds(told["notBefore"]),
        expires=ssl.cert_time_to_seconds(told["notAfter"]),
        context=context,
    )


def _expect_plain_key(key: str, path: Path, at: Place) -> None:
    """OpenSSL would ask for a password at the terminal, and a daemon has none."""
    if "PRIVATE KEY-----" not in key:
        raise at.wrong(f"{path} holds no private key in PEM (-----BEGIN PRIVATE KEY-----)")
    if "BEGIN ENCRYPTED PRIVATE KEY" in key or "Proc-Type: 4,ENCRYPTED" in key:
        raise at.wrong(
            f"{path} is encrypted, and nobody could type its password when slotproxy starts; write it without one"
            " (`openssl pkey -in OLD -out NEW`), readable to slotproxy alone"
        )


def _context(certificate: Path, key: Path, at: Place) -> ssl.SSLContext:
    """TLS 1.2 and newer, HTTP/1.1. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise (at / "key").wrong(
                f"{key} isn't the key of the certificate {certificate}; name the two that belong together"
            ) from None
        raise at.wrong(f"{certificate} and {key} can't be used: {_words(error)}") from None
    except OSError as error:
        raise at.wrong(f"{certificate} and {key} can't be read: {error.strerror}") from None
    return context


def _no_password() -> bytes:
    return b""


def _tried(context: ssl.SSLContext, certificate: str, path: Path, at: Place) -> dict[str, Any]:
    """What the certificate says of itself, from a client that trusts it. Raises ConfigError: it's no server's."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    try:
        client.load_verify_locations(cadata=certificate)
        client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
        return _handshake(client, context)
    except ssl.SSLCertVerificationError as error:
        raise at.wrong(f"{path} can't be a server's certificate: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise at.wrong(f"{path} can't be shown to clients: {_words(error)}") from None


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, Any]:
    """What the client learns of the server's certificate. Raises SSLError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(down, up)
    answering = server.wrap_bio(up, down, server_side=True)
    for _ in range(_STEPS):
        try:
            asking.do_handshake()
            return dict(asking.getpeercert() or {})
        except ssl.SSLWantReadError:
            pass
        with contextlib.suppress(ssl.SSLWantReadError):
            answering.do_handshake()
    raise ssl.SSLError("a handshake with ourselves doesn't end")


def _words(error: ssl.SSLError) -> str:
    return (error.reason or one_line(error)).replace("_", " ").lower()
