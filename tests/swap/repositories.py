"""Real git repositories for tests, made by the git that is installed; without one their tests are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

IDENTITY = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git: install the package git")


def repository(folder: Path) -> Path:
    """One commit: `engine.cpp`, and `docs/index.md` in a folder."""
    (folder / "docs").mkdir(parents=True)
    (folder / "engine.cpp").write_text("int version = 2;\n")
    (folder / "docs" / "index.md").write_text("reads version 2\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    commit(folder, "reads version 2")
    return folder


def git(folder: Path, *words: str) -> str:
    """As whose the folder is."""
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    owner = folder.stat().st_uid
    who: dict[str, Any] = {"user": owner, "group": owner, "extra_groups": []} if owner != os.geteuid() else {}
    command = ["git", *IDENTITY, *words]
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=True, **who)
    return str(done.stdout).strip()


def commit(folder: Path, why: str = "reads version 3") -> str:
    git(folder, "commit", "--quiet", "--all", "--allow-empty", "--message", why)
    return head(folder)


def head(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD")
