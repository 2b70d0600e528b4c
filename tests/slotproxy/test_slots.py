"""Whose request it is, by its headers."""

from __future__ import annotations

import hmac

import pytest

from slotproxy.config import SlotSettings
from slotproxy.keys import digest, digests
from slotproxy.slots import Slots

VOICE = SlotSettings("voice", keys=digests("sk-voice"))
CODER = SlotSettings("coder", keys=frozenset((digest("sk-cödér".encode()),)))
ANYONE = SlotSettings("anonymous")
KEYED = {slot.name: slot for slot in (VOICE, CODER)}
OPEN = {**KEYED, "anonymous": ANYONE}


@pytest.mark.parametrize(
    "header",
    [
        (b"authorization", b"Bearer sk-voice"),
        (b"Authorization", b"bearer   sk-voice "),
        (b"x-api-key", b"sk-voice"),
        (b"X-Api-Key", b" sk-voice"),
    ],
)
def test_a_key_finds_its_slot_in_either_header(header: tuple[bytes, bytes]) -> None:
    assert Slots(KEYED).find([(b"host", b"x"), header]) is VOICE


def test_a_key_beyond_ascii_finds_its_slot() -> None:
    assert Slots(KEYED).find([(b"x-api-key", "sk-cödér".encode())]) is CODER


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer sk-voicE")],
        [(b"authorization", b"Bearer sk-voice-and-more")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"")],
        [(b"authorization", b"Basic sk-voice")],
        [(b"authorization", b"sk-voice")],
        [(b"x-api-key", b"")],
        [(b"x-api-key", b"\xff\xfe")],
        [(b"cookie", b"sk-voice")],
    ],
)
def test_a_request_without_a_known_key_is_anonymous_or_nobodys(headers: list[tuple[bytes, bytes]]) -> None:
    assert Slots(OPEN).find(headers) is ANYONE
    assert Slots(KEYED).find(headers) is None


def test_an_unknown_key_in_one_header_does_not_hide_a_known_one_in_the_other() -> None:
    both = [(b"authorization", b"Bearer dummy"), (b"x-api-key", b"sk-voice")]
    assert Slots(OPEN).find(both) is VOICE


def test_an_empty_key_opens_no_slot() -> None:
    keyless = {"anonymous": ANYONE, "blank": SlotSettings("blank", keys=frozenset((digest(b""),)))}
    assert Slots(keyless).find([(b"x-api-key", b"")]) is ANYONE


def test_every_key_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up that stopped at the first match, or at the first wrong byte, would tell a guesser something."""
    lengths: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def counted(a: bytes, b: bytes) -> bool:
        lengths.append((len(a), len(b)))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    for guess in (b"sk-voice", b"s", b"x" * 500):
        Slots(KEYED).find([(b"x-api-key", guess)])
    assert lengths == [(32, 32)] * 6
