"""What happens to the ledger's files behind our back, and that none of it makes a pair verified that isn't."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.spec import Require
from swap import ledger as ledger_file
from swap.ledger import FileLedger
from swap.ports import Evidence, Fault, Outcome
from swap.standing import standing
from tests.swap.fakes import REAL
from tests.swap.test_ledger import SUBJECT, failed, served

Lines = list[bytes]
Damage = Callable[[Lines], Lines]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def counted(path: Path) -> list[int | None]:
    return [one.tokens for one in FileLedger(path).evidence()]


def recorded(path: Path, *tokens: int) -> FileLedger:
    """The second is a failure; whoever edits it makes a success of it."""
    book = FileLedger(path)
    for number in tokens:
        book.record((failed if number == 2 else served)(tokens=number))
    return book


def lines_of(path: Path) -> Lines:
    return path.read_bytes().splitlines(keepends=True)


def revoked(**more: object) -> Evidence:
    return replace(served(), outcome=Outcome.REVOKED, how="operator", reason="hot", **more)  # type: ignore[arg-type]


def is_verified(book: FileLedger) -> bool:
    return standing(book.evidence(), SUBJECT, "ninfer:v2", REAL).meets(Require.VERIFIED)


# ------------------------------------------------------------------------------------------------- one line


def edited(number: int) -> Damage:
    def edit(lines: Lines) -> Lines:
        line = lines[number - 1]
        other = line.replace(b'"failed"', b'"served"')
        if other == line:
            other = line.replace(b'"tokens":%d,' % number, b'"tokens":99,')
        assert other != line
        return [*lines[: number - 1], other, *lines[number:]]

    return edit


def removed(number: int) -> Damage:
    return lambda lines: lines[: number - 1] + lines[number:]


def swapped(number: int) -> Damage:
    return lambda lines: [*lines[: number - 1], lines[number], lines[number - 1], *lines[number + 1 :]]


def doubled(number: int) -> Damage:
    return lambda lines: [*lines[:number], *lines[number - 1 :]]


def garbage(number: int) -> Damage:
    return lambda lines: [*lines[: number - 1], b"\x00\xff{\n", *lines[number:]]


ONE_LINE = [
    *((edited(n), n, "was changed") for n in (1, 2, 3, 5)),
    *((removed(n), n, "gone") for n in (1, 2, 3, 4)),
    (removed(5), 5, "its last line is gone, there were 5"),
    (lambda lines: lines[:2], 3, "its last 3 lines are gone, there were 5"),
    (lambda lines: [], 1, r"all its lines are gone \(5\): the file was removed or emptied"),
    *((swapped(n), n, "changed places") for n in (1, 3, 4)),
    *((doubled(n), n + 1, "put in") for n in (1, 3)),
    (doubled(5), 6, "line 6 doesn't follow from line 5: it was changed, or put there"),
    *((garbage(n), n, "was changed") for n in (1, 3, 5)),
    (lambda lines: [*lines, b"garbage\n"], 6, "line 6 can't be read"),
    (lambda lines: [*lines, b"[" * 100_000 + b"\n"], 6, "line 6 can't be read"),
]


@pytest.mark.parametrize(("damage", "first", "said"), ONE_LINE)
def test_damage_is_named_with_its_first_line_and_all_before_it_counts(
    path: Path, damage: Damage, first: int, said: str
) -> None:
    recorded(path, 1, 2, 3, 4, 5)
    hurt = b"".join(damage(lines_of(path)))
    path.write_bytes(hurt)
    book = FileLedger(path)
    assert [one.tokens for one in book.evidence()] == list(range(1, first))
    broken = book.chain().broken
    assert broken is not None
    assert broken.line == first
    (problem,) = book.problems()
    with pytest.raises(Fault, match=said):
        book.record(served(tokens=6))
    assert str(path) in problem
    assert "slotctl pairs repair" in problem
    assert path.read_bytes() == hurt


@pytest.mark.parametrize(
    ("damage", "counts"),
    [
        (edited(1), []),
        (edited(3), [1, 2]),
        (removed(3), [1]),  # nobody can tell whether line 2 was changed, or what followed it is gone
        (swapped(3), [1, 2]),
        (doubled(3), [1, 2, 3]),
        (garbage(3), [1]),
    ],
)
def test_without_a_head_the_lines_vouch_for_each_other_and_what_none_vouches_for_does_not_count(
    path: Path, damage: Damage, counts: list[int]
) -> None:
    recorded(path, 1, 2, 3, 4, 5)
    path.write_bytes(b"".join(damage(lines_of(path))))
    path.with_suffix(".head").unlink()
    book = FileLedger(path)
    assert [one.tokens for one in book.evidence()] == counts
    broken = book.chain().broken
    assert broken is not None
    assert broken.line == len(counts) + 1


def test_the_file_gone_is_reported_and_nothing_is_written_over_it(path: Path) -> None:
    recorded(path, 1, 2, 3)
    path.unlink()
    book = FileLedger(path)
    assert book.evidence() == ()
    assert "all its lines are gone (3)" in book.problems()[0]
    with pytest.raises(Fault, match="all its lines are gone"):
        book.record(served())
    assert path.read_bytes() == b""


def test_an_edit_behind_our_back_is_noticed_before_the_next_line_whatever_the_size(path: Path) -> None:
    book = recorded(path, 1, 2, 3)
    lines = lines_of(path)
    path.write_bytes(b"".join([lines[0], lines[1].replace(b'"failed"', b'"served"'), lines[2]]))
    with pytest.raises(Fault, match="line 2 was changed"):
        book.record(served(tokens=4))
    assert [one.tokens for one in book.evidence()] == [1]


def test_another_file_in_its_place_is_noticed(path: Path) -> None:
    book = recorded(path, 1, 2, 3)
    other = path.with_name("other")
    other.write_bytes(b"".join(lines_of(path)[:2]))
    other.replace(path)
    with pytest.raises(Fault, match="its last line is gone"):
        book.record(served(tokens=4))


# ------------------------------------------------------------------------------------------------- the head


def test_a_head_that_is_missing_is_reported_and_the_lines_count(path: Path) -> None:
    recorded(path, 1, 3)
    path.with_suffix(".head").unlink()
    book = FileLedger(path)
    assert [one.tokens for one in book.evidence()] == [1, 3]
    assert "ledger.head is missing: somebody removed it" in book.problems()[0]
    book.record(served(tokens=4))
    assert [one.tokens for one in book.evidence()] == [1, 3, 4]
    assert "is missing" in book.problems()[0]  # it is said as long as this daemon lives


@pytest.mark.parametrize("hurt", [b"", b"{", b"[]", b'{"lines":"x","revoked":[]}', b"\xff"])
def test_a_damaged_head_is_reported_and_the_lines_count(path: Path, hurt: bytes) -> None:
    recorded(path, 1, 3)
    path.with_suffix(".head").write_bytes(hurt)
    assert counted(path) == [1, 3]
    assert "ledger.head is damaged" in FileLedger(path).problems()[0]


def test_a_head_one_behind_is_a_crash_and_is_mended(path: Path) -> None:
    recorded(path, 1, 2, 3)
    behind = path.with_suffix(".head").read_bytes()
    recorded(path, 4)
    path.with_suffix(".head").write_bytes(behind)
    book = FileLedger(path)
    assert ([one.tokens for one in book.evidence()], book.problems()) == ([1, 2, 3, 4], [])
    path.write_bytes(b"".join(edited(4)(lines_of(path))))
    assert counted(path) == [1, 2, 3]


def test_a_crash_after_the_very_first_line_is_no_problem(path: Path) -> None:
    recorded(path, 1)
    path.with_suffix(".head").unlink()
    assert FileLedger(path).problems() == []
    assert path.with_suffix(".head").exists()


def test_an_old_head_is_reported(path: Path) -> None:
    recorded(path, 1, 2)
    old = path.with_suffix(".head").read_bytes()
    recorded(path, 3, 4)
    path.with_suffix(".head").write_bytes(old)
    assert counted(path) == [1, 2, 3, 4]
    assert "knows of 2 lines, there are 4" in FileLedger(path).problems()[0]


def test_a_head_that_knows_another_past_is_believed(path: Path) -> None:
    recorded(path, 1, 2, 3)
    head = path.with_suffix(".head").read_bytes()
    path.unlink()
    path.with_suffix(".head").unlink()
    recorded(path, 1, 3, 4, 5)
    path.with_suffix(".head").write_bytes(head)
    assert counted(path) == [1]


# ------------------------------------------------------------------------------------------------- a torn line


@pytest.mark.parametrize("crash", [True, False])
def test_a_torn_last_line_costs_nothing_that_was_there(path: Path, crash: bool) -> None:
    """`crash`: the head was never written; else somebody cut the line off later."""
    recorded(path, 1, 2, 3)
    behind = path.with_suffix(".head").read_bytes()
    recorded(path, 4)
    if crash:
        path.with_suffix(".head").write_bytes(behind)
    whole = path.read_bytes()
    start = len(b"".join(lines_of(path)[:3]))
    for cut in (start + 1, len(whole) - 1):
        path.write_bytes(whole[:cut])
        book = FileLedger(path)
        assert [one.tokens for one in book.evidence()] == [1, 2, 3]
        assert "crash cut off" in "".join(book.problems())
        assert FileLedger(path).chain().broken is None
        path.with_name("ledger.jsonl.torn").unlink()
        if crash:
            path.with_suffix(".head").write_bytes(behind)
    book.record(served(tokens=5))
    assert counted(path) == [1, 2, 3, 5]


def test_a_torn_revocation_stands_until_a_trial_lifts_it(path: Path) -> None:
    recorded(path, 1).record(revoked())
    path.write_bytes(path.read_bytes()[:-40])
    for _ in range(2):
        assert not is_verified(FileLedger(path))
    FileLedger(path).record(replace(served(), how="swap"))
    assert not is_verified(FileLedger(path))
    FileLedger(path).record(served())
    for _ in range(2):
        assert is_verified(FileLedger(path))


@pytest.mark.parametrize("damage", [removed(3), garbage(3), garbage(2), removed(5), lambda lines: lines[:1]])
def test_no_damage_gives_back_what_was_revoked(path: Path, damage: Damage) -> None:
    book = recorded(path, 1, 2)
    book.record(revoked())
    book.record(failed(tokens=4))
    book.record(failed(tokens=5))
    path.write_bytes(b"".join(damage(lines_of(path))))
    assert not is_verified(FileLedger(path))
    FileLedger(path).repair("restored")
    assert not is_verified(FileLedger(path))


def test_a_revocation_that_can_be_read_counts_wherever_it_stands(path: Path) -> None:
    book = recorded(path, 1, 2, 3)
    book.record(revoked())
    path.write_bytes(b"".join(edited(3)(lines_of(path))))
    path.with_suffix(".head").unlink()
    assert not is_verified(FileLedger(path))
    FileLedger(path).repair("an editor")
    path.with_suffix(".head").unlink()
    assert not is_verified(FileLedger(path))


# ------------------------------------------------------------------------------------------------- repair


@pytest.mark.parametrize(("damage", "first", "said"), ONE_LINE)
def test_a_repair_goes_on_from_what_counted_and_deletes_nothing(
    path: Path, damage: Damage, first: int, said: str
) -> None:
    recorded(path, 1, 2, 3, 4, 5)
    hurt = b"".join(damage(lines_of(path)))
    path.write_bytes(hurt)
    book = FileLedger(path)
    repair = book.repair("the disk was full of cats")
    assert (repair.first, repair.last) == (first, hurt.count(b"\n"))
    book.record(served(tokens=7))
    for read in (book, FileLedger(path)):
        assert [one.tokens for one in read.evidence()] == [*range(1, first), 7]
        assert read.problems() == []
    assert path.read_bytes().startswith(hurt)
    statement = json.loads(lines_of(path)[-2])
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "urn:slotproxy:repair:v1"
    assert statement["predicate"]["reason"] == "the disk was full of cats"
    path.with_suffix(".head").unlink()  # the lines alone say the same
    assert counted(path) == [*range(1, first), 7]


def test_a_whole_chain_is_not_repaired(path: Path) -> None:
    book = recorded(path, 1, 3)
    before = path.read_bytes()
    with pytest.raises(Fault, match=r"nothing is broken in the ledger .*: 2 lines count"):
        book.repair("to be sure")
    assert path.read_bytes() == before


def test_a_repair_accepts_a_head_that_is_missing(path: Path) -> None:
    recorded(path, 1, 3)
    path.with_suffix(".head").unlink()
    book = FileLedger(path)
    book.repair("moved here from another machine")
    assert book.problems() == []
    assert counted(path) == [1, 3]


def test_repairs_follow_one_another(path: Path) -> None:
    recorded(path, 1, 2, 3, 4, 5)
    path.write_bytes(b"".join(edited(3)(lines_of(path))))
    FileLedger(path).repair("first")  # line 6
    recorded(path, 7, 8)
    path.write_bytes(b"".join(edited(8)(lines_of(path))))
    assert counted(path) == [1, 2, 7]
    FileLedger(path).repair("second")  # line 9
    recorded(path, 10)
    assert counted(path) == [1, 2, 7, 10]
    path.write_bytes(b"".join(edited(2)(lines_of(path))))
    assert counted(path) == [1]
    FileLedger(path).repair("third")
    recorded(path, 12)
    assert counted(path) == [1, 12]
    assert FileLedger(path).problems() == []


@pytest.mark.parametrize(("number", "head"), [*((n, True) for n in range(1, 8)), (1, False), (4, False), (6, False)])
def test_damage_after_a_repair_is_found_wherever_it_is(path: Path, number: int, head: bool) -> None:
    """Also in the lines that were left out: the repair is of these very bytes."""
    recorded(path, 1, 2, 3, 4, 5)
    path.write_bytes(b"".join(edited(3)(lines_of(path))))
    FileLedger(path).repair("an editor")
    recorded(path, 7)
    lines = lines_of(path)
    lines[number - 1] = lines[number - 1].replace(b'"when":"2', b'"when":"3')
    path.write_bytes(b"".join(lines))
    if not head:
        path.with_suffix(".head").unlink()
    book = FileLedger(path)
    assert book.chain().broken is not None
    assert 7 not in [one.tokens for one in book.evidence()]
    book.repair("again")
    assert FileLedger(path).problems() == []


@pytest.mark.parametrize("edit", [b"sha256", b"an editor", b"repair"])
def test_what_a_repair_left_out_stays_out_when_the_repair_is_damaged(path: Path, edit: bytes) -> None:
    """The head was written after the edit; it vouches for no line that was left out then."""
    recorded(path, 1, 2, 3, 4)
    path.write_bytes(b"".join(edited(2)(lines_of(path))))
    FileLedger(path).repair("an editor")
    *lines, repair = lines_of(path)
    path.write_bytes(b"".join([*lines, repair.replace(edit, b"x")]))
    assert counted(path) == [1]
    assert FileLedger(path).chain().broken is not None


def test_a_crash_between_a_repair_and_its_head_leaves_the_repair_standing(path: Path) -> None:
    recorded(path, 1, 2, 3, 4, 5)
    head = path.with_suffix(".head").read_bytes()
    path.write_bytes(b"".join(edited(3)(lines_of(path))))
    FileLedger(path).repair("an editor")
    path.with_suffix(".head").write_bytes(head)
    for _ in range(2):
        book = FileLedger(path)
        assert (book.problems(), [one.tokens for one in book.evidence()]) == ([], [1, 2])
    book.record(served(tokens=7))
    assert counted(path) == [1, 2, 7]


def test_a_broken_ledger_with_a_torn_line_is_repaired_too(path: Path) -> None:
    recorded(path, 1, 2, 3, 4)
    path.write_bytes(b"".join(edited(2)(lines_of(path))) + b'{"_type')
    FileLedger(path).repair("both")
    recorded(path, 6)
    assert counted(path) == [1, 6]
    assert path.with_name("ledger.jsonl.torn").read_bytes() == b'{"_type\n'


# ------------------------------------------------------------------------------------------------- the disk, others


def test_two_processes_at_once_keep_one_chain(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.swap.test_ledger import served; "
        "from swap.ledger import FileLedger; book = FileLedger(Path(sys.argv[1]))\n"
        "for n in range(50): book.record(served(tokens=n))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(2)]
    assert [writer.wait(90) for writer in writers] == [0, 0]
    book = FileLedger(path)
    assert (len(book.evidence()), book.problems()) == (100, [])


def test_a_disk_that_takes_no_more_is_a_fault_and_leaves_all_as_it_was(path: Path) -> None:
    recorded(path, 1, 3)
    before = path.read_bytes()
    code = (
        "import resource, sys; from pathlib import Path; from tests.swap.test_ledger import served; "
        "from swap.ledger import FileLedger; from swap.ports import Fault; book = FileLedger(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))\n"
        "try: book.record(served(tokens=4))\n"
        "except Fault as fault: print(fault)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(path), str(len(before) + 100)], capture_output=True, text=True, check=True
    )
    assert "can't be written: File too large" in ran.stdout
    assert path.read_bytes() == before
    book = FileLedger(path)
    assert ([one.tokens for one in book.evidence()], book.problems()) == ([1, 3], [])


def test_a_head_that_cannot_be_written_takes_its_line_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = recorded(path, 1, 3)
    before = path.read_bytes()

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "replace_file", full)
        with pytest.raises(Fault, match="No space left on device"):
            book.record(served(tokens=4))
    assert path.read_bytes() == before
    book.record(served(tokens=5))
    assert counted(path) == [1, 3, 5]


@pytest.mark.parametrize("torn", [b"", b'{"_type'])
def test_a_read_only_disk_is_reported_and_what_is_there_counts(
    path: Path, torn: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(path, 1, 3)
    path.write_bytes(path.read_bytes() + torn)
    before = path.read_bytes()
    opened = os.open

    def read_only(name: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(30, "Read-only file system")
        return opened(name, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        book = FileLedger(path)
        assert [one.tokens for one in book.evidence()] == [1, 3]
        assert "Read-only file system" in book.problems()[0]
        with pytest.raises(Fault, match="Read-only file system"):
            book.record(served(tokens=4))
    assert path.read_bytes() == before
    book.record(served(tokens=5))
    assert counted(path) == [1, 3, 5]
    assert not [problem for problem in book.problems() if "Read-only" in problem]


def test_what_is_known_is_kept_while_the_file_cannot_even_be_read(path: Path) -> None:
    book = recorded(path, 1, 3)
    away = path.with_name("away")
    path.rename(away)
    path.mkdir()  # stands for a disk that fails
    assert [one.tokens for one in book.reread().evidence] == [1, 3]
    assert not book.whole
    assert "can't be opened for writing: Is a directory" in book.problems()[0]
    path.rmdir()
    away.rename(path)
    book.record(served(tokens=4))
    assert counted(path) == [1, 3, 4]
    assert book.whole


# ------------------------------------------------------------------------------------------------- any damage at all

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
