"""Which names clients may ask for, and what each engine is sent for them."""

from __future__ import annotations

from collections.abc import Mapping

from slotproxy.config import EVERY_NAME
from slotproxy.outcomes import End, Outcome
from slotproxy.protocols import ApiError
from slotproxy.units import show

_RETRY_LATER = 30.0  # seconds: a swap takes about that, and somebody has to order it


class Models:
    """The configuration's `models:`. A name that it lists always means what it says there; with `"*"` in it every
    other name goes to the engine as it is.
    """

    def __init__(self, models: Mapping[str, Mapping[str, str]]) -> None:
        self._models = models
        self.every_name = EVERY_NAME in models

    @property
    def names(self) -> list[str]:
        """What a client's model picker shows: from the configuration alone, so it never changes under a swap."""
        return [name for name in self._models if name != EVERY_NAME]

    def check(self, name: str | None) -> None:
        """Raises ApiError (404) for a name that no engine has. A request without a name is for the engine to judge."""
        if name is None or self.every_name or name in self._models:
            return
        known = ", ".join(self.names)
        what = f"no model is called {show(name)} here; there are: {known}"
        logged = End(Outcome.REFUSED, "model_not_found", "no model is called so")  # it may be anything
        raise ApiError(404, what, "model_not_found", logged=logged)

    def sent_to(self, engine: str, name: str | None) -> str | None:
        """What `engine` calls the model. Raises ApiError (503) where only another engine has that name."""
        if name is None or name == EVERY_NAME or name not in self._models:
            return name
        called = self._models[name].get(engine)
        if called is None:
            others = " or ".join(self._models[name]) or "no engine"
            message = f"{engine} is serving now and doesn't have {name!r}; {others} does, after a swap"
            raise ApiError(503, message, "model_not_loaded", _RETRY_LATER)
        return called
