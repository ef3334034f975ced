"""The decoding part of a merged engine's batch, and runs of its steps in closed form. Pure.

What a decoding sequence has done is not stored but follows from the number of steps since it joined: it holds a place in the
sum of contexts, in a heap of last steps, and in the number of sequences that open a new block at a step, which is kept by
that step's number modulo the block size.
"""

from __future__ import annotations

import heapq
import math

from controlplane.core.forecast_blocks import Known
from controlplane.core.forecast_engine import TIED_S, Leg, Line


class Member:
    """A leg in a merged engine."""

    __slots__ = (
        "blocks",
        "computed",
        "joined",
        "known",
        "last_token_s",
        "left",
        "leg",
        "remote",
        "ticket",
        "tokens",
    )

    def __init__(self, leg: Leg) -> None:
        self.leg = leg
        self.remote = leg.remote
        self.tokens = leg.prompt_tokens
        """Prompt and answer so far; while it decodes, as of step `joined`, and so are `left` and `blocks`."""
        self.left = leg.output_tokens
        self.computed = 0
        """Tokens whose KV is here; not kept up while it decodes."""
        self.blocks = 0
        self.known: list[Known] = []
        """Its first blocks, as far as the prefix cache knows them."""
        self.joined = 0
        self.ticket = 0
        """Of its entry in the heap of last steps (entries with another one are stale); 0 while it does not decode."""
        self.last_token_s = math.nan


class Decodes:
    """All sequences that get a token in each step. `step`: steps that are through. `context`: the sum of their contexts in
    the next step, tokens that all prompts share included."""

    def __init__(self, block_size: int) -> None:
        self.count = 0
        self.context = 0
        self.step = 0
        self._size = block_size
        self._opening = [0] * block_size
        self._last_steps: list[tuple[int, int, Member]] = []
        self._tickets = 0

    def join(self, member: Member) -> None:
        """`member` has its prompt computed and the first token of `left` + 1."""
        self._tickets += 1
        member.ticket = self._tickets
        member.joined = self.step
        heapq.heappush(self._last_steps, (self.step + member.left, member.ticket, member))
        self._opening[self._opens_at(member)] += 1
        self.count += 1
        self.context += member.tokens + member.leg.shared_tokens

    def leave(self, member: Member) -> None:
        """Bring the member's own figures up to the present step, and take them out of the sums."""
        self._opening[self._opens_at(member)] -= 1
        passed = self.step - member.joined
        member.ticket = 0
        member.tokens += passed
        member.left -= passed
        member.blocks = -(-(member.tokens - 1) // self._size)
        self.count -= 1
        self.context -= member.tokens + member.leg.shared_tokens

    def leave_ended(self) -> list[Member]:
        """Those whose answer is complete leave, in the order in which they joined."""
        ended = []
        while self._last_steps and self._last_steps[0][0] <= self.step:
            _, ticket, member = heapq.heappop(self._last_steps)
            if member.ticket == ticket:
                self.leave(member)
                ended.append(member)
        return ended

    def steps_to_end(self) -> int:
        """Steps until the next answer is complete. There must be a member."""
        while self._last_steps[0][1] != self._last_steps[0][2].ticket:
            heapq.heappop(self._last_steps)
        return self._last_steps[0][0] - self.step

    def new_blocks(self) -> int:
        """Blocks that the next step opens."""
        return self._opening[self.step % self._size]

    def steps_within(self, free: int, steps: int) -> int:
        """How many of `steps` steps can go on with `free` blocks, those of the first being there already."""
        if self.count * (steps // self._size + 1) <= free:
            return steps
        for ahead in range(1, steps):
            free -= self._opening[(self.step + ahead) % self._size]
            if free < 0:
                return ahead
        return steps

    def passes(self, steps: int) -> int:
        """`steps` (at least one) steps are through. Returns the blocks that all but the first of them opened."""
        rounds, rest = divmod(steps - 1, self._size)
        first = self.step + 1
        opened = rounds * self.count + sum(self._opening[(first + ahead) % self._size] for ahead in range(rest))
        self.step += steps
        self.context += steps * self.count
        return opened

    def _opens_at(self, member: Member) -> int:
        """The steps, modulo the block size, at which it needs a new block: its context is then one more than full blocks."""
        return (member.joined + 1 - member.tokens) % self._size


class Run:
    """Equal decode steps: the i-th takes first_s + i·growth_s."""

    __slots__ = ("_first_s", "_growth_s", "line", "started_s", "steps")

    def __init__(self, line: Line, sequences: int, context_sum: int, started_s: float, steps: int) -> None:
        self.line = line
        self.started_s = started_s
        self.steps = steps
        self._first_s = line.base_s + line.per_token_s * context_sum
        self._growth_s = line.per_token_s * sequences

    def ends_s(self, steps: int) -> float:
        """When its first `steps` steps are through."""
        return self.started_s + steps * self._first_s + self._growth_s * (steps * (steps - 1) / 2)

    def step_at(self, now: float) -> int:
        """The number (from 1) of the step that ends at `now`, give or take TIED_S, or is under way then: the root of
        n·first + growth·n(n-1)/2 = elapsed, in the form that does not divide by the growth."""
        elapsed = max(0.0, now - self.started_s - TIED_S)
        half = self._first_s - self._growth_s / 2
        root = 2 * elapsed / (half + math.sqrt(half * half + 2 * self._growth_s * elapsed))
        return min(self.steps, max(1, math.ceil(root - 1e-9)))
