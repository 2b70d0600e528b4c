"""What the ledger's lines come to for one pair: by the very subject, in their order, for this card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engines.spec import Require
from swap.ledger import key
from swap.ports import CardIdentity, Evidence, FileDigest, Mount, Outcome, Subject
from swap.standing import PairState, Standing, standing, subject_differences
from tests.swap.fakes import REAL, SIMULATED

A = FileDigest("/srv/models/a.ninfer", 5, "aa" * 32)
B = FileDigest("/srv/models/b.ninfer", 5, "bb" * 32)
SUBJECT = Subject("ninfer", "sha256:1", ("ninfer-serve",), (("A", "1"),), (A,), image_content="sha256:c1")
OTHER = replace(SUBJECT, argv=("ninfer-serve", "--other"))
SAME_CARD_NEW_DRIVER = replace(REAL, driver="580.1")
TWIN = replace(REAL, uuid="GPU-twin")
SERVED, FAILED, ATTESTED, REVOKED = Outcome.SERVED, Outcome.FAILED, Outcome.ATTESTED, Outcome.REVOKED


def line(outcome: Outcome, subject: Subject = SUBJECT, **more: Any) -> Evidence:
    made: dict[str, Any] = {"pair": "ninfer:v2", "when": "2026-01-02", "how": "trial", "card": REAL} | more
    return Evidence(subject, key(subject), outcome, **made)


def of(*lines: Evidence, subject: Subject = SUBJECT, card: CardIdentity | None = REAL) -> Standing:
    return standing(lines, subject, "ninfer:v2", card)


# ------------------------------------------------------------------------------------------------- the order of lines


@pytest.mark.parametrize(
    ("lines", "state", "meets"),
    [
        ([], PairState.CANDIDATE, "candidate"),
        ([FAILED], PairState.FAILED, "candidate"),
        ([ATTESTED], PairState.CANDIDATE, "attested"),
        ([SERVED], PairState.VERIFIED, "verified"),
        ([FAILED, SERVED], PairState.VERIFIED, "verified"),
        ([SERVED, FAILED, FAILED], PairState.VERIFIED, "verified"),
        ([SERVED, REVOKED], PairState.REVOKED, ""),
        ([ATTESTED, REVOKED], PairState.REVOKED, ""),
        ([REVOKED, FAILED], PairState.REVOKED, ""),
        ([SERVED, REVOKED, ATTESTED], PairState.CANDIDATE, "attested"),
        ([ATTESTED, REVOKED, SERVED], PairState.VERIFIED, "verified"),
        ([SERVED, REVOKED, SERVED], PairState.VERIFIED, "verified"),
    ],
)
def test_what_a_history_comes_to(lines: list[Outcome], state: PairState, meets: str) -> None:
    known = of(*map(line, lines))
    order = ["verified", "attested", "candidate"]
    enough = order[order.index(meets) :] if meets else []
    assert known.state is state
    assert [one.value for one in Require if known.meets(one)] == enough


def test_an_order_that_was_under_way_when_the_pair_was_revoked_lifts_nothing() -> None:
    lines = [line(SERVED), line(REVOKED), line(SERVED, how="swap")]
    assert of(*lines).state is PairState.REVOKED
    assert of(*lines, line(SERVED, how="adopt")).state is PairState.VERIFIED


def test_what_is_said_of_another_subject_of_the_same_name_says_nothing_of_this_one() -> None:
    known = of(line(SERVED, OTHER), line(REVOKED, OTHER), line(FAILED, OTHER))
    assert (known.served, known.revoked, known.failure) == (None, None, None)
    assert known.state is PairState.CANDIDATE


def test_evidence_follows_the_subject_whatever_it_was_called() -> None:
    assert of(line(SERVED, pair="ninfer:old-name")).state is PairState.VERIFIED


# ------------------------------------------------------------------------------------------------- changed


def test_a_changed_pair_says_what_it_was_verified_as_and_what_differs() -> None:
    known = of(line(SERVED), subject=OTHER)
    assert known.state is PairState.CHANGED
    assert known.before == line(SERVED)
    assert known.changed == ("command line",)
    assert not known.meets(Require.VERIFIED)


def test_a_changed_pair_that_was_tried_and_failed_as_it_is_now_has_failed() -> None:
    known = of(line(SERVED), line(FAILED, OTHER), subject=OTHER)
    assert (known.state, known.changed) == (PairState.FAILED, ("command line",))


def test_what_it_was_verified_as_is_the_newest_that_nobody_has_revoked_under_whatever_name() -> None:
    third = replace(SUBJECT, user="1000")
    lines = [line(SERVED, when="1"), line(SERVED, OTHER, when="2"), line(REVOKED, OTHER, pair="ninfer:renamed")]
    before = of(*lines, subject=third).before
    assert before is not None
    assert before.when == "1"
    assert of(*lines, line(REVOKED), subject=third).state is PairState.CANDIDATE


# ------------------------------------------------------------------------------------------------- which card


def test_evidence_of_the_very_card_counts_before_newer_evidence_of_another() -> None:
    known = of(line(SERVED, when="1"), line(SERVED, when="2", card=TWIN))
    assert known.served is not None
    assert (known.served.when, known.doubts) == ("1", ())


@pytest.mark.parametrize(
    ("lines", "lifted"),
    [
        ([REVOKED], False),
        ([ATTESTED], False),
        ([REVOKED, ATTESTED], True),
        ([REVOKED, ATTESTED, ATTESTED, FAILED], True),
        ([REVOKED, ATTESTED, SERVED], False),
        ([REVOKED, ATTESTED, REVOKED], False),
        ([REVOKED, SERVED, ATTESTED], False),
    ],
)
def test_a_revocation_that_the_operators_word_took_back_is_known_until_the_pair_serves(
    lines: list[Outcome], lifted: bool
) -> None:
    assert (of(*map(line, lines)).lifted is not None) is lifted


@pytest.mark.parametrize(
    ("card", "doubts"),
    [
        (SAME_CARD_NEW_DRIVER, ("it was verified with driver 575.57, this is 580.1",)),
        (TWIN, ("it was verified on another card of this model: GPU-8f2c, this is GPU-twin",)),
        (
            replace(TWIN, name="NVIDIA RTX 6000"),
            ("it was verified on another GPU: NVIDIA GeForce RTX 5090, this is NVIDIA RTX 6000",),
        ),
    ],
)
def test_another_gpu_or_driver_is_a_doubt_that_ends_with_evidence_of_this_one(
    card: CardIdentity, doubts: tuple[str, ...]
) -> None:
    known = of(line(SERVED), card=card)
    assert (known.state, known.doubts) == (PairState.VERIFIED, doubts)
    assert of(line(SERVED), line(SERVED, card=card), card=card).doubts == ()
    assert of(line(SERVED, card=card), line(SERVED), card=card).doubts == ()


def test_the_word_given_on_a_simulated_card_counts_for_nothing_on_a_real_one_but_a_revocation() -> None:
    assert of(line(ATTESTED, card=SIMULATED)).attested is None
    assert of(line(FAILED, card=SIMULATED)).failure is None
    assert of(line(SERVED), line(REVOKED, card=SIMULATED)).state is PairState.REVOKED
    assert of(line(REVOKED), line(SERVED, card=SIMULATED)).state is PairState.REVOKED


# ------------------------------------------------------------------------------------------------- what differs


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine": "strata"}, ["engine ninfer is strata now"]),
        ({"image_id": "sha256:2", "image_content": "sha256:c2"}, ["image 1 is 2 now"]),
        ({"image_content": ""}, ["image 1: nobody can tell whether it holds what it held"]),
        ({"image_id": "sha256:2"}, []),  # the other image store
        ({"argv": ()}, ["command line"]),
        ({"env": (("A", "2"),)}, ["environment A has another value"]),
        ({"env": (("A", "0"), ("A", "1"))}, ["environment A has another value"]),
        ({"env": (("B", "1"),)}, ["environment A is gone", "environment B is new"]),
        ({"files": (replace(A, sha256="cc" * 32),)}, [f"file {A.path} has other bytes"]),
        ({"files": (replace(A, size=6),)}, [f"file {A.path} has other bytes"]),
        ({"files": (replace(A, path="/elsewhere/a.ninfer"),)}, []),
        ({"files": (B,)}, [f"file {B.path} is new", f"file {A.path} is gone"]),
        ({"files": (A, replace(A, path="/again"))}, ["number of files"]),
        ({"working_dir": "/srv"}, ["working directory (none) is /srv now"]),
        ({"user": "1000"}, ["user (none) is 1000 now"]),
        ({"mounts": (Mount("/srv", "/models", read_only=True),)}, ["mounts"]),
        ({"devices": ("nvidia: all",)}, ["devices (none) are nvidia: all now"]),
    ],
)
def test_each_difference_is_named_in_a_few_words(change: dict[str, Any], words: list[str]) -> None:
    assert list(subject_differences(SUBJECT, replace(SUBJECT, **change))) == words


def test_the_order_of_files_counts() -> None:
    both = replace(SUBJECT, files=(A, B))
    assert list(subject_differences(both, replace(both, files=(B, A)))) == ["order of files"]
    swapped = (replace(A, sha256=B.sha256), replace(B, sha256=A.sha256))  # each under the other's name
    assert len(list(subject_differences(both, replace(both, files=swapped)))) == 2
