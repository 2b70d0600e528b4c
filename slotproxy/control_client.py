"""slotctl's end of the control socket: HTTP over a unix socket, and no wait without a bound.

An answer may take minutes (files are hashed, Docker or NVML may be slow), so how long it takes says nothing of whether
the daemon lives. While one is awaited, the daemon must show it: by any answer at all to a second question, or in a
stream of lines by one every second, if only a tick.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

SILENCE: Final = 3.0  # seconds without a sign of life after which the daemon counts as lost
PULSE: Final = 1.0  # seconds between two looks whether it lives, while an answer is awaited
LONGEST: Final = 1800.0  # seconds that an answer may take

Json = dict[str, Any]


class Trouble(Exception):
    """No good answer: what happened, what to do about it, and the exit code that says what is true now."""

    def __init__(self, what: str, mend: str, code: int) -> None:
        super().__init__(f"{what}; {mend}" if mend else what)
        self.what, self.mend, self.code = what, mend, code


class Refused(Trouble):
    """The daemon's own answer: it won't, or can't."""


class Lost(Trouble):
    """The daemon can't be reached, or went away in the middle."""

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(what, mend, 6)


class Control:
    """The control API of one daemon. Every method raises Refused or Lost."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        transport = httpx.AsyncHTTPTransport(uds=str(socket), verify=False)  # no TLS here: spare loading certificates
        self._http = httpx.AsyncClient(transport=transport, base_url="http://slotproxy", timeout=SILENCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def ask(self, method: str, path: str, body: Json | None = None) -> Json:
        try:
            async with asyncio.TaskGroup() as group:
                asked = group.create_task(self._request(method, path, body, httpx.Timeout(SILENCE, read=LONGEST)))
                while not (await asyncio.wait({asked}, timeout=PULSE))[0]:
                    await self._request("OPTIONS", "/", None, httpx.Timeout(SILENCE))
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        return _answer(asked.result())

    async def follow(self, path: str, body: Json) -> AsyncGenerator[Json, None]:
        """The lines that people care for; the last one says `done`, or Lost is raised."""
        async with self._trouble(), self._http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                await response.aread()
                _answer(response)
            async with aclosing(_lines(response)) as lines:
                async for line in lines:
                    if not line.get("tick"):
                        yield line
                    if line.get("done"):
                        return
        raise self._gone()

    async def _request(self, method: str, path: str, body: Json | None, limit: httpx.Timeout) -> httpx.Response:
        async with self._trouble():
            return await self._http.request(method, path, json=body, timeout=limit)

    @asynccontextmanager
    async def _trouble(self) -> AsyncIterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unreachable(error) from None
        except httpx.TimeoutException:
            raise Lost(
                f"the daemon at {self._socket} has not answered for {SILENCE:g} s",
                "it hangs or is overloaded: read its log, end it if need be; engines run on without it",
            ) from None
        except httpx.TransportError:
            raise self._gone() from None

    def _gone(self) -> Lost:
        return Lost(
            f"the daemon at {self._socket} went away in the middle",
            "start it again (slotproxy serve): it finishes or undoes what it had begun; then slotctl status",
        )

    def _unreachable(self, error: BaseException) -> Lost:
        match _errno(error):
            case errno.ENOENT:
                return Lost(
                    f"no daemon at {self._socket}", "start it (slotproxy serve), or name its socket with --control"
                )
            case errno.ECONNREFUSED:
                return Lost(f"nobody listens at {self._socket}: the daemon has died", "start it again: slotproxy serve")
            case errno.EACCES | errno.EPERM:
                return Lost(
                    f"{self._socket}: permission denied", "run slotctl as root, or as a member of the socket's group"
                )
        return Lost(f"{self._socket} can't be used: {error}", "name the daemon's socket with --control")


def _errno(error: BaseException | None) -> int | None:
    """httpx and httpcore wrap the operating system's error; the number is what tells."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        error = error.__cause__ or error.__context__
    return None


def _answer(response: httpx.Response) -> Json:
    body = _object(response.content)
    if response.is_success and body is not None:
        return body
    if body is None or "error" not in body:
        raise Refused(
            f"the answer was no answer of slotproxy's (HTTP {response.status_code})",
            "is it its control socket, and is slotctl of the daemon's version?",
            6,
        )
    code = body.get("code")
    raise Refused(str(body["error"]), str(body.get("mend") or ""), code if isinstance(code, int) else 3)


def _object(text: bytes) -> Json | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


async def _lines(response: httpx.Response) -> AsyncGenerator[Json, None]:
    """Split at newlines only: texts may hold other characters that Python takes for line ends."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if (value := _object(line)) is not None:
                yield value
