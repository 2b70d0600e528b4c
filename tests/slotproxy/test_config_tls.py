"""`tls:` of the configuration file: every fault has its own words, and dates are said, not refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from slotproxy.changes import changes
from slotproxy.cli import main
from slotproxy.config import ConfigError, Settings, load
from slotproxy.config_tls import DAY, SOON
from tests.slotproxy.certificates import PEM, tls


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(PEM, tmp_path / "tls")
    (tmp_path / "a.gguf").write_bytes(b"")
    for key in (tmp_path / "tls").glob("*.key"):
        key.chmod(0o640)
    return tmp_path


def house(folder: Path, **tls: object) -> Path:
    engine = {"profile": "llamacpp", "command": ["/bin/true"], "vram": "1GiB", "pairs": {"a": {"artifact": "a.gguf"}}}
    document = {
        "listen": "127.0.0.1:9",
        "card": {"simulated": "32GiB"},
        "engines": {"llama": engine},
        **({"tls": tls} if tls else {}),
    }
    path = folder / "slotproxy.yml"
    path.write_text(yaml.safe_dump(document))
    return path


def read(folder: Path, certificate: str = "server.pem", key: str | None = "server.key") -> Settings:
    named = {"certificate": f"tls/{certificate}", **({"key": f"tls/{key}"} if key else {})}
    return load(house(folder, **named))


def refusal(folder: Path, certificate: str = "server.pem", key: str | None = "server.key") -> str:
    with pytest.raises(ConfigError) as no:
        read(folder, certificate, key)
    assert len(str(no.value).splitlines()) == 1
    return str(no.value).removeprefix(f"{folder / 'slotproxy.yml'}: ")


def test_certificate_and_key_are_read_and_tried(folder: Path) -> None:
    settings = read(folder)
    assert settings.tls is not None
    assert settings.tls.warnings() == []
    assert settings.tls == read(folder).tls
    assert settings.tls != read(folder, "renewed.pem", "renewed.key").tls
    assert load(house(folder)).tls is None


def test_one_file_may_hold_both(folder: Path) -> None:
    both = folder / "tls" / "both.pem"
    both.write_text((PEM / "server.key").read_text() + (PEM / "server.pem").read_text())
    settings = read(folder, "both.pem", None).tls
    assert settings is not None
    assert settings.key == both


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [
        ("none.pem", "server.key", "tls.certificate: {tls}/none.pem: No such file or directory"),
        ("server.pem", "none.key", "tls.key: {tls}/none.key: No such file or directory"),
        (".", "server.key", "tls.certificate: {tls}: Is a directory"),
        ("server.key", "server.key", "tls.certificate: {tls}/server.key holds no certificate in PEM"),
        ("server.pem", None, "tls.key: {tls}/server.pem holds no private key in PEM"),
        ("server.pem", "encrypted.key", "tls.key: {tls}/encrypted.key is encrypted"),
        ("server.pem", "encrypted-old.key", "tls.key: {tls}/encrypted-old.key is encrypted"),
        (
            "server.pem",
            "renewed.key",
            "tls.key: {tls}/renewed.key isn't the key of the certificate {tls}/server.pem; name the two that belong",
        ),
        (
            "client.pem",
            "client.key",
            "tls.certificate: {tls}/client.pem can't be a server's certificate: unsuitable certificate purpose",
        ),
    ],
)
def test_each_fault_has_its_own_words(folder: Path, certificate: str, key: str | None, said: str) -> None:
    assert refusal(folder, certificate, key).startswith(said.format(tls=folder / "tls"))


def test_a_file_that_may_not_be_read_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.read_text

    def read_text(path: Path, **more: str) -> str:
        if path.suffix == ".key":
            raise PermissionError(13, "Permission denied")
        return real(path, **more)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert refusal(folder) == f"tls.key: {folder}/tls/server.key: Permission denied"


@pytest.mark.parametrize("broken", ["server.pem", "server.key"])
def test_what_is_no_base64_is_refused(folder: Path, broken: str) -> None:
    path = folder / "tls" / broken
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "!" * 64, *lines[2:]]))
    assert refusal(folder).startswith(f"tls: {folder}/tls/server.pem and {folder}/tls/server.key can't be used: ")


def test_a_key_that_is_missing_is_named_by_what_it_is(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls\.certificate: is missing: PEM: the certificate"):
        load(house(folder, key="tls/server.key"))


# ------------------------------------------------------------------------------------------------ what is said


def test_an_expired_certificate_is_used_and_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = house(folder, certificate="tls/expired.pem", key="tls/expired.key")
    assert main(["check-config", str(path)]) == 0
    said = capsys.readouterr().out
    assert f"the certificate {folder}/tls/expired.pem has expired on 2020-04-01 00:00Z: clients refuse it" in said


def test_a_key_that_others_may_read_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = house(folder, certificate="tls/server.pem", key="tls/server.key")
    assert main(["check-config", str(path)]) == 0
    assert "may read" not in capsys.readouterr().out
    (folder / "tls" / "server.key").chmod(0o644)
    assert main(["check-config", str(path)]) == 0
    assert f"whoever is on this machine may read the certificate's key {folder}/tls/server.key" in (
        capsys.readouterr().out
    )


def test_dates_are_said_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    server, short = tls(), tls("expired")  # of a hundred years, of three months
    for settings, before, said in (
        (server, SOON + DAY, ""),
        (server, SOON - DAY, "expires in 13.0 days, on 2120-01-01 00:00Z"),
        (server, 0.0, "has expired on 2120-01-01 00:00Z: clients refuse it"),
        (short, 13 * DAY, "expires in 13.0 days, on 2020-04-01 00:00Z"),
        (short, 92 * DAY, "isn't valid before 2020-01-01 00:00Z: clients refuse it"),
    ):
        monkeypatch.setattr("time.time", lambda settings=settings, before=before: settings.expires - before)
        trouble = settings.trouble()
        assert trouble == (f"the certificate {settings.certificate} {said}" if said else "")
        assert settings.valid() is ("clients refuse it" not in said)


def test_a_certificate_of_a_few_days_is_no_trouble_from_its_first_day_on(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tls("expired")
    monkeypatch.setattr("slotproxy.config_tls.SOON", 365 * DAY)
    monkeypatch.setattr("time.time", lambda: settings.begins + DAY)
    assert settings.trouble() == ""


def test_a_reload_says_what_changes_for_new_connections(folder: Path) -> None:
    plain, server, renewed = load(house(folder)), read(folder), read(folder, "renewed.pem", "renewed.key")
    assert changes(server, read(folder)) == []
    until = "valid until 2120-01-01 00:00Z"
    assert changes(plain, server) == [f"tls: added, new connections speak HTTPS, {until}"]
    assert changes(server, renewed) == [f"tls: another certificate, {until}"]
    assert changes(server, plain) == ["tls: removed, new connections speak plain HTTP"]
    (_, trouble) = changes(server, read(folder, "expired.pem", "expired.key"))
    assert trouble.endswith("has expired on 2020-04-01 00:00Z: clients refuse it")
