"""What has gone wrong for people who do this job: each kind, by its number, has a test that names it.

A test names a case in its own name (`test_case_22_…`) or at the beginning of its docstring (`Case 22: …`, `Cases 8
and 45: …`). What lies next to a case is called its neighbour.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

CASES = {
    1: "events that something on the way holds back",
    2: "characters that are cut between two chunks",
    3: "answers that are compressed",
    4: "framing, and headers that are meant for one hop only",
    5: "bodies of many megabytes, many at once",
    6: "a WebSocket where there are none",
    7: "a stream that was queued and ends without a word",
    8: "an engine that dies in the middle of its answer",
    9: "an end marker after an error",
    10: "a client that leaves before the first byte",
    11: "a client that leaves in the middle of its answer",
    12: "a client that stays and doesn't read",
    13: "a request that is sent twice",
    14: "all who waited, let in at once",
    15: "a wait without an end",
    16: "a swap that kills what is under way, or is blocked by it",
    17: "a client that others never let in",
    18: "something on the way that cuts what is silent",
    19: "a client that has left and still counts",
    20: "healthy long before it can answer",
    21: "a port that accepts while nobody is behind it yet",
    22: "a stale server that answers in our engine's place",
    23: "a model that each engine calls by another name",
    24: "alive and useless, and its twin that is only silent",
    25: "memory of the card that is held when the container has gone",
    26: "memory that comes back late, in steps, or is taken by another",
    27: "a card that tells neither its memory nor its processes",
    28: "a driver that isn't loaded, or isn't the library's",
    29: "a driver that doesn't answer",
    30: "a figure of memory in use that means two things",
    31: "two packages with one module's name",
    32: "processes of the card that are told in part, or wrongly",
    33: "a container that has lost the card",
    34: "a restart policy that brings a stopped engine back",
    35: "a stop that takes longer than anyone waits for it",
    36: "a container that runs an older configuration",
    37: "an image and an artifact that don't go together",
    38: "somebody else's container with our name",
    39: "a recreate that takes along what runs",
    40: "a Docker that is gone, too old, or not for us",
    41: "a card that Docker can't give to a container",
    42: "a service manager that never hears that we are ready",
    43: "an end that takes for ever",
    44: "a service manager that ends the engines with us",
    45: "killed in the middle of a swap",
}

_IN_A_NAME = re.compile(r"_case_(\d+)_")
_IN_WORDS = re.compile(r"Cases? (\d+(?:(?:, | and |, and )\d+)*)")


def _tests() -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield node


def numbers(name: str, words: str) -> set[int]:
    """The cases that a test of this name and docstring names."""
    said = _IN_WORDS.match(words)
    told = [*_IN_A_NAME.findall(name), *(re.findall(r"\d+", said[1]) if said else ())]
    return {int(number) for number in told}


@pytest.fixture(scope="module")
def named() -> dict[int, list[str]]:
    """The tests by the number that they name."""
    found: dict[int, list[str]] = {}
    for test in _tests():
        for number in numbers(test.name, ast.get_docstring(test) or ""):
            found.setdefault(number, []).append(test.name)
    return found


@pytest.mark.parametrize(("number", "title"), CASES.items())
def test_each_case_has_a_test_that_names_it(named: dict[int, list[str]], number: int, title: str) -> None:
    assert named.get(number), f"no test names case {number}: {title}"


def test_no_test_names_a_case_that_there_is_not(named: dict[int, list[str]]) -> None:
    unknown = {number: tests for number, tests in named.items() if not 1 <= number <= max(CASES)}
    assert unknown == {}


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("test_case_22_a_stale_server", "", {22}),
        ("test_it", "Case 22: a stale server.", {22}),
        ("test_it", "Cases 8, 40 and 45: it dies.", {8, 40, 45}),
        ("test_it", "In the worst case 22 of them.", set()),
        ("test_suitcase_22_is_here", "", set()),
    ],
)
def test_a_case_is_named_by_name_or_first_words(name: str, words: str, told: set[int]) -> None:
    assert numbers(name, words) == told
