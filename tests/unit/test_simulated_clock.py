"""A simulated engine runs on a clock that is moved by hand: hours pass in a moment, and every time is exact."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.simulated_engines import spec
from workers.engines.simulated.clock import ManualClock
from workers.engines.simulated.engine import Engine
from workers.engines.simulated.fabric import Fabric
from workers.engines.simulated.generation import Ending, Generation, RemoteKv, Sampling
from workers.engines.simulated.settings import Settings, settings_of

SAMPLING = Sampling(max_tokens=50, ignore_eos=True, temperature=0.0)


@dataclass
class Heard:
    """A sink that notes what it is told, and when."""

    clock: ManualClock
    times: list[float] = field(default_factory=list)
    text: str = ""
    ending: Ending | None = None

    def piece(self, index: int, text: str, generated: int) -> None:
        self.times.append(self.clock.time())
        self.text += text

    def end(self, index: int, ending: Ending) -> None:
        self.ending = ending

    def failed(self, index: int) -> None:
        self.ending = Ending("error")


def settings(**changes: Any) -> Settings:
    changes["args"] = {"speed": 1.0} | changes.pop("args", {})
    return settings_of(spec(**changes), 0, "10.0.0.1", 8000, 9000)


def generation(clock: ManualClock, number: int, tokens: int = 512, **fields: Any) -> tuple[Generation, Heard]:
    heard = Heard(clock)
    sampling = fields.pop("sampling", SAMPLING)
    prompt = array("I", range(1000, 1000 + tokens))
    return Generation(number, f"r{number}", prompt, sampling, heard, index=0, block_size=16, **fields), heard


def handed_over(ending: Ending | None) -> RemoteKv:
    assert ending is not None and ending.kv_transfer_params is not None
    params = ending.kv_transfer_params
    return RemoteKv(params["remote_engine_id"], params["remote_request_id"], tuple(params["remote_block_ids"]), "h", 1)


def test_calls_run_in_order_of_time_and_then_of_asking() -> None:
    clock = ManualClock(5.0)
    ran: list[str] = []
    clock.call_at(7.0, ran.append, "third")
    clock.call_later(1.0, ran.append, "second")
    clock.call_soon(ran.append, "first")
    clock.call_at(7.0, ran.append, "fourth")
    clock.call_at(6.5, ran.append, "never").cancel()
    clock.run_until(6.0)
    assert (ran, clock.time(), clock.next_call()) == (["first", "second"], 6.0, 7.0)
    clock.run()
    assert (ran, clock.time(), clock.next_call()) == (["first", "second", "third", "fourth"], 7.0, None)


def test_a_call_for_a_time_that_has_passed_runs_now_and_time_never_runs_backwards() -> None:
    clock = ManualClock(5.0)
    ran: list[float] = []
    clock.call_at(1.0, lambda: ran.append(clock.time()))
    clock.run_until(4.0)
    clock.run_until(5.0)
    assert ran == [5.0] and clock.time() == 5.0


def test_tokens_come_when_the_performance_model_says() -> None:
    clock = ManualClock()
    engine = Engine(settings(), clock, "e1")
    asked, heard = generation(clock, 1)
    engine.submit(asked)
    clock.run()
    perf = engine.settings.perf
    expected = [perf.step([(512, 0)], 0, 0).seconds]
    for token in range(1, 50):
        expected.append(expected[-1] + perf.step([], 1, 512 + token).seconds)
    assert heard.times == pytest.approx(expected)
    assert heard.ending == Ending("length") and engine.open == 0


def test_kv_is_pulled_in_the_time_that_its_bytes_take_and_gives_the_same_text() -> None:
    clock, chosen = ManualClock(), settings(network_gbps=100.0)
    fabric = Fabric(clock)
    prefiller, decoder = Engine(chosen, clock, "p"), Engine(chosen, clock, "d")
    fabric.join(prefiller)
    fabric.join(decoder)
    whole, expected = generation(clock, 1)
    Engine(chosen, clock, "alone").submit(whole)
    first, ended = generation(clock, 2, hold=True, sampling=Sampling(1, temperature=0.0))
    prefiller.submit(first)
    clock.run_until(1.0)
    second, heard = generation(clock, 3, remote=handed_over(ended.ending))
    decoder.submit(second)
    clock.run_until(60.0)
    assert heard.text == expected.text
    transfer_s = chosen.pull_bytes(32) * 8 / 100e9
    first_step_s = chosen.perf.step([], 1, 512).seconds
    assert heard.times[0] == pytest.approx(1.0 + transfer_s + first_step_s)
    assert prefiller.scheduler.pool.used == 0 and not fabric.ports["d"].waiting


def test_two_pulls_from_one_engine_share_its_link() -> None:
    clock, chosen = ManualClock(), settings(network_gbps=10.0)
    fabric = Fabric(clock)
    source, *destinations = (Engine(chosen, clock, name) for name in "pde")
    for engine in (source, *destinations):
        fabric.join(engine)
    legs = [generation(clock, number, hold=True, sampling=Sampling(1)) for number in (1, 2)]
    for leg, _ in legs:
        source.submit(leg)
    clock.run_until(1.0)
    for number, (engine, (_, ended)) in enumerate(zip(destinations, legs, strict=True)):
        engine.submit(generation(clock, 10 + number, remote=handed_over(ended.ending))[0])
    clock.run_until(60.0)
    alone_s = chosen.pull_bytes(32) * 8 / 10e9
    for engine in destinations:
        assert engine.measures.histograms["transfer_s"].sum == pytest.approx(2 * alone_s)


def test_a_pull_from_an_engine_that_is_not_there_fails_the_request() -> None:
    clock = ManualClock()
    engine = Engine(settings(), clock, "d")
    Fabric(clock).join(engine)
    asked, heard = generation(clock, 1, remote=RemoteKv("gone", "r0", (1, 2), "h", 1))
    engine.submit(asked)
    clock.run()
    assert heard.ending == Ending("error") and engine.open == 0


def test_wrong_kv_is_found_until_its_blocks_are_computed_again() -> None:
    clock, chosen = ManualClock(), settings(args={"kv_cache_memory_bytes": 64 << 20, "max_model_len": 400})
    fabric = Fabric(clock)
    prefiller, decoder = Engine(chosen, clock, "p"), Engine(chosen, clock, "d")
    fabric.join(prefiller)
    fabric.join(decoder)
    numbers = iter(range(100))

    def answer(engine: Engine, start: int = 1000, tokens: int = 100, **fields: Any) -> Heard:
        sampling = fields.pop("sampling", SAMPLING)
        heard, prompt = Heard(clock), array("I", range(start, start + tokens))
        number = next(numbers)
        asked = Generation(number, f"r{number}", prompt, sampling, heard, index=0, block_size=16, **fields)
        engine.submit(asked)
        clock.run_until(clock.time() + 5.0)
        return heard

    expected = answer(prefiller).text
    leg = answer(prefiller, hold=True, sampling=Sampling(1, temperature=0.0))
    clock.run_until(clock.time() + chosen.kv_lease_s)
    assert answer(decoder, remote=handed_over(leg.ending)).text != expected
    assert answer(decoder).text != expected
    for start in (2000, 3000):  # 24 of 32 blocks each
        answer(decoder, start, 350)
    hits = decoder.measures.counters["prefix_hits"][""].value
    assert answer(decoder).text == expected
    assert decoder.measures.counters["prefix_hits"][""].value == hits
    assert answer(decoder).text == expected
