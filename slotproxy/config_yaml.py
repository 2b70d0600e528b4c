"""YAML with the checks that its loader lacks: where it is broken, and keys that stand twice. And where errors are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slotproxy.units import show

_PLAIN_KEY = re.compile(r"[\w.*:/-]+")


class ConfigError(Exception):
    """The configuration can't be used: the key's path, what stands there, what was expected. One line each."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in which file we are: `engines.ninfer.vram`."""

    file: Path
    keys: str = ""

    def __truediv__(self, key: object) -> Place:
        name = key if isinstance(key, str) and _PLAIN_KEY.fullmatch(key) else show(key)
        return Place(self.file, f"{self.keys}.{name}" if self.keys else name)

    def wrong(self, why: str) -> ConfigError:
        """On one line, whatever characters a path in it has."""
        why = "".join(each if each.isprintable() else repr(each)[1:-1] for each in why)
        return ConfigError(f"{self.file}: {self.keys}: {why}" if self.keys else f"{self.file}: {why}")


def parse(path: Path) -> Any:
    """What the YAML says, keys unchecked. Raises ConfigError: can't be read, broken, a key twice, empty."""
    at = Place(path)
    text = text_of(path, at)
    try:
        document = _safe_load(text, at)
    except yaml.MarkedYAMLError as broken:
        raise at.wrong(_broken(broken)) from None
    except RecursionError:
        raise at.wrong("is nested too deeply, or within itself") from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError) as broken:
        # The last four are how PyYAML's constructors answer a value that isn't of its tag (`!!int x`, 2026-99-99).
        raise at.wrong(f"isn't YAML that can be read: {one_line(broken)}") from None
    if document is None:
        raise at.wrong("is empty; deploy/slotproxy.yml is a sample")
    return document


def text_of(path: Path, at: Place) -> str:
    """What a file holds. Raises ConfigError, at the key that names the file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        if path != at.file:
            raise at.wrong(f"{path}: {error.strerror}") from None
        mend = "name another with --config, or write it: deploy/slotproxy.yml is a sample"
        raise at.wrong(f"can't be read: {error.strerror}; {mend}") from None
    except UnicodeDecodeError as error:
        raise at.wrong(f"{path.name} is not UTF-8 text (byte {error.start})") from None


def _safe_load(text: str, at: Place) -> Any:
    """As `yaml.safe_load`, with a look at the keys while they are still nodes."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        twice = _key_that_stands_twice(node)
        if twice is not None:
            raise at.wrong(twice)
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _key_that_stands_twice(root: yaml.Node | None) -> str | None:
    """YAML's own loader keeps the last of two equal keys without a word."""
    for node in _nodes(root):
        lines: dict[tuple[str, str], int] = {}
        for key in _scalar_keys(node):
            line = key.start_mark.line + 1
            if (key.tag, key.value) in lines:
                first = lines[key.tag, key.value]
                return f"line {line}: the key {show(key.value)} stands twice (first in line {first}); keep one"
            lines[key.tag, key.value] = line
    return None


def _scalar_keys(node: yaml.Node) -> list[yaml.ScalarNode]:
    if not isinstance(node, yaml.MappingNode):
        return []
    return [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]


def _nodes(root: yaml.Node | None) -> Iterator[yaml.Node]:
    """Every node once, though aliases make the tree a graph."""
    left, seen = [root] if root is not None else [], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, yaml.MappingNode):
            left.extend(part for pair in reversed(node.value) for part in pair)
        elif isinstance(node, yaml.SequenceNode):
            left.extend(reversed(node.value))


def _broken(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    why = ", ".join(part for part in (error.context, error.problem) if part)
    return f"{where}broken YAML: {one_line(why)}"


def one_line(words: object) -> str:
    """Words from elsewhere, on one line."""
    return " ".join(str(words).split())
