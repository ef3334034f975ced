"""The forecast's fast engine: the rules of `core.batching.Scheduler`, with equal decode steps merged in closed form. Pure.

While only decodes run and nobody can join, n steps take n·(a + k·S) + k·b·n(n-1)/2 seconds (b sequences, contexts that sum
to S at first), so a run goes on to the next answer's end, to the step before blocks run out, or until something arrives.
What a decoding sequence has done is not stored but follows from the number of steps since it joined: it holds a place in the
sum of contexts, in a heap of last steps, and in `_growth`, the number of sequences that open a new block at a step, by that
step's number modulo the block size. At most one prompt is partly computed, and it is the youngest: whoever computes a part
has used up the step's budget. `tests/unit/test_forecast_agreement.py` compares this with the scheduler itself.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence

from controlplane.core.batching import Limits
from controlplane.core.forecast_blocks import BlockCounts, Known
from controlplane.core.forecast_engine import Account, Ends, Leg, Line, StepCosts
from controlplane.core.perf import StepCost


class _Sequence:
    """A leg in this engine. `tokens`: prompt and answer so far (once it decodes: as of step `joined`). `owned`: those
    of its `blocks` that are known to the prefix cache, its first."""

    __slots__ = (
        "blocks",
        "computed",
        "joined",
        "last_token_s",
        "left",
        "leg",
        "owned",
        "remote",
        "ticket",
        "tokens",
    )

    def __init__(self, leg: Leg) -> None:
        self.leg = leg
        self.tokens = leg.prompt_tokens
        self.left = leg.output_tokens
        self.remote = leg.remote
        self.computed = 0
        self.blocks = 0
        self.owned: list[Known] = []
        self.joined = 0
        self.ticket = 0
        """Of its entry in the heap of last steps; entries with another one are stale."""
        self.last_token_s = math.nan


class MergedEngine:
    """See `forecast_engine.Engine`."""

    def __init__(self, costs: StepCosts, limits: Limits, account: Account) -> None:
        self.capacity_tokens = limits.num_blocks * limits.block_size
        self._limits = limits
        self._costs = costs
        self._account = account
        self._blocks = BlockCounts(limits.num_blocks, limits.prefix_caching)
        self._waiting: deque[_Sequence] = deque()
        self._arrived: deque[_Sequence] = deque()
        self._away: dict[int, _Sequence] = {}
        """Loading or held, by leg number."""
        self._running: dict[_Sequence, None] = {}
        """In the order in which they joined the batch."""
        self._partial: _Sequence | None = None
        self._last_steps: list[tuple[int, int, _Sequence]] = []
        self._tickets = 0
        self._step = 0
        """Steps that are through."""
        self._decodes = 0
        self._context = 0
        """Sum of the decodes' contexts in the next step, shared tokens included."""
        self._growth = [0] * limits.block_size
        # The run under way:
        self.busy = False
        self._started = 0.0
        self._steps = 0
        self._line: Line | None = None
        self._work: list[tuple[_Sequence, int]] = []
        """What is computed beside the decodes: new tokens of prompts."""
        self._cost: StepCost | None = None
        """Of a step with `_work`."""
        self._full = False
        """The first in the queue lacks blocks, and only an end or a release can change that."""

    # --- from outside -----------------------------------------------------------------------------------------------------

    def submit(self, leg: Leg) -> None:
        self._waiting.append(_Sequence(leg))

    def loaded(self, leg: Leg) -> None:
        sequence = self._away.pop(leg.number)
        sequence.remote = False
        sequence.computed = sequence.tokens - 1
        self._arrived.append(sequence)

    def release(self, leg: Leg) -> None:
        self._free(self._away.pop(leg.number))
        self._full = False

    def hit_tokens(self, keys: Sequence[int], prompt_tokens: int, now: float) -> int:
        self._catch_up(now)
        size = self._limits.block_size
        return len(self._blocks.hit(keys, (prompt_tokens - 1) // size)) * size

    # --- runs -------------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> tuple[float | None, list[Leg]]:
        budget = self._limits.max_num_batched_tokens
        work: list[tuple[_Sequence, int]] = []
        loads: list[Leg] = []
        preempted = self._make_room(now)
        budget -= self._decodes
        if self._partial is not None:
            budget -= self._continue(self._partial, budget, work)
        if not preempted:
            budget = self._admit_arrived(budget, now, work)
            self._admit_waiting(budget, now, work, loads)
        self._started = now
        self._work = work
        self._line = self._cost = None
        self.busy = bool(work or self._decodes or preempted)
        if work:
            self._cost = self._mixed_cost(work)
            return now + self._cost.seconds, loads
        if self._decodes:
            self._line = self._costs.line(self._decodes, self._context)
            self._steps = 1 if preempted else self._longest_run(self._line)
            return now + self._seconds(self._line, self._steps), loads
        # If all were preempted, the queue is looked at again at once.
        return (now if preempted else None), loads

    def advance(self, now: float) -> Ends:
        ends = Ends([], [])
        self.busy = False
        if self._line is not None:
            self._pass(self._line, self._steps)
        elif self._cost is not None:
            self._account.step(self._cost)
            self._account.totals.output_tokens += self._decodes
            if self._decodes:
                self._account.gaps.add(now - self._started, self._decodes)
            self._step += 1
            self._context += self._decodes
        while self._last_steps and self._last_steps[0][0] <= self._step:
            _, ticket, sequence = heapq.heappop(self._last_steps)
            if sequence.ticket == ticket:  # or it was preempted meanwhile
                self._leave(sequence)
                self._finish(sequence, ends)
        for sequence, tokens in self._work:
            self._computed(sequence, tokens, now, ends)
        self._work = []
        return ends

    def interrupt(self, now: float) -> float | None:
        if self._line is None or self._steps < 2 or len(self._running) >= self._limits.max_num_seqs:
            return None
        if self._full and not self._arrived:
            return None
        steps = max(1, self._steps_until(self._line, now))
        if steps >= self._steps:
            return None
        self._steps = steps
        return self._started + self._seconds(self._line, steps)

    def halt(self, now: float) -> None:
        if self._line is None:
            return
        steps = min(self._steps, self._steps_until(self._line, now))
        if steps and self._started + self._seconds(self._line, steps) > now:
            steps -= 1
        self._pass(self._line, steps)

    def _mixed_cost(self, work: list[tuple[_Sequence, int]]) -> StepCost:
        """Of a step that computes prompts, too; single tokens count as decodes, as `batching.Step` has it."""
        prefills: list[tuple[int, int]] = []
        decodes, context = self._decodes, self._context
        for sequence, tokens in work:
            past = sequence.computed + sequence.leg.shared_tokens
            if tokens > 1:
                prefills.append((tokens, past))
            else:
                decodes += 1
                context += past + 1
        return self._costs.mixed(prefills, decodes, context)

    def _longest_run(self, line: Line) -> int:
        """Steps until an answer ends, blocks run out or the costs' line bends. Finished entries of the heap are dropped."""
        ends = self._last_steps
        while ends[0][1] != ends[0][2].ticket:
            heapq.heappop(ends)
        steps = ends[0][0] - self._step
        if not math.isinf(line.until_context):
            steps = min(steps, max(1, math.ceil((line.until_context - self._context) / self._decodes)))
        size, free = self._limits.block_size, self._blocks.free
        if self._decodes * (steps // size + 1) <= free:
            return steps
        needed = 0
        for ahead in range(1, steps):
            needed += self._growth[(self._step + ahead) % size]
            if needed > free:
                return ahead
        return steps

    def _seconds(self, line: Line, steps: int) -> float:
        first = line.base_s + line.per_token_s * self._context
        return steps * first + line.per_token_s * self._decodes * (steps * (steps - 1) / 2)

    def _steps_until(self, line: Line, now: float) -> int:
        """The first step of the run that ends at `now` or later, from 1 (the run may be shorter)."""
        grows = line.per_token_s * self._decodes
        half = line.base_s + line.per_token_s * self._context - grows / 2
        elapsed = max(0.0, now - self._started)
        return math.ceil(2 * elapsed / (half + math.sqrt(half * half + 2 * grows * elapsed)) - 1e-9)

    def _catch_up(self, now: float) -> None:
        """Bring a run that evicts blocks up to the step under way, so that its prefix cache can be looked at."""
        if (
            self._line is None
            or self._steps < 2
            or self._blocks.plain >= self._decodes * (self._steps // self._limits.block_size + 1)
        ):
            return
        steps = min(self._steps, self._steps_until(self._line, now)) - 1
        if steps > 0:
            seconds = self._seconds(self._line, steps)
            self._pass(self._line, steps)
            self._blocks.take(self._growth[self._step % self._limits.block_size])
            self._started += seconds
            self._steps -= steps

    def _pass(self, line: Line, steps: int) -> None:
        """`steps` decode steps of the run are through; the first one's blocks were taken when it began."""
        if not steps:
            return
        self._account.run(line, self._decodes, self._context, steps)
        self._account.totals.output_tokens += steps * self._decodes
        size = self._limits.block_size
        rounds, rest = divmod(steps - 1, size)
        grown = rounds * self._decodes + sum(self._growth[(self._step + 1 + ahead) % size] for ahead in range(rest))
        self._blocks.take(grown)
        self._step += steps
        self._context += steps * self._decodes

    # --- blocks -----------------------------------------------------------------------------------------------------------

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._limits.block_size)

    def _make_room(self, now: float) -> bool:
        """Take the decodes' new blocks for the next step, preempting from the youngest until they are there and a partly
        computed prompt can go on. Whether anyone had to go."""
        preempted, taken = False, 0
        while True:
            wanted = self._growth[self._step % self._limits.block_size] - taken
            enough = wanted + self._partial_growth() <= self._blocks.free
            # The older ones take what is there before the youngest goes, which decides what the prefix cache forgets.
            count = wanted if enough else min(wanted, self._blocks.free)
            self._blocks.take(count)
            taken += count
            if enough:
                return preempted
            self._preempt(now)
            preempted = True

    def _preempt(self, now: float) -> None:
        sequence, _ = self._running.popitem()
        if sequence is self._partial:
            self._partial = None
        else:
            self._stop_decoding(sequence)
            sequence.last_token_s = now
        self._free(sequence)
        sequence.computed = 0
        sequence.leg.preemptions += 1
        self._account.totals.preemptions += 1
        self._waiting.appendleft(sequence)

    def _partial_growth(self) -> int:
        """Blocks that the partly computed prompt needs for its next part."""
        if self._partial is None:
            return 0
        tokens = self._chunk(self._partial, self._limits.max_num_batched_tokens - self._decodes)
        return self._blocks_for(self._partial.computed + tokens) - self._partial.blocks

    def _chunk(self, sequence: _Sequence, budget: int) -> int:
        return min(sequence.tokens - sequence.computed, budget)

    def _free(self, sequence: _Sequence) -> None:
        self._blocks.give_back(sequence.blocks - len(sequence.owned), sequence.owned)
        sequence.owned = []
        sequence.blocks = 0

    def _remember(self, sequence: _Sequence, tokens: int) -> None:
        """The full blocks among the first `tokens` of a sequence can be hit from now on."""
        keys, first = sequence.leg.keys, len(sequence.owned)
        if keys:
            sequence.owned += self._blocks.remember(keys[first : tokens // self._limits.block_size])

    # --- joining and leaving ----------------------------------------------------------------------------------------------

    def _continue(self, sequence: _Sequence, budget: int, work: list[tuple[_Sequence, int]]) -> int:
        """The next part of the prompt that is partly computed. Returns its tokens."""
        tokens = self._chunk(sequence, budget)
        self._grow(sequence, sequence.computed + tokens)
        self._remember(sequence, sequence.computed + tokens)
        work.append((sequence, tokens))
        return tokens

    def _grow(self, sequence: _Sequence, tokens: int) -> None:
        blocks = max(sequence.blocks, self._blocks_for(tokens))
        self._blocks.take(blocks - sequence.blocks)
        sequence.blocks = blocks

    def _admit_arrived(self, budget: int, now: float, work: list[tuple[_Sequence, int]]) -> int:
        while self._arrived and budget and len(self._running) < self._limits.max_num_seqs:
            sequence = self._arrived.popleft()
            self._remember(sequence, sequence.tokens)
            self._join(sequence, 1, now, work)
            budget -= 1
        return budget

    def _admit_waiting(self, budget: int, now: float, work: list[tuple[_Sequence, int]], loads: list[Leg]) -> None:
        size = self._limits.block_size
        self._full = False
        while self._waiting and budget and len(self._running) < self._limits.max_num_seqs:
            sequence = self._waiting[0]
            hit = self._blocks.hit(sequence.leg.keys, (sequence.tokens - 1) // size)
            if self._blocks_for(sequence.tokens) - len(hit) + self._blocks.idle_among(hit) > self._blocks.free:
                self._full = True
                return
            self._blocks.share(hit)
            sequence.owned = hit
            sequence.blocks = len(hit)
            sequence.computed = len(hit) * size
            self._waiting.popleft()
            if sequence.remote:
                self._grow(sequence, sequence.tokens)
                self._load(sequence, now, loads)
            else:
                tokens = self._chunk(sequence, budget)
                self._grow(sequence, sequence.computed + tokens)
                self._remember(sequence, sequence.computed + tokens)
                self._join(sequence, tokens, now, work)
                budget -= tokens

    def _load(self, sequence: _Sequence, now: float, loads: list[Leg]) -> None:
        leg = sequence.leg
        leg.hit_tokens = sequence.computed
        leg.load_began_s = now
        self._away[leg.number] = sequence
        loads.append(leg)

    def _join(self, sequence: _Sequence, tokens: int, now: float, work: list[tuple[_Sequence, int]]) -> None:
        """Into the batch, with `tokens` to compute in the next step."""
        leg = sequence.leg
        if math.isnan(leg.began_s):
            leg.began_s = now
            if not leg.remote:
                leg.hit_tokens = sequence.computed
                self._account.admitted(leg)
        self._running[sequence] = None
        work.append((sequence, tokens))

    def _computed(self, sequence: _Sequence, tokens: int, now: float, ends: Ends) -> None:
        """A part of a prompt is computed; the last part gives a token."""
        sequence.computed += tokens
        if sequence.computed < sequence.tokens:
            self._partial = sequence
            return
        if self._partial is sequence:
            self._partial = None
        self._account.totals.output_tokens += 1
        if math.isnan(sequence.leg.first_token_s):
            sequence.leg.first_token_s = now
            ends.first_tokens.append(sequence.leg)
        else:
            self._account.gaps.add(now - sequence.last_token_s, 1)
        sequence.tokens += 1
        sequence.left -= 1
        if sequence.left:
            self._decode(sequence)
        else:
            del self._running[sequence]
            self._finish(sequence, ends)

    def _decode(self, sequence: _Sequence) -> None:
        sequence.joined = self._step
        self._tickets += 1
        sequence.ticket = self._tickets
        heapq.heappush(self._last_steps, (self._step + sequence.left, self._tickets, sequence))
        self._decodes += 1
        self._context += sequence.tokens + sequence.leg.shared_tokens
        self._growth[(self._step + 1 - sequence.tokens) % self._limits.block_size] += 1

    def _leave(self, sequence: _Sequence) -> None:
        del self._running[sequence]
        self._stop_decoding(sequence)

    def _stop_decoding(self, sequence: _Sequence) -> None:
        """Bring the sequence's own figures up to the present step, and take them out of the sums."""
        passed = self._step - sequence.joined
        self._growth[(sequence.joined + 1 - sequence.tokens) % self._limits.block_size] -= 1
        sequence.ticket = 0
        sequence.tokens += passed
        sequence.left -= passed
        sequence.blocks = self._blocks_for(sequence.tokens - 1)
        self._decodes -= 1
        self._context -= sequence.tokens + sequence.leg.shared_tokens

    def _finish(self, sequence: _Sequence, ends: Ends) -> None:
        if sequence.leg.hold:
            self._away[sequence.leg.number] = sequence
        else:
            self._free(sequence)
        ends.finished.append(sequence.leg)
