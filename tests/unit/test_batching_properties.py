"""Whatever happens to a scheduler, no block and no request is lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controlplane.core.batching import Cleared, Limits, Removed, Request, Scheduler, Step, Stored


class AnyLife(RuleBasedStateMachine):
    """Requests of all kinds come, run, hand over, expire and are aborted in any order."""

    @initialize(
        seqs=st.integers(1, 5),
        budget=st.integers(1, 40),
        block=st.integers(1, 6),
        blocks=st.integers(12, 40),
        cache=st.booleans(),
        threshold=st.integers(0, 20),
    )
    def start(self, seqs: int, budget: int, block: int, blocks: int, cache: bool, threshold: int) -> None:
        self.engine = Scheduler(Limits(seqs, budget, block, blocks, cache, threshold))
        self.engine.changes = []
        self.cached: Counter[int] = Counter()
        self.known: list[Request] = []
        self.limits: dict[int, int] = {}
        self.held_for: dict[int, bool] = {}
        self.step: Step | None = None
        self.now = 0.0

    @rule(
        prompt=st.integers(1, 60), output=st.integers(1, 9), remote=st.booleans(), hold=st.booleans(), root=st.integers(0, 2)
    )
    def submit(self, prompt: int, output: int, remote: bool, hold: bool, root: int) -> None:
        prompt = min(prompt, self.engine.capacity_tokens - output)
        if prompt < 1:
            return
        keys = [root * 1000 + index for index in range(prompt // self.engine.limits.block_size)]
        request = Request(len(self.known), prompt, keys=keys, remote=remote)
        self.limits[request.id], self.held_for[request.id] = output, hold
        self.known.append(request)
        self.engine.submit(request)

    @precondition(lambda self: self.step is None)
    @rule()
    def schedule(self) -> None:
        self.step = self.engine.schedule()
        if self.step is not None:
            assert self.step.new_tokens <= self.engine.limits.max_num_batched_tokens
            assert len(self.engine.running) <= self.engine.limits.max_num_seqs
            assert all(
                len(work.request.blocks) * self.engine.limits.block_size >= work.past + work.tokens
                for work in self.step.work
            )

    @precondition(lambda self: self.step is not None)
    @rule()
    def complete(self) -> None:
        assert self.step is not None
        for request in self.engine.complete(self.step):
            if request.generated >= self.limits[request.id]:
                self.engine.finish(request, self.now + 5 if self.held_for[request.id] else None)
        self.step = None

    @rule(data=st.data())
    def a_transfer_ends(self, data: st.DataObject) -> None:
        if self.engine.loading:
            self.engine.loaded(data.draw(st.sampled_from(list(self.engine.loading.values()))))

    @rule(data=st.data())
    def a_client_leaves(self, data: st.DataObject) -> None:
        if self.known:
            self.engine.abort(data.draw(st.sampled_from(self.known)))

    @rule(data=st.data())
    def a_peer_has_pulled(self, data: st.DataObject) -> None:
        if self.engine.held:
            assert self.engine.release(data.draw(st.sampled_from(list(self.engine.held))))

    @rule(seconds=st.floats(0, 10))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.engine.expire(self.now)

    @rule(preempt=st.booleans())
    def the_cache_is_reset(self, preempt: bool) -> None:
        if self.step is None:
            self.engine.reset_prefix_cache(preempt)

    @rule()
    def the_cache_is_lost(self) -> None:
        self.engine.forget_prefixes()

    @invariant()
    def who_follows_the_changes_knows_the_cache(self) -> None:
        changes, self.engine.changes = self.engine.changes or [], []
        for change in changes:
            match change:
                case Stored(request, first, last):
                    self.cached.update(request.keys[first:last])
                case Removed(key):
                    self.cached[key] -= 1
                case Cleared():
                    self.cached.clear()
        assert all(count >= 0 for count in self.cached.values())
        known = {key for root in range(3) for key in range(root * 1000, root * 1000 + 60)}
        assert {key for key in known if self.engine.pool.hit([key], 1)} == set(+self.cached)

    @invariant()
    def every_request_is_in_exactly_one_place(self) -> None:
        engine = self.engine
        places = [*engine.waiting, *engine.arrived, *engine.loading.values(), *engine.running, *engine.held.values()]
        alive = [request for request in self.known if request.state != "finished"]
        assert sorted(request.id for request in places) == [request.id for request in alive]
        assert all(not request.blocks for request in self.known if request.state == "finished")

    @invariant()
    def every_block_is_free_or_owned(self) -> None:
        owned = {block for request in self.known for block in request.blocks}
        assert len(owned) == self.engine.pool.used
        for request in self.known:
            assert len(set(request.blocks)) == len(request.blocks)

    def teardown(self) -> None:
        """Left alone, everything that was asked for ends, and the engine is empty."""
        if not hasattr(self, "engine"):
            return
        if self.step is not None:
            self.complete()
        for _ in range(100_000):
            for request in list(self.engine.loading.values()):
                self.engine.loaded(request)
            self.time_passes(100)
            self.schedule()
            if self.step is None:
                break
            self.complete()
        assert all(request.state == "finished" for request in self.known)
        assert self.engine.pool.used == 0


AnyLife.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyLife = AnyLife.TestCase
