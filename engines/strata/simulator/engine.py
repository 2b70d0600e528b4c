"""The engine process: takes the VRAM, makes the tokens. Started by the server, and not always ended with it.

Orders come as JSON lines on standard input, reports go out as JSON lines on standard output:

    {"op": "generate", "order": {"n": N, "prompt": TOKENS, "thinking": TOKENS, "answer": TOKENS, "limit": N, "seed": N,
        "arguments": [TEXT, …]}}
    {"op": "cancel", "n": N}
    {"op": "quit"}
    → {"ready": true, "vram": BYTES}, {"n": N, "end": WHY},
      {"n": N, "kind": "reasoning" | "content" | "arguments", "text": …}

It keeps running, with its VRAM, when the server that started it is killed: that is how Strata behaves outside a
container. SIGTERM ends it, while loading at once, later after it has unpinned its memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.simvram import Allocation, OutOfMemory, free_bytes
from engines.strata.simulator.knobs import Knobs, faults

WORDS = ("strata", "says", "größe", "ein", "日本", "slow", "river", "🙂", "and", "layers", "of", "stone", "keep")
LAST_WORD = "end."


@dataclass(slots=True)
class Order:
    """One generation. `stop` ends it before the next token, `why` says how."""

    n: int
    prompt: int
    thinking: int
    answer: int
    limit: int | None
    seed: int
    arguments: list[str]
    stop: threading.Event = field(default_factory=threading.Event)
    why: str = "cancelled"


def pieces(order: Order) -> Iterator[tuple[str, str]]:
    """The whole output, always the same for the same seed: what is thought, then the answer, ended by `end.`.

    Where it is a tool call, the answer is the call's arguments.
    """
    for i in range(order.thinking):
        yield "reasoning", WORDS[(order.seed + i) % len(WORDS)] + " "
    if order.arguments:
        yield from (("arguments", piece) for piece in order.arguments)
        return
    for i in range(order.answer - 1):
        yield "content", WORDS[(order.seed + i) % len(WORDS)] + " " if i else "strata "
    yield "content", LAST_WORD


class Engine:
    """One load of the model, until it is told to quit."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.waiting: queue.SimpleQueue[Order | None] = queue.SimpleQueue()  # None: quit
        self.orders: dict[int, Order] = {}
        self.held: Allocation | None = None
        self.slowness = 1.0

    def run(self) -> int:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if (why := self.load()) is not None:
            print(f"error: cannot load the model: {why}", file=sys.stderr, flush=True)
            return 1
        signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: signals.put(None))
        for target, arguments in ((self.listen, ()), (self.heed, (signals,))):
            threading.Thread(target=target, args=arguments, daemon=True).start()
        while (order := self.next_order()) is not None:
            self.report(n=order.n, end=self.generate(order))
            self.orders.pop(order.n, None)
        time.sleep(self.knobs.unpin)
        return 0

    def load(self) -> str | None:
        """Take the VRAM, then the time; returns why it failed, None if it didn't."""
        holding = faults(self.knobs)
        try:
            vram = self.take_vram() if self.knobs.card else 0
        except OutOfMemory as full:
            return str(full)
        time.sleep(self.knobs.load)
        while "never-ready" in holding:
            time.sleep(3600)
        if "fail-load" in holding:
            return "simulated failure"
        self.report(ready=True, vram=vram)
        return None

    def take_vram(self) -> int:
        """A cache of what is free less the reserve never fails for being small: it is slow. A fixed size can fail."""
        folder, size = Path(self.knobs.card), self.knobs.vram
        if size == "free":
            taken = max(0, free_bytes(folder) - self.knobs.reserve)
            self.slowness = max(1.0, min(50.0, self.knobs.full / max(1, taken)))
        else:
            taken = int(size)
        self.held = Allocation(folder, f"strata-{uuid.uuid4().hex[:8]}", taken, linger=self.knobs.linger)
        return taken

    def listen(self) -> None:
        """Orders as they come. The server's end is not ours: nothing more comes, and that is all."""
        for line in sys.stdin:
            match json.loads(line):
                case {"op": "generate", "order": words}:
                    order = Order(**words)
                    self.orders[order.n] = order
                    self.waiting.put(order)
                case {"op": "cancel", "n": n} if n in self.orders:
                    self.orders[n].stop.set()
                case {"op": "quit"}:
                    self.quit()

    def next_order(self) -> Order | None:
        """None: quit. Looks up now and then, as a wait without an end could miss a signal that comes just before it."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self.waiting.get(timeout=0.05)

    def heed(self, signals: queue.SimpleQueue[None]) -> None:
        """Signals, off the main thread: that one may hold the very lock that `quit` needs."""
        signals.get()
        self.quit()

    def quit(self) -> None:
        """End what runs as if its limit were reached, then leave."""
        for order in list(self.orders.values()):
            order.why = "length"
            order.stop.set()
        self.waiting.put(None)

    def generate(self, order: Order) -> str:
        """Prefill, then token by token; returns why it ended: stop, length, cancelled."""
        holding = faults(self.knobs)
        if order.stop.wait(order.prompt / self.knobs.prefill):
            return order.why
        for count, (kind, text) in enumerate(pieces(order)):
            misbehave(holding, count)
            if order.limit is not None and count >= order.limit:
                return "length"
            if order.stop.wait(self.knobs.decode / 1000 * self.slowness):
                return order.why
            self.report(n=order.n, kind=kind, text=text)
        return "stop"

    def report(self, **words: Any) -> None:
        try:
            print(json.dumps(words), flush=True)
        except BrokenPipeError:  # the server is gone; an orphan goes on
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def misbehave(holding: dict[str, int], count: int) -> None:
    if holding.get("crash") == count:
        os._exit(134)
    while holding.get("hang") == count:
        time.sleep(3600)


if __name__ == "__main__":
    sys.exit(Engine(Knobs(**json.loads(sys.argv[1]))).run())
