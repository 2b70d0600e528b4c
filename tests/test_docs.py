"""Documentation that can't lie: commands, options, exit codes, keys, defaults and variables are those of the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import msgspec
import msgspec.inspect as kinds
import pytest

from engines.profiles import PROFILES
from engines.spec import Engine
from slotproxy import config
from slotproxy.__main__ import parser as slotproxy_parser
from slotproxy.cli_args import EXIT_CODES, build_parser
from slotproxy.config import CardSettings, Limits, Settings, SlotSettings
from slotproxy.config_keys import FileKeys
from slotproxy.units import parse_duration, parse_size
from swap.ports import CardIdentity, Evidence, Outcome, Subject
from swap.statement import GENESIS, Repair, line_of, repair_line

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
NAMES = {"engines": "ENGINE", "pairs": "PAIR", "slots": "SLOT", "models": "MODEL"}
OPTION = re.compile(r"--[a-z][a-z-]*")
SOURCE = "\n".join(
    path.read_text() for name in ("slotproxy", "swap", "engines") for path in (ROOT / name).rglob("*.py")
)


def rows(head: str) -> list[list[str]]:
    """The rows of the README's table that begins with these column names."""
    _, _, rest = README.partition(f"| {head} |\n")
    assert rest, f"the README has no table {head}"
    table, _, _ = rest.partition("\n\n")
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[1:]]


# ------------------------------------------------------------------------------------------------- commands


def used(lines: Iterator[str], program: str) -> dict[str, set[str]]:
    """Command -> the options that the lines give it."""
    found: dict[str, set[str]] = {}
    for line in lines:
        if match := re.match(rf"{program} ([a-z-]+)", line):
            found.setdefault(match[1], set()).update(OPTION.findall(line))
    return found


def test_every_command_and_option_of_slotctl_is_in_the_readme_and_no_other() -> None:
    usages = (build_parser().epilog or "").splitlines()
    assert used((row[0].strip("`") for row in rows("command | does")), "slotctl") == used(
        (line.strip() for line in usages), "slotctl"
    )


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_every_option_of_slotproxy_is_in_the_readme_and_no_other(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        slotproxy_parser().parse_args([command, "--help"])
    there = set(OPTION.findall(capsys.readouterr().out)) - {"--help"}
    assert used((row[0].strip("`") for row in rows("command | does")), "slotproxy")[command] == there


def test_the_options_that_all_commands_of_slotctl_have_are_in_the_readme() -> None:
    usage = " ".join(build_parser().format_usage().split()).replace("[-h]", "--help")
    assert [option for option in OPTION.findall(usage) if option not in README] == []


def test_the_exit_codes_of_the_readme_are_the_codes_own() -> None:
    assert [(int(code), truth) for code, truth in rows("exit code | what is true")] == list(EXIT_CODES.items())


# ------------------------------------------------------------------------------------------------- configuration


def keys(group: type[msgspec.Struct], path: str = "") -> Iterator[str]:
    """Every key's path, with a placeholder where a name of the operator's stands."""
    described = kinds.type_info(group)
    assert isinstance(described, kinds.StructType)
    for field in described.fields:
        for kind in arms(field.type):
            if isinstance(kind, kinds.StructType):
                yield from keys(kind.cls, f"{path}{field.name}.")
            elif isinstance(kind, kinds.DictType) and field.name in NAMES:
                yield from named(kind, f"{path}{field.name}.{NAMES[field.name]}")
            else:
                yield path + field.name


def named(kind: kinds.DictType, path: str) -> Iterator[str]:
    inner = arms(kind.value_type)
    groups = [one for one in inner if isinstance(one, kinds.StructType)]
    yield from (key for group in groups for key in keys(group.cls, f"{path}."))
    if not groups:
        yield path


def arms(kind: kinds.Type) -> list[kinds.Type]:
    """The types that it may be; None isn't one that anybody writes."""
    if isinstance(kind, kinds.Metadata):
        return arms(kind.type)
    if isinstance(kind, kinds.UnionType):
        return [arm for one in kind.types for arm in arms(one) if not isinstance(arm, kinds.NoneType)]
    return [kind]


def test_every_configuration_key_is_in_the_readme_and_no_other() -> None:
    written = [row[0].strip("`") for row in rows("key | default | meaning")]
    assert sorted(written) == sorted(set(keys(FileKeys)))


def defaults() -> Iterator[tuple[str, object]]:
    """Key -> what the code takes where it isn't set, as far as it is one plain value."""
    yield "listen", config.DEFAULT_LISTEN
    yield "control", str(config.DEFAULT_CONTROL)
    yield "state", str(config.DEFAULT_STATE)
    places = {"": Settings, "limits.": Limits, "slots.SLOT.": SlotSettings, "card.": CardSettings}
    for place, kind in {**places, "engines.ENGINE.": Engine}.items():
        for field in fields(kind):
            if isinstance(field.default, int | float) and f"| `{place}{field.name}` |" in README:
                yield place + field.name, field.default


def value(written: str) -> object:
    """What stands in a table, read as the configuration reads it."""
    if written in ("true", "false"):
        return written == "true"
    for read in (int, parse_size, parse_duration):
        try:
            return read(written)
        except ValueError:
            continue
    return written


def test_the_defaults_in_the_readme_are_the_codes_own() -> None:
    written = {row[0].strip("`"): value(row[1].strip("`")) for row in rows("key | default | meaning")}
    taken = dict(defaults())
    from_profile = {f"engines.ENGINE.{name}" for name in ("concurrency", "prefixes", "stop_grace", "start_deadline")}
    assert {key: written[key] for key in taken if key not in from_profile} == {
        key: default for key, default in taken.items() if key not in from_profile
    }
    assert {written[key] for key in from_profile} == {"the profile's"}


def test_the_profiles_in_the_readme_are_the_codes_own() -> None:
    written = {
        row[0].strip("`"): tuple(value(cell) for cell in row[1:5])
        for row in rows("profile | port | concurrency | stop grace | start deadline | ready")
    }
    assert written == {
        name: (profile.default_port, profile.concurrency, profile.stop_grace, profile.start_deadline)
        for name, profile in PROFILES.items()
    }


# ------------------------------------------------------------------------------------------------- the rest


def test_every_variable_and_header_of_ours_is_in_the_readme() -> None:
    ours = set(re.findall(r"SLOTPROXY_[A-Z_]+", SOURCE)) | set(re.findall(r"x-slotproxy-[a-z-]+", SOURCE.lower()))
    assert ours
    assert [name for name in sorted(ours) if name.lower() not in README.lower()] == []


def test_the_ledgers_format_is_described_field_by_field() -> None:
    page = (ROOT / "docs" / "evidence.md").read_text()
    card = CardIdentity(name="", uuid="", driver="")
    run = line_of(Evidence(Subject("", "", (), (), ()), "", Outcome.SERVED, "", "", "", card), GENESIS)
    repair = repair_line(Repair(1, 1, "", "", 0, ""), "ledger.jsonl")
    for line in (run, repair):
        statement = json.loads(line)
        assert f"`{statement['predicateType']}`" in page
        assert [name for name in statement["predicate"] if f"`{name}`" not in page] == []
    assert [one.value for one in Outcome if f"`{one.value}`" not in page] == []


def test_what_the_readme_and_the_pages_link_to_is_there() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("end", ["slotproxy demo", "pytest"])
def test_the_readme_has_the_one_command_that_does_all_the_set_up(end: str) -> None:
    commands = [line for line in README.splitlines() if line.startswith("python3 -m venv .venv && ")]
    (command,) = [line for line in commands if line.endswith(f".venv/bin/{end}")]
    for lock in re.findall(r"-r (\S+)", command):
        assert (ROOT / lock).is_file()


def test_every_variable_of_the_compose_files_is_explained_where_it_is_used() -> None:
    for file in (ROOT / "compose").glob("*.yml"):
        head, _, body = file.read_text().partition("\nname: ")
        assert [name for name in re.findall(r"\$\{(\w+)", body) if name not in head] == []
