"""Many connections at one port, from a process that isn't the daemon's, and somebody else who asks meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.slotproxy.programs import LIMIT, until

SOURCES = 8  # addresses that connections come from: one has no more than some 28,000 ports
_REFUSALS = (b"HTTP/1.1 503 ", b"HTTP/1.1 429 ")
_LONG = 600.0  # seconds that thousands may take on a busy machine
_PAUSE = 0.05  # seconds between two questions
_STAY = 0.5  # seconds that a crowd is there once all have come
_FEW = 8  # files that are open for something else
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ADDRESS_WITHOUT_PORT = 24  # IP_BIND_ADDRESS_NO_PORT


class Crowd:
    """Connections that have sent `sent`, and nothing else."""

    def __init__(self, port: int, sent: bytes) -> None:
        self._port, self._sent = port, sent
        self.members: list[socket.socket] = []
        self.away: dict[socket.socket, bytes] = {}  # who wasn't let in, and what was said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.members:
            each.close()

    def come(self, count: int) -> None:
        for number in range(count):
            member = socket.socket()
            self.members.append(member)
            member.settimeout(LIMIT)
            member.setsockopt(socket.IPPROTO_IP, _ADDRESS_WITHOUT_PORT, 1)
            member.bind((f"127.0.0.{2 + number % SOURCES}", 0))
            member.connect(("127.0.0.1", self._port))
            with contextlib.suppress(ConnectionError):  # it was one too many
                member.sendall(self._sent)

    def look(self) -> None:
        """Who has been turned away since? Raises AssertionError where the reason that was told is none."""
        poll = select.poll()
        by_number = {member.fileno(): member for member in self.members if member not in self.away}
        for number in by_number:
            poll.register(number, select.POLLIN)
        for number, _ in poll.poll(0):
            told = self.away[by_number[number]] = _said(by_number[number])
            assert not told or (told.startswith(_REFUSALS) and b"application/json" in told), told


def _said(member: socket.socket) -> bytes:
    with contextlib.suppress(ConnectionError):
        return member.recv(65536)
    return b""


@dataclass
class Others:
    """Who else asks meanwhile: a client that keeps its connection, one that comes anew each time, an operator.

    `asked`: what each had to wait, seconds.
    """

    port: int
    control: Path
    asked: dict[str, list[float]] = field(default_factory=dict)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Again and again, until the block ends. Raises what went wrong."""
        kept = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        ways = {"client": lambda: _ask(kept), "newcomer": self._come, "operator": self._look}
        self.asked = {who: [] for who in ways}
        over, wrong = threading.Event(), list[BaseException]()

        def ask(who: str, how: Callable[[], None]) -> None:
            try:
                while not over.is_set():
                    began = time.monotonic()
                    how()
                    self.asked[who].append(time.monotonic() - began)
                    over.wait(_PAUSE)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=ask, args=each) for each in ways.items()]
        with contextlib.closing(kept):
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                over.set()
                for thread in threads:
                    thread.join(LIMIT)
        if wrong:
            raise wrong[0]

    def _come(self) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)) as connection:
            _ask(connection)

    def _look(self) -> None:
        with socket.socket(socket.AF_UNIX) as asking:  # a client library takes longer to set up than to ask
            asking.settimeout(LIMIT)
            asking.connect(str(self.control))
            asking.sendall(b"GET /status HTTP/1.0\r\n\r\n")
            assert asking.recv(12) == b"HTTP/1.1 200"
            while asking.recv(65536):
                pass


def _ask(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/health")
    with connection.getresponse() as answer:
        assert answer.status == 200
        answer.read()


@dataclass(frozen=True, slots=True)
class Size:
    """Of the daemon: resident bytes, open files."""

    memory: int
    files: int

    @classmethod
    def of(cls, pid: int) -> Size:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return cls(pages * _PAGE, len(list(Path(f"/proc/{pid}/fd").iterdir())))


@dataclass(frozen=True, slots=True)
class Stay:
    """What one crowd was, and what it did: seconds, bytes."""

    name: str
    came: int
    told: int  # that there is no room
    closed: int  # without a word
    seconds: float
    before: Size
    during: Size
    after: Size
    asked: dict[str, list[float]]  # how long each of the others had to wait

    @property
    def stayed(self) -> int:
        return self.came - self.told - self.closed

    @property
    def each(self) -> float:
        """Bytes of the daemon for each that stayed."""
        return (self.during.memory - self.before.memory) / max(1, self.stayed)


def stay(name: str, pid: int, others: Others, *, crowd: Crowd, count: int, waiting: Callable[[], int] | None) -> Stay:
    """The crowd comes, is there, and leaves. `waiting` says how many requests wait, where theirs do."""
    before, began = Size.of(pid), time.monotonic()

    def settled() -> bool:
        crowd.look()
        stayed = count - len(crowd.away)
        return waiting() == stayed if waiting else Size.of(pid).files >= before.files + stayed

    with crowd:
        with others.asking():
            crowd.come(count)
            until(settled, _LONG)
            took = time.monotonic() - began
            during = Size.of(pid)
            time.sleep(_STAY)
        told = sum(1 for said in crowd.away.values() if said)
    until(lambda: Size.of(pid).files <= before.files + _FEW and not (waiting and waiting()), _LONG)
    closed = len(crowd.away) - told
    return Stay(name, count, told, closed, took, before, during, Size.of(pid), others.asked)
