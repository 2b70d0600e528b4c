"""Clients' keys. Only their digests are kept: a key itself is in no setting, and so in no message, log or state.

A key file, or a variable, holds a key a line, so that the next one can be given out before the last is taken back. In
place of a key a line may hold its hash, `sha256:` and 64 hexadecimal digits: who reads the file can't use that. Empty
lines and lines that begin with `#` say nothing.
"""

from __future__ import annotations

import hashlib
import re

HASHED = "sha256:"
_DIGITS = re.compile(r"[0-9a-fA-F]{64}")


class BadKey(ValueError):
    """Why a line holds no key. The text never shows it."""


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


_OF_NOTHING = frozenset((digest(b""), digest(b"\n")))  # what `sha256sum` says of a variable that isn't set


def digests(*lines: str) -> frozenset[bytes]:
    """Of the keys that the lines hold, or are hashes of. Raises BadKey."""
    written = ((number, line.strip()) for number, line in enumerate(lines, 1))
    return frozenset(_digest_of(line, number) for number, line in written if line and not line.startswith("#"))


def _digest_of(line: str, number: int) -> bytes:
    if line[: len(HASHED)].lower() == HASHED:
        if not _DIGITS.fullmatch(line[len(HASHED) :]):
            raise BadKey(f"line {number} is no hash: the 64 hexadecimal digits of one follow {HASHED}")
        found = bytes.fromhex(line[len(HASHED) :])
        if found in _OF_NOTHING:
            raise BadKey(f"line {number} is the hash of an empty key: the command that made it had none")
        return found
    if not line.isascii() or not line.isprintable() or " " in line:
        raise BadKey(f"line {number} is no key: one is printable ASCII without spaces, each on a line of its own")
    return digest(line.encode())
