"""Files that are there now beside those that were verified, by content: where they lie on the host doesn't count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from swap.ports import FileDigest

FileRow = tuple[str, FileDigest | None, FileDigest | None]
"""The row's name, the file as it is now, and as it was verified; None: there is or was none."""


def file_rows(now: Sequence[FileDigest], was: Sequence[FileDigest]) -> Iterator[FileRow]:
    """What differs: other bytes, a file more, a file less; else the order, where that alone differs."""
    if [_content(one) for one in now] == [_content(one) for one in was]:
        return
    new, gone = _without(now, was), _without(was, now)
    if new or gone:
        yield from _paired(new, gone)
        return
    first = next(n for n, (one, other) in enumerate(zip(now, was, strict=True)) if _content(one) != _content(other))
    yield f"order of the files, number {first + 1}", now[first], was[first]


def _paired(new: list[FileDigest], gone: list[FileDigest]) -> Iterator[FileRow]:
    """The same place first, then in their order: it is the artifact's successor, most likely."""
    for one in [one for one in new if one.path in {other.path for other in gone}]:
        other = next(other for other in gone if other.path == one.path)
        new.remove(one)
        gone.remove(other)
        yield _name(one), one, other
    while new or gone:
        left, right = new.pop(0) if new else None, gone.pop(0) if gone else None
        yield _name(left or right), left, right


def _without(files: Sequence[FileDigest], others: Sequence[FileDigest]) -> list[FileDigest]:
    """Those whose content the others haven't."""
    left = [_content(one) for one in others]
    found = []
    for file in files:
        if _content(file) in left:
            left.remove(_content(file))
        else:
            found.append(file)
    return found


def _content(file: FileDigest) -> tuple[str, int]:
    return file.sha256, file.size


def _name(file: FileDigest | None) -> str:
    return f"file {PurePath(file.path).name}" if file is not None else "file"
