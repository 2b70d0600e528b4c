"""What can befall a step of a swap, each with the reason where it can't. One row of the table each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from engines.spec import GiB
from swap.ports import CannotStage, CannotStart, Fault, Unreachable
from tests.faults.outside import BOUND, Trick
from tests.faults.stories import IMAGES, JOURNAL, Case, Mishap, Scene
from tests.faults.town import DRIVER, FULL, START_DEADLINE
from tests.swap.world import GONE

CALLS = {"check": "declared", "stage": "stage", "put back": "put_back", "stop": "stop", "start": "start"}
CALLS |= {"inspect": "look", "look": "recover", "look at what runs": "recover"}
FAULTS: Mapping[str, Fault] = {
    "check": CannotStage("the compose file can't be resolved", "correct it"),
    "stage": CannotStage("compose says: no space left on device", "make room"),
    "put back": CannotStage("its image is gone", "load it again"),
    "stop": Unreachable("Docker can't stop it: permission denied", passing=True),
    "start": CannotStart("could not select device driver", "install the toolkit"),
    "inspect": GONE,
    "look": GONE,
    "look at what runs": GONE,
}
HANGS = 30.0  # seconds that a disk is bad: longer than anybody waits for it
CHANGES = ("stage", "put back", "stop", "start")

Strikes = Mapping[str, Callable[[Scene], object]]


def _trick(scene: Scene, trick: Trick) -> None:
    scene.runtime.tricks[CALLS[scene.kind]] = trick


def _later(seconds: float, do: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_later(seconds, do)


# ------------------------------------------------------------------------------------------------- the step itself


def _fails(scene: Scene) -> None:
    town = scene.town
    match scene.kind:
        case "drain":
            town.clients.more = 30.0
        case "free":
            town.nvml.foreign["game"] = 5 * GiB
        case "warm":
            town.answers.never.add(_image(scene))
        case "record":
            town.book.full = FULL
        case "read the journal":
            (town.folder / "state" / "journal.json").write_bytes(b"\x00" * 100)
        case kind:
            _trick(scene, Trick(FAULTS[kind]))


def _hangs(scene: Scene) -> None:
    town = scene.town
    match scene.kind:
        case "free":
            town.nvml.foreign["game"] = 5 * GiB
            town.nvml.silent = True
        case "warm":
            town.answers.hangs = True
        case "record":
            town.book.slow = 1e6
        case "read the journal":
            town.disk.slow = HANGS
        case _:
            _trick(scene, Trick())


def _late(seconds: float) -> Callable[[Scene], None]:
    def strike(scene: Scene) -> None:
        town = scene.town
        match scene.kind:
            case "drain":
                town.clients.more = 8.0 + seconds
            case "free":
                town.nvml.foreign["game"] = 5 * GiB
                _later(seconds - 3, town.nvml.foreign.clear)
            case "warm":
                scene.runtime.loading = START_DEADLINE + seconds
            case "record":
                town.book.slow = BOUND + seconds
            case "read the journal":
                town.disk.slow = BOUND + seconds
            case _:
                _trick(scene, Trick(late=seconds))

    return strike


def _lies(scene: Scene) -> None:
    town = scene.town
    match scene.kind:
        case "free":
            town.nvml.lies = True
            town.nvml.foreign["game"] = 5 * GiB
            _later(3.0, town.nvml.foreign.clear)
        case "warm":
            town.answers.mid = lambda: _another_answers(scene)
        case "record":
            town.book.loses = True
        case _:
            _trick(scene, Trick(lies=True))


def _another_answers(scene: Scene) -> None:
    """In the moment in which it is asked the engine is gone, and something else says that it is ready."""
    scene.town.answers.stale = True
    scene.runtime.exit(1, "error: out of memory\n")


def _image(scene: Scene) -> str:
    return IMAGES[scene.variant.new if scene.case.there else scene.variant.old]


def _calls_nothing(case: Case) -> str:
    """It is the call that would go wrong; a step that finds all as it should be makes none."""
    call = CALLS.get(case.kind)
    return "" if call is None or call in case.calls else "nothing is to be done here, so nothing is asked for"


def _only_a_wait(case: Case) -> str:
    if case.kind == "drain":
        return "it only waits for clients: one that hangs is one that fails"
    return _calls_nothing(case)


def _only_a_question(case: Case) -> str:
    if case.kind not in (*CHANGES, "drain", "free", "warm", "record"):
        return "nothing comes late of a question"
    return _calls_nothing(case)


def _one_that_lies(case: Case) -> str:
    match case.kind:
        case "drain":
            return "the gate is our own"
        case "read the journal":
            return "the journal is our own; a damaged one is one that fails"
        case "look" | "look at what runs":
            return "what mends has nothing to mend; see the look that lies"
        case "inspect":
            return "it is a look; see the look that lies"
        case _:
            return _calls_nothing(case)


def _asks_for_none(case: Case) -> str:
    return "" if "look" in case.calls else "it doesn't look at a container"


# ------------------------------------------------------------------------------------------------- who dies


def _journal_only(case: Case) -> str:
    return "it is the look's first part: see `boot: look`" if case.step == JOURNAL else ""


def _no_middle(case: Case) -> str:
    return "a line is written at once" if case.kind == "record" else _journal_only(case) or _calls_nothing(case)


def _dies(label: Callable[[Case], str]) -> Callable[[Case], str]:
    def cannot(case: Case) -> str:
        return _journal_only(case) or ("" if label(case) in case.up else "it isn't up")

    return cannot


def _new(case: Case) -> str:
    return case.variant.new


def _old(case: Case) -> str:
    return case.variant.old


def _die(label: Callable[[Case], str]) -> Callable[[Scene], None]:
    def strike(scene: Scene) -> None:
        engine = label(scene.case).partition(":")[0]
        runtime = scene.town.timed[engine]
        if runtime.sight.running:
            runtime.exit(1, "error: out of memory\n")
        else:
            runtime.exits_on_start = 1

    return strike


def _unwritable(scene: Scene) -> None:
    scene.town.disk.fill()
    scene.town.docker.full = True
    scene.town.book.full = FULL


def _kill(again: float) -> Callable[[Scene], None]:
    return lambda scene: scene.town.kill(again=again)


MISHAPS = (
    Mishap("the step fails", "begins", _fails, _calls_nothing),
    Mishap("it hangs, and never happens", "begins", _hangs, _only_a_wait),
    Mishap("it times out, and succeeds soon after", "begins", _late(5.0), _only_a_question),
    Mishap("it times out, and succeeds long after", "begins", _late(60.0), _only_a_question, lasts=90.0),
    Mishap("it lies once: says that it is done, and isn't", "begins", _lies, _one_that_lies),
    Mishap(
        "a look lies once",
        "begins",
        lambda scene: scene.runtime.tricks.__setitem__("look", Trick(lies=True)),
        _asks_for_none,
    ),
    Mishap("SIGTERM as it begins", "begins", lambda scene: scene.town.terminate(), _journal_only),
    Mishap("SIGTERM in mid-call", "mid", lambda scene: scene.town.terminate(), _no_middle),
    Mishap("SIGKILL as it begins", "begins", _kill(1.0), _journal_only),
    Mishap("SIGKILL in mid-call, a new daemon at once", "mid", _kill(0.0), _no_middle),
    Mishap("SIGKILL in mid-call, a new daemon later", "mid", _kill(6.0), _no_middle),
    Mishap("SIGKILL as it ends", "ends", _kill(1.0), _journal_only),
    Mishap("the new one dies", "mid", _die(_new), _dies(_new)),
    Mishap("the old one dies", "mid", _die(_old), _dies(_old)),
    Mishap(
        "Docker goes away and returns",
        "begins",
        lambda scene: scene.town.docker.go_away(calls_too=True, engines_too=False),
        _journal_only,
    ),
    Mishap(
        "Docker goes away in mid-call, which it carries out, and returns",
        "mid",
        lambda scene: scene.town.docker.go_away(calls_too=False, engines_too=False),
        _no_middle,
    ),
    Mishap(
        "Docker goes away with its containers, and returns",
        "begins",
        lambda scene: scene.town.docker.go_away(calls_too=True, engines_too=True),
        _journal_only,
    ),
    Mishap(
        "NVML errs for a moment",
        "begins",
        lambda scene: setattr(scene.town.nvml, "unknown", DRIVER),
        _journal_only,
        lasts=5.0,
    ),
    Mishap(
        "NVML errs for long", "begins", lambda scene: setattr(scene.town.nvml, "unknown", DRIVER), _journal_only, 60.0
    ),
    Mishap("all clients leave", "mid", lambda scene: scene.town.clients.leave(), _no_middle),
    Mishap("the state folder can't be written", "begins", _unwritable, _journal_only),
)
