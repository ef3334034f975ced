"""Loads of random requests for a real engine, and its metrics pages while it serves them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import httpx

from controlplane.core.forecast import Arrival
from controlplane.physics.enginemetrics import EnginePage
from controlplane.physics.scraping import watch
from tests.vllm.harness import MODEL, RealEngine

TURN_S = 3.0


def load(seed: int, rate: float, prompt: tuple[int, int], answer: tuple[int, int]) -> list[Arrival]:
    chance, at_s, arrivals = random.Random(seed), 0.0, []
    while (at_s := at_s + chance.expovariate(rate)) < TURN_S:
        arrivals.append(Arrival(at_s, chance.randint(*prompt), chance.randint(*answer)))
    return arrivals


async def served(engine: RealEngine, arrivals: Sequence[Arrival], seed: int) -> list[EnginePage]:
    """Sends the load at its times; the engine's pages meanwhile."""
    chance = random.Random(f"prompts {seed}")
    loop = asyncio.get_running_loop()

    async def one(client: httpx.AsyncClient, arrival: Arrival, began: float) -> None:
        prompt = chance.choices(range(3, 2048), k=arrival.prompt_tokens)
        body = {"model": MODEL, "prompt": prompt, "max_tokens": arrival.output_tokens, "ignore_eos": True}
        await asyncio.sleep(began + arrival.at_s - loop.time())
        (await client.post("/v1/completions", json=body)).raise_for_status()

    watching = asyncio.create_task(asyncio.to_thread(watch, engine.url, TURN_S, 0.5, engine.key))
    headers = {"Authorization": f"Bearer {engine.key}"}
    async with httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=120) as client:
        began = loop.time()
        await asyncio.gather(*(one(client, arrival, began) for arrival in arrivals))
    return await watching
