"""The certificates in tests/pem, as settings and as what a client trusts."""

from __future__ import annotations

import ssl
from pathlib import Path

from slotproxy.config_keys import TlsKeys
from slotproxy.config_tls import TlsSettings, tls_of
from slotproxy.config_yaml import Place

PEM = Path(__file__).parents[1] / "pem"


def tls(name: str = "server", key: str | None = None) -> TlsSettings:
    keys = TlsKeys(certificate=PEM / f"{name}.pem", key=PEM / f"{key or name}.key")
    settings = tls_of(keys, Place(Path("slotproxy.yml"), "tls"))
    assert settings is not None
    return settings


def trusting() -> ssl.SSLContext:
    """A client that believes what leads to the root of the tests, and checks names."""
    context = ssl.create_default_context(cafile=PEM / "root.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def shown(connection: ssl.SSLObject | ssl.SSLSocket) -> str:
    """Which certificate the server has shown: the name of its file."""
    der = connection.getpeercert(binary_form=True)
    assert der is not None
    pem = ssl.DER_cert_to_PEM_cert(der)
    return next(path.stem for path in PEM.glob("*.pem") if path.read_text().startswith(pem))
