"""Where clients' keys come from, what may stand for one, and that nobody is ever shown one."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from slotproxy.changes import changes
from slotproxy.config import ConfigError, Settings, load
from slotproxy.keys import digests
from slotproxy.slots import Slots

KEY, NEXT = "sk-Voice:1/x+y=#", "sk-next"
ENGINE = {"profile": "openai", "container": "x", "vram": "1GiB", "pairs": {"p": {"image": "x", "artifact": []}}}


def hashed(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture(autouse=True)
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the keys' files, and the variables."""
    for name, text in {
        "plain": KEY,
        "hash": hashed(KEY).upper().replace("SHA256", "sha256"),
        "several": f"# until March\n{KEY}\n\n  {hashed(NEXT)}\r\n",
        "next": NEXT,
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("VOICE_KEY", KEY)
    monkeypatch.setenv("OTHER_KEY", "sk-other")
    monkeypatch.setenv("VOICE_KEYS", f"{KEY}\n{hashed(NEXT)}")
    return tmp_path


def read(box: Path, **slots: Mapping[str, Any]) -> Settings:
    document = {"card": {"simulated": "32GiB"}, "engines": {"x": ENGINE}, "slots": slots}
    (box / "slotproxy.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    return load(box / "slotproxy.yml")


def refusal(box: Path, **slots: Mapping[str, Any]) -> str:
    with pytest.raises(ConfigError) as wrong:
        read(box, **slots)
    return str(wrong.value).removeprefix(f"{box}/slotproxy.yml: ")


def owner(settings: Settings, key: str) -> str | None:
    slot = Slots(settings.slots).find([(b"authorization", b"Bearer " + key.encode())])
    return slot.name if slot else None


def test_a_hash_in_capitals_is_a_hash_and_opens_nothing_to_who_reads_it(box: Path) -> None:
    (box / "capitals").write_text(hashed(KEY).upper())
    settings = read(box, voice={"key_file": "capitals"})
    assert (owner(settings, KEY), owner(settings, hashed(KEY).upper())) == ("voice", None)


@pytest.mark.parametrize("where", [{"key_file": "plain"}, {"key_file": "hash"}, {"key_env": "VOICE_KEY"}])
def test_a_key_is_read_from_a_file_or_the_environment_plain_or_hashed(box: Path, where: Mapping[str, str]) -> None:
    settings = read(box, voice=where)
    assert owner(settings, KEY) == "voice"
    for other in (NEXT, KEY + "x", KEY[:-1], KEY.upper(), hashed(KEY), hashed(KEY).removeprefix("sha256:"), ""):
        assert owner(settings, other) is None


@pytest.mark.parametrize("where", [{"key_file": "several"}, {"key_env": "VOICE_KEYS"}])
def test_a_slot_may_have_several_keys_one_a_line_while_they_change(box: Path, where: Mapping[str, str]) -> None:
    settings = read(box, voice=where)
    assert [owner(settings, key) for key in (KEY, NEXT)] == ["voice", "voice"]
    assert owner(settings, "# until March") is owner(settings, "until") is None


def test_the_readmes_command_makes_the_hash_that_is_understood(box: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (line,) = [line for line in readme.splitlines() if "sha256sum" in line]
    ended = subprocess.run(
        ["bash", "-c", line.split("#")[0].split(">")[0]],
        env={"key": KEY, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    (box / "made").write_text(ended.stdout)
    assert owner(read(box, voice={"key_file": "made"}), KEY) == "voice"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"key_file": "plain"}, {"key_file": "hash"}),
        ({"key_file": "hash"}, {"key_env": "VOICE_KEY"}),
        ({"key_file": "next"}, {"key_file": "several"}),
        ({"key_file": "hash"}, {"key_file": "hash"}),
    ],
)
def test_one_key_for_two_slots_is_refused_also_as_a_hash(
    box: Path, first: Mapping[str, str], second: Mapping[str, str]
) -> None:
    (where,) = second
    said = refusal(box, voice=first, agents=second)
    assert said == f"slots.agents.{where}: holds the same key as voice's, or its hash; make another"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty; write the key into it"),
        ("  \n\r\n", "is empty; write the key into it"),
        ("# nothing yet\n", "is empty; write the key into it"),
        ("two words", "line 1 is no key: one is printable ASCII without spaces"),
        (f"{KEY}\nключ", "line 2 is no key"),
        ("a\0b", "line 1 is no key"),
        ("a\x0cb", "line 1 is no key"),
        ("a\u2028b", "line 1 is no key"),
        ("sha256:abc", "line 1 is no hash: the 64 hexadecimal digits of one follow sha256:"),
        (hashed(KEY) + "0", "line 1 is no hash"),
        (hashed(KEY) + "  -", "line 1 is no hash"),
        (hashed(""), "line 1 is the hash of an empty key"),
        (hashed("\n"), "line 1 is the hash of an empty key"),
    ],
)
def test_what_is_no_key_is_refused_and_never_shown(
    box: Path, content: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (box / "odd").write_text(content)
    said = refusal(box, voice={"key_file": "odd"})
    assert said.startswith(f"slots.voice.key_file: {box}/odd")
    assert words in said
    secrets = [part for part in content.replace("# nothing yet", "").split() if len(part) > 2]
    assert not any(secret in said for secret in secrets)
    if "\0" not in content:
        monkeypatch.setenv("ODD", content)
        said = refusal(box, voice={"key_env": "ODD"})
        assert said.startswith("slots.voice.key_env: ")
        assert not any(secret in said for secret in secrets)


@pytest.mark.parametrize(
    ("slot", "words"),
    [
        ({"key_env": "GONE"}, "slots.voice.key_env: this variable isn't set here, or is empty"),
        ({"key_env": KEY}, "slots.voice.key_env: is no variable's name"),
        ({"key_env": "skvoice"}, "slots.voice.key_env: this variable isn't set here"),
        ({"key_env": "VOICE_KEY", "key_file": "plain"}, "slots.voice.key_env: a slot's keys are in key_file or in"),
        ({"key": KEY}, "slots.voice.key: unknown key"),
        ({}, "slots.voice.key_file: is missing"),
    ],
)
def test_a_key_that_is_not_there_is_told_and_one_in_a_wrong_place_is_not_shown(
    box: Path, slot: Mapping[str, str], words: str
) -> None:
    said = refusal(box, voice=slot)
    assert said.startswith(words)
    assert not any(value in said for key, value in slot.items() if key != "key_file")


def test_anonymous_has_no_variable_either(box: Path) -> None:
    assert refusal(box, anonymous={"key_env": "VOICE_KEY"}).startswith("slots.anonymous.key_env: anonymous is the slot")


def test_neither_settings_nor_what_a_reload_changed_show_a_key_or_its_hash(box: Path) -> None:
    old = read(box, voice={"key_file": "plain"}, agents={"key_file": "next"})
    new = read(box, voice={"key_file": "several"}, agents={"key_env": "OTHER_KEY"})
    lines = changes(old, new)
    assert lines == ["slots.voice.keys: changed", "slots.agents.keys: changed"]
    for secret in (KEY, NEXT, hashed(KEY)[7:], repr(next(iter(digests(KEY))))):
        assert secret not in repr(old) + repr(new) + repr(Slots(old.slots)) + str(lines)


def test_an_engines_own_key_is_in_no_repr(box: Path) -> None:
    (box / "engine").write_text("sk-engines")
    document = {"card": {"simulated": "32GiB"}, "engines": {"x": {**ENGINE, "api_key_file": "engine"}}}
    (box / "slotproxy.yml").write_text(yaml.safe_dump(document))
    settings = load(box / "slotproxy.yml")
    assert settings.engines["x"].api_key == "sk-engines"
    assert "sk-engines" not in repr(settings)


@pytest.mark.parametrize(
    "key",
    [
        b"x" * 60_000,
        b"\xff\xfe\x00",
        b"\t \t",
        b" " * 5000,
        "ключ".encode(),
        b"sk-Voice:1/x+y=#\x00",
        b"%s{}'\"\\",
        b"\xed\xa0\x80",
    ],
)
def test_an_odd_key_from_a_client_is_just_nobodys(box: Path, key: bytes) -> None:
    slots = Slots(read(box, voice={"key_file": "several"}).slots)
    for header in ((b"x-api-key", key), (b"authorization", b"Bearer " + key), (b"authorization", key)):
        assert slots.find([header]) is None
