"""Clients that ask without a pause, in every way that people do, and look at each answer: whole, and if not, why?"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from tests.slotproxy.programs import MODEL
from tests.soak.story import Blow, Story

PATIENCE = 150.0  # seconds for one answer, waiting included; longer is lost
ECHO = 1.0  # seconds after an engine's death in which a request may still run into it
NOTICED = 40.0  # seconds until one that lives and is of no use must be known for that, also where nobody asks it
AGAIN = 0.2  # seconds until a client that was turned away asks again
LOSSES = 20  # that are kept, of however many

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


@dataclass
class Seen:
    """One request as its client saw it. `status` 0: no answer began. `error`: what the answer says of itself."""

    kind: str
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    status: int = 0
    engine: str = ""
    error: str = ""
    retry_after: bool = False
    whole: bool = False
    broke: str = ""
    left: bool = False

    def __str__(self) -> str:
        told = [f"HTTP {self.status}" if self.status else "no answer", self.engine, self.error, self.broke]
        whole = "whole" if self.whole else "not whole"
        return f"{self.kind} of {self.ended - self.began:.1f} s: {', '.join(filter(None, told))}, {whole}"


def outcome(seen: Seen, story: Story) -> tuple[str, bool]:
    """How it ended, in a word, and whether a rule says that it may end so."""
    if seen.left:
        return "left", True
    if seen.status == 200 and seen.whole and not seen.error and not seen.broke:
        return "whole", True

    def felt(*blows: Blow, echo: float = 0.0) -> bool:
        return story.felt(seen.began, seen.ended, *blows, echo=echo)

    if "slotproxy itself failed" in seen.error:
        return "our fault", False
    if seen.engine and seen.status >= 500:  # its own answer, which is handed on; who comes after it waits
        return "the engine's own", felt(Blow.KILLED, echo=ECHO) or felt(Blow.USELESS, echo=NOTICED)
    if seen.status in (429, 503):
        return "refused", bool(seen.retry_after and seen.error) and felt(Blow.STOPPED, Blow.DARK, Blow.CUT)
    if not seen.status or not (seen.error or seen.status != 200):  # no word of why
        return "broken off", felt(Blow.DOWN)
    return "told of an end", felt(Blow.KILLED, Blow.CUT, Blow.STOPPED, echo=ECHO)


class Clients:
    """`count` of them. `pause()` returns when nobody asks; `resume()` lets them go on."""

    def __init__(self, url: str, story: Story, seed: int, count: int = 8) -> None:
        self.outcomes: Counter[str] = Counter()
        self.losses: list[str] = []
        self.longest = 0.0
        self._url, self._story, self._count = url, story, count
        self._draws = [Random(f"{seed} client {n}") for n in range(count)]
        self._go = asyncio.Event()
        self._asking = 0
        self._quiet = asyncio.Event()

    @property
    def requests(self) -> int:
        return sum(self.outcomes.values())

    async def run(self) -> None:
        """Until cancelled."""
        limits = httpx.Limits(max_keepalive_connections=0)  # an idle connection may be closed as it is used
        async with (
            httpx.AsyncClient(
                base_url=self._url, timeout=PATIENCE, trust_env=False, verify=False, limits=limits
            ) as http,
            asyncio.TaskGroup() as tasks,
        ):
            for draw in self._draws:
                tasks.create_task(self._keep_asking(http, draw))

    def resume(self) -> None:
        self._go.set()

    async def pause(self) -> None:
        """Raises TimeoutError when somebody isn't answered within the patience of a client."""
        self._go.clear()
        async with asyncio.timeout(PATIENCE + 10):
            while self._asking:
                self._quiet.clear()
                await self._quiet.wait()

    async def _keep_asking(self, http: httpx.AsyncClient, draw: Random) -> None:
        while True:
            await self._go.wait()
            self._asking += 1
            try:
                seen = await ask(http, draw)
            finally:
                self._asking -= 1
                self._quiet.set()
            await asyncio.sleep(0.3 if seen.broke else 0)  # what has ended it may be noted a moment later
            self._count_in(seen)
            await asyncio.sleep(0.0 if seen.whole else AGAIN)

    def _count_in(self, seen: Seen) -> None:
        word, fair = outcome(seen, self._story)
        self.outcomes[word if fair else "LOST"] += 1
        self.longest = max(self.longest, seen.ended - seen.began)
        if not fair:
            self._story.tell(f"LOST: {seen}")
            if len(self.losses) < LOSSES:
                self.losses.append(f"{word}: {seen}")


async def ask(http: httpx.AsyncClient, draw: Random) -> Seen:
    """One request of a kind that is drawn."""
    kinds: list[tuple[int, Callable[[httpx.AsyncClient, Random, Seen], Awaitable[None]]]] = [
        (4, _plain),
        (6, _stream),
        (2, _messages),
        (1, _long),
        (1, _prefill),
        (2, _leaves_midway),
        (1, _leaves_early),
    ]
    (how,) = draw.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])
    seen = Seen(getattr(how, "__name__", "").strip("_").replace("_", " "))
    try:
        await how(http, draw, seen)
    except httpx.HTTPError as error:
        seen.broke = f"{type(error).__name__}: {error}"
    seen.ended = time.monotonic()
    return seen


# ------------------------------------------------------------------------------------------------- what they ask


def _chat(draw: Random, tokens: int, words: int = 3, **more: object) -> dict[str, Any]:
    message = {"role": "user", "content": "word " * words + str(draw.random())}
    return {"model": MODEL, "messages": [message], "sim_tokens": tokens, "max_tokens": tokens, **more}


async def _plain(http: httpx.AsyncClient, draw: Random, seen: Seen) -> None:
    async with http.stream("POST", CHAT, json=_chat(draw, draw.randint(1, 30))) as response:
        _begun(seen, response)
        body = await response.aread()
    answer = _json(body)
    _told(seen, answer)
    choices = answer.get("choices") or [{}]
    seen.whole = choices[0].get("finish_reason") in ("stop", "length")


async def _stream(http: httpx.AsyncClient, draw: Random, seen: Seen) -> None:
    await _events(http, CHAT, _chat(draw, draw.randint(1, 40), stream=True), seen)


async def _messages(http: httpx.AsyncClient, draw: Random, seen: Seen) -> None:
    await _events(http, MESSAGES, _chat(draw, draw.randint(1, 40), stream=True), seen)


async def _long(http: httpx.AsyncClient, draw: Random, seen: Seen) -> None:
    await _events(http, CHAT, _chat(draw, 400, stream=True), seen)


async def _prefill(http: httpx.AsyncClient, draw: Random, seen: Seen) -> None:
    await _events(http, CHAT, _chat(draw, 5, words=draw.randint(500, 3000), stream=True), seen)


async def _leaves_midway(http: httpx.AsyncClient, draw: Random, seen: Seen) -> None:
    await _events(http, CHAT, _chat(draw, 200, stream=True), seen, leave_after=draw.randint(1, 5))


async def _leaves_early(http: httpx.AsyncClient, draw: Random, seen: Seen) -> None:
    try:
        async with asyncio.timeout(draw.random() * 0.5):
            await _plain(http, draw, seen)
    except TimeoutError:
        seen.left = True


async def _events(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], seen: Seen, leave_after: int | None = None
) -> None:
    events = 0
    async with http.stream("POST", path, json=body) as response:
        _begun(seen, response)
        if response.status_code != 200:
            _told(seen, _json(await response.aread()))
            return
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            events += 1
            data = line.removeprefix("data:").strip()
            seen.whole = seen.whole or data == "[DONE]"
            _told(seen, _json(data.encode()))
            seen.whole = seen.whole or _json(data.encode()).get("type") == "message_stop"
            if leave_after is not None and events >= leave_after:
                seen.left = True
                return


def _begun(seen: Seen, response: httpx.Response) -> None:
    seen.status = response.status_code
    seen.engine = response.headers.get("x-slotproxy-engine", "")
    seen.retry_after = "retry-after" in response.headers


def _told(seen: Seen, answer: dict[str, Any]) -> None:
    """An error is told as one, in whatever protocol."""
    if (error := answer.get("error")) is not None:
        seen.error = seen.error or str(error.get("message", error) if isinstance(error, dict) else error)[:200]


def _json(data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
