"""Whatever the ledger says and whatever differs: no pair that differs in any subject is ever taken for verified."""

from __future__ import annotations

from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engines.spec import Require
from swap.ledger import key
from swap.ports import CardIdentity, Evidence, FileDigest, Mount, Outcome, Subject
from swap.standing import PairState, Standing, standing, subject_differences
from tests.swap.fakes import REAL, SIMULATED

CARDS = (REAL, replace(REAL, driver="580.1"), replace(REAL, uuid="GPU-twin"), SIMULATED)
LABELS = ("ninfer:v2", "ninfer:v3")

# Few values each, so that two drawn at random are often alike, and often differ in one thing.
few = st.sampled_from
files = st.builds(FileDigest, few(["/a", "/b"]), few([1, 2]), few(["aa" * 32, "bb" * 32]))
mounts = st.builds(Mount, few(["/srv", "/mnt"]), few(["/models", "/data"]), st.booleans())
images = few(["", "sha256:c1", "sha256:c2"])
words = st.lists(few(["serve", "--kv", "--api-key", "hush", "-x"]), max_size=3).map(tuple)
variables = st.lists(st.tuples(few(["A", "B", "API_KEY"]), few(["1", "2", "hush"])), max_size=3).map(tuple)
parts: dict[str, st.SearchStrategy[Any]] = {
    "engine": few(["ninfer", "strata"]),
    "image_id": few(["sha256:1", "sha256:2"]),
    "argv": words,
    "env": variables,
    "files": st.lists(files, max_size=3).map(tuple),
    "image_content": images,
    "working_dir": few(["", "/srv"]),
    "user": few(["", "1000"]),
    "mounts": st.lists(mounts, max_size=2).map(tuple),
    "devices": st.lists(few(["nvidia: 0", "nvidia: 1"]), max_size=2).map(tuple),
}
subjects = st.builds(Subject, **parts)


@st.composite
def mutated(draw: st.DrawFn, subject: Subject) -> Subject:
    """Often the same in all but one part, sometimes in none, sometimes in several."""
    for name in draw(st.lists(few(sorted(parts)), max_size=3)):
        subject = replace(subject, **{name: draw(parts[name])})
    return subject


@st.composite
def histories(draw: st.DrawFn) -> tuple[Subject, Subject, list[Evidence]]:
    """A subject, another one like it, and what was recorded of both and of their like."""
    first = draw(subjects)
    second = draw(mutated(first))
    about = [first, second, draw(mutated(second))]
    return first, second, draw(st.lists(lines(about), max_size=8))


@st.composite
def lines(draw: st.DrawFn, about: list[Subject]) -> Evidence:
    subject = draw(few(about))
    how, card = draw(few(["trial", "adopt", "swap", "operator"])), draw(few(CARDS))
    return Evidence(subject, key(subject), draw(few(list(Outcome))), draw(few(LABELS)), "2026-01-02", how, card)


def of(history: list[Evidence], subject: Subject, card: CardIdentity) -> Standing:
    return standing(history, subject, LABELS[0], card)


def same(one: Subject, other: Subject) -> bool:
    """Field by field and without the key: what decides what runs, and nothing of where it lies on the host."""

    def told(subject: Subject) -> tuple[object, ...]:
        contents = [(file.sha256, file.size) for file in subject.files]
        targets = sorted((mount.target, mount.read_only) for mount in subject.mounts)
        image = subject.image_content or subject.image_id
        plain = (subject.engine, subject.argv, subject.working_dir, subject.user, subject.devices)
        return image, sorted(subject.env), contents, targets, plain

    return told(one) == told(other)


def test_every_field_of_a_subject_is_mutated() -> None:
    assert set(parts) == {field.name for field in fields(Subject)}


@given(histories())
def test_two_subjects_are_one_pair_exactly_when_nothing_differs(
    history: tuple[Subject, Subject, list[Evidence]],
) -> None:
    first, second, _ = history
    assert (key(first) == key(second)) is same(first, second)
    assert (not list(subject_differences(first, second))) is same(first, second)


@pytest.mark.parametrize("name", sorted(parts))
@given(subject=subjects, data=st.data())
def test_whichever_part_differs_the_pair_is_another_one(name: str, subject: Subject, data: st.DataObject) -> None:
    other = replace(subject, **{name: data.draw(parts[name])})
    known = of([line(other, Outcome.SERVED)], subject, REAL)
    assert (known.served is not None) is known.meets(Require.VERIFIED) is same(subject, other)
    assert (not list(subject_differences(subject, other))) is same(subject, other)


@given(histories(), few(CARDS))
def test_nothing_is_verified_but_what_has_served_itself_on_such_a_card(
    history: tuple[Subject, Subject, list[Evidence]], card: CardIdentity
) -> None:
    subject, _, book = history
    known = of(book, subject, card)
    for line, outcome in ((known.served, Outcome.SERVED), (known.attested, Outcome.ATTESTED)):
        if line is not None:
            assert line in book
            assert line.outcome is outcome
            assert same(line.subject, subject)
            assert line.card.simulated == card.simulated
    if known.meets(Require.VERIFIED):
        assert known.state is PairState.VERIFIED
        assert known.served is not None
    if known.before is not None:
        assert list(known.changed)
        assert known.served is None


@given(histories(), few(CARDS))
def test_what_is_recorded_of_others_changes_nothing_of_what_is_true_of_one(
    history: tuple[Subject, Subject, list[Evidence]], card: CardIdentity
) -> None:
    subject, _, book = history
    alone = [line for line in book if same(line.subject, subject)]
    told = attrgetter("served", "attested", "revoked", "failure", "doubts")
    assert told(of(book, subject, card)) == told(of(alone, subject, card))


@given(histories(), few(CARDS))
def test_what_is_revoked_meets_nothing_until_it_was_proven_or_attested_anew(
    history: tuple[Subject, Subject, list[Evidence]], card: CardIdentity
) -> None:
    subject, _, book = history
    revoked = of([*book, line(subject, Outcome.REVOKED)], subject, card)
    assert revoked.state is PairState.REVOKED
    assert not any(revoked.meets(require) for require in Require)
    under_way = of([*book, line(subject, Outcome.REVOKED), line(subject, Outcome.SERVED, "swap", card)], subject, card)
    assert under_way.state is PairState.REVOKED
    proven = of([*book, line(subject, Outcome.REVOKED), line(subject, Outcome.SERVED, "trial", card)], subject, card)
    assert proven.state is PairState.VERIFIED


@given(histories(), few(CARDS))
def test_a_failure_never_changes_what_has_served(
    history: tuple[Subject, Subject, list[Evidence]], card: CardIdentity
) -> None:
    subject, _, book = history
    before, after = of(book, subject, card), of([*book, line(subject, Outcome.FAILED, card=card)], subject, card)
    assert (after.served, after.doubts) == (before.served, before.doubts)
    assert [after.meets(one) for one in Require] == [before.meets(one) for one in Require]


@given(subjects, few(CARDS), few(CARDS))
@example(Subject("ninfer", "sha256:1", (), (), ()), REAL, replace(REAL, driver="580.1"))
def test_evidence_without_a_doubt_is_of_this_very_card_and_driver(
    subject: Subject, made_on: CardIdentity, card: CardIdentity
) -> None:
    known = of([line(subject, Outcome.SERVED, card=made_on)], subject, card)
    assert (known.served is not None) is (made_on.simulated == card.simulated)
    if known.served is not None:
        assert (not known.doubts) is (made_on == card)


def line(subject: Subject, outcome: Outcome, how: str = "trial", card: CardIdentity = REAL) -> Evidence:
    return Evidence(subject, key(subject), outcome, LABELS[0], "2026-01-02", how, card)
