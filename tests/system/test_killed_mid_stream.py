"""Case 8 with a real `docker kill`: the engine's container dies in the middle of a stream, in each protocol."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import Self

import pytest

from engines.spec import CHAT, MESSAGES, RESPONSES
from tests.system.house import LIMIT, House
from tests.system.tenants import MODEL
from tests.system.watch import Watch

pytestmark = [pytest.mark.docker, pytest.mark.slow]

WITHIN = 3.0  # seconds for what is to be told within one: the machine may be busy
QUESTION = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100_000},
    RESPONSES: {"input": "hi", "max_output_tokens": 100_000},
    MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100_000},
}
ENDS = (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete", b"response.failed")


class Stream:
    """A client at its socket: every byte, and when the last one came."""

    def __init__(self, port: int, path: str) -> None:
        body = json.dumps({"model": MODEL, "stream": True, **QUESTION[path]}).encode()
        self._socket = socket.create_connection(("127.0.0.1", port), LIMIT)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        self.got = b""

    def until(self, events: int) -> None:
        while self.got.count(b"data: ") < events:
            data = self._socket.recv(65536)
            assert data, f"it ended: {self.got!r}"
            self.got += data

    def rest(self) -> float:
        """Read to the end; when that was."""
        with contextlib.suppress(ConnectionResetError):
            while data := self._socket.recv(65536):
                self.got += data
        return time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_case_8_an_engine_killed_in_the_middle_is_told_in_band_within_a_second_with_no_marker(
    house: House, path: str
) -> None:
    """Case 8: and the next client of the same kind waits for the engine that comes back, or for another."""
    container, _ = house.run_of("ninfer")
    with Watch(house) as watch, Stream(house.port, path) as stream:
        stream.until(10)
        killed = time.monotonic()
        house.bed.client.kill(container)
        ended = stream.rest()
        assert ended - killed < WITHIN
        told = [line for line in stream.got.split(b"\n") if line.startswith(b"data: ")][-1]
        assert "ninfer" in json.loads(told.removeprefix(b"data: "))["error"]["message"]
        assert not any(end in stream.got for end in ENDS)
        assert not stream.got.endswith(b"0\r\n\r\n")
        with Stream(house.port, path) as after:
            after.until(10)
    watch.check()
