"""The locks hold all that pyproject.toml asks for, each with hashes, and say nothing of where it came from."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
RUNTIME, TESTS = ROOT / "requirements.lock", ROOT / "tests" / "requirements.lock"
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


@cache
def locked(path: Path) -> dict[str, list[Version]]:
    """Name -> the versions that are pinned (more than one where they differ by Python's version)."""
    pins: dict[str, list[Version]] = {}
    for entry in entries(path):
        requirement = Requirement(entry.partition(" --hash")[0])
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", entry
        pins.setdefault(canonicalize_name(requirement.name), []).append(Version(specifier.version))
    return pins


def entries(path: Path) -> list[str]:
    """One line for each pin, with its hashes."""
    joined = path.read_text().replace("\\\n", "")
    return [" ".join(line.split()) for line in joined.splitlines() if line.strip()]


def project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def asked(*extras: str) -> list[Requirement]:
    tables = project()
    lines = tables["dependencies"] + [line for extra in extras for line in tables["optional-dependencies"][extra]]
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize(("path", "extras"), [(RUNTIME, ()), (TESTS, ("test",))], ids=["runtime", "tests"])
def test_every_dependency_is_locked_at_a_version_that_pyproject_allows(path: Path, extras: tuple[str, ...]) -> None:
    pins = locked(path)
    for requirement in asked(*extras):
        versions = pins.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement.name} is not in {path.name}: make it anew, see docs/development.md"
        assert all(requirement.specifier.contains(version) for version in versions), requirement


@pytest.mark.parametrize("path", [RUNTIME, TESTS], ids=["runtime", "tests"])
def test_every_pin_has_hashes(path: Path) -> None:
    for entry in entries(path):
        _, *hashes = entry.split(" --hash=")
        assert hashes, entry
        assert all(HASH.fullmatch(f"--hash={one}") for one in hashes), entry


@pytest.mark.parametrize("path", [RUNTIME, TESTS], ids=["runtime", "tests"])
def test_no_lock_names_an_address(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\w://|^-|index-url|find-links| @ ", text, re.MULTILINE)


def test_the_tests_run_with_what_the_users_get() -> None:
    tests = locked(TESTS)
    differ = {name: (pins, tests.get(name)) for name, pins in locked(RUNTIME).items() if tests.get(name) != pins}
    assert not differ
