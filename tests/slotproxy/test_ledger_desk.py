"""The ledger's desk: what it says is what is on disk, and the operator's word does what it should, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from engines.spec import Require
from slotproxy.ledger_desk import LedgerDesk
from slotproxy.refusal import Refusal
from swap.checks import Verdict
from swap.ports import CardUnknown, Evidence, Fault, Outcome
from swap.reading import Reading
from tests.slotproxy.office import Office
from tests.swap.world import FILES, until

Json = dict[str, object]


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    with capture_logs():
        office = Office(tmp_path)
        yield office
    office.close()


@pytest.fixture
def desk(office: Office) -> LedgerDesk:
    return LedgerDesk(office.desk.evidence)


async def states(office: Office) -> dict[str, str]:
    return {one["label"]: one["state"] for one in (await office.desk.evidence.pairs())["pairs"]}


async def pair(office: Office, label: str) -> dict[str, object]:
    return next(one for one in (await office.desk.evidence.pairs())["pairs"] if one["label"] == label)


async def allowed(office: Office, label: str) -> bool:
    engine, _, name = label.partition(":")
    return bool((await office.desk.plan(engine, name, trial=False))["allowed"])


def require(office: Office, engine: str, word: Require) -> None:
    office.engines[engine] = replace(office.engines[engine], require=word)


# ------------------------------------------------------------------------------------------------- the operator's word


@pytest.mark.parametrize("counts", [False, True])
async def test_a_word_for_a_pair_counts_only_where_the_configuration_says_so(
    office: Office, desk: LedgerDesk, counts: bool
) -> None:
    async with office.serving(verified=("strata:current",)):
        if counts:
            require(office, "ninfer", Require.ATTESTED)
        told = await desk.attest("ninfer", "v2", " ran it by hand ")
        assert told["counts"] is counts
        assert ("it counts for nothing" in told["text"]) is not counts
        assert await allowed(office, "ninfer:v2") is counts
        shown = await pair(office, "ninfer:v2")
        assert shown["state"] == "candidate"
        attested = shown["attested"]
        assert isinstance(attested, dict)
        assert (attested["reason"], attested["counts"]) == ("ran it by hand", counts)
        (line,) = (await desk.log("ninfer", None))["lines"]
        assert (line["outcome"], line["how"], line["reason"]) == ("attested", "operator", "ran it by hand")


async def test_what_cannot_be_read_is_not_attested(office: Office, desk: LedgerDesk) -> None:
    async with office.serving():
        await asyncio.to_thread((office.folder / "models" / FILES["v3"]).unlink)
        with pytest.raises(Refusal, match=f"ninfer:v3 can't be attested: .*{FILES['v3']}") as refusal:
            await desk.attest("ninfer", "v3", "I saw it")
        assert refusal.value.code == 3
        assert office.evidence_of("ninfer:v3") == []


async def test_bytes_that_changed_while_their_times_did_not_are_not_attested_but_revoked(
    office: Office, desk: LedgerDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = office.checker.judge

    async def alarmed(engine: str, pair: str | None, *, trial: bool, how: Reading) -> Verdict:
        how.alarm("the disk lies")
        return await judge(engine, pair, trial=trial, how=how)

    async with office.serving():
        monkeypatch.setattr(office.checker, "judge", alarmed)
        with pytest.raises(Refusal, match="the disk lies"):
            await desk.attest("ninfer", "v2", "I saw it")
        await desk.revoke("ninfer", "v2", "hot")
        assert office.evidence_of("ninfer:v2") == [Outcome.SERVED, Outcome.REVOKED]


async def test_a_revoked_pair_is_refused_and_a_trial_proves_it_anew(office: Office, desk: LedgerDesk) -> None:
    async with office.serving():
        assert await allowed(office, "ninfer:v2")
        await desk.revoke("ninfer", None, "garbles tools")
        shown = await pair(office, "ninfer:v2")
        assert shown["state"] == "revoked"
        assert isinstance(shown["revoked"], dict)
        assert shown["revoked"]["reason"] == "garbles tools"
        assert not await allowed(office, "ninfer:v2")
        assert (await office.swapped("ninfer", "v2", trial=True))[-1]["code"] == 0
        assert (await states(office))["ninfer:v2"] == "verified"


async def test_revoking_what_serves_is_said_and_it_serves_on(office: Office, desk: LedgerDesk) -> None:
    async with office.serving():
        told = await desk.revoke("strata", None, "hot")
        assert "it serves on" in told["text"]
        now = await office.desk.status()
        assert (now["pair"], now["serving"], now["verified"]) == ("strata:current", True, False)
        known = office.hands.known[office.controller.state.serving]  # type: ignore[index]
        assert known.standing is not None
        assert known.standing.revoked is not None


async def test_a_pair_whose_file_is_gone_is_revoked_as_it_was_verified(office: Office, desk: LedgerDesk) -> None:
    path = office.folder / "models" / FILES["v2"]
    async with office.serving():
        kept = path.read_bytes()
        await asyncio.to_thread(path.unlink)
        office.card.unknown = CardUnknown("driver and library differ (18)", "reboot")
        await desk.revoke("ninfer", "v2", "hot")
        office.card.unknown = None
        await asyncio.to_thread(path.write_bytes, kept)
        assert (await states(office))["ninfer:v2"] == "revoked"


async def test_a_changed_pair_is_revoked_both_as_it_is_and_as_it_was(office: Office, desk: LedgerDesk) -> None:
    async with office.serving():
        was = office.ninfer.recipes["v2"]
        office.ninfer.recipes["v2"] = replace(was, user="0")
        changed = (await pair(office, "ninfer:v2"))["changed"]
        assert isinstance(changed, dict)
        assert changed["what"] == ["user (none) is 0 now"]
        await desk.revoke("ninfer", "v2", "hot")
        assert office.evidence_of("ninfer:v2") == [Outcome.SERVED, Outcome.REVOKED, Outcome.REVOKED]
        assert (await states(office))["ninfer:v2"] == "revoked"
        office.ninfer.recipes["v2"] = was
        assert (await states(office))["ninfer:v2"] == "revoked"


async def test_what_serves_is_revoked_though_its_name_means_something_else_by_now(
    office: Office, desk: LedgerDesk
) -> None:
    async with office.serving(verified=()) as controller:
        serving = controller.state.serving
        assert serving is not None
        await until(lambda: office.hands.known[serving].subject is not None)
        was = office.strata.recipes["current"]
        office.strata.recipes["current"] = replace(was, user="0")
        await desk.revoke("strata", None, "hot")
        office.strata.recipes["current"] = was
        assert (await states(office))["strata:current"] == "revoked"


async def test_what_nobody_knows_anything_of_is_not_revoked(office: Office, desk: LedgerDesk) -> None:
    async with office.serving():
        await asyncio.to_thread((office.folder / "models" / FILES["v3"]).unlink)
        with pytest.raises(Refusal, match="ninfer:v3 was never verified, and what it is now can't be told"):
            await desk.revoke("ninfer", "v3", "hot")


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines", "\x1b[2J", "x" * 501])
async def test_a_reason_is_one_line_that_says_something(office: Office, desk: LedgerDesk, reason: str) -> None:
    async with office.serving():
        for word in (desk.attest("ninfer", "v2", reason), desk.revoke("ninfer", "v2", reason), desk.repair(reason)):
            with pytest.raises(Refusal) as refusal:
                await word
            assert refusal.value.code == 2
        assert office.evidence_of("ninfer:v2") == [Outcome.SERVED]


# ------------------------------------------------------------------------------------------------- reading


async def test_the_log_tells_everything_oldest_first_or_of_one_pair(office: Office, desk: LedgerDesk) -> None:
    async with office.serving():
        office.ninfer.exits_on_start = 1
        await office.swapped("ninfer", "v3", trial=True)
        lines = (await desk.log(None, None))["lines"]
        assert [(one["pair"], one["outcome"]) for one in lines] == [
            ("strata:current", "served"),
            ("ninfer:v2", "served"),
            ("ninfer:v3", "failed"),
        ]
        assert [one["line"] for one in lines] == [1, 2, 3]
        assert lines[2]["how"] == "trial"
        assert "exited with code 1" in lines[2]["reason"]
        assert [one["pair"] for one in (await desk.log("ninfer", None))["lines"]] == ["ninfer:v2", "ninfer:v3"]
        assert [one["pair"] for one in (await desk.log("ninfer", "v3"))["lines"]] == ["ninfer:v3"]
        with pytest.raises(Refusal, match="there is no engine 'gpt'"):
            await desk.log("gpt", None)


async def test_the_log_compares_no_line_with_another(
    office: Office, desk: LedgerDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pair in ("v2", "v3"):
        await desk.attest("ninfer", pair, "it ran on the other box")
    monkeypatch.setattr(Evidence, "__eq__", lambda *_: pytest.fail("minutes on the event loop in a long ledger"))
    assert [one["line"] for one in (await desk.log(None, None))["lines"]] == [1, 2]


async def test_an_export_is_the_line_that_verifies_the_pair_as_it_is_declared(office: Office, desk: LedgerDesk) -> None:
    async with office.serving():
        exported = await desk.export("ninfer", "v2")
        file = office.folder / "state" / "ledger.jsonl"
        assert (await asyncio.to_thread(file.read_text)).splitlines()[1] == exported["line"]
        with pytest.raises(Refusal, match="ninfer:v3 is candidate, not verified") as refusal:
            await desk.export("ninfer", "v3")
        assert refusal.value.code == 3
        office.ninfer.recipes["v2"] = replace(office.ninfer.recipes["v2"], user="0")
        with pytest.raises(Refusal, match="ninfer:v2 is changed, not verified"):
            await desk.export("ninfer", "v2")
        await asyncio.to_thread((office.folder / "models" / "strata.gguf").unlink)
        with pytest.raises(Refusal, match=r"strata:current is declared, not verified: .*strata\.gguf"):
            await desk.export("strata", None)


async def test_a_check_reads_the_disk_and_a_repair_lets_the_ledger_go_on(office: Office, desk: LedgerDesk) -> None:
    file = office.folder / "state" / "ledger.jsonl"
    async with office.serving():
        whole = await desk.check()
        assert (whole["whole"], whole["lines"], whole["counting"], whole["broken"]) == (True, 2, 2, None)
        with pytest.raises(Fault, match="nothing is broken"):
            await desk.repair("to be sure")
        text = await asyncio.to_thread(file.read_text)
        await asyncio.to_thread(file.write_text, text.replace('"outcome":"served"', '"outcome":"seared"'))
        broken = await desk.check()
        assert (broken["whole"], broken["counting"], broken["broken"]["line"]) == (False, 0, 1)
        assert "line 1 was changed" in (await office.desk.status())["warnings"][0]
        with pytest.raises(Fault, match="line 1 was changed"):
            await desk.attest("ninfer", "v2", "I saw it")
        assert "lines 1 to 2 count for nothing" in (await desk.repair("an editor"))["text"]
        assert (await desk.check())["whole"] is True
        assert (await desk.log(None, None))["lines"][0]["outcome"] == "repair"
        assert (await states(office))["ninfer:v2"] == "candidate"
        assert (await desk.attest("ninfer", "v2", "I saw it"))["code"] == 0


async def test_an_export_reads_the_disk(office: Office, desk: LedgerDesk) -> None:
    """What memory holds and the file doesn't any more is no statement to keep."""
    file = office.folder / "state" / "ledger.jsonl"
    async with office.serving():
        await asyncio.to_thread(file.write_text, "")
        with pytest.raises(Refusal, match="ninfer:v2"):
            await desk.export("ninfer", "v2")
