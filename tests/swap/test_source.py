"""Source trees: real git repositories, moved, dirty, shared, hostile; each is one warning, and none is a refusal."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engines.spec import Pair, Source
from swap import source
from swap.ports import Fault, Recipe
from tests.swap.fakes import recipe_for
from tests.swap.repositories import commit, git, head, needs_git, repository

pytestmark = needs_git
asroot = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")

SOMEBODY = 54321  # a user id that nobody has here


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return repository(tmp_path / "ninfer src")


def pair(tree: Path, pinned: str) -> Pair:
    return Pair("ninfer", "v2", "ninfer:local", (), source=Source(tree, pinned))


def image(**labels: str) -> Recipe:
    known = tuple((name.replace("_", "."), value) for name, value in labels.items())
    return replace(recipe_for("ninfer:local", "v2.ninfer"), image_labels=known)


async def told(tree: Path, pinned: str) -> Fault:
    """The one warning."""
    (fault,) = await source.look(pair(tree, pinned), None)
    assert fault.mend
    return fault


# ------------------------------------------------------------------------------------------------- where the tree is


@pytest.mark.parametrize("length", [7, 12, 40])
async def test_a_tree_at_its_commit_is_no_news_however_short_the_commit_is_written(tree: Path, length: int) -> None:
    assert await source.look(pair(tree, head(tree)[:length].upper()), None) == ()


async def test_a_pair_without_a_source_is_no_news() -> None:
    assert await source.look(Pair("ninfer", "v2", "ninfer:local", ()), image()) == ()


async def test_a_tree_that_moved_is_told_with_both_commits_and_what_to_do(tree: Path) -> None:
    pinned, now = head(tree), commit(tree)
    fault = await told(tree, pinned[:10])
    assert fault.what == (
        f"the source tree {tree} of ninfer:v2 is at {now[:7]}, not at {pinned[:7]}: "
        "a rebuild would not read this artifact any more"
    )
    assert fault.mend == (
        f"`git -C '{tree}' checkout {pinned[:10]}`, or build the other version from a worktree of its own"
    )


async def test_commits_are_shown_long_enough_to_be_told_apart(tree: Path) -> None:
    now = head(tree)
    other = now[:10] + ("0" if now[10] != "0" else "1") + now[11:]
    assert f"is at {now[:11]}, not at {other[:11]}:" in (await told(tree, other)).what


async def test_a_tree_that_moved_and_is_dirty_is_told_as_both(tree: Path) -> None:
    pinned, now = head(tree), commit(tree)
    (tree / "engine.cpp").write_text("int version = 4;\n")
    assert f" is at {now[:7]} (dirty), not at {pinned[:7]}:" in (await told(tree, pinned)).what


async def test_changes_that_nobody_committed_are_told_by_name(tree: Path) -> None:
    pinned = head(tree)
    (tree / "engine.cpp").write_text("int version = 3;\n")
    (tree / "docs" / "index.md").unlink()
    fault = await told(tree, pinned[:7])
    assert fault.what == (
        f"the source tree {tree} of ninfer:v2 is at {pinned[:7]}, but not as committed (docs/index.md, engine.cpp): "
        "a rebuild would be of something else"
    )


async def test_what_is_staged_counts_as_changed_and_many_files_are_counted(tree: Path) -> None:
    for number in range(5):
        (tree / f"new{number}.cpp").touch()
    git(tree, "add", ".")
    assert "(new0.cpp, new1.cpp, new2.cpp and 2 more)" in (await told(tree, head(tree))).what


async def test_files_that_git_does_not_know_are_no_news(tree: Path) -> None:
    (tree / "build").mkdir()
    (tree / "build" / "engine.o").touch()
    assert await source.look(pair(tree, head(tree)), None) == ()


async def test_a_worktree_of_its_own_is_looked_at_by_itself(tree: Path, tmp_path: Path) -> None:
    v2 = head(tree)
    git(tree, "worktree", "add", "--quiet", "--detach", str(tmp_path / "v3"))
    v3 = commit(tmp_path / "v3")
    assert await source.look(pair(tree, v2), None) == ()
    assert await source.look(pair(tmp_path / "v3", v3), None) == ()
    assert f"is at {v3[:7]}, not at {v2[:7]}" in (await told(tmp_path / "v3", v2)).what


async def test_a_folder_of_a_repository_is_judged_by_what_is_in_it(tree: Path) -> None:
    (tree / "engine.cpp").write_text("int version = 3;\n")
    assert await source.look(pair(tree / "docs", head(tree)), None) == ()
    (tree / "docs" / "index.md").write_text("reads version 3\n")
    assert "but not as committed (index.md)" in (await told(tree / "docs", head(tree))).what


async def test_a_look_writes_nothing_into_the_repository(tree: Path) -> None:
    os.utime(tree / "engine.cpp", (1, 1))  # git would refresh its index now
    before = (tree / ".git" / "index").read_bytes()
    assert await source.look(pair(tree, head(tree)), None) == ()
    assert (tree / ".git" / "index").read_bytes() == before


# ------------------------------------------------------------------------------------------------- what can't be told


async def test_a_repository_without_a_commit_is_at_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert "is at no commit, not at 1f2e3d4" in (await told(tmp_path, "1f2e3d4")).what


async def test_a_tree_that_is_not_there_is_told(tmp_path: Path) -> None:
    fault = await told(tmp_path / "gone", "1f2e3d4")
    assert fault.what == (
        f"whether the source tree of ninfer:v2 is at 1f2e3d4 can't be told: {tmp_path}/gone: No such file or directory"
    )


async def test_a_folder_that_is_no_repository_is_told(tmp_path: Path) -> None:
    fault = await told(tmp_path, "1f2e3d4")
    assert f"{tmp_path} is no git repository" in fault.what
    assert "`source.tree`" in fault.mend


async def test_a_broken_repository_is_told_in_gits_words(tree: Path) -> None:
    pinned = head(tree)
    (tree / ".git" / "index").write_text("garbage")
    fault = await told(tree, pinned)
    assert "git can't look at" in fault.what
    assert "index" in fault.what


async def test_a_machine_without_git_is_told(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = head(tree)
    monkeypatch.setenv("PATH", str(tmp_path))
    fault = await told(tree, pinned)
    assert "there is no git here" in fault.what
    assert "install git" in fault.mend


async def test_a_git_that_hangs_is_ended_and_told(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = head(tree)
    script = tmp_path / "bin" / "git"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nsleep 600\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(source, "LIMIT", 1.0)
    fault = await told(tree, pinned)
    assert "can't be told: git didn't end within 1 s" in fault.what
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


# ------------------------------------------------------------------------------------------------- whose tree it is


@pytest.fixture
def theirs() -> Iterator[Path]:
    """Somebody else's repository, at a place that he can reach."""
    folder = Path(tempfile.mkdtemp(prefix="slotproxy-test-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        tree = repository(folder / "tree")
        give(tree)
        yield tree
    finally:
        shutil.rmtree(folder)


def give(tree: Path) -> None:
    for path in (tree, *tree.rglob("*")):
        os.chown(path, SOMEBODY, SOMEBODY, follow_symlinks=False)


def trap(tree: Path) -> Path:
    """The repository's configuration runs a program that says as whom it ran, whichever way git comes to it."""
    witness, script = tree / "ran-as", tree / "trap"
    witness.touch()
    script.write_text(f'#!/bin/sh\necho "$(id -u) $(id -g) $(id -G)" >> "{witness}"\ncat\n')
    script.chmod(0o755)
    for key in ("core.fsmonitor", "filter.trap.clean"):
        git(tree, "config", key, f'"{script}"')
    (tree / ".gitattributes").write_text("*.cpp filter=trap\n")
    os.utime(tree / "engine.cpp", (1, 1))  # git has to read it, through the filter
    give(tree)
    return witness


@asroot
async def test_root_looks_at_another_users_tree_as_that_user(theirs: Path) -> None:
    pinned = head(theirs)
    assert await source.look(pair(theirs, pinned), None) == ()
    assert f"is at {pinned[:7]}, not at 1f2e3d4" in (await told(theirs, "1f2e3d4")).what
    os.chown(theirs / "docs", 0, 0)  # whose the repository is decides, not whose the folder in it is
    assert await source.look(pair(theirs / "docs", pinned), None) == ()


@asroot
async def test_what_a_tree_makes_git_run_never_runs_as_root(theirs: Path) -> None:
    pinned, witness = head(theirs), trap(theirs)
    assert await source.look(pair(theirs, pinned), None) == ()
    ran = witness.read_text().split("\n")[:-1]
    assert ran  # the filter did run: the trap works
    assert set(ran) == {f"{SOMEBODY} {source.NOBODY} {source.NOBODY}"}


@asroot
async def test_the_monitor_of_a_tree_is_not_started_at_all(theirs: Path) -> None:
    pinned, witness = head(theirs), trap(theirs)
    git(theirs, "config", "--unset", "filter.trap.clean")
    give(theirs)
    assert await source.look(pair(theirs, pinned), None) == ()
    assert witness.read_text() == ""


@asroot
async def test_a_repository_of_several_users_is_told_and_not_looked_at(theirs: Path) -> None:
    os.chown(theirs, 0, 0)
    fault = await told(theirs, "1f2e3d4")
    assert "git doesn't look at" in fault.what
    assert "one user's" in fault.mend


# ------------------------------------------------------------------------------------------------- the image's label


async def test_an_image_that_says_the_pairs_commit_is_no_news(tree: Path) -> None:
    now = head(tree)
    for said, pinned in ((now, now), (now, now[:7]), (now[:9], now), (now.upper(), now), ("", now)):
        built = image(org_opencontainers_image_revision=said)
        assert await source.look(pair(tree, pinned), built) == ()
    assert await source.look(pair(tree, now), image()) == ()


@pytest.mark.parametrize("said", ["abcdef0123456", "main", "1f2e3d4-dirty"])
async def test_an_image_that_was_built_from_another_commit_is_told(tree: Path, said: str) -> None:
    built = image(org_opencontainers_image_revision=said)
    moved, fault = await source.look(pair(tree, "1f2e3d4"), built)
    assert "not at 1f2e3d4" in moved.what
    shown = "abcdef0" if said.startswith("abc") else said
    assert fault.what == (
        f"the image ninfer:local was built from {shown} by its label org.opencontainers.image.revision, "
        "ninfer:v2 says 1f2e3d4"
    )
    assert "correct the pair's `source.commit` if the label is right" in fault.mend
