"""The same few examples of `python -m tests.fuzz http` each time; the command draws others."""

from __future__ import annotations

import pytest

from tests.fuzz import http_surface
from tests.fuzz.__main__ import main
from tests.fuzz.http_reader import Read, read


def test_nothing_that_a_client_sends_does_harm() -> None:
    http_surface.examples(60, 1)


def test_the_command_says_that_nothing_was_wrong() -> None:
    assert main(["http", "--minutes", "0", "--seed", "1"]) == 0


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
TWO = (
    HEAD
    + b"content-length: 2\r\n\r\n{}"
    + HEAD
    + b"transfer-encoding: chunked\r\n\r\n1;x\r\n[\r\n1\r\n]\r\n0\r\nx: y\r\n\r\n"
)


def test_the_strict_reader_reads_what_is_to_the_letter() -> None:
    assert [request.body for request in read(b"\r\n" + TWO)] == [b"{}", b"[]"]
    first = next(read(TWO))
    assert (first.method, first.path, first.all(b"host")) == (b"POST", b"/v1/chat/completions", [b"x"])


@pytest.mark.parametrize(
    ("target", "path"),
    [("/a?b", "/a"), ("http://x:1/%61?b", "/a"), ("*", "*"), ("x:1", "x:1"), ("http://x", ""), ("///a", "///a")],
)
def test_the_strict_reader_knows_what_a_target_means(target: str, path: str) -> None:
    assert Read(b"GET", target.encode(), (), b"").path == path.encode()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\r\n{}", b"\n{}"),
        (b": 2", b": 3, 2"),
        (b": 2", b": +2"),
        (b"host: x\r\n", b""),
        (b"host", b" host"),
        (b"1;x", b"+1"),
    ],
)
def test_the_strict_reader_stops_at_what_is_not(old: bytes, new: bytes) -> None:
    assert len(list(read(TWO.replace(old, new)))) < 2
