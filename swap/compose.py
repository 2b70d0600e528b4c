"""What a compose file declares, and recreating from it: the `docker compose` v2 command as a bounded child process.

Compose sees a clean environment (PATH, HOME, how to reach Docker, the pair's own variables), so that a variable of the
daemon's can't end up in a command line by interpolation. The project folder's `.env` counts, as it does by hand.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from engines.spec import Pair
from swap.ports import CannotStage
from swap.recipes import Json
from swap.threads import MODELS

READING = 30.0  # seconds that reading a compose file may take
CREATING = 120.0  # seconds that creating a stopped container may take
HANDED_ON = ("PATH", "HOME", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
INSTALL = "install Docker's compose plugin (docker-compose-plugin), or set SLOTPROXY_COMPOSE to a v2 binary"
_LOGGED = re.compile(r'time="[^"]*" level=(\w+) msg="(.*)"')


@dataclass(frozen=True, slots=True)
class Declaration:
    """One service as compose resolves it: the whole project's JSON, and compose's hash of the service.

    `config_hash` equals the label `com.docker.compose.config-hash` of a container that is created from it.
    """

    project: Json
    config_hash: str

    @property
    def name(self) -> str:
        return str(self.project["name"])


class ComposeProject:
    """One service of one compose file. Every method raises CannotStage with compose's own words."""

    def __init__(
        self, file: Path, service: str, docker_host: str, binary: Sequence[str] = (), reading: float = READING
    ) -> None:
        """`binary`: the command to run; empty: found at the first call (see `find_compose`)."""
        self.file, self.service, self._reading = file, service, reading
        self._docker_host, self._binary = docker_host, tuple(binary)
        self._name: tuple[object, str] | None = None

    async def declared(self, pair: Pair) -> Declaration:
        """What the file declares for this pair, now.

        The hash is taken from the *resolved* service: `config --hash` on the file itself counts `env_file:` entries
        that `up` has already turned into variables when it writes its label.
        """
        text = await self._run(pair, "config", "--format", "json", self.service)
        project = json.loads(text.replace("$$", "$"))  # compose doubles each $, for its output to be read again
        if self.service not in project.get("services", {}):
            raise CannotStage(f"{self.file} declares no service {self.service}", "correct `compose: service:`")
        profiles = [f"--profile={name}" for name in project["services"][self.service].get("profiles") or ()]
        words = (await self._run_on(text, pair, *profiles, "config", "--hash", self.service)).split()
        return Declaration(project, words[-1] if words else "")

    async def name(self, pair: Pair) -> str:
        """The project's name. Asked again only when the file or the `.env` beside it has changed."""
        files = (self.file, self.file.with_name(".env"), *pair.files)
        stamp = await MODELS.run(partial(_stamp, files), f"the disk of {self.file}", self._reading)
        if self._name is None or self._name[0] != stamp:
            text = await self._run(pair, "config", "--format", "json", self.service)
            self._name = stamp, str(json.loads(text)["name"])
        return self._name[1]

    async def create(self, pair: Pair, *, force: bool = False, held: int | None = None) -> None:
        """Make the stopped container what the file declares. `force`: also when compose thinks that it is.

        `held`: an open file that compose inherits, and so holds as long as it lives.
        """
        flags = ("--no-start", "--no-deps", "--no-build", "--pull", "never")
        words = ("up", *flags, *(("--force-recreate",) if force else ()), self.service)
        await self._run(pair, *words, bound=CREATING, held=held)

    async def _run(self, pair: Pair, *arguments: str, bound: float | None = None, held: int | None = None) -> str:
        files = [word for file in (self.file, *pair.files) for word in ("-f", str(file))]
        return await self._compose(files, arguments, pair.env, bound or self._reading, held=held)

    async def _run_on(self, text: str, pair: Pair, *arguments: str) -> str:
        folder = ["--project-directory", str(self.file.parent), "-f", "-"]
        return await self._compose(folder, arguments, pair.env, self._reading, text)

    async def _compose(
        self,
        files: Sequence[str],
        arguments: Sequence[str],
        env: Mapping[str, str],
        bound: float,
        stdin: str = "",
        *,
        held: int | None = None,
    ) -> str:
        surroundings = _surroundings(self._docker_host)
        if not self._binary:
            self._binary = await find_compose(surroundings)
        command = (*self._binary, *files, *arguments)
        code, out, err = await _bounded(command, {**surroundings, **env}, bound, stdin, held)
        if code != 0:
            raise CannotStage(f"compose can't use {self.file}: {first_error(err)}", "correct it, or what it names")
        return out


def _surroundings(docker_host: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
    return {**kept, "DOCKER_HOST": docker_host}


async def compose_version(docker_host: str) -> str:
    """Of the command that staging uses, `2.40.3`. Raises CannotStage when there is none, or only v1."""
    surroundings = _surroundings(docker_host)
    return await _version(await find_compose(surroundings), surroundings)


async def find_compose(env: Mapping[str, str]) -> tuple[str, ...]:
    """The command that is compose v2: `$SLOTPROXY_COMPOSE`, else `docker compose`, else `docker-compose`.

    Raises CannotStage when there is none, or only v1.
    """
    named = os.environ.get("SLOTPROXY_COMPOSE")
    old = ""
    for command in [(named,)] if named else [("docker", "compose"), ("docker-compose",)]:
        version = await _version(command, env)
        if version and not version.startswith("1."):
            return command
        old = version or old
    if old:
        raise CannotStage(f"docker-compose {old} is version 1, which can't be used", INSTALL)
    where = f"at {named} (SLOTPROXY_COMPOSE)" if named else "as `docker compose` or docker-compose"
    raise CannotStage(f"there is no docker compose v2 {where}", INSTALL)


async def _version(command: Sequence[str], env: Mapping[str, str]) -> str:
    """What the command says its version is, without a leading v; empty when it isn't compose."""
    try:
        code, out, _ = await _bounded((*command, "version", "--short"), env, READING)
    except CannotStage as fault:
        if fault.passing:  # too slow to tell: that is no reason to say that there is none
            raise
        return ""
    version = out.strip().removeprefix("v")
    return version if code == 0 and version[:1].isdigit() else ""


async def _bounded(
    command: Sequence[str], env: Mapping[str, str], bound: float, stdin: str = "", held: int | None = None
) -> tuple[int, str, str]:
    """Exit code, output and errors. Past the bound, or when cancelled, the whole process group is killed."""
    pipe, handed_on = asyncio.subprocess.PIPE, () if held is None else (held,)
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(env), start_new_session=True, pass_fds=handed_on
        )
    except OSError as error:
        raise CannotStage(f"{command[0]} can't be run: {error.strerror}", INSTALL) from error
    try:
        async with asyncio.timeout(bound):
            out, err = await process.communicate(stdin.encode())
    except TimeoutError:
        what = f"`{' '.join(command)}` didn't end within {bound:g} s"
        raise CannotStage(what, "see what Docker is doing", passing=True) from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


def first_error(stderr: str) -> str:
    """Compose's first error line: no warnings, none of the ` Container x  Creating` progress lines."""
    rest = []
    for line in stderr.splitlines():
        logged = _LOGGED.match(line)
        if logged and logged[1] in ("error", "fatal"):
            return logged[2]
        if line.strip() and not logged:
            rest.append(line)
    spoken = [line for line in rest if not line.startswith(" ")]
    return (spoken or rest or ["it gave no reason"])[0].strip()


def _stamp(files: Sequence[Path]) -> object:
    return tuple((file, *_when_and_size(file)) for file in files)


def _when_and_size(file: Path) -> tuple[int, int]:
    try:
        stat = file.stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size
