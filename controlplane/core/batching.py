"""A continuous-batching scheduler, step by step, as vLLM's V1 does it. Pure: no clock, no I/O; it decides, others run.

Use: `submit` requests; `schedule()` gives the next step (or None); when its time has passed, `complete(step)` says which
requests have a new token; `finish` those that end. A request that takes its KV from a peer waits outside the batch until
`loaded`; one that hands its KV over keeps its blocks under a lease after it finished, until `release` or `expire`.

Token budget: running requests first, then waiting ones in order of arrival; a prompt longer than what is left of the budget
is computed in chunks, so a prefill lengthens the steps that decodes share. When blocks run out, the youngest running request
is preempted: it loses its KV and computes prompt and answer so far again. Full blocks can be hit as soon as the step that
fills them is scheduled, by requests of the same step too. At least one token is always computed, and hits are whole blocks:
a prompt that is known whole computes its last block again. (vLLM 0.32: v1/core/sched/scheduler.py, kv_cache_manager.py.)
"""

from __future__ import annotations

from collections import deque

from controlplane.core.batch import Change, Cleared, Limits, Removed, Request, Step, Stored, Work
from controlplane.core.blocks import BlockPool

__all__ = ["Change", "Cleared", "Limits", "Removed", "Request", "Scheduler", "Step", "Stored", "Work"]


class Scheduler:
    """The queue, the batch and the blocks of one engine. `changes`, if not None, collects what happens to the prefix cache;
    whoever set it takes them out."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.changes: list[Change] | None = None
        self.pool = BlockPool(limits.num_blocks, limits.prefix_caching, lambda key: self._note(Removed(key)))
        self.waiting: deque[Request] = deque()
        self.arrived: deque[Request] = deque()
        """Loaded from a peer, not in the batch yet; before all waiting ones."""
        self.loading: dict[int, Request] = {}
        self.running: list[Request] = []
        self.held: dict[int, Request] = {}

    @property
    def capacity_tokens(self) -> int:
        return self.limits.num_blocks * self.limits.block_size

    @property
    def num_waiting(self) -> int:
        """As vLLM counts: everything that is not in the batch yet, loading included."""
        return len(self.waiting) + len(self.arrived) + len(self.loading)

    @property
    def idle(self) -> bool:
        """Nothing to schedule: only loads and leases, or nothing at all, is open."""
        return not (self.running or self.waiting or self.arrived)

    # --- requests come and go ---------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a new request. Raises ValueError if its prompt can never fit the blocks."""
        if request.prompt_tokens < 1:
            raise ValueError("a request needs at least one prompt token")
        if request.prompt_tokens + 1 > self.capacity_tokens:
            raise ValueError(f"{request.prompt_tokens} prompt tokens do not fit {self.capacity_tokens} tokens of KV cache")
        self.waiting.append(request)

    def loaded(self, request: Request) -> None:
        """The peer's KV is here. The last prompt token is computed again, because its output is needed."""
        del self.loading[request.id]
        request.state = "waiting"
        request.remote = False
        request.computed = request.prompt_tokens - 1
        self.arrived.append(request)

    def finish(self, request: Request, lease_until: float | None = None) -> None:
        """`request` has its last token. With `lease_until` (any clock) its blocks stay until released or expired."""
        self._leave(request)
        if lease_until is None:
            self._free(request)
            request.state = "finished"
        else:
            request.state = "held"
            request.lease_until = lease_until
            self.held[request.id] = request

    def abort(self, request: Request) -> None:
        """Forget a request in any state; its blocks are free at once. Aborting a finished one does nothing."""
        if request.state != "finished":
            self._leave(request)
            self._free(request)
            request.state = "finished"

    def release(self, request_id: int) -> bool:
        """The peer has pulled the blocks of a held request. False if it is not (or no longer) held."""
        request = self.held.pop(request_id, None)
        if request is None:
            return False
        self._free(request)
        request.state = "finished"
        return True

    def expire(self, now: float) -> list[Request]:
        """Free the blocks whose lease has ended by `now` (the clock of `lease_until`)."""
        gone = [request for request in self.held.values() if request.lease_until <= now]
        for request in gone:
            self.release(request.id)
        return gone

    def reset_prefix_cache(self, preempt: bool = False) -> bool:
        """Forget all prefixes, as vLLM does: only while no request has blocks, else nothing happens and the answer is False.
        `preempt` first sends running requests back to the queue; loads and held blocks still forbid it."""
        while preempt and self.running:
            self._preempt(self.running.pop())
        if self.pool.used:
            return False
        self.forget_prefixes()
        return True

    def forget_prefixes(self) -> None:
        """The prefix cache is lost, whoever uses its blocks."""
        self.pool.forget()
        self._note(Cleared())

    def _note(self, change: Change) -> None:
        if self.changes is not None:
            self.changes.append(change)

    def _leave(self, request: Request) -> None:
        """Out of whatever queue the request's state puts it in."""
        if request.state == "running":
            self.running.remove(request)
        elif request.state == "loading":
            del self.loading[request.id]
        elif request.state == "held":
            del self.held[request.id]
        elif request.state == "waiting":
            queue = self.arrived if request in self.arrived else self.waiting
            queue.remove(request)

    def _free(self, request: Request) -> None:
        self.pool.give_back(request.blocks)
        request.blocks = []
        request.remembered = 0

    # --- steps ------------------------------------------------------------------------------------------------------------

    def schedule(self) -> Step | None:
        """The next step, or None when nothing can run or load now. Blocks are reserved; KV is there after `complete`."""
        budget = self.limits.max_num_batched_tokens
        longest = self._longest_chunk()
        work: list[Work] = []
        preempted: list[Request] = []
        index = 0
        while index < len(self.running) and budget:
            request = self.running[index]
            tokens = min(request.tokens - request.computed, longest, budget)
            if not self._make_room(request, tokens, preempted):
                break  # it was the youngest, and made room by going itself
            work.append(Work(request, tokens, request.computed))
            budget -= tokens
            index += 1
        admitted: list[Request] = []
        loads: list[Request] = []
        if not preempted:
            budget = self._admit_arrived(budget, work, admitted)
            self._admit_waiting(budget, longest, work, admitted, loads)
        if not (work or loads or preempted):
            return None
        return Step(tuple(work), tuple(admitted), tuple(loads), tuple(preempted))

    def complete(self, step: Step) -> list[Request]:
        """The step has run. Returns the requests that have one more token, in batch order; requests that were aborted or
        finished meanwhile are passed over."""
        sampled: list[Request] = []
        for work in step.work:
            request = work.request
            if request.state != "running":
                continue
            request.computed = work.past + work.tokens
            if request.computed == request.tokens:
                request.generated += 1
                sampled.append(request)
        return sampled

    def _longest_chunk(self) -> int:
        """Tokens that one request may compute in the next step."""
        threshold = self.limits.long_prefill_token_threshold
        alone = len(self.running) + self.num_waiting <= 1
        return self.limits.max_num_batched_tokens if alone or not threshold else threshold

    def _make_room(self, request: Request, tokens: int, preempted: list[Request]) -> bool:
        """Blocks for `tokens` more tokens of a running request, preempting from the youngest; False if that is itself."""
        while not self._grow(request, request.computed + tokens):
            victim = self.running.pop()
            self._preempt(victim)
            preempted.append(victim)
            if victim is request:
                return False
        self._remember(request, request.computed + tokens)
        return True

    def _grow(self, request: Request, tokens: int) -> bool:
        missing = self._blocks_for(tokens) - len(request.blocks)
        if missing <= 0:
            return True
        blocks = self.pool.take(missing)
        if blocks is None:
            return False
        request.blocks.extend(blocks)
        return True

    def _preempt(self, request: Request) -> None:
        self._free(request)
        request.computed = 0
        request.preemptions += 1
        request.state = "waiting"
        self.waiting.appendleft(request)

    def _admit_arrived(self, budget: int, work: list[Work], admitted: list[Request]) -> int:
        """Requests whose KV came from a peer join the batch with one token left to compute. Returns the budget left."""
        while self.arrived and budget and len(self.running) < self.limits.max_num_seqs:
            request = self.arrived.popleft()
            self._remember(request, request.tokens)
            self._start(request, 1, work, admitted)
            budget -= 1
        return budget

    def _admit_waiting(
        self, budget: int, longest: int, work: list[Work], admitted: list[Request], loads: list[Request]
    ) -> None:
        while self.waiting and budget and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            hit = self.pool.hit(request.keys, (request.tokens - 1) // self.limits.block_size)
            known = len(hit) * self.limits.block_size
            tokens = request.tokens - known
            if not request.remote:
                tokens = min(tokens, longest)
                if tokens > budget and not self.limits.chunked_prefill:
                    return
                tokens = min(tokens, budget)
            if self._blocks_for(request.tokens) - len(hit) + self.pool.idle_among(hit) > self._free_for(request):
                return  # the whole prompt must fit, or chunks of it would preempt each other
            self.pool.share(hit)
            request.blocks = list(hit)
            self._grow(request, known + tokens)
            request.remembered = len(hit)
            request.computed = known
            if not request.admitted:
                request.admitted = True
                request.local_hit_tokens = known
            self.waiting.popleft()
            if request.remote:
                self._load(request, tokens, loads)
            else:
                self._remember(request, known + tokens)
                self._start(request, tokens, work, admitted)
                budget -= tokens

    def _free_for(self, request: Request) -> int:
        """Blocks that a waiting request may count on. One that loads keeps its blocks idle for the whole transfer and cannot
        be preempted, so it leaves what begun prompts still need."""
        if not request.remote:
            return self.pool.free
        begun = (max(0, self._blocks_for(each.tokens) - len(each.blocks)) for each in self.running)
        return self.pool.free - sum(begun)

    def _load(self, request: Request, tokens: int, loads: list[Request]) -> None:
        request.state = "loading"
        request.external_tokens = tokens
        self.loading[request.id] = request
        loads.append(request)

    def _start(self, request: Request, tokens: int, work: list[Work], admitted: list[Request]) -> None:
        request.state = "running"
        self.running.append(request)
        admitted.append(request)
        work.append(Work(request, tokens, request.computed))

    def _remember(self, request: Request, tokens: int) -> None:
        """The full blocks among the first `tokens` of a request are known, or will be by the end of the step."""
        first, full = request.remembered, min(tokens // self.limits.block_size, len(request.keys))
        if full <= first or not self.limits.prefix_caching:
            return
        for index in range(first, full):
            self.pool.remember(request.blocks[index], request.keys[index])
        request.remembered = full
        self._note(Stored(request, first, full))

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)
