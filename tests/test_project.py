"""The project's frame: what the wheel holds, and that imports run one way."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import slotproxy

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of the files in the wheel, as the build backend makes it now."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    (built,) = folder.iterdir()
    return zipfile.ZipFile(built).namelist()


def test_the_wheels_top_level_names_are_exactly_our_three_packages(wheel: list[str]) -> None:
    names = {name.partition("/")[0] for name in wheel}
    assert {name for name in names if not name.startswith("slotproxy-")} == {"slotproxy", "swap", "engines"}


@pytest.mark.parametrize("folder", ["compose", "deploy"])
def test_the_wheel_ships_the_data_folders_under_share(wheel: list[str], folder: str) -> None:
    shipped = {name.partition(f"/share/slotproxy/{folder}/")[2] for name in wheel} - {""}
    assert shipped == {str(path.relative_to(ROOT / folder)) for path in (ROOT / folder).rglob("*") if path.is_file()}


def test_the_wheel_holds_no_tests_and_no_caches(wheel: list[str]) -> None:
    assert not [name for name in wheel if "tests/" in name or "__pycache__" in name]


def test_imports_run_one_way_and_docker_and_nvml_each_have_one_door() -> None:
    run(str(Path(sysconfig.get_path("scripts")) / "lint-imports"), "--no-logo", "--no-cache")


def test_the_version_is_the_same_wherever_it_stands() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert slotproxy.__version__ == version
    assert f"[{version}]" in (ROOT / "CHANGELOG.md").read_text()


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
