"""The words of a command line, as the program that it ends up with sees them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence


def words(command: Sequence[str]) -> Iterator[str]:
    """The words of a command line; those of a shell's `-c` script too."""
    previous = ""
    for word in command:
        if re.fullmatch(r"-[a-z]*c", previous):
            yield from _script(word)
        else:
            yield word
        previous = word


def _script(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unclosed quote: the shell will refuse it, we only look for the path
        return text.split()
