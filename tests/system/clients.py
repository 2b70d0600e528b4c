"""Clients as people have them: the real OpenAI SDK, streaming, one connection a request, never a second try."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx
import openai

from engines.ninfer.simulator import words
from tests.system.house import LIMIT
from tests.system.tenants import MODEL

TOKENS = 24
CHARACTERS = 4  # a token, as the simulators count a prompt


@dataclass
class Answer:
    """One streamed answer as its client saw it; `error`: what the SDK raised. Times are of time.monotonic()."""

    engine: str = ""
    held_ms: int = 0
    id: str = ""  # X-Request-Id: the engine's log of requests has it, too
    text: str = ""  # reasoning included
    finish: str = ""
    tokens: int = 0
    error: str = ""
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0

    def fault(self, tokens: int) -> str:
        """What is wrong with it; empty: it is the whole answer of `tokens` tokens that this engine gives."""
        if self.error:
            return f"{self.engine or 'nobody'}: {self.error}"
        if (self.finish, self.tokens) != ("length", tokens):
            return f"{self.engine}: finish_reason {self.finish!r}, {self.tokens} of {tokens} tokens"
        if self.engine == "ninfer" and self.text != "".join(words(tokens)):
            return f"{self.engine}: another text than its own: {self.text!r}"
        return "" if self.text else f"{self.engine}: no text"


class Sdk:
    """An OpenAI client that never tries again and opens a connection for each request."""

    def __init__(self, url: str) -> None:
        alone = {"Connection": "close"}
        self._sdk = openai.OpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=LIMIT, default_headers=alone
        )

    def stream(self, tokens: int = TOKENS, prompt_tokens: int = 8, begun: threading.Event | None = None) -> Answer:
        """Ask, and read to the end. `begun` is set when the first piece of the answer has come."""
        answer = Answer()
        try:
            self._stream(answer, tokens, "word " * (prompt_tokens * CHARACTERS // 5), begun)
        except openai.OpenAIError as error:
            answer.error = f"{type(error).__name__}: {error}"
        except httpx.HTTPError as error:
            answer.error = repr(error)
        answer.ended = time.monotonic()
        return answer

    def _stream(self, answer: Answer, tokens: int, prompt: str, begun: threading.Event | None) -> None:
        raw = self._sdk.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        answer.engine = raw.headers.get("x-slotproxy-engine", "")
        answer.held_ms = int(raw.headers.get("x-slotproxy-held-ms", -1))
        answer.id = raw.headers.get("x-request-id", "")
        with raw.parse() as chunks:
            for chunk in chunks:
                for choice in chunk.choices:
                    thought: Any = getattr(choice.delta, "reasoning_content", None)
                    answer.text += (thought or "") + (choice.delta.content or "")
                    answer.finish = choice.finish_reason or answer.finish
                answer.tokens = chunk.usage.completion_tokens if chunk.usage else answer.tokens
                if begun is not None and answer.text:
                    begun.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sdk.close()


class Background:
    """One streamed request under way. `begun`: its first piece has come."""

    def __init__(self, url: str, tokens: int = TOKENS, prompt_tokens: int = 8) -> None:
        self.begun = threading.Event()
        self._ask = (url, tokens, prompt_tokens)
        self._answer = Answer()
        self._thread = threading.Thread(target=self._run, name="client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        url, tokens, prompt_tokens = self._ask
        with Sdk(url) as sdk:
            self._answer = sdk.stream(tokens, prompt_tokens, self.begun)

    def wait_begun(self) -> Self:
        assert self.begun.wait(LIMIT), "no answer has begun"
        return self

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def answer(self) -> Answer:
        """Waits for its end."""
        self._thread.join(LIMIT)
        assert self.over, "the request hasn't ended"
        return self._answer


class Streamers:
    """Clients that ask again as soon as they are answered, as long as the block runs."""

    def __init__(self, url: str, count: int, tokens: int = TOKENS) -> None:
        self.answers: list[Answer] = []
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(url, tokens), name="client") for _ in range(count)]

    def _run(self, url: str, tokens: int) -> None:
        with Sdk(url) as sdk:
            while not self._end.is_set():
                answer = sdk.stream(tokens)
                self.answers.append(answer)
                if answer.error:
                    self._end.wait(0.5)  # something is wrong: don't ask in a tight loop

    def by(self, engine: str) -> int:
        """How many answers have come from this engine."""
        return sum(answer.engine == engine for answer in self.answers)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(LIMIT)
