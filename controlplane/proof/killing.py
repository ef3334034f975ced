"""Carries out cells of the kill matrix on one fleet under streams, one after another, and says what did not hold."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import redis
from django.db import Error as DatabaseError
from django.db import close_old_connections

from controlplane.control import actions
from controlplane.core.lifecycle import ENDED
from controlplane.fleet import models
from controlplane.proof.cells import ASKER, KINDS, Cell, Shape, kill, signature, under_change
from controlplane.proof.fleet import Fleet
from controlplane.proof.invariants import broken_now, out_of_service, read_facts, unsettled
from controlplane.proof.streams import Loss, Streams

T = TypeVar("T")
LOOK_S = 0.005
END_S = 150.0
"""An operation, and the processes that were killed, must be through by then."""
SETTLE_S = 10.0
"""After recovery no engine may be outside both pools for longer, and nothing else be unsettled. On a starved machine the
matrix may be given more."""
GOOD_ENDS = frozenset({"done", "rolled_back"})


@dataclass(frozen=True)
class Result:
    """`reached` False: the operation was through before that boundary. `settled_s`: from recovery until all invariants
    held."""

    cell: Cell
    reached: bool
    killed: str = ""
    state: str = ""
    outcome: str = ""
    settled_s: float = 0.0
    lost: int = 0
    problems: Sequence[str] = ()

    def told(self) -> str:
        """In words, without the problems."""
        if not self.reached:
            return "not reached"
        ended = f"{self.killed or 'nothing there to be'} killed, {self.state} ({self.outcome})"
        return f"{ended}, settled {self.settled_s:.1f} s after recovery, {self.lost} streams ended"


class Matrix:
    """`run` one cell after another. `settle_s` and `end_s` bound every wait."""

    def __init__(self, fleet: Fleet, streams: Streams, settle_s: float = SETTLE_S, end_s: float = END_S) -> None:
        self._fleet, self._streams = fleet, streams
        self._settle_s, self._end_s = settle_s, end_s

    def run(self, cell: Cell) -> Result:
        """Bring the model to where the operation starts, ask for it, kill at the boundary, wait for the end, look."""
        kind = KINDS[cell.kind]
        self.bring(kind.start)
        losses = len(self._streams.losses)
        operation = _again(lambda: kind.ask(models.Model.objects.get().name))
        if not self._at_boundary(cell.boundary, operation):
            return Result(cell, reached=False)
        engine = under_change(operation)
        killed = kill(self._fleet, cell.victim, engine)
        problems: list[str] = []
        state, outcome = self._ended(operation, problems)
        settled_s = self._settled(problems)
        lost = self._streams.losses[losses:]
        problems += forbidden(lost, cell.victim, engine)
        return Result(cell, True, killed, state, outcome, settled_s, len(lost), problems)

    def bring(self, shape: Shape) -> None:
        """The model in this mode with pools of these sizes, no canary, no engine held, everything settled, and the kills of
        earlier cells forgotten: an engine that dies again and again waits ever longer for its next start. Raises
        AssertionError if it does not get there."""
        self._settle()
        while _again(lambda: self._nearer(shape)):
            self._settle()
        _again(lambda: models.Engine.objects.filter(failures__gt=0).update(failures=0))

    def _nearer(self, shape: Shape) -> bool:
        """Ask for one change towards `shape`; False if nothing is left to do."""
        row = models.Model.objects.get()
        sizes = dict(row.pools.filter(desired_engines__gt=0, arm=models.MAIN).values_list("role", "desired_engines"))
        if row.canaries.filter(ended_at=None).exists():
            actions.end_canary(ASKER, row.name)
        elif held := row.engines.filter(held=True, wanted=True).first():
            actions.undrain_engine(ASKER, held.id)
        elif row.mode != shape.mode:
            actions.set_mode(ASKER, row.name, shape.mode, split=shape.sizes)
        elif sizes != shape.sizes:
            actions.rebalance(ASKER, row.name, shape.sizes)
        else:
            return False
        return True

    def _settle(self) -> None:
        deadline = time.monotonic() + self._end_s
        while left := _again(lambda: unsettled(self._fleet)):
            assert time.monotonic() < deadline, f"not settled after {self._end_s:.0f} s: {'; '.join(left)}"
            time.sleep(0.1)

    def _at_boundary(self, boundary: int, operation: models.Operation) -> bool:
        """Wait for it. False if the operation was through before."""
        seen, changes = signature(operation), 0
        while changes < boundary:
            if _state(operation)[0] in ENDED:
                return False
            time.sleep(LOOK_S)
            now = signature(operation)
            changes += now != seen
            seen = now
        return True

    def _ended(self, operation: models.Operation, problems: list[str]) -> tuple[str, str]:
        state, outcome = "", ""
        out: dict[str, float] = {}
        deadline = time.monotonic() + self._end_s
        while time.monotonic() < deadline:
            problems += self._out_too_long(out)
            problems += [each for each in _again(lambda: broken_now(read_facts(self._fleet))) if each not in problems]
            state, outcome = _again(lambda: _state(operation))
            if state in ENDED and self._fleet.all_ready():
                break
            time.sleep(0.1)
        if state not in GOOD_ENDS:
            problems.append(f"the operation is {state}, neither done nor rolled back: {outcome}")
        if not self._fleet.all_ready():
            down = {name: each.state for name, each in self._fleet.processes().items() if each.state != "ready"}
            problems.append(f"not everything runs again: {down}")
        return state, outcome

    def _out_too_long(self, out: dict[str, float]) -> list[str]:
        """Engines that serve nobody although everything runs again, the first time that is seen for `settle_s`. `out`: since
        when each does."""
        now = time.monotonic()
        ids = _again(lambda: out_of_service(self._fleet)) if self._fleet.all_ready() else set()
        for id in out.keys() - ids:
            del out[id]
        late = [id for id in ids if now - out.setdefault(id, now) > self._settle_s]
        for id in late:
            out[id] = float("inf")
        return [f"{id} serves nobody for more than {self._settle_s:.0f} s after recovery" for id in late]

    def _settled(self, problems: list[str]) -> float:
        began = time.monotonic()
        while left := _again(lambda: unsettled(self._fleet)):
            if time.monotonic() - began > self._settle_s:
                problems += [f"{self._settle_s:.0f} s after recovery: {each}" for each in left]
                break
            time.sleep(0.1)
        return time.monotonic() - began


def forbidden(losses: Sequence[Loss], victim: str, engine: str) -> list[str]:
    """Losses that a kill does not excuse: only streams on a killed engine or through a killed router may end, and those so
    that their client knows."""
    found = []
    for loss in losses:
        told = loss.outcome == "failed" or (victim == "router" and loss.outcome == "refused")
        touched = victim == "router" or (victim == "engine" and f"={engine}" in loss.route)
        if not (told and touched):
            found.append(f"a stream is {loss.outcome}: {loss.why} [{loss.route}]")
    return found


def _state(operation: models.Operation) -> tuple[str, str]:
    row = models.Operation.objects.filter(pk=operation.pk).values_list("state", "outcome").get()
    return str(row[0]), str(row[1])


def _again(call: Callable[[], T], within_s: float = 90.0) -> T:
    """The result of `call`, tried again while a server that was killed is away."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return call()
        except (DatabaseError, redis.RedisError):
            if time.monotonic() > deadline:
                raise
            close_old_connections()
            time.sleep(0.1)


def ends(results: Sequence[Result]) -> Mapping[str, int]:
    """How the operations of cells ended, and how many."""
    return Counter(result.state for result in results)
