"""One Docker Engine through its SDK, imported here alone: every call bounded and in a thread of its own.

A thread can't be cancelled, so a call that passes its bound is *unfinished*, not failed. The threads are daemons and
few: calls that hang starve nobody else's executor, and never keep the process from ending.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import docker
from docker.errors import APIError, DockerException, InvalidVersion, NotFound
from docker.utils import kwargs_from_env

from swap.ports import Fault, Unfinished, Unreachable
from swap.recipes import LABEL, Json
from swap.threads import HOST, NoThread, daemon_thread

T = TypeVar("T")
Client: TypeAlias = Any  # docker.APIClient: its stubs leave half of what we call untyped

READING = 10.0  # seconds that we wait for an answer to a question
CHANGING = 60.0  # seconds that creating, starting, removing may take (a GPU hook is slow on a cold machine)
SLACK = 30.0  # seconds beyond its grace that a stop may take
GIVING_UP = 300.0  # seconds after which the SDK itself gives up on a call that nobody waits for any more
CLOSING = 2.0  # seconds that closing idle connections may take
MOST_CALLS = 32  # calls under way at once; only a Docker that hangs has so many
OLDEST_API = (1, 41)  # Docker Engine 20.10
USUAL = "unix:///var/run/docker.sock"
LOG_BYTES = 64 * 1024
HARMLESS = ("1", "10", "12", "17", "18", "28")  # signals that tell an engine something, and end none: HUP, USR1, …


class DockerSaid(Fault):
    """Docker answered, with an error. `status` is the HTTP status."""

    def __init__(self, what: str, status: int) -> None:
        super().__init__(what)
        self.status = status


class Reset(Unreachable):
    """The connection broke in the middle of a call: whether Docker did it has to be looked at."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """A container, the image that it was created from ({} when that is gone), and what its image *name* means now."""

    container: Json
    image: Json
    tag_id: str


class Docker:
    """A Docker Engine, shared by all engines on it. Raises Unreachable, Unfinished (changes only), DockerSaid."""

    def __init__(self, address: str | None = None, *, reading: float = READING, changing: float = CHANGING) -> None:
        """`address`: None means DOCKER_HOST, else the usual socket. Nothing is contacted yet."""
        self.address = address or os.environ.get("DOCKER_HOST") or USUAL
        self._reading, self._changing = reading, changing
        self._clients: dict[float, Client] = {}
        self._lock = threading.Lock()
        self._calls = 0
        self._changes: list[str] = []  # what is being changed, also when nobody waits for it any more

    # ------------------------------------------------------------------------------------------------- questions

    async def inspect(self, name_or_id: str) -> Inspection | None:
        """None when there is no such container. A prefix of another's id is no match."""

        def ask(client: Client) -> Inspection | None:
            container = _or_none(lambda: client.inspect_container(name_or_id))
            if container is None or name_or_id not in (container["Id"], container["Name"].removeprefix("/")):
                return None
            image = _or_none(lambda: client.inspect_image(container["Image"]))
            named = _or_none(lambda: client.inspect_image(container["Config"]["Image"]))
            return Inspection(container, image or {}, named["Id"] if named else "")

        return await self._read(ask)

    async def image(self, name_or_id: str) -> Json | None:
        """None when it isn't on this machine."""
        return await self._read(lambda client: _or_none(lambda: client.inspect_image(name_or_id)))

    async def of_service(self, project: str, service: str) -> list[Json]:
        """Every container, running or not, under whatever name, that compose would take for this service's."""
        labels = [f"{LABEL}project={project}", f"{LABEL}service={service}", f"{LABEL}oneoff=False"]
        return await self._read(lambda client: client.containers(all=True, filters={"label": labels}))

    async def version(self) -> Json:
        """As `docker version` shows the server's."""
        return await self._read(lambda client: client.version())

    async def log(self, id: str, since: float) -> bytes:
        """The last lines since then (Unix time), 64 KiB at most; empty where there is no readable log."""

        def ask(client: Client) -> bytes:
            try:
                return bytes(client.logs(id, tail=400, since=since or None)[-LOG_BYTES:])
            except APIError:
                return b""

        return await self._read(ask)

    async def told_to_end(self, id: str, since: float) -> bool:
        """Has it been sent a signal since then (Unix time) that ends a process, as by `docker stop`?"""

        def ask(client: Client) -> bool:
            filters = {"type": "container", "container": id, "event": ["kill"]}
            when: Any = f"{since:.6f}", f"{time.time():.6f}"
            told = list(client.events(since=when[0], until=when[1], filters=filters, decode=True))
            return any((one["Actor"].get("Attributes") or {}).get("signal") not in HARMLESS for one in told)

        return await self._read(ask)

    # --------------------------------------------------------------------------------------------------- changes

    def changing(self, id: str) -> bool:
        """A change to it is under way, perhaps one that passed its bound."""
        return id in self._changes

    async def start(self, id: str) -> None:
        await self._change("starting", id, lambda client: client.start(id))

    async def stop(self, id: str, grace: int) -> None:
        """Returns when Docker says that it has stopped."""
        await self._change("stopping", id, lambda client: client.stop(id, timeout=grace), grace + SLACK)

    async def create(self, body: dict[str, Any], name: str, networks: Mapping[str, dict[str, Any]]) -> str:
        """The id of a new container that nothing has started, joined to `networks`, too."""

        def make(client: Client) -> str:
            made = str(client.create_container_from_config(body, name)["Id"])
            for network, endpoint in networks.items():  # as it is: the SDK's own call leaves fields out
                joined = {"Container": made, "EndpointConfig": endpoint}
                answer = client._post_json(client._url("/networks/{0}/connect", network), joined)
                client._raise_for_status(answer)
            return made

        return await self._change("creating", name, make)

    async def remove(self, id: str) -> None:
        """Only a stopped one: Docker refuses a running one. Its volumes stay. One that is gone already is no fault."""
        await self._change("removing", id, lambda client: _or_none(lambda: client.remove_container(id)))

    async def rename(self, id: str, name: str) -> None:
        await self._change("renaming", id, lambda client: client.rename(id, name))

    async def no_restart(self, id: str) -> None:
        """Its restart policy is `no`; it is neither stopped nor started by that."""
        await self._change("updating", id, lambda client: client.update_container(id, restart_policy={"Name": "no"}))

    async def tag(self, image_id: str, repository: str, tag: str) -> None:
        await self._change("tagging", image_id, lambda client: client.tag(image_id, repository, tag, force=True))

    # ---------------------------------------------------------------------------------------------------- events

    def listen(self, container: str, actions: Sequence[str], since: float) -> Listener:
        """Events of the container of that name from `since` (Unix time) on. Close it."""
        filters = {"type": "container", "container": container, "event": list(actions)}

        def connect() -> Any:
            when: Any = f"{since:.6f}"  # Docker takes fractions, the SDK hands on what isn't a datetime
            return self._client(READING).events(since=when, filters=filters, decode=True)

        return Listener(connect, self._fault)

    # ----------------------------------------------------------------------------------------------------- inside

    async def close(self) -> None:
        """Close idle connections. Calls under way end by themselves."""
        await asyncio.wait({self._in_thread(self._forget_clients)}, timeout=CLOSING)

    async def _read(self, ask: Callable[[Client], T]) -> T:
        """A question may be asked again: once, when the connection breaks (a daemon that was restarted)."""

        def work() -> T:
            try:
                return self._do(ask, READING + 5.0)
            except Reset:
                return self._do(ask, READING + 5.0)

        answer = self._in_thread(work)
        await asyncio.wait({answer}, timeout=self._reading)
        if not answer.done():
            raise Unreachable(
                f"Docker at {self.address} doesn't answer ({self._reading:g} s)", "see `docker info`", passing=True
            )
        return answer.result()

    async def _change(self, doing: str, what: str, change: Callable[[Client], T], bound: float | None = None) -> T:
        bound = self._changing if bound is None else bound
        answer = self._in_thread(lambda: self._do(change, GIVING_UP))
        self._changes.append(what)
        answer.add_done_callback(lambda _: self._changes.remove(what))
        await asyncio.wait({answer}, timeout=bound)
        if not answer.done():
            name = what.removeprefix("sha256:")[:12] if len(what) >= 64 else what
            raise Unfinished(
                f"{doing} {name} didn't end within {bound:g} s", "see `docker ps` and Docker's log", ended=_end(answer)
            )
        return answer.result()

    def _do(self, call: Callable[[Client], T], patience: float) -> T:
        try:
            self._knock()
            return call(self._client(patience))
        except (OSError, DockerException) as error:  # what requests raises is an OSError
            fault = self._fault(error)
            if isinstance(fault, Unreachable):
                self._forget_clients()  # a Docker that comes back may speak another version
            raise fault from error

    def _client(self, patience: float) -> Client:
        """The client whose read time-out is `patience`; the first call of each negotiates the API version."""
        with self._lock:
            client = self._clients.get(patience)
        if client is not None:
            return client
        tls = kwargs_from_env().get("tls") or False
        client = docker.APIClient(base_url=self.address, version="auto", timeout=int(patience), tls=tls)
        if tuple(int(part) for part in client.api_version.split(".")) < OLDEST_API:
            client.close()
            raise InvalidVersion(f"it speaks API {client.api_version}")
        with self._lock:
            kept = self._clients.setdefault(patience, client)
        if kept is not client:  # another thread was quicker
            client.close()
        return kept

    def _knock(self) -> None:
        """Raise the plain OSError where nobody answers: the SDK buries it, and leaks a socket each time."""
        if self.address.startswith("unix://"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(READING)
                probe.connect(self.address.removeprefix("unix://"))

    def _forget_clients(self) -> None:
        """Close idle connections; calls under way go on."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    def _in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` in a thread of its own; its Fault, or its result, is the future's."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be waiting any more
        if self._calls >= MOST_CALLS:
            answer.set_exception(
                Unreachable(f"Docker at {self.address} hasn't answered {self._calls} calls", passing=True)
            )
            return answer

        def settle(result: T | None, error: BaseException | None) -> None:
            self._calls -= 1
            if error:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        def body() -> None:
            result, fault = None, None
            try:
                result = work()
            except BaseException as error:
                fault = error
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, result, fault)

        try:
            daemon_thread(body, "docker-call")
            self._calls += 1
        except NoThread as fault:  # nothing was asked of Docker
            answer.set_exception(fault)
        return answer

    def _fault(self, error: BaseException) -> Fault:
        """The one line for what the SDK raised."""
        if isinstance(error, APIError):
            return DockerSaid(_said(error), error.status_code or 500)
        where, kinds = f"Docker at {self.address}", [type(part) for part in _inside(error)]
        if PermissionError in kinds:
            return Unreachable(f"no permission to use {where}", "run as root, or as a member of the group `docker`")
        if isinstance(error, InvalidVersion):
            return Unreachable(f"{where} is too old: {error}", "upgrade Docker Engine to 20.10 or newer")
        if FileNotFoundError in kinds or ConnectionRefusedError in kinds:
            why = "there is no such socket" if FileNotFoundError in kinds else "nothing listens there"
            mend = "start it (`systemctl start docker`), or set `docker:` or DOCKER_HOST to its address"
            return Unreachable(f"{where} can't be reached: {why}", mend, passing=True)
        if any(issubclass(kind, ConnectionResetError | BrokenPipeError | TimeoutError) for kind in kinds):
            return Reset(f"{where} broke the connection", "see Docker's log", passing=True)
        return Unreachable(f"{where} can't be used: {error}", "check its address and `docker info`", passing=True)


class Listener:
    """Docker's event stream, read in a thread. `get` answers None when nothing came in time."""

    def __init__(self, connect: Callable[[], Any], fault_of: Callable[[BaseException], Fault]) -> None:
        self._queue: asyncio.Queue[Json | Fault] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._connect, self._fault_of = connect, fault_of
        self._stream: Any = None
        self._closed = threading.Event()
        self._thread = daemon_thread(self._listen, "docker-events")

    async def get(self, timeout: float | None) -> Json | None:
        """The next event; raises Unreachable when the stream has ended: look, then listen anew."""
        try:
            async with asyncio.timeout(timeout):
                item = await self._queue.get()
        except TimeoutError:
            return None
        if isinstance(item, Fault):
            raise item
        return item

    async def close(self) -> None:
        """End the stream; returns when its thread has ended, or after a second (a connect that hangs ends later)."""
        self._closed.set()
        with suppress(Fault):
            await HOST.run(self._cut, f"Docker's event stream {id(self)}", CLOSING)

    def _cut(self) -> None:
        if self._stream is not None:
            with suppress(OSError, AttributeError):  # it has ended by itself
                self._stream.close()  # wakes the reader
        self._thread.join(1.0)

    def _listen(self) -> None:
        fault: Fault = Unreachable("Docker's event stream has ended", passing=True)
        try:
            self._stream = self._connect()
            if not self._closed.is_set():
                for event in self._stream:
                    self._put(event)
        except Exception as error:  # also ValueError, from half a line
            fault = self._fault_of(error)
        finally:
            if self._stream is not None:
                self._stream._response.close()  # the SDK's own `close` leaves it open
        self._put(fault)

    def _put(self, item: Json | Fault) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)


def _or_none(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except NotFound:
        return None


def _end(answer: asyncio.Future[T]) -> asyncio.Future[None]:
    """Completes, without a result and whatever came out, when `answer` does."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    answer.add_done_callback(end)
    return ended


def _said(error: APIError) -> str:
    """Docker's own first line."""
    text = str(error.explanation or error).strip()
    return text.splitlines()[0] if text else "no reason given"


def _inside(error: BaseException) -> Iterator[BaseException]:
    """An exception and all that it wraps: urllib3 and requests hide the real one in arguments and causes."""
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        part = rest.pop()
        if part is not None and id(part) not in seen:
            seen.add(id(part))
            yield part
            rest += [part.__cause__, part.__context__, *(a for a in part.args if isinstance(a, BaseException))]
