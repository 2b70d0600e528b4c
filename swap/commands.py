"""The command line of an engine without a container: as it is declared, and as a live process shows it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from engines.spec import Engine, Pair
from swap.ports import CannotStage, Recipe


def as_started(command: tuple[str, ...], words: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a live process, or those that it was started with where these say the same.

    A script has its interpreter before it, and a process that has given itself a title has but one word.
    """
    arguments = command[1:]
    same = not arguments or words[len(words) - len(arguments) :] == arguments
    return command if same or len(words) < 2 else words


def declare(engine: Engine, pair: Pair) -> Recipe:
    """The recipe without its image id. Raises CannotStage."""
    command = pair.command or engine.command
    env = {**engine.env, **pair.env}
    executable = executable_of(command, env)
    image = pair.image or executable
    words = (executable, *command[1:])
    if os.path.realpath(image) not in map(os.path.realpath, words):
        what = f"{pair.label}: its image {image} is no part of its command"
        raise CannotStage(what, "name the program that the command runs: its content tells pairs apart")
    return Recipe(image, "", command=command, env=tuple(sorted(env.items())), contained=False)


def executable_of(command: tuple[str, ...], env: dict[str, str]) -> str:
    """Where the command's program is, by the engine's own PATH. Raises CannotStage."""
    program = command[0] if command else ""
    if "/" in program and not program.startswith("/"):
        raise CannotStage(
            f"the command's program {program} is relative, and an engine runs in /", "give its whole path"
        )
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        what = f"there is no program {program or '(empty command)'} that can be run"
        # The disk that a whole path is on may be mounted late.
        raise CannotStage(what, "correct the command", passing="/" in program and not Path(program).exists())
    return found
