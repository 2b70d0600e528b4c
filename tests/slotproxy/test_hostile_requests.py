"""What isn't HTTP, or could be read in two ways: refused in JSON of ours, and never seen by an engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import structlog

from engines.spec import CHAT, MESSAGES
from slotproxy import strict
from tests.slotproxy.rig import Client, Proxy, Upstream, ask, chunk, engine, eventually, proxied, saying, whole
from tests.slotproxy.test_arrival import room_of

BODY = b'{"model": "m"}'
LINE = b"POST %b HTTP/1.1\r\n" % CHAT.encode()
HOST = b"host: proxy\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = LINE + HOST + b"transfer-encoding: chunked\r\n"
GOOD = LINE + HOST + LENGTH + b"\r\n" + BODY
INNER = b"POST %b HTTP/1.1\r\nhost: inner\r\ncontent-length: 2\r\n\r\n{}" % CHAT.encode()
"""What a smuggler would have taken for a request of its own."""


@dataclass
class House:
    """The client port, and an engine that answers all that it sees."""

    proxy: Proxy
    up: Upstream

    async def says(self, *packets: bytes) -> list[tuple[int, dict[bytes, bytes], bytes]]:
        """All answers on one connection, until the proxy closes it: status, headers, body."""
        async with Client.at(self.proxy.port) as client:
            for packet in packets:
                client.writer.write(packet)
                await asyncio.sleep(0.01 if len(packets) > 1 else 0)
            return answers(await client.rest())

    async def is_well(self) -> None:
        """Somebody else is served."""
        seen = len(self.up.seen)
        async with Client.at(self.proxy.port) as other:
            await other.post(CHAT, ask())
            await other.until(b'{"ok": 1}')
        assert len(self.up.seen) == seen + 1


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with Upstream(saying(whole(b'{"ok": 1}'))) as up, proxied(engine(up.url)) as proxy:
        yield House(proxy, up)


def answers(got: bytes) -> list[tuple[int, dict[bytes, bytes], bytes]]:
    """What came, as the answers that it must be."""
    found = []
    while got:
        head, _, rest = got.partition(b"\r\n\r\n")
        line, *fields = head.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(b":") for each in fields)}
        if headers.get(b"transfer-encoding") == b"chunked":
            body, _, got = rest.partition(b"0\r\n\r\n")
        else:
            length = int(headers.get(b"content-length", 0))
            body, got = rest[:length], rest[length:]
        found.append((int(line.split()[1]), headers, body))
    return found


def chunks(*pieces: bytes) -> bytes:
    return CHUNKED + b"\r\n" + b"".join(pieces)


REFUSED = {
    "nothing but noise": (b"\x00\x01\x02\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "HTTP/0.9": (b"GET /health\r\n", 400),
    "HTTP/2 by prior knowledge": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "HTTP/3.0": (b"GET /health HTTP/3.0\r\nhost: x\r\n\r\n", 505),
    "no version": (b"GET /health HTTP\r\nhost: x\r\n\r\n", 400),
    "lower case version": (b"GET /health http/1.1\r\nhost: x\r\n\r\n", 400),
    "two spaces": (b"GET  /health HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "tab for space": (b"GET\t/health HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "a space in the target": (b"GET /hea lth HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "a target that isn't ASCII": ("GET /hé HTTP/1.1\r\nhost: x\r\n\r\n".encode(), 400),
    "no host": (LINE + LENGTH + b"\r\n" + BODY, 400),
    "no host in a later version": (LINE.replace(b"1.1", b"1.2") + LENGTH + b"\r\n" + BODY, 400),
    "two hosts": (LINE + HOST + HOST + LENGTH + b"\r\n" + BODY, 400),
    "CONNECT": (b"CONNECT other:443 HTTP/1.1\r\nhost: other:443\r\n\r\n", 405),
    "TRACE": (b"TRACE /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 405),
    "two lengths": (LINE + HOST + LENGTH + b"content-length: 0\r\n\r\n" + BODY, 400),
    "two lengths in one": (LINE + HOST + b"content-length: 14, 0\r\n\r\n" + BODY, 400),
    "+14": (LINE + HOST + b"content-length: +14\r\n\r\n" + BODY, 400),
    "-1": (LINE + HOST + b"content-length: -1\r\n\r\n" + BODY, 400),
    "0x0e": (LINE + HOST + b"content-length: 0x0e\r\n\r\n" + BODY, 400),
    "14.0": (LINE + HOST + b"content-length: 14.0\r\n\r\n" + BODY, 400),
    "1 4": (LINE + HOST + b"content-length: 1 4\r\n\r\n" + BODY, 400),
    "an empty length": (LINE + HOST + b"content-length:\r\n\r\n" + BODY, 400),
    "a length beyond numbers": (LINE + HOST + b"content-length: 9" + b"9" * 30 + b"\r\n\r\n" + BODY, 400),
    "length and coding": (CHUNKED + LENGTH + b"\r\n0\r\n\r\n" + INNER, 400),
    "coding and length": (LINE + HOST + LENGTH + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + INNER, 400),
    "chunked twice": (CHUNKED + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 501),
    "chunked, chunked": (LINE + HOST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 501),
    "chunked, identity": (LINE + HOST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501),
    "identity, then a length": (LINE + HOST + b"transfer-encoding: identity\r\n" + LENGTH + b"\r\n" + BODY, 501),
    "gzip, chunked": (LINE + HOST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "xchunked": (LINE + HOST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    '"chunked"': (LINE + HOST + b'transfer-encoding: "chunked"\r\n\r\n0\r\n\r\n', 501),
    "chunked with a vertical tab": (LINE + HOST + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "chunked with a NUL": (LINE + HOST + b"transfer-encoding: chunked\x00\r\n\r\n0\r\n\r\n", 400),
    "a coding in HTTP/1.0": (chunks(b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
    "a space before the colon": (LINE + HOST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    "a space before the name": (LINE + b" x: y\r\n" + HOST + LENGTH + b"\r\n" + BODY, 400),
    "a folded line": (LINE + HOST + LENGTH + b"x: y\r\n transfer-encoding: chunked\r\n\r\n" + BODY, 400),
    "a folded coding": (LINE + HOST + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
    "a header without a name": (LINE + HOST + LENGTH + b": x\r\n\r\n" + BODY, 400),
    "a header without a colon": (LINE + HOST + LENGTH + b"x\r\n\r\n" + BODY, 400),
    "a bare LF": (LINE + HOST + LENGTH + b"x: y\ntransfer-encoding: chunked\r\n\r\n" + BODY, 400),
    "nothing but bare LF": (GOOD.replace(b"\r\n", b"\n"), 400),
    "a bare CR": (LINE + HOST + LENGTH + b"x: y\rtransfer-encoding: chunked\r\n\r\n" + BODY, 400),
    "a NUL in a value": (LINE + HOST + LENGTH + b"x: a\x00b\r\n\r\n" + BODY, 400),
    "a control character": (LINE + HOST + LENGTH + b"x: a\x01b\r\n\r\n" + BODY, 400),
    "an unknown expectation": (LINE + HOST + LENGTH + b"expect: the-unexpected\r\n\r\n" + BODY, 417),
    "a long target": (b"GET /" + b"x" * strict.MOST_LINE, 414),
    "a long target, whole": (b"GET /" + b"x" * strict.MOST_LINE + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
    "a long method": (b"X" * (strict.MOST_LINE + 1), 414),
    "many headers": (LINE + HOST + b"x: y\r\n" * strict.MOST_FIELDS, 431),
    "large headers": (LINE + HOST + b"x: " + b"y" * strict.MOST_HEAD, 431),
    "large headers, whole": (LINE + HOST + LENGTH + b"x: " + b"y" * strict.MOST_HEAD + b"\r\n\r\n" + BODY, 431),
    "a chunk of size zz": (chunks(b"zz\r\n", BODY), 400),
    "a chunk of size -1": (chunks(b"-1\r\n", BODY), 400),
    "a chunk of size +e": (chunks(b"+e\r\n", BODY), 400),
    "a chunk of size 0xe": (chunks(b"0xe\r\n", BODY), 400),
    "a chunk without a size": (chunks(b"\r\n", BODY), 400),
    "a chunk with a leading space": (chunks(b" e\r\n", BODY), 400),
    "a chunk of 2^84 bytes": (chunks(b"f" * 21 + b"\r\n", BODY), 400),
    "a chunk with no line end": (chunks(b"e\r\n", BODY, b"0\r\n\r\n"), 400),
    "a chunk that is longer": (chunks(b"2\r\n{}", b"XX0\r\n\r\n"), 400),
    "a bare LF after the size": (chunks(b"e\n", BODY, b"\r\n0\r\n\r\n"), 400),
    "a bare LF in an extension": (chunks(b"e;x\n\r\n", BODY, b"\r\n0\r\n\r\n"), 400),
    "a long extension": (chunks(b"e;" + b"x" * 2_000_000 + b"\r\n", BODY, b"\r\n0\r\n\r\n"), 400),
    "many extensions": (chunks(*[b"1;" + b"x" * 4000 + b"\r\nx\r\n"] * 100), 400),
    "long trailers": (chunks(chunk(BODY), b"0\r\n" + b"x: yyyyyyyy\r\n" * 100_000, b"\r\n"), 400),
    "a trailer that is none": (chunks(chunk(BODY), b"0\r\nno colon\r\n\r\n"), 400),
    "a bare LF in a trailer": (chunks(chunk(BODY), b"0\r\nx: y\nz: w\r\n\r\n"), 400),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_no_good_http_is_refused_in_json_and_no_engine_sees_it(house: House, name: str) -> None:
    sent, status = REFUSED[name]
    [(said, headers, body)] = await house.says(sent)
    assert said == status
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"connection"] == b"close"
    assert headers[b"x-request-id"]
    assert json.loads(body)["error"]["message"]
    assert not house.up.seen
    await house.is_well()


SERVED = {
    "as usual": (GOOD, BODY),
    "an empty line before it": (b"\r\n\r\n" + GOOD, BODY),
    "the same length twice": (LINE + HOST + LENGTH + LENGTH + b"\r\n" + BODY, BODY),
    "the same length twice in one": (LINE + HOST + b"content-length: 14, 14\r\n\r\n" + BODY, BODY),
    "a length with zeros before": (LINE + HOST + b"content-length: 00014\r\n\r\n" + BODY, BODY),
    "tabs around values": (LINE + HOST + b"transfer-encoding:\t chunked \t\r\n\r\n" + chunk(BODY) + b"0\r\n\r\n", BODY),
    "CHUNKED": (LINE + HOST + b"Transfer-Encoding: CHUNKED\r\n\r\n" + chunk(BODY) + b"0\r\n\r\n", BODY),
    "chunks of one byte": (chunks(*[chunk(b"%c" % byte) for byte in BODY], b"0\r\n\r\n"), BODY),
    "sizes with zeros before": (chunks(b"00000e\r\n" + BODY + b"\r\n000\r\n\r\n"), BODY),
    "short extensions": (chunks(b"e;x=y;z\r\n" + BODY + b"\r\n0;end\r\n\r\n"), BODY),
    "trailers, which are dropped": (chunks(chunk(BODY), b"0\r\nx-trailer: content-length: 5\r\n\r\n"), BODY),
    "HTTP/1.0": (GOOD.replace(b"HTTP/1.1", b"HTTP/1.0").replace(HOST, b""), BODY),
    "HTTP/1.9": (GOOD.replace(b"HTTP/1.1", b"HTTP/1.9"), BODY),
    "HTTP/1.0 that expects": (GOOD.replace(b"HTTP/1.1", b"HTTP/1.0").replace(HOST, b"expect: x\r\n"), BODY),
    "an absolute target": (GOOD.replace(b"POST /", b"POST http://other.host:99/"), BODY),
    "an upgrade that isn't done": (GOOD.replace(HOST, HOST + b"connection: upgrade\r\nupgrade: h2c\r\n"), BODY),
    "a path with its characters coded": (GOOD.replace(b"/chat/", b"/%63hat%2F"), BODY),
}


@pytest.mark.parametrize("name", SERVED)
async def test_what_is_odd_and_clear_is_served(house: House, name: str) -> None:
    sent, body = SERVED[name]
    async with Client.at(house.proxy.port) as client:
        client.writer.write(sent)
        await client.until(b'{"ok": 1}')
    assert client.got.startswith(b"HTTP/1.1 200 ")
    [seen] = house.up.seen
    assert seen.line == b"POST /v1/chat/completions HTTP/1.1"
    assert seen.body == body
    assert seen.all(b"content-length") == [b"%d" % len(body)]
    assert not seen.all(b"transfer-encoding")


async def test_a_body_that_turns_out_bad_is_told_by_the_id_that_is_in_the_log(house: House) -> None:
    with structlog.testing.capture_logs() as lines:
        async with Client.at(house.proxy.port) as client:
            client.writer.write(CHUNKED + b"\r\n5\r\nfirst\r\n")
            await eventually(lambda: room_of(house.proxy).taken > 0)
            client.writer.write(b"zz\r\n")
            [(status, headers, _)] = answers(await client.rest())
        await eventually(lambda: len(lines) == 1)
    assert status == 400
    assert headers[b"x-request-id"] == lines[0]["id"].encode()


async def test_who_speaks_tls_to_a_plain_port_is_told_so(house: House) -> None:
    [(_, _, body)] = await house.says(REFUSED["TLS"][0])
    assert "http://" in json.loads(body)["error"]["message"]


async def test_what_one_request_may_have_of_framing_the_next_may_have_as_well(house: House) -> None:
    sent = chunks(b"e;" + b"x" * 12_000 + b"\r\n" + BODY + b"\r\n0\r\n\r\n")
    found = await house.says(sent, sent, sent.replace(HOST, HOST + b"connection: close\r\n"))
    assert [status for status, _, _ in found] == [200, 200, 200]


async def test_the_id_and_the_protocol_of_what_cannot_be_read_are_taken_where_they_are_seen(house: House) -> None:
    sent = b"POST %b HTTP/1.1\r\nX-Request-Id:  mine-7 \r\nbad header: x\r\n\r\n" % MESSAGES.encode()
    [(_, headers, body)] = await house.says(sent)
    assert headers[b"x-request-id"] == b"mine-7"
    assert json.loads(body)["type"] == "error"
    [(_, headers, body)] = await house.says(CHUNKED + b"x-request-id: mine-8\r\n\r\nzz\r\n")
    assert headers[b"x-request-id"] == b"mine-8"
    assert json.loads(body)["error"]["code"] == "bad_http"


@pytest.mark.parametrize("name", ["a chunk of size zz", "many headers", "no host"])
async def test_what_comes_in_pieces_is_refused_as_well(house: House, name: str) -> None:
    sent, status = REFUSED[name]
    first, rest = sent[: len(sent) // 2], sent[len(sent) // 2 :]
    [(said, _, _)] = await house.says(first, rest[:5], rest[5:])
    assert said == status
    assert not house.up.seen


async def test_a_bad_end_of_a_request_that_was_answered_already_ends_the_connection(house: House) -> None:
    async with Client.at(house.proxy.port) as client:
        client.writer.write(b"POST /nowhere HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        await client.until(b"}}")
        client.writer.write(b"zz\r\n")
        await client.rest()
    assert len(answers(client.got)) == 1
    await eventually(lambda: not house.proxy.tasks)


async def test_what_would_be_refused_anyway_is_refused_once_where_its_body_is_bad_as_well(house: House) -> None:
    with structlog.testing.capture_logs() as lines:
        [(status, _, _)] = await house.says(chunks(b"zz\r\n").replace(CHAT.encode(), b"/nowhere"))
        await eventually(lambda: not house.proxy.tasks and not house.proxy.connections)
    assert status == 400
    assert not [line for line in lines if line["log_level"] == "error"]


async def test_what_comes_after_a_request_that_closes_is_no_request(house: House) -> None:
    async with Client.at(house.proxy.port) as client:
        client.writer.write(GOOD.replace(HOST, HOST + b"connection: close\r\n") + b"\r\n" + GOOD)
        client.writer.write(b"more")
        await client.rest()
    [(status, _, body)] = answers(client.got)
    assert (status, body) == (200, b'{"ok": 1}')
    assert len(house.up.seen) == 1


# ------------------------------------------------------------------------------------------------ paths and queries

ELSEWHERE = (
    *("/v1/chat/completions/", "/v1/chat/completions;x", "/v1/chat/completions%00", "/v1/chat/completions%20"),
    *("//v1/chat/completions", "/v1//chat/completions", "/./v1/chat/completions", "/v1/x/../chat/completions"),
    *("/v1/%2e%2e/v1/chat/completions", "/v1\\chat\\completions", "/V1/chat/completions", "/v1/chat/completion%FF"),
    *("/slots", "/%73lots", "/v1/chat/completions/../../../slots", "/v1/chat/completions%2f..%2f..%2f..%2fslots"),
    *("/v1/chat/completions%3Fa=b", "/v1/chat%252Fcompletions", "/..", "/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "*", "x"),
    *("/v1/chat/completions%0d%0aHost:%20x", "http://other/slots", "http://other", "HTTP://x/../v1/chat/completions"),
    *(
        "/v1/models/../slots",
        "http:///slots",
        "https:slots",
        "file:///etc/passwd",
        "proxy:80",
        "/" + "a/" * 4000,
        "/health/",
    ),
)


@pytest.mark.parametrize("target", ELSEWHERE)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_a_path_that_only_resembles_one_of_ours_is_a_404(house: House, method: str, target: str) -> None:
    head = b"%b %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" % (method.encode(), target.encode())
    [(status, headers, body)] = await house.says(head + LENGTH + b"\r\n" + BODY)
    assert status == 404 or (status == 405 and target.startswith("/v1/models/"))
    assert headers[b"content-type"] == b"application/json"
    assert json.loads(body)["error"]["message"]
    assert b"root:" not in body
    assert not house.up.seen


@pytest.mark.parametrize(
    "query", ["a=b&a=c", "", "?", "a", "%00", "%0d%0aX:y", "..%2f..", "a=b;c", "[]{}|^`<>\"'\\", "é%"]
)
async def test_a_query_goes_to_the_engine_and_changes_no_path(house: House, query: str) -> None:
    sent = GOOD.replace(b"completions HTTP", b"completions?%b HTTP" % query.encode("ascii", "xmlcharrefreplace"))
    async with Client.at(house.proxy.port) as client:
        client.writer.write(sent)
        got = await client.until(b"}")
    if b"#" in sent:
        assert got.startswith(b"HTTP/1.1 400 ")
        return
    [seen] = house.up.seen
    assert seen.line.startswith(b"POST /v1/chat/completions")
    assert seen.line.endswith(b" HTTP/1.1")
    assert seen.line.count(b" ") == 2
    assert not seen.all(b"x")
