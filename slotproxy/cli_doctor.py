"""`slotctl doctor`: the daemon's findings; without a daemon, what can be found without one."""

from __future__ import annotations

import argparse

from slotproxy import __version__, config
from slotproxy.cli_output import Answer, complain, show
from slotproxy.control_client import Control, Lost
from slotproxy.render import found


async def doctor(control: Control, args: argparse.Namespace) -> int:
    try:
        answer = _of_our_version(await control.ask("GET", "/doctor"))
    except Lost as lost:
        answer = _without_daemon(args, lost)
        complain(lost.what, lost.mend)
    show(args, answer, lines)
    return int(answer["code"])


def lines(answer: Answer) -> list[str]:
    """Worst first, each with its mend; then how many there are, or what was looked at."""
    findings = answer["findings"]
    counts = [(sum(one["severity"] == kind for one in findings), kind) for kind in ("problem", "warning")]
    number = ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for count, kind in counts if count)
    return [
        *(line for one in findings for line in found(one["severity"], f"{one['where']}: {one['what']}", one["mend"])),
        *found("seen", "; ".join(answer["seen"]) or "nothing"),
        *found("found", number or "nothing that needs anybody"),
    ]


def _of_our_version(answer: Answer) -> Answer:
    """The daemon's findings; and that it isn't of slotctl's version, which the daemon can't know."""
    if answer["version"] == __version__:
        return answer
    what = f"the daemon is of version {answer['version']}, slotctl of {__version__}"
    mend = "restart slotproxy where it was upgraded, engines run on meanwhile"
    other = {"where": "slotproxy", "what": what, "mend": mend, "severity": "warning"}
    return {**answer, "findings": [*answer["findings"], other]}


def _without_daemon(args: argparse.Namespace, lost: Lost) -> Answer:
    findings = [_problem("slotproxy", lost.what, lost.mend)]
    path = config.config_path(args.config)
    try:
        config.load(path)
        seen = [f"{path}: good"]
    except config.ConfigError as error:
        findings.append(_problem("configuration", str(error), "correct it: slotproxy won't start with it"))
        seen = []
    return {"code": lost.code, "findings": findings, "seen": seen}


def _problem(where: str, what: str, mend: str) -> Answer:
    return {"where": where, "what": what, "mend": mend, "severity": "problem"}
