"""What slotctl shows: pure functions from the control API's answers to lines. Short, aligned, safe for a terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from slotproxy.units import format_duration, format_size

WIDEST: Final = 44  # characters of a table's cell; longer ones go on in the next line
_LABEL: Final = 10
_KIND: Final = 15  # characters of the longest kind of event

Answer = Mapping[str, Any]


def phase(line: Answer) -> str:
    """`  1.2 s  draining   2 requests in flight`"""
    return clean(f"{line.get('elapsed') or 0:5.1f} s  {line.get('phase') or '':<10} {line.get('text') or ''}").rstrip()


def event(said: Answer) -> str:
    """`2026-01-02 03:04:05Z  serving          strata:current serves (a swap to it was ordered)`"""
    why = f" ({said['why']})" if said.get("why") else ""
    return clean(f"{moment(said.get('when'))}  {said.get('kind') or '':<{_KIND}}  {said.get('text') or ''}{why}")


def status(answer: Answer) -> list[str]:
    lines = [
        labelled("serving", _serving(answer)),
        labelled("gate", _gate(answer.get("gate") or {}, answer.get("dark") or {})),
        *_requests(answer.get("requests") or {}),
        *_hold(answer.get("hold")),
        *_swap(answer.get("swap")),
        *_dark(answer.get("dark")),
        labelled("card", _card(answer.get("card") or {})),
        *_engines(answer.get("engines") or {}),
        *(labelled("policy", str(words)) for words in answer.get("policy") or ()),
    ]
    return [*lines, *warnings(answer)]


def words(answer: Answer) -> list[str]:
    """What the daemon says of an order."""
    return [clean(str(answer.get("text") or "done"))]


def reloaded(answer: Answer) -> list[str]:
    """What a reload has changed, a line each."""
    return [*words(answer), *(f"  {clean(str(line))}" for line in answer.get("changes") or ())]


def staged(answer: Answer) -> list[str]:
    """What was made anew: in these the container differed from its pair."""
    differences = answer.get("differences") or []
    return [*words(answer), *(_differences(differences) if differences else ())]


def gpu(answer: Answer) -> list[str]:
    lines = [
        labelled("card", f"{answer.get('name')}  {answer.get('uuid')}  driver {answer.get('driver')}"),
        labelled("memory", _memory(answer)),
    ]
    rows: list[list[object]] = [["pid", "memory", "name", "container"]]
    for process in answer.get("processes") or ():
        taken = process.get("bytes")
        rows.append(
            [
                process.get("pid"),
                "unknown" if taken is None else format_size(taken),
                process.get("name"),
                process.get("container"),
            ]
        )
    return lines + (table(rows) if len(rows) > 1 else [labelled("processes", "none that the driver names")])


def refused(what: str, mend: str) -> list[str]:
    """What refuses, and what would mend it."""
    return found("refused", what, mend)


def found(label: str, what: str, mend: str = "") -> list[str]:
    """One thing that was found, and what would mend it."""
    return [labelled(label, what), *([labelled("", f"mend: {mend}")] if mend else [])]


def table(rows: Sequence[Sequence[object]], widest: int = WIDEST) -> list[str]:
    """Columns as wide as their cells; the first row is the head. Nothing is cut off: long cells go on below."""
    wrapped = [[_wrapped(text(cell), widest) for cell in row] for row in rows]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*wrapped, strict=True)]
    return ["  ".join(part).rstrip() for row in wrapped for part in _padded(row, widths)]


def _wrapped(words: str, widest: int) -> list[str]:
    """Lines that end at a space, within a path after a slash, and anywhere only where nothing else is left."""
    lines = [""]
    for part in re.findall(r"\s+|/*[^\s/]+/*|/+", words):
        if lines[-1] and len(lines[-1]) + len(part) > widest:
            lines.append("")
        first, *more = [part[at : at + widest] for at in range(0, len(part), widest)]
        lines[-1] += first if lines[-1] else first.lstrip()
        lines += more
    return [line.rstrip() for line in lines]


def text(value: object) -> str:
    """A value of an answer in one line."""
    if value is None:
        return ""
    if isinstance(value, list):
        return clean(shlex.join(str(word) for word in value))
    return clean(str(value))


def moment(when: object) -> str:
    """A time of the machines' in people's precision, UTC: `2026-01-02 03:04:05Z`."""
    return re.sub(r"^(\S{10})T([0-9:]{8})(\.\d+)?(Z|\+00:00)$", r"\1 \2Z", text(when))


def clean(words: str) -> str:
    """Engines' and files' words can't move the cursor or break a line."""
    return "".join(character if character.isprintable() else " " for character in words)


def _padded(row: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[list[str]]:
    for index in range(max(len(cell) for cell in row)):
        line = [cell[index] if index < len(cell) else "" for cell in row]
        padded = [part.ljust(width) for part, width in zip(line, widths, strict=True)]
        yield [*padded[:-1], line[-1]]


def labelled(label: str, words: str) -> str:
    """A line of the form that all answers have: what it is about, and what is said of it."""
    return f"{label:<{_LABEL}}{clean(words)}"


def _serving(answer: Answer) -> str:
    pair = answer.get("pair") or answer.get("holder")
    if not pair:
        return f"nothing ({answer.get('state')})"
    if not answer.get("serving"):
        return f"nothing: {pair} has the card ({answer.get('state')})"
    since = f", since {moment(answer['since'])}" if answer.get("since") else ""
    return f"{pair} ({answer.get('proof') or 'evidence unknown'}){since}"


def _gate(gate: Answer, dark: Answer) -> str:
    """Its reason is said here unless the line of the dark says it."""
    to = f" to {gate['engine']}" if gate.get("engine") else ""
    why = f" ({gate['reason']})" if gate.get("reason") and gate["reason"] != dark.get("reason") else ""
    counts = [f"{gate.get('in_flight') or 0} in flight", f"{gate.get('waiting') or 0} waiting"]
    if gate.get("settling"):
        counts.append(f"{gate['settling']} settling")
    if gate.get("waiting"):
        size, longest = format_size(gate.get("waiting_bytes") or 0), format_duration(gate.get("longest_wait") or 0)
        counts.append(f"{size} held, longest wait {longest}")
    return f"{gate.get('state')}{to}{why}: {', '.join(counts)}"


def _requests(requests: Mapping[str, Answer]) -> list[str]:
    """How they ended since slotproxy was started, and of what isn't well of which kind that was."""
    said = []
    for outcome, one in requests.items():
        kinds = ", ".join(f"{count} {how}" for how, count in sorted((one.get("how") or {}).items()))
        detail = f" ({kinds})" if kinds and outcome not in ("expired", "served") else ""
        said += [f"{one['count']} {outcome}{detail}"] if one.get("count") else []
    return [labelled("requests", ", ".join(said))] if said else []


def _hold(hold: Answer | None) -> list[str]:
    if hold is None:
        return []
    left = hold.get("left")
    until = "until slotctl release" if left is None else f"{format_duration(left)} left, or slotctl release"
    return [labelled("hold", f"set: requests wait, {until}")]


def _swap(swap: Answer | None) -> list[str]:
    if swap is None:
        return []
    trial = ", a trial that hands the card back" if swap.get("and_back") else ", a trial" if swap.get("trial") else ""
    trial = ", the way back of a trial" if swap.get("back") else trial
    since = format_duration(swap.get("elapsed") or 0)
    failed = f"failed ({swap['failure']}); what served is put back: " if swap.get("failure") else ""
    return [labelled("swap", f"to {swap.get('target')}{trial}: {failed}{swap.get('phase')}, {since}")]


def _dark(dark: Answer | None) -> list[str]:
    if dark is None:
        return []
    again = dark.get("retry_in")
    hope = "it needs a person" if not dark.get("passing") else "it is tried again"
    when = f" in {format_duration(again)}" if dark.get("passing") and again is not None else ""
    return [labelled("dark", f"{dark.get('reason')}; {hope}{when}")]


def _card(card: Answer) -> str:
    if card.get("error"):
        return str(card["error"])
    return f"{card.get('name')}: {_memory(card)}"


def _memory(card: Answer) -> str:
    free, used, total = (format_size(card.get(key) or 0) for key in ("free", "used", "total"))
    reserved = f", {format_size(card['reserved'])} reserved by the driver" if card.get("reserved") else ""
    return f"{free} free of {total}, {used} in use{reserved}"


def _engines(engines: Mapping[str, Answer]) -> list[str]:
    rows: list[list[object]] = [["engine", "status", "pair", "started", "address", "id"]]
    for name, seen in engines.items():
        values = [seen.get("status"), seen.get("pair"), moment(seen.get("started_at")), seen.get("url")]
        rows.append([name, *map(text, values), text(seen.get("id")).removeprefix("sha256:")[:12]])
    troubles = [labelled(name, str(seen["error"])) for name, seen in engines.items() if seen.get("error")]
    return [*table(rows), *troubles] if engines else []


def warnings(answer: Answer) -> list[str]:
    """What people should know."""
    return [labelled("warning", str(words)) for words in answer.get("warnings") or ()]


def _differences(differences: Sequence[Answer]) -> list[str]:
    """A field of the pair makes it another pair, which needs evidence of its own; other fields only a recreate."""
    rows: list[list[object]] = [["field", "declared", "created", ""]]
    for one in differences:
        kind = "part of the pair" if one.get("pair") else ""
        rows.append([one.get("field"), one.get("declared"), one.get("created"), kind])
    return table(rows)
