"""Why an engine isn't running any more: its exit code, and what its log says."""

from __future__ import annotations

from swap.ports import Fault, Runtime, Sight

LENGTH = 300  # characters of a log line


async def how_it_ended(label: str, runtime: Runtime, id: str, sight: Sight, *, ours: bool) -> str:
    """What became of the run of container `id` that isn't what `sight` shows.

    `ours`: we have started it, so nobody but us has asked it anything yet. The log of any other may quote prompts.
    """
    if sight.running:
        return f"{label} was started anew by somebody else"
    code = "" if sight.exit_code is None else f" with code {sight.exit_code}"
    if not ours:
        return f"{label} exited{code}; its log may say why"
    try:
        line = first_error(await runtime.log_tail(id))
    except Fault:
        line = ""
    return f"{label} exited{code}" + (f": {line}" if line else "")


def first_error(log: str) -> str:
    """The first line that says `error`, else the last one: usage texts follow the error that matters."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    wrong = (line for line in lines if line.lower().startswith("error") or "error:" in line.lower())
    return next(wrong, lines[-1] if lines else "")[:LENGTH]
