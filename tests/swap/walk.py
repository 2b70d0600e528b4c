"""A walk through everything that can happen: breadth-first over every event from every reachable (state, world).

The world knows what the machine can only be told: which units really run, which container an engine really has, which
calls are still under way, which news has not been delivered. Each transition is checked against the promises, and the
whole graph against "there is a way to serving". A violation is reported with the shortest path that leads to it.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from swap import machine
from swap.moves import (
    Aborted,
    Answer,
    Ascertain,
    Check,
    Checked,
    Choose,
    Chosen,
    Code,
    Died,
    Done,
    Drain,
    Effect,
    Event,
    Failed,
    Found,
    Free,
    Glance,
    Inspect,
    Interrupt,
    Look,
    NotByHand,
    Order,
    Ordered,
    Overdue,
    PutBack,
    Record,
    Rest,
    Seen,
    Stage,
    Start,
    Steady,
    Stop,
    Unit,
    Up,
    Useless,
    Warm,
)
from swap.state import Open, State, gate
from swap.steps import Step

A = Unit("strata", "current")
B = Unit("ninfer", "v2")
C = Unit("ninfer", "v3")
TWO_ENGINES = (A, B)
ONE_ENGINE = (B, C)
EVERYTHING = (A, B, C)


DEAD = -8  # the number of calls whose daemon is dead: nobody hears how they end


@dataclass(frozen=True, slots=True, order=True)
class Call:
    """An overdue start or stop, still under way; `n` is DEAD where the daemon that made it has been killed."""

    n: int
    kind: str
    unit: Unit


@dataclass(frozen=True, slots=True)
class World:
    cast: tuple[Unit, ...]
    running: frozenset[Unit]
    made: frozenset[Unit]  # the unit that each engine's container is
    calls: frozenset[Call] = frozenset()
    news: frozenset[tuple[str, Unit]] = frozenset()  # happened, not told yet

    def container(self, engine: str) -> Unit:
        return next(unit for unit in self.made if unit.engine == engine)

    def remade(self, unit: Unit) -> World:
        others = frozenset(other for other in self.made if other.engine != unit.engine)
        return replace(self, made=others | {unit})

    def gone(self, unit: Unit) -> World:
        """A stop is seen to, and with it the one that a dead daemon had asked for."""
        calls = self.calls - {Call(DEAD, "stop", unit)}
        running = frozenset(other for other in self.running if other.engine != unit.engine)
        return replace(self, running=running, news=self._without_news_of(unit), calls=calls)

    def killed(self) -> World:
        """The daemon: what it has asked for goes on, and who comes next looks, and was told nothing."""
        pending = (call for call in self.calls if (call.unit in self.running) == (call.kind == "stop"))
        return replace(self, calls=frozenset(replace(call, n=DEAD) for call in pending), news=frozenset())

    def come_up(self, unit: Unit) -> World:
        """A start is seen to. What is told is what a look shows: older news of that engine is none any more."""
        return replace(self, running=self.running | {unit}, news=self._without_news_of(unit))

    def _without_news_of(self, unit: Unit) -> frozenset[tuple[str, Unit]]:
        return frozenset((what, other) for what, other in self.news if other.engine != unit.engine)

    def busy(self, unit: Unit) -> bool:
        return any(call.unit.engine == unit.engine for call in self.calls)


Node = tuple[State, World]
NOTHING = Overdue(-9)  # an event that nobody listens to


class Violation(AssertionError):
    """A promise was broken; the message ends with the path that led there."""


@dataclass(slots=True)
class _Graph:
    """Nodes by number, in the order in which they were found: hashing one takes long."""

    nodes: list[Node] = field(default_factory=list)
    found_from: list[tuple[int, str]] = field(default_factory=list)  # the node that it was found from, and by what
    edges: list[list[tuple[str, int]]] = field(default_factory=list)  # by what, to which node
    _numbers: dict[Node, int] = field(default_factory=dict)

    def number(self, node: Node, parent: int, name: str) -> int:
        """The node's number; a new one is found from `parent`."""
        number = self._numbers.setdefault(node, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
            self.found_from.append((parent, name))
            self.edges.append([])
        return number


def walk(cast: tuple[Unit, ...], limit: int = 1_000_000) -> int:
    """Visit everything that these units can do; returns the number of nodes.

    Raises Violation, with the shortest path to it.
    """
    graph = _Graph()
    for world in _first_worlds(cast):
        graph.number((machine.START, world), -1, f"start: running {_names(world.running)}")
    step = functools.cache(machine.step)
    check_late = functools.cache(_check_late)
    for number in itertools.count():
        if number == len(graph.nodes):
            break
        assert number < limit, "the walk does not end"
        node, name = graph.nodes[number], "a late report"
        edges = graph.edges[number]
        edges.append(("killed", graph.number(_killed(node), number, "killed, and started again")))
        try:
            check_late(node[0])
            for name, state, event, world in _moves(*node):
                after = _step(step, state, world, event)
                edges.append((name, graph.number(after, number, name)))
        except Violation as broken:
            raise Violation(f"{broken}\n{_path(graph, number)}\n  {name}  ← here") from None
    _check_ways(graph)
    return len(graph.nodes)


def _first_worlds(cast: tuple[Unit, ...]) -> Iterator[World]:
    engines = sorted({unit.engine for unit in cast})
    for made in itertools.product(*(tuple(u for u in cast if u.engine == engine) for engine in engines)):
        for up in itertools.product((True, False), repeat=len(made)):
            yield World(cast, frozenset(itertools.compress(made, up)), frozenset(made))


# ------------------------------------------------------------------------------------------------- what can happen


def _moves(state: State, world: World) -> Iterator[tuple[str, State, Event, World]]:
    """How many failures there were is left out of the nodes: what serves fails for the first time, or again."""
    for name, event, after in moves(state, world):
        yield name, state, event, after
        if isinstance(event, Died | Useless) and event.unit == state.serving:
            yield f"{name} again", replace(state, failures=1), event, after
        if isinstance(event, Chosen) and isinstance(state.doing, Choose):
            before = replace(state.doing, spent=frozenset(world.cast))
            yield f"{name} that was given up before", replace(state, doing=before), event, after


def moves(state: State, world: World) -> Iterator[tuple[str, Event, World]]:
    """Every event that this world could bring about now, and the world after it."""
    yield from _answers(state, world)
    yield from _late(world)
    yield from _told(world)
    yield from _by_itself(state, world)
    if state.order is None:
        for unit in world.cast:
            order = Order(1, unit.engine, unit.pair)
            yield f"ordered {unit.label}", Ordered(order), world
    elif not state.given_up:
        yield "aborted", Aborted(), world
        yield "ordered another", Ordered(Order(2, "strata", "other")), world


def _answers(state: State, world: World) -> Iterator[tuple[str, Event, World]]:
    """What the awaited effect may report, given what is really so."""
    yield from _found_out(state, world)
    yield from _changed(state, world)


def _found_out(state: State, world: World) -> Iterator[tuple[str, Event, World]]:
    """Effects that look, or wait for something."""
    match state.doing:
        case Look(n):
            yield from _looked(n, world)
        case Check(n, order):
            yield "allowed", Checked(n, Unit(order.engine, order.pair)), world
            yield "refused", Failed(n, "x"), world
            yield from _interrupted(state, n, world)
        case Drain(n):
            yield "drained", Done(n), world
            yield "not drained", Failed(n, "x"), world
        case Rest(n):
            yield "rested", Done(n), world
        case Ascertain(n):
            yield "ascertained", Done(n), world
        case Choose():
            yield from _chosen(state.doing, world)
            yield from _interrupted(state, state.doing.n, world)
        case Free(n, _):
            if not world.running:
                yield "free", Done(n), world
            yield "not free", Failed(n, "x", passing=True), world
        case Inspect(n, unit):
            if world.container(unit.engine) == unit:
                yield "inspected", Done(n), world
            yield "not as expected", Failed(n, "x"), world
            yield "can't inspect", Failed(n, "x", passing=True), world
        case Warm(n, unit):
            if unit in world.running:
                yield "ready", Done(n), world
                yield "never ready", Failed(n, "x", passing=True), world
                yield from _interrupted(state, n, world)
            else:
                told = replace(world, news=world.news - {("died", unit)})
                yield "gone", Failed(n, "x", passing=True, gone=True), told
        case Glance(n, unit):
            if not world.busy(unit):
                told = replace(world, news=world.news - {("up", unit), ("died", unit)})
                yield "looked", Seen(n, unit in world.running), told
            yield "can't look", Failed(n, "x", passing=True), world
        case _:
            return


def _chosen(choice: Choose, world: World) -> Iterator[tuple[str, Event, World]]:
    """Whoever it is; nobody where nothing else is verified, and it isn't itself, or time mends nothing."""
    for unit in world.cast:
        if choice.passing or unit != choice.failed:
            yield f"chose {unit.label}", Chosen(choice.n, unit), world
    yield "chose nobody", Chosen(choice.n, None, "x"), world
    yield "can't choose", Failed(choice.n, "x", passing=choice.passing), world


def _interrupted(state: State, n: int, world: World) -> Iterator[tuple[str, Event, World]]:
    """The machine has asked for it, or may have: only an order, or a death while one is checked, makes it ask."""
    if state.order is not None:
        yield "interrupted", Failed(n, "x", passing=True, interrupted=True), world


def _looked(n: int, world: World) -> Iterator[tuple[str, Event, World]]:
    """What a dead daemon had asked for: a look waits for its start, and finds out about its stop."""
    yield "can't look", Failed(n, "x", passing=True), world
    if any(call.kind == "start" for call in world.calls):
        return
    ending = next((call.unit for call in world.calls if call.unit in world.running), None)
    world = replace(world, calls=frozenset(call for call in world.calls if call.unit == ending))
    for keep in sorted(world.running - {ending}):
        yield f"found {_names(world.running)}", Found(n, world.running, keep, None, ending=ending), world
    if not world.running - {ending}:
        for unit in world.cast:
            yield f"found {unit.label} to start", Found(n, world.running, None, unit, ending=ending), world
        yield "found nothing", Found(n, world.running, None, None, "nothing is verified", ending), world


def _changed(state: State, world: World) -> Iterator[tuple[str, Event, World]]:
    """Effects that change what runs, or what would."""
    match state.doing:
        case Stage(n, unit) | PutBack(n, unit):
            if not any(other.engine == unit.engine for other in world.running):
                yield "made", Done(n), world.remade(unit)
            yield "not made", Failed(n, "x"), world
        case Stop(n, unit):
            yield "stopped", Done(n), world.gone(unit)
            yield "still up", Failed(n, "x"), world
            yield "stop overdue", Overdue(n), _calling(world, n, "stop", unit)
        case Start(n, unit):
            up = world.container(unit.engine)
            yield "started", Up(n, up), world.come_up(up)
            yield "not started", Failed(n, "x"), world
            yield "start overdue", Overdue(n), _calling(world, n, "start", unit)
        case _:
            return


def _calling(world: World, n: int, kind: str, unit: Unit) -> World:
    return replace(world, calls=world.calls | {Call(n, kind, unit)})


def _late(world: World) -> Iterator[tuple[str, Event, World]]:
    """Calls that were overdue end after all."""
    for call in sorted(world.calls):
        rest = replace(world, calls=world.calls - {call})
        if call.n == DEAD:
            yield from _silent(call, rest)
        elif call.kind == "start":
            up = world.container(call.unit.engine)
            yield "late: started", Up(call.n, up), rest.come_up(up)
            yield "late: not started", Failed(call.n, "x"), rest
        else:
            yield "late: stopped", Done(call.n), rest.gone(call.unit)
            yield "late: not stopped", Failed(call.n, "x"), rest


def _silent(call: Call, rest: World) -> Iterator[tuple[str, Event, World]]:
    """Nobody hears it; what has changed is seen by a look, or told as if it had happened by itself."""
    yield f"unheard: no {call.kind}", NOTHING, rest
    news = frozenset({("up" if call.kind == "start" else "died", call.unit)})
    after = rest.come_up(call.unit) if call.kind == "start" else rest.gone(call.unit)
    yield f"unheard: {call.kind}", NOTHING, replace(after, news=after.news | news)


def _told(world: World) -> Iterator[tuple[str, Event, World]]:
    for what, unit in sorted(world.news):
        rest = replace(world, news=world.news - {(what, unit)})
        if what == "up":
            yield f"told: {unit.label} came up", Up(0, unit, fit=True), rest
            yield f"told: unfit {unit.label} came up", Up(0, unit, fit=False), rest
        else:
            yield f"told: {unit.label} exited", Died(unit, "exited"), rest
            yield f"told: {unit.label} was stopped", Died(unit, "was stopped", by_hand=True), rest


def _by_itself(state: State, world: World) -> Iterator[tuple[str, Event, World]]:
    """Engines die and are started by hand; it is told later (here: one piece of news at a time)."""
    if state.serving is not None and state.serving in world.running:
        yield "useless", Useless(state.serving, "x"), world
    if state.serving is None and state.last is not None:
        yield f"{state.last.label} was stopped by Docker", NotByHand(state.last), world
    if state.serving is not None and state.doubted:
        yield "steady", Steady(state.serving), world
    if world.news:
        return
    for unit in sorted(world.running):
        gone = replace(world.gone(unit), news=world.news)
        if unit in state.up:  # what the machine was never told of may also die untold
            gone = replace(gone, news=gone.news | {("died", unit)})
        yield f"{unit.label} dies", NOTHING, gone
    for unit in sorted(world.made - world.running):
        if not world.busy(unit) and not isinstance(state.doing, Start | Stage | PutBack):
            up = replace(world, running=world.running | {unit}, news=frozenset({("up", unit)}))
            yield f"{unit.label} is started by hand", NOTHING, up


# ------------------------------------------------------------------------------------------------- the promises


def _step(step: Callable[[State, Event], Step], state: State, world: World, event: Event) -> Node:
    after, effects = step(state, event)
    _check_change(state, event, after)
    for effect in effects:
        _check_effect(state, after, world, event, effect)
    _check_state(after, world)
    return _canonical(after, world)


def _require(truth: bool, promise: str) -> None:
    if not truth:
        raise Violation(promise)


def _check_change(before: State, event: Event, after: State) -> None:
    """Only a completion makes an engine serve, and only what served is remembered as what to restore."""
    if after.serving not in (None, before.serving):
        warmed = isinstance(before.doing, Warm) and isinstance(event, Done) and before.doing.unit == after.serving
        _require(warmed, "serves without having answered a completion")
    if before.serving and after.serving is None:
        stopped = isinstance(after.doing, Stop) and after.doing.unit == before.serving
        failed = isinstance(event, Died | Useless) and event.unit == before.serving
        _require(stopped or failed, "it doesn't serve any more though it neither failed nor is being stopped")
    if isinstance(event, Up) and event.fit and isinstance(before.doing, Choose) and not before.order:
        _require(after.goal == event.unit or bool(before.unknown), "what is verified and up wasn't adopted")
    if after.last != before.last:
        _require(after.last in (before.serving, after.serving), "what would be restored never served")
    if isinstance(event, Failed) and event.passing and before.order is None and before.goal:
        _require(not after.person, "a passing failure left it dark for a person")
    bringing_up = isinstance(before.doing, Stage | PutBack | Inspect | Start | Warm) and before.order is None
    if isinstance(event, Failed) and bringing_up and before.goal:
        _require(not after.person, "a failure left it dark and nobody asked who else may have the card")
    if after.failure and after.goal != before.goal:
        _require(after.goal in (after.last, None), "restores what never served")


def _check_late(state: State) -> None:
    """Reports of effects that nobody awaits change nothing, except "it is up"."""
    for report in (Done(-1), Failed(-1, "x"), Seen(-1, up=True), Checked(-1, C), Found(-1, frozenset({C}), C, None)):
        _require(machine.step(state, report)[0] == state, f"a late {type(report).__name__} changed something")
    for unit in EVERYTHING:
        after, _ = machine.step(state, Up(-1, unit))
        _require(unit in after.up, "a late report that it is up was dropped")
        _require(after.serving is None or after.serving in after.up, "what isn't up serves: its container is another's")


def _check_effect(before: State, after: State, world: World, event: Event, effect: Effect) -> None:
    unseen = frozenset(unit for what, unit in world.news if what == "up")
    match effect:
        case Start(_, unit):
            _require(not (world.running - unseen), f"started {unit.label} while {_names(world.running)} is up")
            _require(not world.calls, f"started {unit.label} while another call is under way")
            inspected = before.doing == Inspect(before.number, unit) and isinstance(event, Done)
            _require(inspected, f"started {unit.label} without a good inspection")
            _require(not isinstance(gate(after), Open), "started with the gate open")
            _require(not after.failure or unit == after.last, f"restores {unit.label}, which never served")
        case Stop(_, unit):
            _require(gate(after) != Open(unit), f"stopped {unit.label} with the gate open to it")
            if not isinstance(event, Useless):  # which has nothing to drain: all that it answers are errors
                _require(gate(before) != Open(unit), f"stopped {unit.label} with the gate open to it")
                _require(before.serving != unit or before.closed, f"stopped {unit.label}, serving, without draining")
        case Stage(_, unit) | PutBack(_, unit):
            up = any(other.engine == unit.engine for other in world.running - unseen)
            _require(not up, f"remade the container of {unit.label} while it runs")
            _require(not world.busy(unit), f"remade the container of {unit.label} during a call on it")
        case Answer(order, code):
            if order.id == 1:
                _check_answer(after, world, order, code)
        case Record(unit, True):
            _require(unit == after.serving, f"evidence for {unit.label}, which doesn't serve")
        case _:
            pass


def _check_answer(after: State, world: World, order: Order, code: Code) -> None:
    dead = frozenset(unit for what, unit in world.news if what == "died")
    opened = gate(after)
    match code:
        case Code.SERVES:
            _require(isinstance(opened, Open), "answered 0 with the gate not open")
            assert isinstance(opened, Open)
            _require((opened.unit.engine, opened.unit.pair) == (order.engine, order.pair), "answered 0 for another")
            _require(opened.unit in world.running | dead, "answered 0 for what doesn't run")
        case Code.RESTORED:
            _require(isinstance(opened, Open), "answered 4 with nothing serving")
        case Code.REFUSED:
            _require(not after.closed, "answered 3 with the gate closed")
        case Code.DARK:
            _require(not isinstance(opened, Open), "answered 5 while an engine serves")


def _check_state(state: State, world: World) -> None:
    arriving = {unit for what, unit in world.news if what == "up"}
    starting = {state.doing.unit} if isinstance(state.doing, Start) else set()
    if state.looked:
        lost = world.running - state.up - state.unknown - arriving - starting
        _require(not lost, f"{_names(frozenset(lost))} is up and nobody remembers it")
    if isinstance(opened := gate(state), Open):
        dead = {unit for what, unit in world.news if what == "died"}
        _require(opened.unit in world.running | dead, "the gate is open to what doesn't run")
        _require(opened.unit in state.up, "the gate is open to what isn't up")
    if state.serving is not None:
        _require(state.serving in state.up, "what isn't up serves")
    _require(not state.person or state.spoiled not in state.up, "what never got ready is left on the card")
    _require(not state.person or len(state.up) <= 1, "two are up, and nobody makes one end")
    if state.doing is None:
        idle = state.goal is None and state.order is None
        _require(idle, "nothing is being done although there is something to do")
        _require(state.serving is not None or state.person, "dark, and neither a person nor time is waited for")


def _killed(node: Node) -> Node:
    """SIGKILL in any state, a call that has only just begun included, and a new daemon."""
    state, world = node
    match state.doing:
        case Start(unit=unit):
            return _restarted(world, "start", world.container(unit.engine))
        case Stop(unit=unit):
            return _restarted(world, "stop", unit)
        case _:
            return _restarted(world)


@functools.cache
def _restarted(world: World, kind: str = "", unit: Unit = A) -> Node:
    if kind:
        world = _calling(world, DEAD, kind, unit)
    return _canonical(machine.START, world.killed())


def _canonical(state: State, world: World) -> Node:
    """Fold what doesn't matter: texts, the length of the back-off, absolute numbers (0 is nobody's: it tells news)."""
    number, doing = len(world.calls) + 1, state.doing
    if isinstance(doing, Rest):
        doing = Rest(number, 0)
    elif isinstance(doing, Choose):
        doing = replace(doing, n=number, failures=1, spent=frozenset(), later=frozenset(), why="")
    elif doing is not None and doing.n != number:
        doing = replace(doing, n=number)
    folded = replace(
        state,
        doing=doing,
        number=number,
        attempt=0,
        failures=0,
        spent=frozenset(),
        later=frozenset(),
        failure="x" if state.failure else "",
        dark="",
    )
    if not world.calls:
        return folded, world
    calls = sorted(world.calls)
    kept = (call if call.n == DEAD else replace(call, n=i) for i, call in enumerate(calls, 1))
    return folded, replace(world, calls=frozenset(kept))


# ------------------------------------------------------------------------------------------------- ways


def _check_ways(graph: _Graph) -> None:
    """From everywhere there is a way to serving; without people, to serving or to a dark that says it needs one."""
    states = [state for state, _ in graph.nodes]
    good = {n for n, state in enumerate(states) if isinstance(gate(state), Open) and state.order is None}
    dark = {n for n, state in enumerate(states) if state.person}
    for how, ends, alone in (("at all", good, False), ("or to a person, by itself", good | dark, True)):
        reached = _backwards(graph, ends, alone=alone)
        lost = next((n for n in range(len(states)) if n not in reached), None)
        if lost is not None:
            raise Violation(f"no way to serving {how}\n{_path(graph, lost)}  ← from here")


_BY_PEOPLE = ("ordered", "aborted", "told: unfit", "found nothing", "chose nobody", "killed")


def _backwards(graph: _Graph, good: set[int], *, alone: bool) -> set[int]:
    incoming: list[list[int]] = [[] for _ in graph.nodes]
    for number, out in enumerate(graph.edges):
        for name, after in out:
            if not (alone and (name.startswith(_BY_PEOPLE) or name.endswith("by hand"))):
                incoming[after].append(number)
    reached, queue = set(good), deque(good)
    while queue:
        for number in incoming[queue.popleft()]:
            if number not in reached:
                reached.add(number)
                queue.append(number)
    return reached


def _path(graph: _Graph, number: int) -> str:
    lines: list[str] = []
    while number >= 0:
        state, _ = graph.nodes[number]
        number, name = graph.found_from[number]
        lines.append(f"  {name}  → {type(state.doing).__name__ if state.doing else 'nothing'}")
    return "\n".join(reversed(lines))


def _names(units: frozenset[Unit]) -> str:
    return ", ".join(unit.label for unit in sorted(units)) or "nothing"


__all__ = ["Interrupt", "Violation", "walk"]
