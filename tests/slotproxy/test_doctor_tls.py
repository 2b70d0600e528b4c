"""The doctor on the client port's certificate: its dates, who may read its key, and whether it is the one on disk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from slotproxy import config, config_tls
from slotproxy.config_tls import DAY, TlsSettings
from tests.slotproxy.certificates import tls
from tests.slotproxy.office import Office
from tests.slotproxy.test_doctor import examined, only

SERVER, RENEWED, EXPIRED = tls(), tls("renewed"), tls("expired")


@dataclass
class Clock:
    """The `time` module of one that looks at a certificate's dates."""

    now: float
    gmtime = staticmethod(time.gmtime)
    strftime = staticmethod(time.strftime)

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(SERVER.begins + DAY)
    monkeypatch.setattr(config_tls, "time", clock)
    return clock


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[Office]:
    """Its configuration on disk is what it runs on, and its key is its own."""
    monkeypatch.setattr(TlsSettings, "open_to_others", lambda _: False)
    with capture_logs():
        office = Office(tmp_path)
        monkeypatch.setattr(config, "load", lambda _: office.desk.settings)
        yield office
    office.close()


def show_clients(office: Office, settings: TlsSettings) -> None:
    held = office.desk.in_force
    held.settings = replace(held.settings, tls=settings)


async def test_a_certificate_that_is_well_is_seen_with_its_end(office: Office) -> None:
    show_clients(office, SERVER)
    async with office.serving():
        answer = await examined(office)
    assert answer["findings"] == []
    assert "the certificate is valid until 2120-01-01 00:00Z" in answer["seen"]


@pytest.mark.parametrize(
    ("certificate", "days", "said"),
    [(SERVER, 5, "expires in 5.0 days"), (EXPIRED, -1, "has expired on 2020-04-01 00:00Z")],
)
async def test_a_certificate_that_ends_is_a_warning_before_and_a_problem_after(
    office: Office, clock: Clock, certificate: TlsSettings, days: float, said: str
) -> None:
    clock.now = certificate.expires - days * DAY
    show_clients(office, certificate)
    finding = await only(office)
    assert (finding["where"], finding["severity"]) == ("tls", "warning" if days > 0 else "problem")
    assert said in finding["what"]
    assert finding["mend"] == "renew it, then `slotctl reload`"


async def test_a_key_that_everybody_may_read_is_told(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TlsSettings, "open_to_others", lambda _: True)
    show_clients(office, SERVER)
    finding = await only(office)
    assert (finding["mend"], finding["severity"]) == (f"`chmod o= {SERVER.key}`", "warning")


async def test_a_certificate_that_was_renewed_on_disk_and_not_taken_over_is_told(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_clients(office, SERVER)
    renewed = replace(office.desk.settings, tls=RENEWED)
    monkeypatch.setattr(config, "load", lambda _: renewed)
    finding = await only(office)
    assert "is another one on disk than clients are shown" in finding["what"]
    assert finding["mend"] == "`slotctl reload` shows it to new connections"
