"""What the ledger is told of an order's outcome."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from engines.ninfer.profile import PROFILE as NINFER
from engines.spec import Engine
from swap.evidence import evidence_of
from swap.known import Known
from swap.ledger import key
from swap.moves import Order, Record, Unit
from swap.ports import FileDigest, Outcome, Subject
from swap.readiness import Answered
from swap.warming import Warmed
from tests.swap.fakes import REAL, recipe_for

UNIT = Unit("ninfer", "v3", "k")
SUBJECT = Subject("ninfer", "sha256:1", ("ninfer-serve",), (), (FileDigest("/srv/models/v3.ninfer", 5, "ab"),))
WARMED = Warmed(ready_in=8.12345, answered=Answered(64, seconds=0.5), peak=30)


@pytest.fixture
def known() -> Known:
    engine = Engine("ninfer", NINFER, "http://127.0.0.1:1", 0, {}, "v3", container="ninfer-eval")
    recipe = replace(recipe_for("ninfer:v3", "v3.ninfer"), config_hash="c0ffee")
    return Known(engine, None, recipe, subject=SUBJECT, artifact_version=3)


def record(*, served: bool, trial: bool = True, why: str = "") -> Record:
    return Record(UNIT, served, Order(1, "ninfer", "v3", trial), why)


def test_what_served_says_how_soon_with_how_many_tokens_on_which_card(known: Known) -> None:
    evidence = evidence_of(record(served=True), known, WARMED, REAL)
    assert evidence is not None
    assert (evidence.subject, evidence.key) == (SUBJECT, key(SUBJECT))
    assert (evidence.outcome, evidence.how, evidence.pair) == (Outcome.SERVED, "trial", "ninfer:v3")
    assert (evidence.ready_in, evidence.tokens, evidence.card) == (8.123, 64, REAL)
    assert (evidence.tokens_per_second, evidence.vram_peak) == (128, 30)
    assert evidence.image == "ninfer:v3"
    assert evidence.extra == {"artifact_version": 3, "compose_hash": "c0ffee"}
    assert evidence.reason == ""
    age = datetime.now(UTC) - datetime.fromisoformat(evidence.when)
    assert timedelta(seconds=-1) < age < timedelta(minutes=1)


def test_what_failed_says_why_and_nothing_of_an_earlier_success(known: Known) -> None:
    evidence = evidence_of(record(served=False, why="exited with code 1"), known, WARMED, REAL)
    assert evidence is not None
    assert (evidence.outcome, evidence.reason) == (Outcome.FAILED, "exited with code 1")
    assert (evidence.ready_in, evidence.tokens) == (None, None)
    assert (evidence.tokens_per_second, evidence.vram_peak) == (None, None)


def test_a_swap_that_was_no_trial_says_so(known: Known) -> None:
    evidence = evidence_of(record(served=True, trial=False), known, WARMED, REAL)
    assert evidence is not None
    assert evidence.how == "swap"


def test_whose_files_were_never_hashed_has_no_evidence(known: Known) -> None:
    known.subject = None
    assert evidence_of(record(served=True), known, WARMED, REAL) is None


def test_what_nobody_saw_answer_never_counts_as_served(known: Known) -> None:
    evidence = evidence_of(record(served=True), known, None, REAL)
    assert evidence is not None
    assert evidence.outcome is Outcome.FAILED


def test_what_nobody_can_tell_is_left_out(known: Known) -> None:
    known.artifact_version = None
    known.recipe = replace(known.recipe, config_hash="")
    evidence = evidence_of(record(served=True), known, replace(WARMED, answered=Answered(4), peak=None), REAL)
    assert evidence is not None
    assert (evidence.tokens, evidence.tokens_per_second, evidence.vram_peak) == (4, None, None)
    assert evidence.extra == {}
