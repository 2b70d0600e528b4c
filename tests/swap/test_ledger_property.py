"""Whatever happens to the ledger, no pair is proven that was not."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.spec import Require
from swap.ledger import FileLedger
from swap.ports import Outcome
from swap.standing import standing
from tests.swap.fakes import REAL
from tests.swap.test_ledger import SUBJECT, failed, served

SUBJECTS = [SUBJECT, replace(SUBJECT, user="0")]
KINDS = st.sampled_from(list(Outcome))
HISTORY = st.lists(st.tuples(KINDS, st.sampled_from([0, 1]), st.sampled_from(["trial", "swap"])), max_size=8)
EDITS = [
    (b'"failed"', b'"served"'),
    (b'"revoked"', b'"served"'),
    (b'"attested"', b'"served"'),
    (b'"user":"0"', b'"user":"1000"'),
    (b'"user":"1000"', b'"user":"0"'),
    (b'"swap"', b'"trial"'),
]


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Something that happens to a file, at a place that scales with it."""
    kind = draw(st.sampled_from(["edit", "edit", "flip", "remove", "double", "swap", "cut", "garbage", "tail"]))
    place, other = draw(st.floats(0, 0.999)), draw(st.floats(0, 0.999))
    old, new = draw(st.sampled_from(EDITS))
    bit, some = 1 << draw(st.integers(0, 7)), draw(st.binary(max_size=20))

    def hurt(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        if not lines:
            return some
        at, to, byte = int(place * len(lines)), int(other * len(lines)), int(place * len(data))
        match kind:
            case "edit":
                lines[at] = lines[at].replace(old, new)
            case "flip":
                return data[:byte] + bytes([data[byte] ^ bit]) + data[byte + 1 :]
            case "remove":
                del lines[at]
            case "double":
                lines.insert(to, lines[at])
            case "swap":
                lines[at], lines[to] = lines[to], lines[at]
            case "cut":
                return data[:byte]
            case "garbage":
                lines[at] = some + b"\n"
            case "tail":
                lines.append(some)
        return b"".join(lines)

    return hurt


def proven(book: FileLedger) -> set[tuple[int, Require]]:
    """Which subject has what, as far as the ledger goes."""
    found = {index: standing(book.evidence(), one, "", REAL) for index, one in enumerate(SUBJECTS)}
    requires = (Require.VERIFIED, Require.ATTESTED)
    return {(index, require) for index, it in found.items() for require in requires if it.meets(require)}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=HISTORY, repaired=st.booleans(), hurts=st.lists(damages(), min_size=1, max_size=3), head=st.booleans())
def test_no_damage_ever_makes_a_pair_proven_that_was_not(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[tuple[Outcome, int, str]],
    repaired: bool,
    hurts: list[Callable[[bytes], bytes]],
    head: bool,
) -> None:
    """Whatever happens to the ledger, and however often, or to its head."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)  # hundreds of ledgers: the disk would take most of the time
        damage_and_look(tmp_path_factory, history, repaired, hurts, head)


def damage_and_look(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[tuple[Outcome, int, str]],
    repaired: bool,
    hurts: list[Callable[[bytes], bytes]],
    head: bool,
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    book = FileLedger(path)
    for number, (outcome, index, how) in enumerate(history):
        book.record(replace(served(SUBJECTS[index]), outcome=outcome, how=how, tokens=number))
        if repaired and number == 3:
            path.write_bytes(path.read_bytes().replace(b'"tokens":1,', b'"tokens":9,'))
            book.reread()
            book.repair("half way")
    before, lines = proven(book), path.read_bytes()
    hurt_file = path.with_suffix(".head") if head else path
    data = hurt_file.read_bytes() if hurt_file.exists() else b""
    for hurt in hurts:
        data = hurt(data)
    hurt_file.write_bytes(data)
    book = FileLedger(path)
    assert proven(book) <= before
    if book.chain().broken is None:
        book.record(failed(reason="whatever"))
    else:
        book.repair("whatever it was")
    again = FileLedger(path)
    assert again.chain().broken is None
    assert proven(again) <= before
    if head:
        assert path.read_bytes().startswith(lines)
