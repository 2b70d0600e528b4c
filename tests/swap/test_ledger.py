"""The ledger: what counts as evidence, and that nothing which happens to the file makes more of it, or less."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swap import ledger as ledger_file
from swap import standing as standing_module
from swap.ledger import FileLedger, key, mask_argv, mask_env
from swap.ports import CardIdentity, Evidence, Fault, FileDigest, Mount, Outcome, Recipe, Subject
from swap.standing import standing
from swap.statement import mask_recipe
from tests.swap.fakes import REAL, SIMULATED

ARTIFACT = FileDigest("/srv/models/v2.ninfer", 23_719_496_192, "55" * 32)
CONFIG = FileDigest("/srv/strata/config.json", 812, "66" * 32)
SUBJECT = Subject(
    engine="ninfer",
    image_id="sha256:" + "ab" * 32,
    argv=("ninfer-serve", "--model", "/models/v2.ninfer"),
    env=(("LANG", "C"), ("PATH", "/usr/bin")),
    files=(ARTIFACT, CONFIG),
    working_dir="/srv",
    user="1000",
    mounts=(Mount("/srv/models", "/models", read_only=True),),
    devices=("nvidia: 0",),
)


def served(subject: Subject = SUBJECT, card: CardIdentity = REAL, **more: Any) -> Evidence:
    return Evidence(subject, "", Outcome.SERVED, "ninfer:v2", "2026-01-02T03:04:05Z", "trial", card, **more)


def failed(subject: Subject = SUBJECT, card: CardIdentity = REAL, **more: Any) -> Evidence:
    return replace(served(subject, card), outcome=Outcome.FAILED, **more)


def verified(ledger: FileLedger, subject: Subject, card: CardIdentity | None) -> Evidence | None:
    return standing(ledger.evidence(), subject, "ninfer:v2", card).served


def last_failure(ledger: FileLedger, subject: Subject) -> Evidence | None:
    return standing(ledger.evidence(), subject, "ninfer:v2", REAL).failure


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state" / "ledger.jsonl"


# ------------------------------------------------------------------------------------------------- what counts


def test_a_pair_that_never_ran_isnt_verified(path: Path) -> None:
    assert verified(FileLedger(path), SUBJECT, REAL) is None
    assert FileLedger(path).problems() == []


def test_evidence_survives_a_restart_whole(path: Path) -> None:
    made = served(image="ninfer:local", ready_in=8.25, tokens=4, extra={"artifact_version": 2})
    FileLedger(path).record(made)
    assert FileLedger(path).evidence() == (replace(made, key=key(SUBJECT)),)
    assert verified(FileLedger(path), SUBJECT, REAL) == replace(made, key=key(SUBJECT))


def test_the_newest_evidence_answers(path: Path) -> None:
    book = FileLedger(path)
    for tokens in (1, 2, 3):
        book.record(served(tokens=tokens))
    newest = verified(book, SUBJECT, REAL)
    assert newest is not None
    assert newest.tokens == 3


def test_a_failure_is_remembered_and_takes_nothing_away(path: Path) -> None:
    book = FileLedger(path)
    book.record(served())
    book.record(failed(reason="exit 1: out of memory"))
    failure = last_failure(book, SUBJECT)
    assert verified(book, SUBJECT, REAL) is not None
    assert failure is not None
    assert failure.reason == "exit 1: out of memory"


def test_a_failure_alone_verifies_nothing(path: Path) -> None:
    book = FileLedger(path)
    book.record(failed())
    assert verified(book, SUBJECT, REAL) is None


@pytest.mark.parametrize(
    ("made_on", "asked_on", "counts"),
    [
        (REAL, REAL, True),
        (REAL, replace(REAL, driver="999.9"), True),  # a driver update keeps what has served
        (REAL, replace(REAL, uuid="GPU-other"), True),  # with a doubt
        (REAL, SIMULATED, False),
        (SIMULATED, REAL, False),
        (SIMULATED, SIMULATED, True),
        (SIMULATED, replace(SIMULATED, simulated=False), False),  # the same UUID is no proof
        (REAL, None, True),
        (SIMULATED, None, False),
    ],
)
def test_evidence_of_a_simulated_card_never_counts_on_a_real_one(
    path: Path, made_on: CardIdentity, asked_on: CardIdentity | None, counts: bool
) -> None:
    book = FileLedger(path)
    book.record(served(card=made_on))
    assert (verified(book, SUBJECT, asked_on) is not None) is counts


# ------------------------------------------------------------------------------------------------- the key


@pytest.mark.parametrize(
    "change",
    [
        {"engine": "other"},
        {"image_id": "sha256:" + "cd" * 32},
        {"argv": ("ninfer-serve", "--model", "/models/v2.ninfer", "--spec", "mtp")},
        {"env": (("LANG", "C"), ("PATH", "/bin"))},
        {"files": (CONFIG, ARTIFACT)},
        {"files": (ARTIFACT,)},
        {"files": (replace(ARTIFACT, sha256="77" * 32), CONFIG)},
        {"files": (replace(ARTIFACT, size=1), CONFIG)},
        {"working_dir": "/"},
        {"user": "0"},
        {"mounts": (Mount("/srv/models", "/models", read_only=False),)},
        {"mounts": (Mount("/srv/models", "/weights", read_only=True),)},
        {"devices": ("nvidia: 1",)},
    ],
)
def test_a_change_of_anything_that_decides_what_runs_makes_another_pair(path: Path, change: dict[str, Any]) -> None:
    book = FileLedger(path)
    book.record(served())
    changed = replace(SUBJECT, **change)
    assert key(changed) != key(SUBJECT)
    assert verified(book, changed, REAL) is None


def test_where_files_lie_on_the_host_and_the_order_of_variables_change_nothing() -> None:
    moved = replace(
        SUBJECT,
        files=(replace(ARTIFACT, path="/elsewhere/x"), CONFIG),
        mounts=(Mount("/elsewhere", "/models", read_only=True),),
        env=tuple(reversed(SUBJECT.env)),
    )
    assert key(moved) == key(SUBJECT)


def test_secrets_are_hashed_and_still_tell_pairs_apart(path: Path) -> None:
    env = (("API_KEY", "hunter2"), ("HF_TOKEN", "hf_abc"), ("db_password", "p"), ("MY_SECRET", "s"), ("MODEL", "m"))
    argv = ("serve", "--api-key", "hunter3", "--hf-token=hf_def", "--draft-tokens", "3", "--api-key", "--port", "1")
    subject = replace(SUBJECT, env=env, argv=argv)
    FileLedger(path).record(served(subject))
    text = path.read_text()
    for secret in ("hunter2", "hunter3", "hf_abc", "hf_def", '"p"', '"s"'):
        assert secret not in text
    assert dict(mask_env(env))["MODEL"] == "m"
    assert mask_argv(argv)[4:] == ("--draft-tokens", "3", "--api-key", "--port", "1")
    assert dict(mask_env(env))["API_KEY"] == "sha256:" + hashlib.sha256(b"hunter2").hexdigest()
    assert key(subject) != key(replace(subject, env=(("API_KEY", "hunter4"), *env[1:])))


@pytest.mark.parametrize(
    ("argv", "masked"),
    [
        (("env", "API_KEY=hunter2", "serve"), (1, "API_KEY=")),
        (("serve", "hf_token=hunter2"), (1, "hf_token=")),
        (("serve", "--api-key", "aKEY/hunter2=="), (2, "")),  # its own = and KEY make no name of it
    ],
)
def test_a_secret_is_hashed_whichever_way_a_word_gives_it(
    path: Path, argv: tuple[str, ...], masked: tuple[int, str]
) -> None:
    subject, (at, name) = replace(SUBJECT, argv=argv), masked
    FileLedger(path).record(served(subject))
    assert "hunter2" not in path.read_text()
    value = hashlib.sha256(argv[at].removeprefix(name).encode()).hexdigest()
    assert mask_argv(argv) == (*argv[:at], f"{name}sha256:{value}", *argv[at + 1 :])
    assert mask_argv(mask_argv(argv)) == mask_argv(argv)
    assert verified(FileLedger(path), subject, REAL) is not None
    other = tuple(word.replace("hunter2", "hunter3") for word in argv)
    assert verified(FileLedger(path), replace(subject, argv=other), REAL) is None


def test_a_number_of_tokens_and_a_word_without_a_secret_name_stay_as_they_are() -> None:
    argv = ("env", "MAX_TOKENS=3", "serve", "--draft-tokens=3", "model=m", "--tokens", "a=b")
    assert mask_argv(argv) == argv


def test_a_secret_inside_a_value_is_hashed_too_and_another_one_makes_another_pair(path: Path) -> None:
    def with_secret(secret: str) -> Recipe:
        url, check = f"postgres://u:{secret}@db/x", f"CMD curl -H 'Authorization: Bearer {secret}' http://x/health"
        return Recipe("i", "sha256:1", command=("serve", url), env=(("DB_URL", url),), healthcheck=check)

    def subject(recipe: Recipe) -> Subject:
        return replace(SUBJECT, argv=recipe.argv, env=recipe.env)

    made, other = with_secret("hunter2"), with_secret("hunter3")
    FileLedger(path).record(served(subject(made), recipe=made))
    assert "hunter2" not in path.read_text()
    (read,) = FileLedger(path).evidence()
    assert read.key == key(subject(made)) != key(subject(other))
    assert read.recipe == mask_recipe(made) == mask_recipe(mask_recipe(made))
    assert mask_recipe(made).healthcheck != mask_recipe(other).healthcheck


def test_a_subject_masked_before_is_the_same_pair(path: Path) -> None:
    plain = replace(SUBJECT, env=(("API_KEY", "hunter2"),), argv=("env", "HF_TOKEN=y", "serve", "--api-key", "x"))
    masked = replace(plain, env=mask_env(plain.env), argv=mask_argv(plain.argv))
    assert mask_env(masked.env) == masked.env
    assert key(masked) == key(plain)


def test_bytes_that_are_no_text_are_kept(path: Path) -> None:
    odd = os.fsdecode(b"/srv/\xff.ninfer")
    subject = replace(SUBJECT, argv=("serve", odd), env=(("API_KEY", odd), ("X", "ü")))
    FileLedger(path).record(served(subject))
    assert verified(FileLedger(path), subject, REAL) is not None


# ------------------------------------------------------------------------------------------------- the file


def test_each_line_is_a_statement_that_carries_the_hash_of_the_one_before(path: Path) -> None:
    book = FileLedger(path)
    book.record(served(image="ninfer:local"))
    book.record(failed())
    first, second = path.read_bytes().splitlines()
    statement = json.loads(first)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [
        {
            "name": "ninfer:local",
            "digest": {"sha256": "ab" * 32},
            "annotations": {"imageId": SUBJECT.image_id},
        },
        {"name": ARTIFACT.path, "digest": {"sha256": ARTIFACT.sha256}, "annotations": {"size": ARTIFACT.size}},
        {"name": CONFIG.path, "digest": {"sha256": CONFIG.sha256}, "annotations": {"size": CONFIG.size}},
    ]
    assert statement["predicate"]["previous"] == "0" * 64
    assert json.loads(second)["predicate"]["previous"] == hashlib.sha256(first).hexdigest()
    assert path.stat().st_mode & 0o777 == 0o600


DESCRIPTOR = {"name", "uri", "digest", "content", "downloadLocation", "mediaType", "annotations"}


def test_each_line_alone_is_a_statement_as_in_toto_has_them(path: Path) -> None:
    book = FileLedger(path)
    content = replace(SUBJECT, image_content="sha256:" + "ef" * 32)
    for subject in (SUBJECT, content, replace(SUBJECT, files=())):
        book.record(served(subject, image="ninfer:local"))
    path.write_bytes(path.read_bytes().replace(b"ninfer:local", b"ninfer:other", 1))
    book.reread()
    book.repair("an editor")
    for line in path.read_bytes().splitlines():
        statement = json.loads(line)
        assert set(statement) == {"_type", "subject", "predicateType", "predicate"}
        assert statement["subject"]
        names = [descriptor["name"] for descriptor in statement["subject"]]
        assert len(names) == len(set(names))
        for descriptor in statement["subject"]:
            assert set(descriptor) <= DESCRIPTOR
            assert re.fullmatch("[0-9a-f]{64}", descriptor["digest"]["sha256"])
        assert statement["predicateType"] in ("urn:slotproxy:run:v1", "urn:slotproxy:repair:v1")
    digests = [json.loads(line)["subject"][0] for line in path.read_bytes().splitlines()[:2]]
    assert digests[1] == {
        "name": "ninfer:local",
        "digest": {"sha256": "ef" * 32},  # its content, the same in both of Docker's stores
        "annotations": {"imageId": SUBJECT.image_id},
    }


def test_a_record_is_on_disk_when_it_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(os.fstat(fd).st_size)
        fsync(fd)

    book = FileLedger(path)
    monkeypatch.setattr(os, "fsync", note)
    book.record(served())
    assert synced[0] == path.stat().st_size


def test_a_line_torn_at_any_byte_never_counts_is_kept_and_the_next_one_follows(path: Path) -> None:
    FileLedger(path).record(served(tokens=1))
    FileLedger(path).record(served(tokens=2))
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    torn_path = path.with_name("ledger.jsonl.torn")
    for cut in (start + 1, start + 40, len(whole) - 1):
        path.write_bytes(whole[:cut])
        book = FileLedger(path)
        assert [one.tokens for one in book.evidence()] == [1]
        assert torn_path.read_bytes() == whole[start:cut] + b"\n"
        assert "ledger.jsonl.torn" in book.problems()[0]
        book.record(served(tokens=3))
        assert [one.tokens for one in FileLedger(path).evidence()] == [1, 3]
        torn_path.unlink()
        assert FileLedger(path).problems() == []


@pytest.mark.parametrize("edit", ["outcome", "removed", "garbage", "swapped"])
def test_after_a_broken_link_nothing_counts_nothing_is_added_and_nothing_is_lost(path: Path, edit: str) -> None:
    book = FileLedger(path)
    for tokens in (1, 2, 3, 4):
        book.record((failed if tokens == 2 else served)(tokens=tokens))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1:3] = {
        "outcome": [lines[1].replace(b'"failed"', b'"served"'), lines[2]],
        "removed": [lines[2]],
        "garbage": [b"\x00\xff{\n", lines[2]],
        "swapped": [lines[2], lines[1]],
    }[edit]
    path.write_bytes(b"".join(lines))
    broken = FileLedger(path)
    assert [one.tokens for one in broken.evidence()] == [1]
    assert "broken" in broken.problems()[0]
    with pytest.raises(Fault, match="broken"):
        broken.record(served(tokens=5))
    assert path.read_bytes() == b"".join(lines)


def test_a_full_disk_is_a_fault_and_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = FileLedger(path)
    book.record(served(tokens=1))
    before = path.read_bytes()
    write = os.write

    def half(fd: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return write(fd, data[:-50])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(Fault, match=r"can't be written: No space left on device; make room"):
            book.record(served(tokens=2))
    assert path.read_bytes() == before
    book.record(served(tokens=3))
    assert [one.tokens for one in FileLedger(path).evidence()] == [1, 3]


def test_two_ledgers_on_one_file_keep_one_chain(path: Path) -> None:
    one, other = FileLedger(path), FileLedger(path)
    one.record(served(tokens=1))
    other.record(served(tokens=2))
    one.record(served(tokens=3))
    assert [e.tokens for e in FileLedger(path).evidence()] == [1, 2, 3]
    assert FileLedger(path).problems() == []


def test_writers_in_several_processes_keep_one_chain(path: Path) -> None:
    FileLedger(path)
    code = (
        "import sys; from pathlib import Path; from tests.swap.test_ledger import served; "
        "from swap.ledger import FileLedger; book = FileLedger(Path(sys.argv[1]))\n"
        "for n in range(20): book.record(served(tokens=n))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(FileLedger(path).evidence()) == 60
    assert FileLedger(path).problems() == []


def test_a_writer_that_never_lets_go_is_a_fault_not_a_hang(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = FileLedger(path)
    monkeypatch.setattr(ledger_file, "LOCK_LIMIT", 0.1)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(Fault, match="locked"):
            book.record(served())
    book.record(served())


def test_a_file_that_cant_be_opened_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    book = FileLedger(tmp_path / "file" / "ledger.jsonl")
    assert "can't be opened" in book.problems()[0]
    assert verified(book, SUBJECT, REAL) is None
    with pytest.raises(Fault, match="can't be written"):
        book.record(served())


def test_however_long_the_ledger_a_look_into_it_computes_one_key(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = FileLedger(path)
    for tokens in range(20):
        book.record(served(tokens=tokens))
    book, computed = FileLedger(path), []

    def counted(subject: Subject) -> str:
        computed.append(subject)
        return key(subject)

    monkeypatch.setattr(standing_module, "key", counted)
    assert verified(book, SUBJECT, None) is not None
    assert last_failure(book, SUBJECT) is None
    assert len(computed) == 2


def test_a_line_counts_for_what_it_names_and_not_for_the_key_that_it_carries(path: Path) -> None:
    other = replace(SUBJECT, user="0")
    FileLedger(path).record(served(other))
    path.write_text(path.read_text().replace(key(other), key(SUBJECT)))
    path.with_suffix(".head").unlink()
    assert verified(FileLedger(path), SUBJECT, REAL) is None
    assert verified(FileLedger(path), other, REAL) is not None
