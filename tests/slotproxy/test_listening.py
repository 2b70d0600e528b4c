"""Who may reach the card without a key: nobody but this machine, in whatever form the address is written."""

from __future__ import annotations

import asyncio
import socket
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from slotproxy import daemon
from slotproxy.addresses import is_loopback
from slotproxy.claims import CannotServe, expect_private
from slotproxy.config import ConfigError, SlotSettings, load
from slotproxy.config_slots import keyless
from slotproxy.keys import digests


def read(folder: Path, listen: str, **slots: Any) -> Any:
    engine = {"profile": "llamacpp", "command": ["/bin/true"], "vram": "1GiB", "pairs": {"a": {"artifact": "a.gguf"}}}
    house = {"listen": listen, "card": {"simulated": "32GiB"}, "engines": {"llama": engine}}
    path = folder / "slotproxy.yml"
    path.write_text(yaml.safe_dump({**house, **({"slots": slots} if slots else {})}))
    return load(path)


OPEN = ["0.0.0.0", "[::]", "192.168.1.5", "[fd00::1]", "[fe80::1]", "[fe80::1%eth0]", "box", "llm.example"]
OPEN += ["[::ffff:0.0.0.0]", "[::ffff:192.168.1.5]", "127.1", "localhost.example", "ip6-localhost", "0", "0x7f000001"]


@pytest.mark.parametrize("host", OPEN)
def test_an_address_that_others_may_reach_wants_keys_or_a_word(tmp_path: Path, host: str) -> None:
    unsaid: list[dict[str, Any]] = [{}, {"anonymous": {}}, {"anonymous": {"allow_remote": False}}]
    for slots in unsaid:
        with pytest.raises(ConfigError, match=r"slots\.anonymous: listen is .* everyone on the network could use"):
            read(tmp_path, f"{host}:9", **slots)
    (tmp_path / "key").write_text("sesame")
    assert read(tmp_path, f"{host}:9", voice={"key_file": "key"}).host == host.strip("[]")
    assert read(tmp_path, f"{host}:9", anonymous={"allow_remote": True}).slots["anonymous"].allow_remote


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "[::1]", "localhost", "[::ffff:127.0.0.1]"])
def test_an_address_of_this_machine_alone_wants_none(tmp_path: Path, host: str) -> None:
    assert list(read(tmp_path, f"{host}:9").slots) == ["anonymous"]


@pytest.mark.parametrize("listen", ["8080", ":8080", "*:8080", "127.0.0.1", "[::1]", "127.0.0.1:70000", "a b:1"])
def test_what_is_no_address_is_refused(tmp_path: Path, listen: str) -> None:
    with pytest.raises(ConfigError, match=r"listen: .* is no address; write HOST:PORT"):
        read(tmp_path, listen)


def test_a_name_that_leads_elsewhere_than_it_says_is_refused_once_it_is_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_server(("0.0.0.0", 0)) as open_to_all:
        expect_private(here, "localhost")
        with pytest.raises(CannotServe, match=r"`listen:` says localhost, which is 0\.0\.0\.0 here: everyone on the"):
            expect_private(open_to_all, "localhost")


async def test_a_daemon_whose_name_leads_elsewhere_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = await asyncio.to_thread(read, tmp_path, "localhost:9")
    monkeypatch.setattr(daemon, "_signals", lambda *_: nullcontext())

    async def elsewhere(*_: object) -> socket.socket:
        return socket.create_server(("0.0.0.0", 0))

    monkeypatch.setattr(daemon, "claim_port", elsewhere)
    with pytest.raises(CannotServe, match=r"which is 0\.0\.0\.0 here"):
        await daemon.serve(replace(settings, state=tmp_path / "state"))
    assert not (tmp_path / "state").exists()


def test_mapped_addresses_mean_what_they_hold() -> None:
    assert is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("::ffff:8.8.8.8")


@pytest.mark.parametrize(
    ("slots", "open_to_all"),
    [
        ([SlotSettings("anonymous")], True),
        ([SlotSettings("anonymous", allow_remote=True)], False),
        ([SlotSettings("voice", keys=digests("sesame"))], False),
        ([SlotSettings("voice", keys=digests("sesame")), SlotSettings("anonymous")], True),
        ([SlotSettings("phone", keys=digests("sesame"), by_path=True)], True),
    ],
)
def test_a_daemon_is_keyless_where_a_slot_without_a_key_is_not_for_others(
    slots: list[SlotSettings], open_to_all: bool
) -> None:
    assert keyless({slot.name: slot for slot in slots}) is open_to_all
