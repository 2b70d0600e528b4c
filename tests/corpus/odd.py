"""What an engine shouldn't send and one will; what is no JSON and no stream; and what is packed."""

from __future__ import annotations

import base64
import gzip
import random
import zlib

from engines.spec import CHAT, EMBEDDINGS, MESSAGES, RESPONSES
from slotproxy.outcomes import Outcome
from tests.corpus.answer import EVENTS, Answer, Ending, stream
from tests.corpus.engines import DONE, data

PASSED = "/v1/audio/speech"
"""A path that the engine's `passthrough:` names."""

# Made by the brotli and zstandard libraries of a chat's JSON and of a stream of twenty events.
_BR = (
    "G7YBICwK7GYyUUvwDsdZVNUSjHI4c4+A5U37ze/zRYbRMkgGDMrne0zSn6a88FqHBaZvgLxtY28FXUK/XlDHnkQgBM728MyVm/PQs/VFywy4"
    "czk20JisuZxNkg4YeqJAhhyykYbNlvI3shjZMH0uDYE7qbjjU69zFCxN8UHCWIX9p62PGo/A8geOk0UeHQI6fQ7e5m2pVy7PomO96ZMfOkDa"
    "tSE9Ltf+Bw=="
)
_BR_STREAM = (
    "G4sEQJ0FdlsHmXIrFJrePoM9zNUie1swU6Grzw3G1mc7RJsAYTA45yn0ccB9GmFA2wOuxGoULznK3pae6KWZYg8U2bfE8Y2FkARJUqTJkCVH"
    "/oYOQxMmTZk2Y9Zc/PpJ6g4="
)
_ZSTD = (
    "KLUv/WC3AIUGADLLJimQKelXZHek1cY7XU7tld1QrbTDlnIXoSWyktvua/cvZYcX4vYskZkiBO85FuptAYfmwvajG1vXGI7G4L1tsy6jdA+F"
    "lSqEo3lHRoQE5AIdHiwgJirQJCRCEXEEmq3bipoVM/pa9wXPMwExJ543ZKLqSwGecya1CluZLDuagIFGNkqXdFXnamwTo1MqHOzRvAGwGkuN"
    "lHQ8T9SXEwA3pjY08M62NKLg/12Utalv5U2sILjkkAC89rqSjiUUpY6R6mvV4jgfWW0Bann2nU4="
)
_ZSTD_STREAM = (
    "KLUv/WCMA2UEADJFExpwS3VWFE12UkqOKpnBzaEi/f+Popv6f/0bAYgnoVggzP///w+GAmEgCACO+M57Lk4v02Ut2aXRNlQ5KemHKrbsTNqh"
    "aTVGskMSLVIBFABHhCw2Is5zEXEyExGneIg4z0LEyRxEnGIg4jz/EGfchziv4GQFpxScV3CyglMKzis4WcEpBedNeaSg"
)
_EVENTS = b"".join(data(b'{"choices":[{"index":0,"delta":{"content":"%d"}}]}' % n) for n in range(20)) + DONE


def packed() -> list[Answer]:
    """Nobody changes them on the way; some streams can be read along, of others only the framing says how they end."""
    whole = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"' + b"hello " * 50 + b'"}}]}'
    bodies = {
        b"gzip": (gzip.compress(whole, mtime=0), gzip.compress(_EVENTS, mtime=0)),
        b"deflate": (zlib.compress(whole), zlib.compress(_EVENTS)),
        b"br": (base64.b64decode(_BR), base64.b64decode(_BR_STREAM)),
        b"zstd": (base64.b64decode(_ZSTD), base64.b64decode(_ZSTD_STREAM)),
        b"gzip, br": (gzip.compress(base64.b64decode(_BR), mtime=0), b"\x1f\x8b cut"),
    }
    found = []
    for coding, (json, stream_) in bodies.items():
        headers = ((b"Content-Encoding", coding), (b"Vary", b"Accept-Encoding"))
        found.append(Answer(f"packed by {coding.decode()}", CHAT, json, headers=headers))
        found.append(Answer(f"stream packed by {coding.decode()}", CHAT, stream_, EVENTS, headers=headers))
    return found


def odd() -> list[Answer]:
    failed = Outcome.FAILED
    huge = data(b'{"choices":[{"delta":{"content":"' + "世".encode() * 60_000 + b'"}}]}')
    completed = b'{"type":"response.completed","response":{"output":"' + b"x" * 1_200_000 + b'"}}'
    return [
        stream("huge event", CHAT, huge, DONE),
        stream("end marker of more than a megabyte", RESPONSES, data(completed)),
        stream("named end marker of more than a megabyte", RESPONSES, data(completed, b"response.completed")),
        stream("bytes that are no UTF-8", CHAT, b"data: \xff\xfe\xc3(\xed\xa0\x80\n\n", DONE),
        stream("half a pair, escaped", CHAT, data(b'{"choices":[{"delta":{"content":"\\ud83e"}}]}'), DONE),
        stream("zero bytes", CHAT, b"data: \0\0\n\nid: a\0b\n\n\0\0\n", DONE),
        stream("no event at all", CHAT, b": nothing\n\n", outcome=Outcome.TRUNCATED, ending=Ending.TOLD),
        stream("error, then nothing", CHAT, b"event: error\ndata: died\n\n", outcome=failed),
        # Anthropic's clients go by an event's name, and pass over an error that has none.
        stream(
            "error without a name, for lenient parsers",
            MESSAGES,
            data(b'{"type":"error","error":{"x":NaN}}'),
            outcome=failed,
            ending=Ending.TOLD,
        ),
        stream("stream packed by nothing", CHAT, _EVENTS, headers=((b"Content-Encoding", b"Identity"),)),
        Answer("a stream's type in capitals", CHAT, DONE, b"Text/Event-Stream; charset=utf-8"),
        Answer("a stream's type with an error", CHAT, DONE, EVENTS, status=b"500 Oops", outcome=failed),
        Answer("events where embeddings were asked", EMBEDDINGS, data(b"{}"), EVENTS),
        Answer("no body", CHAT, b""),
        Answer("one byte", CHAT, b"0", b"text/plain"),
        Answer("no type", CHAT, b"{}", b""),
        Answer("no content", CHAT, b"", b"", status=b"204 No Content"),
        Answer("an odd status", CHAT, b"teapot", b"text/plain", status=b"299 What Now"),
        Answer("no reason", CHAT, b"{}", status=b"202"),
        Answer("moved", CHAT, b"over there", b"text/html", ((b"Location", b"/else"),), b"307 Temporary Redirect"),
        Answer("broken JSON", CHAT, b'{"choices": [\xff\xfe}'),
        Answer("white space", CHAT, b"\r\n\t {} \n\r\n"),
        Answer("lines of JSON", CHAT, b'{"a":1}\n{"a":2}\r\n', b"application/x-ndjson"),
        Answer("looks like chunks", CHAT, b"5\r\nhello\r\n0\r\n\r\n", b"text/plain"),
        Answer("looks like an answer", CHAT, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"text/plain"),
        Answer("sound", PASSED, random.Random(5).randbytes(3000), b"audio/mpeg", ((b"Accept-Ranges", b"bytes"),)),
        Answer("parts", PASSED, b"--b\r\n\r\n\x00\xff\r\n--b--\r\n", b"multipart/mixed; boundary=b"),
        Answer("stream of another path", PASSED, data(b"{}"), EVENTS),
        Answer("every byte", PASSED, bytes(range(256)), b"application/octet-stream"),
        Answer("headers", CHAT, b"{}", headers=_HEADERS),
    ]


_HEADERS = (
    (b"Date", b"Thu, 01 Jan 2026 00:00:00 GMT"),
    (b"SERVER", b"engine/1.0 (\xe9)"),
    (b"Set-Cookie", b"a=1; Path=/"),
    (b"Set-Cookie", b"b=2"),
    (b"set-cookie", b"a=1; Path=/"),
    (b"X-Empty", b""),
    (b"X-Long", b"x" * 8000),
    (b"X-Inner", b"two  spaces\tand, a tab"),
    (b"ETag", b'W/"1"'),
    (b"WWW-Authenticate", b'Bearer realm="x"'),
    (b"Retry-After", b"3"),
    (b"x_under_score", b"!#$%&'*+-.^_`|~"),
    (b"openai-processing-ms", b"12"),
    (b"anthropic-ratelimit-requests-remaining", b"0"),
)


def answers() -> list[Answer]:
    return [*packed(), *odd()]
