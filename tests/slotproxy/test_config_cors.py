"""`cors:` of the configuration file: which web pages may ask, and that nobody lets all of them in unknowingly."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotproxy.config_cors import CorsSettings, cors_of
from slotproxy.config_keys import CorsKeys, Seconds
from slotproxy.config_yaml import ConfigError, Place

AT = Place(Path("slotproxy.yml"), "cors")


@pytest.mark.parametrize(
    ("written", "origin"),
    [
        ("https://chat.example", "https://chat.example"),
        ("HTTPS://Chat.Example:443", "https://chat.example"),
        ("http://192.168.1.5:80", "http://192.168.1.5"),
        ("http://[fd00::1]:3000", "http://[fd00::1]:3000"),
        ("https://chat.example:8443", "https://chat.example:8443"),
        ("http://box:3000", "http://box:3000"),
        ("app://obsidian.md", "app://obsidian.md"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
        ("file://", "file://"),
    ],
)
def test_an_origin_is_what_its_browser_sends(written: str, origin: str) -> None:
    assert cors_of(CorsKeys(origins=[written]), AT) == CorsSettings(frozenset({origin}))


@pytest.mark.parametrize(
    "written",
    [
        "chat.example",
        "https://chat.example/",
        "https://chat.example/app",
        "https://user@chat.example",
        "https://*.example",
        "https://",
        "http://:3000",
        "https://chat.example:port",
        "https://bücher.example",
        "",
        "* ",
    ],
)
def test_what_no_browser_sends_is_refused_with_what_it_would(written: str) -> None:
    with pytest.raises(ConfigError, match=r"cors\.origins: .* is no origin; write scheme, host and port"):
        cors_of(CorsKeys(origins=[written]), AT)


@pytest.mark.parametrize("everybodys", ["*", "null"])
def test_everybody_is_let_in_knowingly_or_not_at_all(everybodys: str) -> None:
    for unsaid in (None, False):
        with pytest.raises(ConfigError, match=r"lets every web page ask, .* or write allow_any: true"):
            cors_of(CorsKeys(origins=[everybodys], allow_any=unsaid), AT)
    settings = cors_of(CorsKeys(origins=[everybodys], allow_any=True), AT)
    assert settings.allows(everybodys)
    assert settings.allows("https://anything.example") is (everybodys == "*")


def test_without_cors_no_page_is_named_and_how_long_browsers_remember_can_be_set() -> None:
    assert cors_of(None, AT) == CorsSettings()
    assert not CorsSettings().allows("https://chat.example")
    assert cors_of(CorsKeys(origins=["https://a.example"], max_age=Seconds(5.0)), AT).max_age == 5.0
