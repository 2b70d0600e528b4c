"""What life does to the house: orders, an operator of many minds, engines and daemons that die, a card that fails.

Each is drawn, done, and told to the story. What lasts is undone by itself after a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx

from engines.spec import GiB
from tests.soak.ground import ENGINES, Ground
from tests.soak.story import Blow, Story

PATIENCE = 150.0  # seconds that an order may take
ECHO = 20.0  # seconds for which an order may still feel what befell the house before it
UP = 60.0  # seconds until a daemon that was started answers
LEAST = 0.05  # seconds that a fault of the card lasts at least
CODES = (9, 18, 999, 3)
SERVES, REFUSED, RESTORED, DARK = 0, 3, 4, 5
EXCUSES = {  # by exit code: what must have happened to an order that ends so
    RESTORED: (Blow.KILLED, Blow.CARD, Blow.ABORTED, Blow.DOWN, Blow.STOPPED, Blow.ORDERED),
    DARK: (Blow.KILLED, Blow.CARD, Blow.DOWN, Blow.STOPPED),
    REFUSED: (Blow.CARD, Blow.ORDERED, Blow.ABORTED, Blow.DARK, Blow.KILLED),
}

Json = dict[str, Any]


class Faults:
    """The hands of the soak. `wrong`: orders that ended as none may."""

    def __init__(self, ground: Ground, story: Story, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self.swaps: Counter[int] = Counter()
        self.wrong: list[str] = []
        self._ground, self._story = ground, story
        self._tasks = asyncio.TaskGroup()
        self._draw = Random(f"{seed} faults")
        self._ordered_last = ENGINES[0]
        self._orders: set[asyncio.Task[None]] = set()
        self._lasting: set[asyncio.Task[None]] = set()
        self._http: httpx.AsyncClient | None = None

    # ------------------------------------------------------------------------------------------ the daemon

    async def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Start the daemon; returns when it answers. What goes on beside is a task of `tasks`."""
        self._tasks = tasks
        await self._start()

    async def _start(self) -> None:
        await asyncio.to_thread(self._ground.serve)
        transport = httpx.AsyncHTTPTransport(uds=str(self._ground.control))
        self._http = httpx.AsyncClient(
            transport=transport, base_url="http://x", timeout=PATIENCE, headers={"Connection": "close"}
        )
        async with asyncio.timeout(UP):
            while (await self.status()).get("state", "looking") == "looking":
                await moment()

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._story.tell(f"the daemon gets {number.name}")
        if number == signal.SIGTERM:
            code = await asyncio.to_thread(self._ground.end, number)
            assert code == 0, f"the daemon ended with {code} at SIGTERM"
        else:
            await asyncio.to_thread(self._ground.end, number)
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def restart(self) -> None:
        """It is killed or told to stop, in the middle of whatever it does, and started again after a moment."""
        number = self._draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        with contextlib.ExitStack() as blows:
            blows.enter_context(self._story.during(Blow.DOWN))
            if number == signal.SIGTERM:
                blows.enter_context(self._story.during(Blow.STOPPED))
            await self.end(number)
            await asyncio.sleep(self._draw.random() * 1.5)
            await self._start()
        self._story.tell("the daemon is back")
        self.done[f"daemon {number.name}"] += 1

    async def status(self) -> Json:
        """Empty while it can't be asked."""
        return await self._ask("GET", "/status") or {}

    async def _ask(self, method: str, path: str, body: Json | None = None) -> Json | None:
        """The last line of the answer; None: the daemon is down, or went meanwhile."""
        if self._http is None:
            return None
        try:
            answer = await self._http.request(method, path, json=body)
        except (httpx.HTTPError, RuntimeError):  # RuntimeError: the client was closed as the daemon went
            return None
        lines = answer.text.splitlines()
        try:
            last: Json = json.loads(lines[-1]) if lines else {}
        except ValueError:
            return None
        return last

    # ------------------------------------------------------------------------------------------ one after another

    async def happen(self) -> None:
        """One thing that is drawn, and a pause."""
        drawn: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self._swap),
            (2, self._storm),
            (2, self._abort),
            (2, self._cut),
            (2, self._hold),
            (3, self._kill),
            (3, self._kill_the_target),
            (2, self._maim),
            (2, self._card_error),
            (1, self._card_slow),
            (2, self._occupy),
            (2, self._look),
            (1, self._stage),
        ]
        (act,) = self._draw.choices([one for _, one in drawn], [weight for weight, _ in drawn])
        name = getattr(act, "__name__", "").strip("_").replace("_", " ")
        self.done[name] += 1
        await act()
        await asyncio.sleep(self._draw.random() * 0.8)

    async def _swap(self) -> None:
        self.order_any()
        if self._draw.random() < 0.7:
            await self._orders_ended()

    async def _storm(self) -> None:
        """Everybody wants something else at once."""
        for _ in range(self._draw.randint(3, 6)):
            self.order_any()
            await asyncio.sleep(self._draw.random() * 0.1)
        await self._orders_ended()

    async def _abort(self) -> None:
        self.order_any()
        await asyncio.sleep(self._draw.random() * 1.5)
        self._story.tell("slotctl swap --abort")
        with self._story.during(Blow.ABORTED):
            await self._ask("POST", "/abort", {})
            await self._orders_ended()

    async def _cut(self) -> None:
        with self._story.during(Blow.CUT):
            self.order_any(cut=True, drain=0.1)
            await self._orders_ended()

    async def _hold(self) -> None:
        seconds = self._draw.random() * 2
        self._story.tell(f"slotctl hold --for {seconds:.1f}s")
        hold = self._tasks.create_task(self._held(seconds))
        if self._draw.random() < 0.5:
            await asyncio.sleep(seconds / 2)
            await self._ask("POST", "/release", {})
        await hold

    async def _held(self, seconds: float) -> None:
        await self._ask("POST", "/hold", {"seconds": seconds})

    async def _kill(self) -> None:
        """Whatever is up dies."""
        for engine in ENGINES:
            await self._kill_one(engine)

    async def _kill_one(self, engine: str) -> None:
        with self._story.during(Blow.KILLED):
            if await asyncio.to_thread(self._ground.kill, engine):
                self._story.tell(f"{engine} is killed")

    async def _maim(self) -> None:
        """An engine that lives and is of no use: Strata's server without its engine process."""
        with self._story.during(Blow.KILLED):
            if await asyncio.to_thread(self._ground.maim, "strata"):
                self._story.now(Blow.USELESS)
                self._story.tell("strata's engine process is killed")

    async def _kill_the_target(self) -> None:
        """An engine that exits while it loads."""
        target = self.order_any()
        for _ in range(100):
            swap = (await self.status()).get("swap")
            if swap is None or swap["phase"] in ("starting", "warming"):
                break
            await moment()
        await self._kill_one(target)
        await self._orders_ended()

    async def _card_error(self) -> None:
        call, code = self._draw.choice(["init", "memory"]), self._draw.choice(CODES)
        self._last("errors", call, str(code), self._draw.random() * 3)

    async def _card_slow(self) -> None:
        self._last("delays", "memory", "0.5", self._draw.random() * 3)

    async def _occupy(self) -> None:
        size = self._draw.choice([1, 5, 25])
        self._last("foreign", "trainer", f"{size * GiB} 1 trainer", self._draw.random() * 4)

    async def _look(self) -> None:
        target = {"engine": self._draw.choice(ENGINES), "pair": None}
        for method, path, body in (
            ("GET", "/gpu", None),
            ("GET", "/pairs", None),
            ("GET", "/doctor", None),
            ("POST", "/plan", target),
            ("POST", "/drift", target),
        ):
            await self._ask(method, path, body)

    async def _stage(self) -> None:
        await self._ask("POST", "/stage", {"engine": self._draw.choice(ENGINES), "pair": None})

    # ------------------------------------------------------------------------------------------ what goes on beside

    def order_any(self, **options: object) -> str:
        """A swap, mostly to another than the last one; returns the engine."""
        others = [name for name in ENGINES if name != self._ordered_last]
        self._ordered_last = engine = self._draw.choice([*others, *others, *ENGINES])
        task = self._tasks.create_task(self._ordered(engine, options))
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)
        return engine

    async def _ordered(self, engine: str, options: Json) -> None:
        words = " ".join([f"slotctl swap to-{engine}", *(f"{name}={value}" for name, value in options.items())])
        self._story.tell(words)
        busy = bool(self._orders - {asyncio.current_task()})
        began = time.monotonic()
        ended = await self._ask("POST", "/swap", {"engine": engine, "pair": None, **options})
        if busy or self._orders - {asyncio.current_task()}:
            self._story.now(Blow.ORDERED)
        if ended is None or "code" not in ended:
            if not self._story.felt(began, time.monotonic(), Blow.DOWN):
                self.wrong.append(f"{words}: no answer: {ended}")
            return
        code = int(ended["code"])
        self.swaps[code] += 1
        self._story.tell(f"{words}: {code}: {ended.get('text', '')[:200]}")
        if code != SERVES and not self._story.felt(began, time.monotonic(), *EXCUSES.get(code, ()), echo=ECHO):
            self.wrong.append(f"{words}: {code}: {ended.get('text')}")

    async def _orders_ended(self) -> None:
        if self._orders:
            await asyncio.wait(set(self._orders), timeout=PATIENCE)

    def _last(self, kind: str, name: str, text: str, seconds: float) -> None:
        task = self._tasks.create_task(self._lasts(self._ground.card / kind / name, text, LEAST + seconds))
        self._lasting.add(task)
        task.add_done_callback(self._lasting.discard)

    async def _lasts(self, file: Path, text: str, seconds: float) -> None:
        with self._story.during(Blow.CARD):
            self._story.tell(f"{file.parent.name}/{file.name} says {text!r} for {seconds:.1f} s")
            await asyncio.to_thread(_write, file, text)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(file.unlink, missing_ok=True)

    # ------------------------------------------------------------------------------------------ quiet again

    async def quiet(self) -> None:
        """Nothing is wrong any more, and nothing is under way; then something serves. Raises TimeoutError."""
        await self._ask("POST", "/release", {})
        async with asyncio.timeout(2 * PATIENCE):
            while self._orders or self._lasting:
                await asyncio.wait({*self._orders, *self._lasting})
            while not self._serves(await self.status()):
                await moment()

    @staticmethod
    def _serves(status: Json) -> bool:
        gate = status.get("gate", {})
        return gate.get("state") == "open" and status["swap"] is None and not gate["in_flight"] + gate["settling"]

    async def there_and_back(self) -> list[Json]:
        """How two ordinary swaps end when nothing is wrong."""
        now = str((await self.status())["holder"])
        other = next(name for name in ENGINES if name != now)
        return [await self._ask("POST", "/swap", {"engine": to, "pair": None}) or {} for to in (other, now)]

    async def prove(self) -> None:
        """First evidence of both, by trials."""
        for engine in ENGINES:
            ended = await self._ask("POST", "/swap", {"engine": engine, "pair": None, "trial": True})
            assert ended is not None
            assert ended["code"] == SERVES, ended

    async def watch_dark(self) -> None:
        """Note while nothing serves and clients are told so; until cancelled."""
        while True:
            if (await self.status()).get("gate", {}).get("state") == "refusing":
                self._story.now(Blow.DARK)
            await asyncio.sleep(0.2)


async def moment() -> None:
    await asyncio.sleep(0.05)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text + "\n")
