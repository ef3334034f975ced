"""The engine of a simulated process: runs the scheduler's steps on the performance model, in the time of its clock.

All of it lives in one event loop (or one ManualClock) and is called from it; nothing here blocks, and an idle engine has no
timer but the end of its next lease. What talks to clients and peers is given in: sinks take the text, a loader brings KV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from controlplane.core.batching import Change, Scheduler, Step
from workers.engines.simulated.accounts import Accounts, Pulled
from workers.engines.simulated.activity import Activity
from workers.engines.simulated.clock import Clock, Timer
from workers.engines.simulated.faults import Faults
from workers.engines.simulated.generation import Ending, Generation
from workers.engines.simulated.measures import Gauges
from workers.engines.simulated.offers import Offers
from workers.engines.simulated.settings import Settings

CATCH_UP_S = 0.05
"""A step that was noticed late by less than this does not delay the next one, so that lateness does not add up."""


class Loader(Protocol):
    """Brings the KV of a prompt from a peer, and answers with Engine.loaded or Engine.load_failed, never at once."""

    def expect(self, generation: Generation) -> None:
        """A request that will load has arrived: keep its KV alive at the peer."""

    def load(self, generation: Generation) -> None:
        """Its blocks are reserved: pull now."""

    def forget(self, generation: Generation) -> None:
        """It is through, or nobody waits for it any more."""


class Listener(Protocol):
    """Hears what happens to the prefix cache."""

    def note(self, changes: Iterable[Change], generations: Mapping[int, Generation]) -> None:
        """What scheduling a step changed. `generations` by request id."""

    def flush(self) -> None:
        """The step is through."""


class Engine:
    def __init__(self, settings: Settings, clock: Clock, engine_id: str) -> None:
        self.settings = settings
        self.engine_id = engine_id
        self.scheduler = Scheduler(settings.limits)
        self.faults = Faults()
        self.accounts = Accounts(settings)
        self.measures = self.accounts.measures
        self.activity = Activity()
        self.loader: Loader | None = None
        self.events: Listener | None = None
        self.on_empty: Callable[[], None] | None = None
        """Called each time the last open generation has ended."""
        self.clock = clock
        self._generations: dict[int, Generation] = {}
        self._next: Timer | None = None  # the step that runs, or the call that starts one
        self._leaked: list[int] = []
        self._wrong: dict[int, int] = {}  # blocks that do not hold what their keys say, and what they hold
        self.offers = Offers(engine_id, settings, clock, self.scheduler, self.measures, self.faults, self._wake)

    def tell_events(self, listener: Listener) -> None:
        """From now on `listener` hears what happens to the prefix cache."""
        self.events, self.scheduler.changes = listener, []

    def now(self) -> float:
        return self.clock.time()

    @property
    def open(self) -> int:
        """Generations that have not ended."""
        return len(self._generations)

    # --- generations ------------------------------------------------------------------------------------------------------

    def submit(self, generation: Generation) -> None:
        generation.arrived = self.clock.time()
        self.scheduler.submit(generation.request)
        self._generations[generation.request.id] = generation
        if generation.remote and self.loader:
            self.loader.expect(generation)
        self._wake()

    def abort(self, generations: Iterable[Generation]) -> None:
        """The client has gone; ended generations are passed over."""
        for generation in generations:
            if generation.request.id in self._generations:
                self._drop(generation, "abort")
        self._wake()

    def abort_all(self) -> None:
        """Cut everything that is open, telling its sinks so."""
        for generation in list(self._generations.values()):
            self._drop(generation, "abort")
            generation.sink.end(generation.index, Ending("abort"))

    def loaded(self, generation: Generation, contents: list[int], pulled: Pulled) -> None:
        """A pull is through: what the peer's blocks contained, and what it cost."""
        request, size = generation.request, self.settings.limits.block_size
        self.accounts.pulled(request, pulled)
        hits = request.local_hit_tokens // size
        for block, held, right in zip(request.blocks[hits:], contents, generation.contents[hits:], strict=True):
            if held != right:
                self._wrong[block] = held
            else:
                self._wrong.pop(block, None)
        generation.pulled(contents)
        self.scheduler.loaded(request)
        self._wake()

    def load_failed(self, generation: Generation) -> None:
        """A pull failed; as vLLM with kv_load_failure_policy "fail", the request fails."""
        self.measures.add("transfers_failed", 1)
        if generation.request.id in self._generations:
            self._drop(generation, "error")
            generation.sink.failed(generation.index)
            self._wake()

    def _drop(self, generation: Generation, reason: str) -> None:
        self.scheduler.abort(generation.request)
        self.accounts.dropped(reason)
        self._close(generation)

    def _close(self, generation: Generation) -> None:
        del self._generations[generation.request.id]
        if generation.remote and self.loader:
            self.loader.forget(generation)
        if not self._generations and self.on_empty:
            self.clock.call_soon(self.on_empty)

    # --- steps ------------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Start a step in this turn of the loop, unless one runs."""
        if self._next is None:
            self._next = self.clock.call_soon(self._start_now)

    def _start_now(self) -> None:
        self._start(self.clock.time())

    def _start(self, start: float) -> None:
        self._next = None
        if self.faults.any and self.faults.get("hang", start) is not None:
            return  # whoever ends the fault wakes the engine
        step = self.scheduler.schedule()
        if step is None:
            return
        if self.events and self.scheduler.changes:
            self.events.note(self.scheduler.changes, self._generations)
            self.scheduler.changes = []
        if self._wrong:
            self._overwrite(step)
        self.measures.add("preemptions", len(step.preempted))
        for request in step.admitted:
            self._admitted(self._generations[request.id], start)
        for request in step.loads:
            self._found(self._generations[request.id])
            self.accounts.looked_up(request)
            if self.loader:
                self.loader.load(self._generations[request.id])
        if step.work:
            end = start + self._run(step, start)
            self._next = self.clock.call_at(end, self._end, step, end)
        else:
            self._tell_events()
            if step.preempted:
                self._wake()

    def _tell_events(self) -> None:
        if self.events:
            self.events.flush()

    def _run(self, step: Step, start: float) -> float:
        """Seconds that the step takes from `start`; counts what it does."""
        decodes, context = step.decodes()
        cost = self.settings.steps.step(step.prefills(), decodes, context)
        seconds = cost.seconds / self.settings.speed
        if self.faults.any and (slow := self.faults.get("slow", start)):
            seconds *= slow["factor"]
        self.activity.record(start, start + seconds, cost)
        return seconds

    def _end(self, step: Step, end: float) -> None:
        now = self.clock.time()
        self._tell_events()
        sampled = [self._generations[request.id] for request in self.scheduler.complete(step)]
        self.accounts.step(sampled)
        for generation in sampled:
            if generation.request.id in self._generations:  # or it went with another sequence of its request just now
                self._token(generation, now)
        self._start(end if now - end < CATCH_UP_S else now)

    def _found(self, generation: Generation) -> None:
        """A request comes out of the queue: the blocks that it shares may be wrong. As in vLLM, what a bad transfer brought
        is found under its right hash until it is evicted."""
        request = generation.request
        hits = request.blocks[: request.computed // self.settings.limits.block_size] if self._wrong else ()
        wrong = {index: self._wrong[block] for index, block in enumerate(hits) if block in self._wrong}
        if wrong or not generation.clean:
            generation.found(wrong)

    def _overwrite(self, step: Step) -> None:
        """Blocks that a step fills from their start are right again."""
        size = self.settings.limits.block_size
        for request, tokens, past in step.work:
            for block in request.blocks[-(-past // size) : -(-(past + tokens) // size)]:
                self._wrong.pop(block, None)

    def _admitted(self, generation: Generation, now: float) -> None:
        if not generation.remote or generation.request.preemptions:  # else its KV has just been pulled
            self._found(generation)
        if generation.scheduled:
            return
        generation.scheduled = now
        self.accounts.admitted(generation, now)
        if not generation.remote:
            self.accounts.looked_up(generation.request)

    def _token(self, generation: Generation, now: float) -> None:
        self.accounts.token(generation, now)
        text, ending = generation.next_token()
        if text:
            generation.sink.piece(generation.index, text, generation.request.generated)
        if ending:
            self._finish(generation, ending)

    def _finish(self, generation: Generation, ending: Ending) -> None:
        # As vLLM, which keeps blocks for a peer only if the answer was cut by its length.
        if generation.hold and ending.reason == "length":
            ending = ending._replace(kv_transfer_params=self.offers.keep(generation))
        else:
            self.scheduler.finish(generation.request)
        self.accounts.finished(generation, ending.reason)
        self._close(generation)
        generation.sink.end(generation.index, ending)

    # --- faults -----------------------------------------------------------------------------------------------------------

    def begin_faults(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        """Faults as faults.read gives them. Those of requests and transfers strike when there are some."""
        self.faults.set(wanted, self.clock.time())
        for name, values in wanted.items():
            if "duration_s" in values:
                self.clock.call_later(values["duration_s"], self._settle)
            match name:
                case "forget_cache":
                    self.scheduler.forget_prefixes()
                case "leak_blocks":
                    self._leak(values["blocks"])
                case "expire_early":
                    self.offers.shorten()

    def clear_faults(self, name: str | None = None) -> None:
        """End one, or all."""
        self.faults.clear(name)
        self._settle()

    def _settle(self) -> None:
        """A fault may have ended: undo what it left behind."""
        if self._leaked and self.faults.get("leak_blocks", self.clock.time()) is None:
            self._leak(0)
        self._wake()

    def _leak(self, blocks: int) -> None:
        """So many blocks belong to nobody; fewer if fewer are free. The ones that leaked before are given back."""
        pool = self.scheduler.pool
        pool.give_back(self._leaked)
        self._leaked = pool.take(min(blocks, pool.free)) or []

    def reset_prefix_cache(self, running: bool) -> bool:
        """vLLM's, see Scheduler.reset_prefix_cache. Told as an event with the next step."""
        if running:
            self.measures.add("preemptions", len(self.scheduler.running))
        done = self.scheduler.reset_prefix_cache(running)
        self._wake()
        return done

    # --- what it tells ----------------------------------------------------------------------------------------------------

    def metrics_page(self) -> str:
        for name, struck in self.faults.struck.items():
            self.measures.counters["faults"][name].value = struck
        return self.measures.page(self._gauges())

    def _gauges(self) -> Gauges:
        scheduler, settings = self.scheduler, self.settings
        busy = self.activity.lately(self.clock.time())
        memory = settings.perf.gpu.memory_bytes * settings.gpu_memory_utilization
        waiting, loading = scheduler.num_waiting, len(scheduler.loading)
        return {
            "running": len(scheduler.running),
            "waiting": waiting,
            "waiting_by": {"capacity": waiting - loading, "deferred": loading},
            "kv_fetch": {
                "waiting_to_start": sum(request.remote for request in scheduler.waiting),
                "in_progress": loading,
                "completed_waiting": len(scheduler.arrived),
            },
            "sleep": {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
            "kv_usage": scheduler.pool.used / scheduler.pool.num_blocks,
            "tensor": dict.fromkeys(settings.gpus, busy.tensor),
            "tensor_peak": dict.fromkeys(settings.gpus, busy.tensor_peak),
            "dram": dict.fromkeys(settings.gpus, busy.dram),
            "memory": dict.fromkeys(settings.gpus, memory),
            "power": dict.fromkeys(settings.gpus, settings.perf.power_w(busy.tensor, busy.dram)),
        }
