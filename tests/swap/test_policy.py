"""What the configuration asks of a pair before it gets the card, and what is said where it asks for less."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.spec import Require
from swap import policy
from swap.ports import Outcome
from tests.swap.box import Box, only
from tests.swap.fakes import REAL, FakeCard

NEW_DRIVER = replace(REAL, driver="580.1")
DOUBT = "it was verified with driver 575.57, this is 580.1"


@pytest.fixture
def bare(tmp_path: Path) -> Box:
    return Box(tmp_path)


@pytest.fixture
async def box(bare: Box) -> Box:
    """v2 is verified."""
    await bare.record("v2")
    return bare


def require(box: Box, word: str) -> None:
    box.engine = replace(box.engine, require=Require(word))


def another_driver(box: Box) -> None:
    box.card = FakeCard(identity=NEW_DRIVER)


# ------------------------------------------------------------------------------------------------- require


@pytest.mark.parametrize(
    ("word", "lines", "allowed"),
    [
        ("verified", [], False),
        ("verified", [Outcome.ATTESTED], False),
        ("verified", [Outcome.SERVED], True),
        ("attested", [], False),
        ("attested", [Outcome.FAILED], False),
        ("attested", [Outcome.ATTESTED], True),
        ("attested", [Outcome.SERVED], True),
        ("candidate", [], True),
        ("candidate", [Outcome.FAILED], True),
        ("candidate", [Outcome.SERVED, Outcome.REVOKED], False),
    ],
)
async def test_each_engine_requires_what_its_configuration_says(
    box: Box, word: str, lines: list[Outcome], allowed: bool
) -> None:
    require(box, word)
    for outcome in lines:
        await box.record("v3", outcome, reason="so it was")
    verdict = await box.judge("v3")
    assert verdict.allowed is allowed
    assert (await box.judge("v3", trial=True)).allowed  # whatever is required, a trial may run it


async def test_a_candidate_whose_files_dont_fit_is_refused_whatever_is_required(box: Box) -> None:
    require(box, "candidate")
    box.edit_pair("v3", reads=2)
    assert "reads artifacts of version 2" in only((await box.judge("v3")).refusals)


async def test_a_pair_that_policy_lets_through_and_not_evidence_carries_a_warning(box: Box) -> None:
    require(box, "candidate")
    assert (await box.judge("v3")).warnings == (
        "ninfer:v3 never ran on this card; it is allowed by `require: candidate`",
    )
    assert (await box.judge("v2")).warnings == ()
    require(box, "attested")
    await box.record("v3", Outcome.ATTESTED, reason="ran on the other box")
    (warning,) = (await box.judge("v3")).warnings
    assert "never ran on this card; it is allowed by `require: attested` (attested on 2026-01-02" in warning
    assert warning.endswith("ran on the other box)")


async def test_what_is_missing_is_said_with_what_is_required(box: Box) -> None:
    require(box, "attested")
    told = only((await box.judge("v3")).refusals)
    assert "ninfer:v3 never ran on this card nor was attested" in told
    assert "or give your word: `slotctl pairs attest ninfer:v3 --reason …`" in told
    await box.record("v3")
    await box.record("v3", Outcome.REVOKED, reason="garbles tools")
    assert "ninfer:v3 was revoked on 2026-01-02T03:04:05Z: garbles tools" in only((await box.judge("v3")).refusals)


async def test_an_attestation_after_a_revocation_is_said_with_it_where_it_doesnt_count(box: Box) -> None:
    await box.record("v3")
    await box.record("v3", Outcome.REVOKED, reason="garbles tools")
    await box.record("v3", Outcome.ATTESTED, reason="it was the client")
    told = only((await box.judge("v3")).refusals)
    assert "ninfer:v3 was revoked on 2026-01-02T03:04:05Z: garbles tools; attested since, on 2026-01-02" in told
    assert "which doesn't count here (require: verified)" in told
    assert "never ran" not in told
    require(box, "attested")
    (warning,) = (await box.judge("v3")).warnings
    assert "ninfer:v3 was revoked on 2026-01-02T03:04:05Z: garbles tools; it is allowed by" in warning
    await box.record("v3")
    assert (await box.judge("v3")).warnings == ()
    await box.record("v3", Outcome.REVOKED, reason="again")
    assert "was revoked on 2026-01-02T03:04:05Z: again" in only((await box.judge("v3")).refusals)


def test_what_is_relaxed_is_said_in_so_many_words_and_the_rule_itself_is_not(box: Box) -> None:
    words = [policy.relaxed(replace(box.engine, require=one)) for one in Require]
    assert words == [
        "",
        "ninfer: a pair is given the card when the operator attests it (require: attested)",
        "ninfer: a pair is given the card when its files fit, proven or not (require: candidate)",
    ]


# ------------------------------------------------------------------------------------------------- another driver


async def test_another_driver_is_a_warning_by_default(box: Box) -> None:
    another_driver(box)
    verdict = await box.judge()
    assert (verdict.allowed, verdict.warnings) == (True, (DOUBT,))


async def test_another_driver_is_a_refusal_where_it_is_configured_until_it_is_proven_anew(box: Box) -> None:
    another_driver(box)
    box.strict = True
    assert (
        only((await box.judge()).refusals)
        == f"ninfer:v2: {DOUBT}; `slotctl swap to-ninfer:v2 --trial` proves it anew, or set `card.on_change: warn`"
    )
    assert (await box.judge(trial=True)).allowed
    await box.record("v2", card=NEW_DRIVER)
    assert (await box.judge()).allowed
    box.card = FakeCard(identity=REAL)
    assert (await box.judge()).allowed  # the driver from before: evidence of it is there, too


async def test_a_refusal_of_another_driver_asks_for_no_more_than_what_is_required(box: Box) -> None:
    another_driver(box)
    box.strict = True
    require(box, "candidate")
    verdict = await box.judge()
    assert verdict.allowed
    assert "isn't verified on this card and driver; it is allowed by `require: candidate`" in verdict.warnings[-1]
    require(box, "attested")
    assert not (await box.judge()).allowed
    await box.record("v2", Outcome.ATTESTED, reason="drivers don't matter")
    assert (await box.judge()).allowed


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "not verified"),
        ([Outcome.ATTESTED], "attested only, not verified"),
        ([Outcome.SERVED], "verified"),
        ([Outcome.SERVED, Outcome.REVOKED], "revoked 2026-01-02T03:04:05Z: garbles tools"),
    ],
)
async def test_how_a_pair_is_proven_is_said_in_words(box: Box, lines: list[Outcome], words: str) -> None:
    for outcome in lines:
        await box.record("v3", outcome, reason="garbles tools")
    assert policy.in_words((await box.judge("v3", trial=True)).standing) == words
    assert policy.in_words(None) == "evidence unknown"


async def test_what_is_verified_with_a_doubt_is_said_with_it(box: Box) -> None:
    another_driver(box)
    assert policy.in_words((await box.judge()).standing) == f"verified, but {DOUBT}"
