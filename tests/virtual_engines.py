"""Simulated engines (the real scheduler and engine core) on a clock that is moved by hand, serving a list of arrivals."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from controlplane.core.forecast import Arrival
from workers.engines.simulated.clock import ManualClock
from workers.engines.simulated.engine import Engine
from workers.engines.simulated.fabric import Fabric
from workers.engines.simulated.generation import Ending, Generation, RemoteKv, Sampling
from workers.engines.simulated.settings import Settings


@dataclass
class Answer:
    """What the client of one request saw. Seconds after its arrival."""

    at_s: float
    clock: ManualClock
    after_prefill: Callable[[Ending], None] | None = None
    times: list[float] = field(default_factory=list)
    ended: bool = False

    @property
    def ttft_s(self) -> float:
        return self.times[0]

    @property
    def e2e_s(self) -> float:
        return self.times[-1]

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]

    def piece(self, index: int, text: str, generated: int) -> None:
        if self.after_prefill is None:
            self.times.append(self.clock.time() - self.at_s)

    def end(self, index: int, ending: Ending) -> None:
        go_on, self.after_prefill = self.after_prefill, None
        if go_on:
            go_on(ending)
        else:
            self.ended = True

    def failed(self, index: int) -> None:
        raise AssertionError("a request failed")


class VirtualFleet:
    """Engines that reach each other. Prompts are random tokens; equal ids in `Arrival.prefix` are equal blocks."""

    def __init__(self, *engines: Settings) -> None:
        self.clock = ManualClock()
        fabric = Fabric(self.clock)
        self.engines = [Engine(settings, self.clock, settings.engine) for settings in engines]
        for engine in self.engines:
            fabric.join(engine)
        self._number = 0

    def serve(self, arrivals: Iterable[Arrival], prefill: int | None = None, decode: int = 0) -> list[Answer]:
        """Every arrival through `decode` alone, or through `prefill` and then `decode` (indices of engines)."""
        answers = [Answer(arrival.at_s, self.clock) for arrival in arrivals]
        for arrival, answer in zip(arrivals, answers, strict=True):
            self.clock.call_at(arrival.at_s, self._begin, arrival, answer, prefill, decode)
        self.clock.run()
        assert all(answer.ended for answer in answers)
        return answers

    def _begin(self, arrival: Arrival, answer: Answer, prefill: int | None, decode: int) -> None:
        prompt = prompt_of(arrival, self.engines[decode].settings.limits.block_size, self._number)
        if prefill is None:
            self._submit(decode, prompt, answer, arrival.output_tokens)
            return
        answer.after_prefill = lambda ending: self._submit(
            decode, prompt, answer, arrival.output_tokens, remote=handed_over(ending)
        )
        self._submit(prefill, prompt, answer, 1, hold=True)

    def _submit(
        self,
        index: int,
        prompt: array[int],
        answer: Answer,
        tokens: int,
        hold: bool = False,
        remote: RemoteKv | None = None,
    ) -> None:
        self._number += 1
        engine = self.engines[index]
        engine.submit(
            Generation(
                self._number,
                f"r{self._number}",
                prompt,
                Sampling(tokens, ignore_eos=True, temperature=0.0),
                answer,
                index=0,
                block_size=engine.settings.limits.block_size,
                hold=hold,
                remote=remote,
            )
        )


def prompt_of(arrival: Arrival, block_size: int, seed: int) -> array[int]:
    """Its tokens: each shared block from its id, the rest from `seed`."""
    tokens: list[int] = []
    for block in arrival.prefix:
        chance = random.Random(f"block {block}")
        tokens += chance.choices(range(3, 2000), k=block_size)
    chance = random.Random(f"request {seed}")
    tokens += chance.choices(range(3, 2000), k=arrival.prompt_tokens - len(tokens))
    return array("I", tokens)


def handed_over(ending: Ending) -> RemoteKv:
    params = ending.kv_transfer_params
    assert params is not None, ending
    return RemoteKv(params["remote_engine_id"], params["remote_request_id"], tuple(params["remote_block_ids"]), "h", 1)


def percentile(values: Sequence[float], share: float) -> float:
    """The value at rank share x (n - 1), between neighbours where that is no whole number."""
    ordered = sorted(values)
    rank = share * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
