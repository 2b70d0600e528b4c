"""The log goes where it can, and breaks nothing where it can't."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO

import pytest
import structlog

from slotproxy.logs import log_to


class Disk(StringIO):
    """`full`: while set, nothing can be written."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


@pytest.fixture
def disk() -> Iterator[Disk]:
    yield Disk()
    structlog.reset_defaults()


def test_a_log_that_can_t_be_written_breaks_nobody_and_says_what_is_missing_once_it_can(disk: Disk) -> None:
    log_to(disk)
    log = structlog.get_logger("x")
    log.info("one")
    disk.full = True
    log.info("two")
    log.error("three")
    disk.full = False
    log.info("four")
    log.info("five")
    said = [json.loads(line)["event"] for line in disk.getvalue().splitlines()]
    missing = "this log couldn't be written: 2 lines are missing, or late"
    assert said == ["one", missing, "four", "five"]
