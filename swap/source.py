"""Is the source tree of a pair's image still at the commit that the pair names, and is the image built from it?

A rebuild from a tree that moved gives an engine that can't read the pair's artifact. What runs is the image and not the
tree, so nothing here ever refuses: each finding is a `Fault` that is told, not raised.

git is asked, and git runs what a repository's own configuration says (filters, monitors). The tree may be somebody
else's and slotproxy may be root: then git runs as the tree's owner, never as root, with a clean environment.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from engines.spec import Pair
from swap.ports import Fault, Recipe
from swap.threads import MODELS

LIMIT = 10.0  # seconds that git may take; a cold disk and a large tree take one or two
DYING = 2.0  # seconds that a killed git may take; one that is stuck in the kernel takes longer, and is left
SHOWN = 3  # changed files that a message names
NOBODY = 65534
REVISION = "org.opencontainers.image.revision"  # the image label that names the commit it was built from

# A look writes nothing, not even the index, and runs none of the tree's own programs where git can be kept from it.
_SETTINGS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "safe.bareRepository=explicit")
_GIT = ("git", "--no-optional-locks", *(word for setting in _SETTINGS for word in ("-c", setting)))
_STATUS = ("status", "--porcelain=v2", "--branch", "--no-renames", "--untracked-files=no", "--", ".")
_ENVIRONMENT = {
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
}
_BEFORE_PATH = {"1": 8, "u": 10}  # words that stand before a changed file's path, by the line's first word


@dataclass(frozen=True, slots=True)
class Tree:
    """A source tree as git sees it. `commit` is empty where nothing has been committed yet."""

    commit: str
    changed: tuple[str, ...]  # tracked files that aren't as committed, those below the tree only


async def look(pair: Pair, declared: Recipe | None) -> tuple[Fault, ...]:
    """What a person should know before the pair's image is built again; nothing for a pair without `source`."""
    if pair.source is None:
        return ()
    return (*await _tree(pair, pair.source.tree, pair.source.commit.lower()), *_label(pair, declared))


async def _tree(pair: Pair, path: Path, commit: str) -> tuple[Fault, ...]:
    try:
        tree = await MODELS.run(partial(read_tree, path), f"the disk of {path}", LIMIT + 2 * DYING)
    except Fault as told:
        fault = told
    else:
        return _compared(pair, path, tree, commit)
    return (Fault(f"whether the source tree of {pair.label} is at {commit} can't be told: {fault.what}", fault.mend),)


def _compared(pair: Pair, path: Path, tree: Tree, commit: str) -> tuple[Fault, ...]:
    where, git = f"the source tree {path} of {pair.label} is at", f"git -C {shlex.quote(str(path))}"
    at, wanted = _apart(tree.commit, commit)
    if not tree.commit.startswith(commit):
        what = f"{where} {at or 'no commit'}{' (dirty)' if tree.changed else ''}, not at {wanted}"
        mend = f"`{git} checkout {commit}`, or build the other version from a worktree of its own"
        return (Fault(f"{what}: a rebuild would not read this artifact any more", mend),)
    if tree.changed:
        what = (
            f"{where} {commit[:7]}, but not as committed ({_some(tree.changed)}): a rebuild would be of something else"
        )
        return (Fault(what, f"see `{git} diff`; put the changes into a worktree of their own, or undo them"),)
    return ()


def _label(pair: Pair, declared: Recipe | None) -> tuple[Fault, ...]:
    """The image's own word on what it was built from, where it has one."""
    built = dict(declared.image_labels).get(REVISION, "").strip().lower() if declared else ""
    if pair.source is None or declared is None or not built:
        return ()
    commit = pair.source.commit.lower()
    if re.fullmatch(r"[0-9a-f]{7,64}", built) and (built.startswith(commit) or commit.startswith(built)):
        return ()
    said, wanted = _apart(built[:64], commit)
    what = f"the image {declared.image} was built from {said} by its label {REVISION}, {pair.label} says {wanted}"
    mend = "correct the pair's `source.commit` if the label is right; else build the image anew, as a pair of its own"
    return (Fault(what, mend),)


def _apart(one: str, other: str) -> tuple[str, str]:
    """Both as short as people write commits, and long enough to be told apart. Words that are no commit stay whole."""
    same = takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False))
    length = max(7, len(list(same)) + 1)
    return (one[:length] if re.fullmatch(r"[0-9a-f]*", one) else one), other[:length]


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


# ------------------------------------------------------------------------------------------------- asking git


def read_tree(path: Path) -> Tree:
    """What git says of the tree. Blocks, for LIMIT at most unless its disk hangs. Raises Fault."""
    try:
        path.stat()
        who = _owner(path) if os.geteuid() == 0 else {}
    except OSError as error:
        raise Fault(f"{path}: {error.strerror}", "correct the pair's `source.tree`, or put the tree there") from error
    code, out, err = _run([*_GIT, "-C", str(path), *_STATUS], who)
    if code != 0:
        raise _refused(path, err)
    lines = out.splitlines()
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid ")), "")
    return Tree("" if commit == "(initial)" else commit, tuple(_changed(lines)))


def _changed(lines: list[str]) -> list[str]:
    """The paths of porcelain v2's lines; git has quoted what isn't printable."""
    words = [(line[:1], line) for line in lines]
    return [line.split(" ", _BEFORE_PATH[kind])[-1] for kind, line in words if kind in _BEFORE_PATH]


def _owner(path: Path) -> dict[str, Any]:
    """As whom a child of root's looks at this repository: as who has its `.git`, in no group beyond his own."""
    real = path.resolve(strict=True)
    repository = next((folder / ".git" for folder in (real, *real.parents) if (folder / ".git").exists()), real)
    uid = repository.lstat().st_uid
    try:
        gid = pwd.getpwuid(uid).pw_gid
    except KeyError:
        gid = NOBODY
    return {"user": uid, "group": gid, "extra_groups": []}


def _run(command: list[str], who: Mapping[str, Any]) -> tuple[int, str, str]:
    """Exit code, output, errors. Raises Fault. Past LIMIT git and its children are killed."""
    pipe = subprocess.PIPE
    env = {"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT}
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, cwd="/", env=env, start_new_session=True, **who
        )
    except FileNotFoundError as error:
        raise Fault("there is no git here", "install git, or leave the pair's `source` out") from error
    except (OSError, subprocess.SubprocessError) as error:
        whom = f" as user {who['user']}, who has the tree" if who else ""
        why = error.strerror if isinstance(error, OSError) else error
        raise Fault(f"git can't be run{whom}: {why}", "let slotproxy run git, and change its user for it") from error
    try:
        out, err = child.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        _kill(child)
        what = f"git didn't end within {LIMIT:g} s"
        raise Fault(what, "look after the tree's disk and `git status` there", passing=True) from None
    return child.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.communicate(timeout=DYING)
    for pipe in filter(None, (child.stdout, child.stderr)):
        pipe.close()


def _refused(path: Path, stderr: str) -> Fault:
    """git's own no, in our words where it is one that is known."""
    said = next((line for line in stderr.splitlines() if line.startswith(("fatal: ", "error: "))), stderr.strip())
    said = said.partition(": ")[2] or said or "it gave no reason"
    if "not a git repository" in said:
        return Fault(
            f"{path} is no git repository", "name the repository's tree in `source.tree`, or leave `source` out"
        )
    if "dubious ownership" in said:
        who = "run slotproxy as root or as the tree's owner, and see that all of the repository is one user's"
        return Fault(f"git doesn't look at {path}, for it is another user's", who)
    if "Permission denied" in said:
        return Fault(f"{path}: no permission ({said})", "let the tree's owner, or slotproxy's user, read all of it")
    return Fault(f"git can't look at {path}: {said}", f"see `git -C {shlex.quote(str(path))} status`")
