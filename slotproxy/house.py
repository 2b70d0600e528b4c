"""What all requests share, and how long a client may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from engines.spec import Engine
from slotproxy.arrival import Room
from slotproxy.config import Settings
from slotproxy.gate import SlotGate
from slotproxy.in_force import InForce
from slotproxy.models import Models
from slotproxy.outcomes import Outcomes
from slotproxy.slots import Slots
from slotproxy.supervision import Supervision
from slotproxy.visits import Visits


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may take, in seconds: between two pieces of its body, to take a piece of the answer, and for
    its whole body.
    """

    body: float = 60.0
    write: float = 60.0
    whole_body: float = 600.0


@dataclass(slots=True)
class House:
    """What all requests share. `engine` gives one by name, as it is to be reached."""

    in_force: InForce
    gate: SlotGate
    client: httpx.AsyncClient
    outcomes: Outcomes
    patience: Patience
    supervision: Supervision
    engine: Callable[[str], Engine]
    visits: Visits = field(default_factory=Visits)
    slots: Slots = field(init=False)
    models: Models = field(init=False)
    room: Room = field(init=False)

    def __post_init__(self) -> None:
        self.room = Room(self.settings.limits.max_waiting_bytes)
        self.configure()

    @property
    def settings(self) -> Settings:
        return self.in_force.settings

    def configure(self) -> None:
        """Its settings are other ones now."""
        self.slots, self.models = Slots(self.settings.slots), Models(self.settings.models)
        self.room.limit = self.settings.limits.max_waiting_bytes
