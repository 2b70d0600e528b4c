"""Builds the fake NVML library of the tests: `LD_LIBRARY_PATH=build_shim(folder)` before Python starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_shim.c")
LIBRARY = "libnvidia-ml.so.1"


def build_shim(folder: Path) -> Path:
    """Build the shim as `folder/libnvidia-ml.so.1`; returns the folder. Skips the test visibly without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        missing = "the NVML shim needs a C compiler: install gcc"
        if os.environ.get("SLOTPROXY_TEST_STRICT") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    folder.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{LIBRARY}"]
    subprocess.run([*command, "-o", str(folder / LIBRARY), str(SOURCE)], check=True, timeout=60)
    return folder
