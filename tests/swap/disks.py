"""A disk of a test's own that can be full or read-only: a small tmpfs. Needs root, and the right to mount."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SIZE = 2 * 1024 * 1024  # bytes


class SmallDisk:
    """Mounted at `path`. What is full or read-only is mended by `mend`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"
        self._covered = False
        path.mkdir(exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0755", "slotproxy-test", path)

    def fill(self) -> None:
        """To the last byte, in a file that is nobody's."""
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def make_read_only(self) -> None:
        """As the kernel does it to a disk that fails: also under those who have files open."""
        _run("mount", "--bind", self.path, self.path)
        self._covered = True
        _run("mount", "-o", "remount,bind,ro", self.path)

    def mend(self) -> None:
        if self._covered:
            _run("umount", "-l", self.path)
            self._covered = False
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        self.mend()
        _run("umount", "-l", self.path)


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """Skips the test where nothing can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk of its own")
    try:
        disk = SmallDisk(path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"nothing can be mounted here: {error.stderr.strip()}")
    try:
        yield disk
    finally:
        disk.close()


def _run(*command: object) -> None:
    subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
