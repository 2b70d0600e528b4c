"""What compose files declare, asked of the real compose v2; no Docker is needed for that."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

from engines.spec import Pair
from swap.compose import ComposeProject, find_compose, first_error
from swap.ports import CannotStage

NOWHERE = "unix:///nonexistent/docker.sock"
FILE = """
name: box
services:
  ninfer:
    image: ${NINFER_IMAGE:-ninfer:local}
    command: ["ninfer-serve", "${NINFER_ARTIFACT:-v2.ninfer}", "a$$b", "${LEAKED:-clean}"]
    env_file: [ninfer.env]
  other: {image: "strata:1"}
"""


@pytest.fixture
def binary() -> Path:
    package = importlib.util.find_spec("compose")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "docker-compose"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "ninfer.env").write_text("FROM_FILE=1\n")
    path = tmp_path / "docker-compose.yml"
    path.write_text(FILE)
    return path


def _pair(env: dict[str, str] | None = None, files: tuple[Path, ...] = ()) -> Pair:
    return Pair(engine="ninfer", name="v2", image="ninfer:local", artifacts=(), env=env or {}, files=files)


def _project(file: Path, binary: Path, service: str = "ninfer") -> ComposeProject:
    return ComposeProject(file, service, NOWHERE, [str(binary)])


async def test_a_pairs_variables_and_files_decide_what_is_declared(file: Path, binary: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.yml"
    _write(more, "services: {ninfer: {user: '7'}}\n")
    project = _project(file, binary)
    plain = (await project.declared(_pair())).project["services"]["ninfer"]
    other = (
        await project.declared(_pair({"NINFER_IMAGE": "ninfer:v3", "NINFER_ARTIFACT": "v3.ninfer"}, (more,)))
    ).project
    assert plain["image"] == "ninfer:local"
    assert plain["command"][:3] == ["ninfer-serve", "v2.ninfer", "a$b"]
    assert other["services"]["ninfer"]["image"] == "ninfer:v3"
    assert other["services"]["ninfer"]["command"][1] == "v3.ninfer"
    assert other["services"]["ninfer"]["user"] == "7"


async def test_variables_of_our_own_environment_dont_leak_into_a_command_line(
    file: Path, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKED", "dirty")
    declared = await _project(file, binary).declared(_pair())
    assert declared.project["services"]["ninfer"]["command"][3] == "clean"


async def test_the_hash_changes_with_the_service_and_only_with_it(file: Path, binary: Path) -> None:
    project = _project(file, binary)
    first = (await project.declared(_pair())).config_hash
    assert len(first) == 64
    _write(file, FILE.replace("strata:1", "strata:2"))
    assert (await project.declared(_pair())).config_hash == first
    _write(file.parent / "ninfer.env", "FROM_FILE=2\n")
    assert (await project.declared(_pair())).config_hash != first


async def test_a_service_that_a_profile_hides_is_declared_too(file: Path, binary: Path) -> None:
    _write(file, FILE.replace("env_file", "profiles: [gpu]\n    env_file"))
    declared = await _project(file, binary).declared(_pair())
    assert len(declared.config_hash) == 64


async def test_the_projects_name_follows_the_file(file: Path, binary: Path) -> None:
    project = _project(file, binary)
    assert await project.name(_pair()) == "box"
    _write(file, FILE.replace("name: box", "name: another-box"))
    assert await project.name(_pair()) == "another-box"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("image:", "imagine:"), "imagine"),
        (("services:", "services: ]"), "yaml"),
        (("  ninfer:", "  minfer:"), "no such service"),
        (("LEAKED:-clean", "LEAKED:?say it"), "say it"),
        (("[ninfer.env]", "[nowhere.env]"), "nowhere.env"),
    ],
)
async def test_a_broken_file_is_told_in_composes_own_words(
    file: Path, binary: Path, edit: tuple[str, str], said: str
) -> None:
    _write(file, FILE.replace(*edit, 1))
    with pytest.raises(CannotStage, match=said) as told:
        await _project(file, binary).declared(_pair())
    assert "\n" not in told.value.what


async def test_a_missing_file_is_named(tmp_path: Path, binary: Path) -> None:
    with pytest.raises(CannotStage, match=r"gone\.yml"):
        await _project(tmp_path / "gone.yml", binary).declared(_pair())


async def test_a_compose_that_hangs_is_killed(file: Path, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    stuck = _script(tmp_path / "stuck", f"import time\nwhile True: open({str(alive)!r}, 'w').close(); time.sleep(0.05)")
    with pytest.raises(CannotStage, match="didn't end") as slow:
        await ComposeProject(file, "ninfer", NOWHERE, [str(stuck)], reading=0.5).name(_pair())
    assert slow.value.passing
    alive.unlink(missing_ok=True)
    await asyncio.sleep(0.3)
    assert not alive.exists()


async def test_the_binary_that_is_named_is_used(binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTPROXY_COMPOSE", str(binary))
    assert await find_compose({}) == (str(binary),)


async def test_a_plugin_is_found_before_a_standalone_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLOTPROXY_COMPOSE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    _script(tmp_path / "docker-compose", "print('v2.40.3')")
    assert await find_compose({"PATH": str(tmp_path)}) == ("docker-compose",)
    _script(tmp_path / "docker", "print('2.40.3')")
    assert await find_compose({"PATH": str(tmp_path)}) == ("docker", "compose")


async def test_version_one_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLOTPROXY_COMPOSE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    _script(tmp_path / "docker", "import sys; print(\"docker: 'compose' is not a docker command.\"); sys.exit(1)")
    _script(tmp_path / "docker-compose", "print('1.29.2')")
    with pytest.raises(CannotStage, match=r"1\.29\.2 is version 1"):
        await find_compose({"PATH": str(tmp_path)})


async def test_a_compose_that_is_too_slow_to_say_its_version_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTPROXY_COMPOSE", str(_script(tmp_path / "slow", "import time; time.sleep(600)")))
    monkeypatch.setattr("swap.compose.READING", 0.5)
    with pytest.raises(CannotStage, match="didn't end") as slow:
        await find_compose({})
    assert slow.value.passing


async def test_without_compose_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLOTPROXY_COMPOSE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotStage, match="docker-compose-plugin"):
        await find_compose({"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        (
            'time="2026" level=warning msg="The \\"X\\" variable is not set."\nno such service: x\n',
            "no such service: x",
        ),
        (
            " Container a  Recreate\n Container a  Error\nError response from daemon: no\n",
            "Error response from daemon: no",
        ),
        ('time="2026" level=fatal msg="broken"\n', "broken"),
        (" Container a  Error while Creating\n", "Container a  Error while Creating"),
        ("", "it gave no reason"),
    ],
)
def test_the_first_error_line_is_neither_warning_nor_progress(stderr: str, line: str) -> None:
    assert first_error(stderr) == line


def _script(path: Path, body: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(0o755)
    return path


def _write(path: Path, text: str) -> None:
    path.write_text(text)
