"""The desk's no, and the pair that an order's names mean."""

from __future__ import annotations

from engines.spec import Engine, Pair
from slotproxy.config import Settings


class Refusal(Exception):
    """The answer is no: what, what to do, and slotctl's exit code."""

    def __init__(self, what: str, mend: str, code: int) -> None:
        super().__init__(what)
        self.what, self.mend, self.code = what, mend, code


def named(settings: Settings, engine: str, pair: str | None) -> tuple[Engine, Pair]:
    """The pair that these names mean (None: the deployed one). Raises Refusal naming what there is."""
    chosen = settings.engines.get(engine)
    if chosen is None:
        raise Refusal(f"there is no engine {engine!r}", f"the engines are {', '.join(settings.engines)}", 2)
    name = chosen.deployed if pair is None else pair
    if name not in chosen.pairs:
        raise Refusal(f"{engine} has no pair {name!r}", f"its pairs are {', '.join(chosen.pairs)}", 2)
    return chosen, chosen.pairs[name]
