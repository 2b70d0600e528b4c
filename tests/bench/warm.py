"""What the order that keeps caches warm saves: two agents that take turns at NInfer's simulator, through the proxy.

    python -m tests.bench.warm [TURNS]     TURNS of each agent (16)

Prints for each setting how many tokens of prompts were sent, how many the engine had to read (`prompt_n`), how often it
began a conversation anew, and how long it all took.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import httpx

from engines.ninfer.profile import PROFILE
from slotproxy.config import Limits
from slotproxy.logs import log_to
from tests.engines.ninfer_child import MODEL, Child, child
from tests.slotproxy.rig import browser, engine, proxied

PREFILL = 40_000  # tokens a second
THINKS = 0.02  # seconds that an agent needs for its next turn
SETTINGS = {"off": (0, 0.0), "no wait": (3, 0.0), "as configured": (3, 0.25)}


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, as the engine's answer tells it. Tokens."""

    agent: int
    number: int
    cached: int
    read: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """All turns in the order in which they were answered, and how long they took, in seconds."""

    turns: tuple[Turn, ...]
    seconds: float

    @property
    def read(self) -> int:
        return sum(turn.read for turn in self.turns)

    @property
    def anew(self) -> int:
        """How often most of a conversation had to be read again that the engine had read before."""
        return sum(turn.number > 0 and turn.cached < turn.read for turn in self.turns)


def engine_at(folder: Path) -> AbstractContextManager[Child]:
    return child(folder, ("--max-context", "100000"), prefill_tps=PREFILL, decode_ms=1)


async def interleaved(running: Child, turns: int, warm_turns: int, warm_wait: float) -> Outcome:
    """Two agents of one slot, each with a conversation of its own that grows."""
    own = engine(running.url, name="ninfer", profile=PROFILE, prefixes=PROFILE.prefixes)
    limits = Limits(warm_turns=warm_turns, warm_wait=warm_wait)
    answered: list[Turn] = []
    async with proxied(own, limits=limits) as proxy, browser() as client:
        began = time.monotonic()
        async with asyncio.TaskGroup() as agents:
            for number in range(2):
                agents.create_task(_agent(client, proxy.url, number, turns, answered))
        return Outcome(tuple(answered), time.monotonic() - began)


async def _agent(client: httpx.AsyncClient, url: str, agent: int, turns: int, answered: list[Turn]) -> None:
    messages = [{"role": "user", "content": _text(f"agent {agent} in {time.monotonic_ns()}", 32_000)}]
    for number in range(turns):
        body = {
            "model": MODEL,
            "messages": messages,
            "max_tokens": 4,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        answer = (await client.post(f"{url}/v1/chat/completions", json=body)).raise_for_status().json()
        answered.append(Turn(agent, number, answer["timings"]["cache_n"], answer["timings"]["prompt_n"]))
        messages.append(answer["choices"][0]["message"])
        messages.append({"role": "user", "content": _text(f"result {number}", 400)})
        await asyncio.sleep(THINKS)


def _text(seed: str, size: int) -> str:
    return "".join(f"{seed}, line {line}. " for line in range(size // (len(seed) + 8)))[:size]


def main(words: Iterable[str]) -> int:
    turns = int(next(iter(words), "16"))
    with tempfile.TemporaryDirectory() as folder, engine_at(Path(folder)) as running:
        for name, (warm_turns, warm_wait) in SETTINGS.items():
            seen = asyncio.run(interleaved(running, turns, warm_turns, warm_wait))
            sent = sum(turn.cached + turn.read for turn in seen.turns)
            order = "".join("ab"[turn.agent] for turn in seen.turns)
            line = {"sent": sent, "read": seen.read, "anew": seen.anew, "seconds": round(seen.seconds, 2)}
            runs = max(len(list(run)) for _, run in itertools.groupby(order))
            print(f"{name:14} {json.dumps(line)}  most in a row {runs}  {order}")
    return 0


if __name__ == "__main__":
    log_to(io.StringIO())  # a line for each request is of no use here
    sys.exit(main(sys.argv[1:]))
