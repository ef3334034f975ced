"""The forecast's fast engine: the rules of `core.batching.Scheduler`, with equal decode steps merged in closed form. Pure.

While only decodes run and nobody can join, n steps take n·(a + k·S) + k·b·n(n-1)/2 seconds (b sequences, contexts that sum
to S at first), so a run goes on to the next answer's end, to the step before blocks run out, or until something arrives.
At most one prompt is partly computed, and it is the youngest of the batch: whoever computes a part has used up the step's
budget. `tests/unit/test_forecast_agreement.py` compares this with the scheduler itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from controlplane.core.batching import Limits
from controlplane.core.forecast_blocks import BlockCounts
from controlplane.core.forecast_decodes import Decodes, Member, Run
from controlplane.core.forecast_engine import Account, Ends, Leg, StepCosts
from controlplane.core.perf import StepCost


class MergedEngine:
    """See `forecast_engine.Engine`."""

    def __init__(self, costs: StepCosts, limits: Limits, account: Account) -> None:
        self.capacity_tokens = limits.num_blocks * limits.block_size
        self.busy = False
        self._limits = limits
        self._costs = costs
        self._account = account
        self._blocks = BlockCounts(limits.num_blocks, limits.prefix_caching)
        self._waiting: deque[Member] = deque()
        self._arrived: deque[Member] = deque()
        self._away: dict[int, Member] = {}
        """Loading or held, by leg number."""
        self._running: dict[Member, None] = {}
        """In the order in which they joined the batch."""
        self._partial: Member | None = None
        self._decodes = Decodes(limits.block_size)
        self._started_s = 0.0
        self._run: Run | None = None
        """What is under way: decode steps alone, or"""
        self._work: list[tuple[Member, int]] = []
        """one step that computes so many new tokens of prompts, beside the decodes,"""
        self._cost: StepCost | None = None
        """at this cost."""
        self._full = False
        """The first in the queue lacks blocks, and only an end or a release can change that."""

    # --- from outside -----------------------------------------------------------------------------------------------------

    def submit(self, leg: Leg) -> None:
        self._waiting.append(Member(leg))

    def loaded(self, leg: Leg) -> None:
        member = self._away.pop(leg.number)
        member.remote = False
        member.computed = member.tokens - 1
        self._arrived.append(member)

    def release(self, leg: Leg) -> None:
        self._free(self._away.pop(leg.number))
        self._full = False

    def hit_tokens(self, keys: Sequence[int], prompt_tokens: int, now: float) -> int:
        self._catch_up(now)
        size = self._limits.block_size
        return self._blocks.hits(keys, (prompt_tokens - 1) // size) * size

    # --- runs -------------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> tuple[float | None, list[Leg]]:
        decodes, loads = self._decodes, list[Leg]()
        self._work, self._run, self._cost = [], None, None
        self._started_s = now
        preempted = self._make_room(now)
        budget = self._limits.max_num_batched_tokens - decodes.count
        if self._partial is not None:
            budget -= self._compute(self._partial, budget)
        if not preempted:
            budget = self._admit_arrived(budget, now)
            self._admit_waiting(budget, now, loads)
        self.busy = bool(self._work or decodes.count or preempted)
        if self._work:
            self._cost = self._mixed_cost()
            return now + self._cost.seconds, loads
        if decodes.count:
            line = self._costs.line(decodes.count, decodes.context)
            steps = 1 if preempted else self._longest_run(line.until_context)
            self._run = Run(line, decodes.count, decodes.context, now, steps)
            return self._run.ends_s(steps), loads
        # If all were preempted, the queue is looked at again at once.
        return (now if preempted else None), loads

    def advance(self, now: float) -> Ends:
        ends = Ends([], [])
        self.busy = False
        if self._run is not None:
            self._pass(self._run.steps)
        elif self._cost is not None:
            self._account.step(self._cost)
            self._account.sampled(now - self._started_s, self._decodes.count)
            self._decodes.passes(1)
        for member in self._decodes.leave_ended():
            del self._running[member]
            self._finish(member, ends)
        for member, tokens in self._work:
            self._computed(member, tokens, now, ends)
        return ends

    def interrupt(self, now: float) -> float | None:
        run = self._run
        if run is None or len(self._running) >= self._limits.max_num_seqs or (self._full and not self._arrived):
            return None
        steps = run.step_at(now)
        if steps == run.steps:
            return None
        run.steps = steps
        return run.ends_s(steps)

    def halt(self, now: float) -> None:
        if self._run is not None:
            steps = self._run.step_at(now)
            self._pass(steps if self._run.ends_s(steps) <= now else steps - 1)

    def _catch_up(self, now: float) -> None:
        """Bring a run that evicts blocks up to the step under way, so that its prefix cache can be looked at."""
        run, decodes = self._run, self._decodes
        if run is None or self._blocks.plain >= decodes.count * (run.steps // self._limits.block_size + 1):
            return
        steps = run.step_at(now) - 1
        if steps:
            self._pass(steps)
            self._blocks.take(decodes.new_blocks())
            self._run = Run(run.line, decodes.count, decodes.context, run.ends_s(steps), run.steps - steps)

    def _pass(self, steps: int) -> None:
        """The first `steps` steps of the run are through; the first one's blocks were taken when it began."""
        if steps and self._run is not None:
            self._account.run(self._run.line, self._decodes.count, self._decodes.context, steps)
            self._blocks.take(self._decodes.passes(steps))

    def _longest_run(self, until_context: float) -> int:
        """Steps until an answer ends, blocks run out or the line of the costs bends."""
        decodes = self._decodes
        steps = decodes.steps_to_end()
        if until_context < math.inf:
            steps = min(steps, max(1, math.ceil((until_context - decodes.context) / decodes.count)))
        return decodes.steps_within(self._blocks.free, steps)

    def _mixed_cost(self) -> StepCost:
        """Of a step that computes prompts, too; single tokens count as decodes, as `batching.Step` has it."""
        prefills: list[tuple[int, int]] = []
        count, context = self._decodes.count, self._decodes.context
        for member, tokens in self._work:
            past = member.computed + member.leg.shared_tokens
            if tokens > 1:
                prefills.append((tokens, past))
            else:
                count += 1
                context += past + 1
        return self._costs.mixed(prefills, count, context)

    def _computed(self, member: Member, tokens: int, now: float, ends: Ends) -> None:
        """A part of a prompt is computed; the last part gives a token."""
        member.computed += tokens
        if member.computed < member.tokens:
            self._partial = member
            return
        if self._partial is member:
            self._partial = None
        if math.isnan(member.leg.first_token_s):
            member.leg.first_token_s = now
            ends.first_tokens.append(member.leg)
            self._account.totals.output_tokens += 1
        else:
            self._account.sampled(now - member.last_token_s, 1)
        member.tokens += 1
        member.left -= 1
        if member.left:
            self._decodes.join(member)
        else:
            del self._running[member]
            self._finish(member, ends)

    def _finish(self, member: Member, ends: Ends) -> None:
        if member.leg.hold:
            self._away[member.leg.number] = member
        else:
            self._free(member)
        ends.finished.append(member.leg)

    # --- blocks -----------------------------------------------------------------------------------------------------------

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._limits.block_size)

    def _make_room(self, now: float) -> bool:
        """Take the decodes' new blocks for the next step, preempting from the youngest until they are there and a partly
        computed prompt can go on. Whether anyone had to go."""
        preempted, taken = False, 0
        while True:
            wanted = self._decodes.new_blocks() - taken
            enough = wanted + self._partial_growth() <= self._blocks.free
            # The older ones take what is there before the youngest goes, which decides what the prefix cache forgets.
            count = wanted if enough else min(wanted, self._blocks.free)
            self._blocks.take(count)
            taken += count
            if enough:
                return preempted
            self._preempt(now)
            preempted = True

    def _partial_growth(self) -> int:
        """Blocks that the partly computed prompt needs for its next part."""
        if self._partial is None:
            return 0
        tokens = self._part(self._partial, self._limits.max_num_batched_tokens - self._decodes.count)
        return self._blocks_for(self._partial.computed + tokens) - self._partial.blocks

    def _preempt(self, now: float) -> None:
        member, _ = self._running.popitem()
        if member is self._partial:
            self._partial = None
        else:
            self._decodes.leave(member)
            member.last_token_s = now
        self._free(member)
        member.computed = 0
        member.leg.preemptions += 1
        self._account.totals.preemptions += 1
        self._waiting.appendleft(member)

    def _free(self, member: Member) -> None:
        self._blocks.give_back(member.blocks - len(member.known), member.known)
        member.known = []
        member.blocks = 0

    def _grow(self, member: Member, tokens: int) -> None:
        blocks = max(member.blocks, self._blocks_for(tokens))
        self._blocks.take(blocks - member.blocks)
        member.blocks = blocks

    def _remember(self, member: Member, tokens: int) -> None:
        """The full blocks among its first `tokens` can be hit from now on."""
        if member.leg.keys:
            known = len(member.known)
            member.known += self._blocks.remember(member.leg.keys[known : tokens // self._limits.block_size])

    # --- joining the batch ------------------------------------------------------------------------------------------------

    def _admit_arrived(self, budget: int, now: float) -> int:
        while self._arrived and budget and len(self._running) < self._limits.max_num_seqs:
            member = self._arrived.popleft()
            self._begin(member, now)
            budget -= self._compute(member, budget)
        return budget

    def _admit_waiting(self, budget: int, now: float, loads: list[Leg]) -> None:
        size = self._limits.block_size
        self._full = False
        while self._waiting and budget and len(self._running) < self._limits.max_num_seqs:
            member = self._waiting[0]
            hit = self._blocks.hit(member.leg.keys, (member.tokens - 1) // size)
            if self._blocks_for(member.tokens) - len(hit) + self._blocks.idle_among(hit) > self._blocks.free:
                self._full = True
                return
            self._waiting.popleft()
            self._blocks.share(hit)
            member.known = hit
            member.blocks = len(hit)
            member.computed = len(hit) * size
            if member.remote:
                self._load(member, now, loads)
            else:
                self._begin(member, now)
                budget -= self._compute(member, budget)

    def _load(self, member: Member, now: float, loads: list[Leg]) -> None:
        """All its blocks are set aside until its KV has come."""
        self._grow(member, member.tokens)
        member.leg.hit_tokens = member.computed
        member.leg.load_began_s = now
        self._away[member.leg.number] = member
        loads.append(member.leg)

    def _begin(self, member: Member, now: float) -> None:
        self._running[member] = None
        leg = member.leg
        if math.isnan(leg.began_s):
            leg.began_s = now
            if not leg.remote:
                leg.hit_tokens = member.computed
                self._account.admitted(leg)

    def _compute(self, member: Member, budget: int) -> int:
        """The next part of a prompt goes into the step. Returns its tokens."""
        tokens = self._part(member, budget)
        self._grow(member, member.computed + tokens)
        self._remember(member, member.computed + tokens)
        self._work.append((member, tokens))
        return tokens

    def _part(self, member: Member, budget: int) -> int:
        return min(member.tokens - member.computed, budget)
