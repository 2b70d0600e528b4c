"""The command line of a process engine, as it is declared and as /proc shows it."""

from __future__ import annotations

import asyncio
import sys

import pytest

from swap import proc
from swap.commands import as_started

COMMAND = ("serve", "--model", "/m")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (COMMAND, COMMAND),
        (("/usr/bin/python3", "/usr/bin/serve", "--model", "/m"), COMMAND),  # a script, behind its interpreter
        (("serve: idle",), COMMAND),  # a title that it gave itself
        ((), COMMAND),  # nobody may look
        (("serve", "--model", "/other"), ("serve", "--model", "/other")),
    ],
)
def test_a_process_shows_its_own_command_unless_it_says_the_same(words: tuple[str, ...], told: tuple[str, ...]) -> None:
    assert as_started(COMMAND, words) == told


async def test_the_words_are_those_of_that_very_process() -> None:
    words = (sys.executable, "-c", "input()", "", "two words")
    child = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.PIPE)
    try:
        marked = await asyncio.to_thread(proc.mark, child.pid)
        assert await asyncio.to_thread(proc.command_line, marked) == words
        other = proc.Mark(marked.pid, marked.start + 1, marked.boot)
        assert await asyncio.to_thread(proc.command_line, other) == ()
    finally:
        child.kill()
        await child.wait()
    assert await asyncio.to_thread(proc.command_line, marked) == ()
