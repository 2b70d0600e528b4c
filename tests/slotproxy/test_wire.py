"""The README's tables of protocols and outcomes say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engines.spec import Api
from slotproxy.outcomes import Outcome
from slotproxy.protocols import ApiError, error_body, error_event, keep_alive
from slotproxy.wire import PROTOCOLS

README = (Path(__file__).parents[2] / "README.md").read_text()


def rows(first: str) -> dict[str, list[str]]:
    """The table whose head begins so: each row's other cells, by its first."""
    _, _, after = README.partition(f"\n| {first} |")
    lines = after.split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name.strip("`"): rest for name, *rest in cells}


def test_each_protocol_has_its_row_in_the_readme() -> None:
    written = rows("protocol")
    assert list(written) == [api.value for api in PROTOCOLS] == [api.value for api in Api]
    for api, protocol in PROTOCOLS.items():
        path, ends, pings, error = written[api.value]
        assert path == (f"`{protocol.path}`" if protocol.path else "what `passthrough:` names")
        assert set(re.findall("`(.*?)`", ends)) == {end.decode() for end in protocol.ends}
        assert ("ping" in pings) is (b"ping" in keep_alive(api) and bool(protocol.ends))
        assert error.startswith("Anthropic" if protocol.anthropic else "OpenAI")
        if protocol.ends:
            assert ("event `error`" in error) is (protocol.error_name == b"error")


def test_each_outcome_has_its_row_in_the_readme() -> None:
    assert set(rows("outcome")) == {outcome.value for outcome in Outcome}


@pytest.mark.parametrize("api", Api)
def test_an_error_says_the_same_by_its_status_and_in_band(api: Api) -> None:
    error = ApiError(503, "why", "unavailable")
    body, event = error_body(api, error), error_event(api, error, 3)
    assert body.rstrip(b"}").rpartition(b"{")[2] in event
    assert event.startswith(b"event: error\n") is bool(PROTOCOLS[api].error_name)
