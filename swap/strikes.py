"""When is an engine that runs useless? Pure: what was heard is counted, and the counts say what to do.

Useless is who gives explicit errors `Limits.errors` times in a row, or whose own sign of health fails
`Limits.failures` times in a row. The rules:

- A whole answer proves it well, whoever got it: everything is counted afresh. So is it for a new run of the engine.
- Silence says nothing of an engine that has work: a prefill is silent. Nobody feeds it in here.
- Nobody is given up on what clients were told: the last strike is always a completion of our own that failed. A client
  whose requests are at fault can make us ask, but the engine answers us. If it failed without a word (refused, or
  silent), that confirms bad signs only.
- After a client's error we ask at once, so that no other client has to find out. Whoever was well when asked isn't
  asked again for every such error, but only once they have added up.
- A good sign takes back only bad signs: some builds say 200 for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Limits:
    """How many in a row; 0: however many, nobody is given up for that."""

    errors: int
    failures: int


@dataclass(frozen=True, slots=True)
class Strikes:
    """What is held against one run of an engine. `why`: the last of it, for people."""

    run: str = ""
    errors: int = 0
    failures: int = 0
    trusted: bool = False  # it was well when we asked, and no client has had a whole answer since
    why: str = ""

    # ------------------------------------------------------------------------------------------ what was heard

    def answered(self) -> Strikes:
        """A client has a whole answer."""
        return Strikes(self.run)

    def answered_us(self) -> Strikes:
        """Our own completion was answered."""
        return Strikes(self.run, trusted=True)

    def error(self, why: str) -> Strikes:
        """A client, or our own completion, got an explicit error of the engine."""
        return replace(self, errors=self.errors + 1, why=why)

    def sign_failed(self, why: str) -> Strikes:
        """Its sign was explicitly bad, or there was none while it had nothing to do."""
        return replace(self, failures=self.failures + 1, why=why)

    def sign_good(self) -> Strikes:
        return replace(self, failures=0)

    # ------------------------------------------------------------------------------------------ what follows

    def to_be_asked(self, limits: Limits) -> bool:
        """Is it time for a completion of our own?"""
        enough = limits.errors if self.trusted else 1
        return (limits.errors > 0 and self.errors >= enough) or self._signs(limits)

    def useless(self, limits: Limits, *, explicit: bool) -> bool:
        """To be asked only when our own completion has just failed; `explicit`: with an error of the engine."""
        return (explicit and 0 < limits.errors <= self.errors) or self._signs(limits)

    def _signs(self, limits: Limits) -> bool:
        return 0 < limits.failures <= self.failures

    @property
    def told(self) -> str:
        """What is held against it, in words."""
        some = [f"errors in a row: {self.errors}"] if self.errors else []
        some += [f"bad signs of health in a row: {self.failures}"] if self.failures else []
        return f"{', '.join(some)}; the last: {self.why}"
