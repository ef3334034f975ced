"""The forecast's exact engine: each step through `core.batching.Scheduler`, as the simulated engine runs it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.core.batching import Limits, Request, Scheduler, Step
from controlplane.core.forecast_engine import Account, Ends, Leg, StepCosts
from controlplane.core.perf import StepCost

NOTHING = StepCost(0.0, 0.0, 0.0, 0.0, 0.0)


class StepwiseEngine:
    """See `forecast_engine.Engine`."""

    def __init__(self, costs: StepCosts, limits: Limits, account: Account) -> None:
        self.capacity_tokens = limits.num_blocks * limits.block_size
        self._scheduler = Scheduler(limits)
        self._costs = costs
        self._account = account
        self._legs: dict[int, Leg] = {}
        self._requests: dict[int, Request] = {}
        """By leg number; those held for a peer included."""
        self._last_token: dict[int, float] = {}
        self._step: tuple[Step, float, StepCost] | None = None

    @property
    def busy(self) -> bool:
        return self._step is not None

    def submit(self, leg: Leg) -> None:
        request = Request(leg.number, leg.prompt_tokens, keys=list(leg.keys), remote=leg.remote)
        self._legs[leg.number] = leg
        self._requests[leg.number] = request
        self._scheduler.submit(request)

    def loaded(self, leg: Leg) -> None:
        self._scheduler.loaded(self._requests[leg.number])

    def release(self, leg: Leg) -> None:
        self._scheduler.release(leg.number)
        del self._requests[leg.number]

    def hit_tokens(self, keys: Sequence[int], prompt_tokens: int, now: float) -> int:
        size = self._scheduler.limits.block_size
        return len(self._scheduler.pool.hit(keys, (prompt_tokens - 1) // size)) * size

    def interrupt(self, now: float) -> float | None:
        return None

    def halt(self, now: float) -> None:
        """A step that is not through does not count."""

    def start(self, now: float) -> tuple[float | None, list[Leg]]:
        step = self._scheduler.schedule()
        if step is None:
            return None, []
        for request in step.preempted:
            self._legs[request.id].preemptions += 1
            self._account.totals.preemptions += 1
        for request in step.admitted:
            self._admitted(self._legs[request.id], request, now)
        loads = [self._legs[request.id] for request in step.loads]
        for leg in loads:
            leg.load_began_s = now
            leg.hit_tokens = self._requests[leg.number].local_hit_tokens
        if not (step.work or step.preempted):
            return None, loads
        cost = self._cost(step) if step.work else NOTHING  # all were preempted: look at the queue again at once
        self._step = step, now, cost
        return now + cost.seconds, loads

    def _cost(self, step: Step) -> StepCost:
        prefills: list[tuple[int, int]] = []
        decodes = context = 0
        for work in step.work:
            past = work.past + self._legs[work.request.id].shared_tokens
            if work.tokens > 1:
                prefills.append((work.tokens, past))
            else:
                decodes += 1
                context += past + 1
        return self._costs.mixed(prefills, decodes, context)

    def _admitted(self, leg: Leg, request: Request, now: float) -> None:
        if leg.began_s == leg.began_s:
            return
        leg.began_s = now
        if not leg.remote:
            leg.hit_tokens = request.local_hit_tokens
            self._account.admitted(leg)

    def advance(self, now: float) -> Ends:
        assert self._step is not None
        step, started, cost = self._step
        self._step = None
        ends = Ends([], [])
        steady = 0
        if step.work:
            self._account.step(cost)
        for request in self._scheduler.complete(step):
            leg = self._legs[request.id]
            last = self._last_token.get(leg.number)
            self._last_token[leg.number] = now
            if last is None:
                leg.first_token_s = now
                self._account.totals.output_tokens += 1
                ends.first_tokens.append(leg)
            elif last == started:
                steady += 1
            else:
                self._account.sampled(now - last, 1)
            if request.generated == leg.output_tokens:
                self._finish(leg, request)
                ends.finished.append(leg)
        self._account.sampled(cost.seconds, steady)
        return ends

    def _finish(self, leg: Leg, request: Request) -> None:
        self._scheduler.finish(request, float("inf") if leg.hold else None)
        del self._legs[leg.number], self._last_token[leg.number]
        if not leg.hold:
            del self._requests[leg.number]
