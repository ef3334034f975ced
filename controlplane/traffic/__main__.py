"""`python -m controlplane.traffic --router URL`: gentle traffic for a demonstration fleet.

A client like any other: it knows the router's URL and nothing else. Arrivals are Poisson; lengths are fixed,
or those of a sample of the Azure 2023 conversation trace (CC-BY 4.0). It may not import Django or reach any other process.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal

from controlplane.traffic.client import Router
from controlplane.traffic.generator import Generator
from controlplane.traffic.lengths import Lengths, load_lengths


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m controlplane.traffic", description="Gentle demonstration traffic.")
    parser.add_argument("--router", required=True, help="http://HOST:PORT of the router, without /v1")
    parser.add_argument("--rate", type=float, default=1.0, help="requests per second over all models (default 1)")
    parser.add_argument("--max-tokens", type=int, default=400, help="cut longer answers of the trace (default 400)")
    parser.add_argument("--max-prompt", type=int, default=4096, help="cut longer prompts of the trace (default 4096 tokens)")
    fixed = "all alike, instead of the trace's; needs the other one too"
    parser.add_argument("--prompt-tokens", type=int, help=f"prompts of about so many tokens, {fixed}")
    parser.add_argument("--answer-tokens", type=int, help=f"answers of so many tokens, {fixed}")
    parser.add_argument("--seed", type=int, default=None, help="repeat the same arrivals and lengths")
    arguments = parser.parse_args()
    if not 0 < arguments.rate <= 100:
        parser.error("--rate must be over 0 and at most 100 requests per second")
    if arguments.max_tokens < 1 or arguments.max_prompt < 1:
        parser.error("--max-tokens and --max-prompt must be at least 1")
    if (arguments.prompt_tokens is None) != (arguments.answer_tokens is None):
        parser.error("--prompt-tokens and --answer-tokens go together")
    if arguments.prompt_tokens is not None and min(arguments.prompt_tokens, arguments.answer_tokens) < 1:
        parser.error("--prompt-tokens and --answer-tokens must be at least 1")
    return arguments


async def _run(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    lengths = load_lengths(arguments.max_prompt, arguments.max_tokens)
    if arguments.prompt_tokens is not None:
        lengths = (Lengths(arguments.prompt_tokens, arguments.answer_tokens),)
    generator = Generator(Router(arguments.router), lengths, arguments.rate, random.Random(arguments.seed))  # noqa: S311
    await generator.run(stop)


def main() -> None:
    asyncio.run(_run(_arguments()))


if __name__ == "__main__":
    main()
