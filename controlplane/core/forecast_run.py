"""The forecast's event loop: arrivals, engines' runs and KV transfers in the order of time. Pure.

Engines are looked at only when a run of theirs ends or something reaches them. At equal times arrivals and transfers come
before engines, so that a step takes up all that is there when it begins, and engines in the order of their numbers. Times
are equal when they are the same nanosecond: with requests of equal lengths engines keep step, and rounding must not decide.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence

from controlplane.core.forecast_control import Control, Fleet
from controlplane.core.forecast_engine import Ends, Leg, nanosecond
from controlplane.core.forecast_fleet import build
from controlplane.core.forecast_gaps import Gaps
from controlplane.core.forecast_network import Network
from controlplane.core.forecast_routing import Node, Router
from controlplane.core.forecast_types import Arrival, Outcome, Pool, Progress, Served, Settings
from controlplane.core.kvsize import transfer_size
from controlplane.core.protocol import Mode

PROGRESS_CALLS = 100


class Simulation:
    """One run over `arrivals` (checked by the caller), to be used once."""

    def __init__(
        self,
        pools: Sequence[Pool],
        arrivals: Sequence[Arrival],
        settings: Settings,
        mode: Mode,
        progress: Progress | None,
        control: Control | None = None,
    ) -> None:
        self._control = control
        self._arrivals = arrivals
        self._settings = settings
        self._mode = mode
        self._progress = progress
        self._gaps = Gaps()
        self._totals, self._nodes = build(pools, settings, arrivals, self._gaps)
        model = pools[0].model
        self._kv_size = transfer_size(model.shape, model.kv_dtype)
        self._router = Router(self._nodes, settings, mode, self._kv_size)
        self._network = Network([node.bytes_per_s for node in self._nodes])
        self._events: list[tuple[float, int, int, float, Node]] = []
        """(nanosecond, number of the engine, number of the event, time, engine)."""
        self._event = 0
        self._node_of: dict[Leg, tuple[Node, int]] = {}
        """Open legs: their engine and the KV tokens reserved there."""
        self._prefill_of: dict[int, tuple[Leg, Node]] = {}
        """By request number: the prefill leg whose KV is not pulled yet."""
        self._prefill_done: dict[int, Leg] = {}
        self._served: list[Served] = []
        self._refused: Counter[str] = Counter()
        self._through = 0
        self._last_end = arrivals[0].at_s

    # --- the loop ---------------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        horizon = self._settings.horizon_s if self._settings.horizon_s is not None else math.inf
        index, count = 0, len(self._arrivals)
        arrived_s = self._arrivals[0].at_s
        now = arrived_s
        while True:
            moved_s = self._network.next_end_s
            engine_s = self._events[0][3] if self._events else math.inf
            control_s = self._control.next_s if self._control and index < count else math.inf
            next_s = min(arrived_s, moved_s, engine_s, control_s)
            if next_s == math.inf or next_s > horizon:
                break
            now = max(now, next_s)
            same = nanosecond(next_s)
            if self._control and control_s <= next_s:
                self._control.act(now, Fleet(self._nodes, self._router, self._served))
            elif nanosecond(arrived_s) == same:
                now = max(now, arrived_s)
                self._arrive(index, self._arrivals[index])
                index += 1
                arrived_s = self._arrivals[index].at_s if index < count else math.inf
            elif nanosecond(moved_s) == same:
                self._moved(now)
            else:
                _, _, event, _, node = heapq.heappop(self._events)
                if event == node.due:
                    node.due = 0
                    self._turn(node, now)
        return self._outcome(index, horizon)

    def _turn(self, node: Node, now: float) -> None:
        """An engine's run has ended, or it was woken: what came of it, and the next run."""
        if node.engine.busy:
            self._ended(node, node.engine.advance(now), now)
        end, loads = node.engine.start(now)
        if end is not None:
            self._schedule(node, end)
        for leg in loads:
            self._move(leg, node, now)

    def _schedule(self, node: Node, at_s: float) -> None:
        self._event += 1
        node.due = self._event
        heapq.heappush(self._events, (nanosecond(at_s), node.number, self._event, at_s, node))

    def _touch(self, node: Node, now: float) -> None:
        """Something has come to an engine: an idle one wakes, a busy one may end its run sooner."""
        if node.engine.busy:
            end = node.engine.interrupt(now)
            if end is not None:
                self._schedule(node, max(now, end))
        elif not node.due:
            self._schedule(node, now)

    # --- requests ---------------------------------------------------------------------------------------------------------

    def _arrive(self, number: int, arrival: Arrival) -> None:
        leg, now = self._leg(number, arrival), arrival.at_s
        reason = self._router.refusal(leg)
        if reason is not None:
            self._refused[reason] += 1
            self._count(now)
        elif self._router.splits(leg, now):
            node = self._router.prefill(leg, now).node
            leg.output_tokens = 1
            leg.hold = True
            self._submit(leg, node, now)
        else:
            self._submit(leg, self._router.whole(leg, now).node, now)

    def _leg(self, number: int, arrival: Arrival) -> Leg:
        full = arrival.prompt_tokens // self._settings.block_size
        shared = min(self._settings.prefix_cached, arrival.prompt_tokens - 1)
        return Leg(number, arrival, arrival.prefix[:full], shared)

    def _submit(self, leg: Leg, node: Node, now: float) -> None:
        prompt = 0 if leg.remote else node.uncached(leg, now)
        node.reserve(prompt, leg.output_tokens, leg.prompt_tokens + leg.output_tokens)
        self._node_of[leg] = node, prompt
        leg.submitted_s = now
        node.engine.submit(leg)
        self._touch(node, now)

    def _ended(self, node: Node, ends: Ends, now: float) -> None:
        for leg in ends.first_tokens:
            node.prefill_tokens -= self._node_of[leg][1]
        for leg in ends.finished:
            del self._node_of[leg]
            node.release(leg.output_tokens, leg.prompt_tokens + leg.output_tokens)
            if leg.hold:
                self._hand_over(leg, node, now)
            else:
                self._serve(leg, now)

    def _hand_over(self, prefill: Leg, source: Node, now: float) -> None:
        """Prefill is done: choose the decode engine now."""
        leg = self._leg(prefill.number, prefill.arrival)
        leg.remote = True
        self._prefill_of[leg.number] = prefill, source
        self._submit(leg, self._router.decode(leg, now).node, now)

    def _move(self, leg: Leg, node: Node, now: float) -> None:
        """The decode engine has room: its missing KV comes over the network."""
        _, source = self._prefill_of[leg.number]
        size = self._kv_size.bytes(leg.prompt_tokens - leg.hit_tokens)
        node.totals.transfers += 1
        node.totals.transfer_bytes += size
        self._network.start(now, leg, source.number, node.number, size)

    def _moved(self, now: float) -> None:
        leg, destination = self._network.pop(now)
        leg.loaded_s = now
        node = self._nodes[destination]
        node.engine.loaded(leg)
        self._touch(node, now)
        prefill, source = self._prefill_of.pop(leg.number)
        source.engine.release(prefill)
        self._prefill_done[leg.number] = prefill
        self._touch(source, now)

    def _serve(self, leg: Leg, now: float) -> None:
        self._served.append(_served(leg, self._prefill_done.pop(leg.number, None), now))
        self._count(now)

    def _count(self, now: float) -> None:
        self._last_end = max(self._last_end, now)
        self._through += 1
        stride = -(-len(self._arrivals) // PROGRESS_CALLS)
        if self._progress and (self._through % stride == 0 or self._through == len(self._arrivals)):
            self._progress(self._through / len(self._arrivals))

    def _outcome(self, arrived: int, horizon: float) -> Outcome:
        end = self._last_end
        if horizon < math.inf:
            end = horizon
            for node in self._nodes:
                if node.engine.busy:
                    node.engine.halt(horizon)
        return Outcome(
            mode=self._mode,
            settings=self._settings,
            pools=tuple(self._totals),
            arrived=arrived,
            served=tuple(self._served),
            refused=dict(self._refused),
            unfinished=arrived - self._through,
            gaps=self._gaps,
            span_s=max(end - self._arrivals[0].at_s, SHORTEST_SPAN_S),
        )


SHORTEST_SPAN_S = 1e-3
"""A simulation in which nothing ran still divides by its span."""


def _served(leg: Leg, prefill: Leg | None, now: float) -> Served:
    arrival = leg.arrival
    first = prefill or leg
    return Served(
        number=leg.number,
        path="split" if prefill else "whole",
        prompt_tokens=arrival.prompt_tokens,
        output_tokens=arrival.output_tokens,
        cached_tokens=first.hit_tokens + first.shared_tokens,
        ttft_s=leg.first_token_s - arrival.at_s,
        e2e_s=now - arrival.at_s,
        queue_s=first.began_s - first.submitted_s,
        prefill_s=first.first_token_s - first.began_s,
        transfer_s=leg.loaded_s - leg.load_began_s if prefill else 0.0,
        decode_queue_s=leg.load_began_s - leg.submitted_s + leg.began_s - leg.loaded_s if prefill else 0.0,
        first_step_s=leg.first_token_s - leg.began_s if prefill else 0.0,
        preemptions=leg.preemptions + (prefill.preemptions if prefill else 0),
    )
