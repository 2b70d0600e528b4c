"""Every kind of client at once: each in a thread of its own, so that all of them wait, or read, at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from tests.clients.answers import Json, read
from tests.clients.commands import EVERY, READERS, Command
from tests.clients.house import House, Target
from tests.clients.sdks import client_of


@dataclass(frozen=True, slots=True)
class Client:
    """`ask` returns the answer, event by event."""

    name: str
    ask: Callable[[Target], list[Json]]
    needs: str = ""


def _by_command(command: Command, *, stream: bool) -> Client:
    name = f"{command.name}-{'stream' if stream else 'whole'}"
    return Client(name, lambda target: read(command.ask(target, stream=stream)), command.needs)


SDKS = [
    Client(f"{call}-{kind}", client_of(call, kind))
    for call, kind in (
        ("chat", "sync"),
        ("chat-stream", "async"),
        ("chat-tools-stream", "sync"),
        ("responses", "async"),
        ("responses-stream", "sync"),
        ("messages", "sync"),
        ("messages-stream", "async"),
        ("messages-tools-stream", "sync"),
        ("count-tokens", "sync"),
    )
]
STREAMS = [_by_command(one, stream=True) for one in EVERY]
WHOLE = [_by_command(one, stream=False) for one in EVERY if one.name in READERS]
ALL = [*SDKS, *STREAMS, *WHOLE]


def waiting(pool: ThreadPoolExecutor, clients: Sequence[Client], house: House) -> dict[str, Future[list[Json]]]:
    """All of them have asked, and wait. Each has its name as the request's id. The pool must outlive the wait."""
    asked = {one.name: pool.submit(one.ask, replace(house.through, id=one.name)) for one in clients}
    house.until(lambda: house.gate["waiting"] == len(clients) or any(one.done() for one in asked.values()))
    return asked
