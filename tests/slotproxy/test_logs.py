"""The log goes where it can, and breaks nothing where it can't."""

from __future__ import annotations

import asyncio
import json
import logging
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


def test_what_libraries_say_of_an_exception_is_its_kind_and_its_place_and_never_its_words(disk: Disk) -> None:
    def parse() -> None:
        raise LookupError("the prompt")

    log_to(disk)
    try:
        try:
            parse()
        except LookupError as error:
            raise ExceptionGroup("of the prompt", [ValueError("the prompt"), error]) from error
    except ExceptionGroup as error:
        logging.getLogger("uvicorn.error").error("Exception in ASGI application\n", exc_info=error)
        context = {"message": "Task exception was never retrieved", "exception": error, "future": "<the prompt>"}
        with asyncio.Runner() as runner:
            runner.get_loop().default_exception_handler(context)
            runner.get_loop().default_exception_handler({**context, "message": "Exception in callback f('the prompt')"})
    logging.getLogger("urllib3").warning("a word of a library's own")
    logging.getLogger("urllib3").info("chatter")
    lines = [json.loads(line) for line in disk.getvalue().splitlines()]
    assert [line["event"] for line in lines] == [
        "Exception in ASGI application",
        "Task exception was never retrieved",
        "Exception in callback f",
        "a word of a library's own",
    ]
    assert [line.get("error") for line in lines] == ["ExceptionGroup from ValueError"] * 3 + [None]
    assert all(line["at"][-1].startswith("test_logs.py:") for line in lines[:3])
    assert "prompt" not in disk.getvalue()
