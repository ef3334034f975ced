"""Poisson arrivals of chat requests to every model a router offers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

from controlplane.traffic.client import Answer, Router, RouterUnavailable
from controlplane.traffic.lengths import Lengths

_MAX_OPEN = 64
_OPEN_S = 60.0
"""So many seconds of arrivals may be open if that is more."""
_REPORT_EVERY_S = 60.0
_MODELS_EVERY_S = 10.0
_WORDS = (  # noqa: SIM905
    "account answer archive balance border bridge budget cable canyon carbon cargo castle center channel circle "
    "climate cloud coast column copper corner cotton course cycle delta desert detail device doctor engine estate "
    "fabric factor field filter forest garden glass grain harbor height island journal kernel ladder letter level "
    "liquid logic margin market matrix memory mirror model motor museum native nature needle number object office "
    "orange origin output packet palace paper pattern planet pocket policy power prism public query radar reason "
    "record river rocket sample school screen season sector signal silver simple socket source spring stable station "
    "stream summer system target temple theory thread timber travel tunnel update valley vector velvet village vision "
    "volume wallet weather window winter wisdom yellow zone "
).split()
_SYSTEM = "You are a helpful assistant of a company that answers questions about its products in plain and short sentences."
_CHARACTERS_PER_TOKEN = 4.0
"""Until answers tell what the engines' tokenizer makes of these words."""
_LEARNING = 0.2
"""Weight of the newest answer."""


class Generator:
    """Sends `rate_per_s` requests a second to all models together, until told to stop. At most 64 or a minute's are open."""

    def __init__(self, router: Router, lengths: Sequence[Lengths], rate_per_s: float, rng: random.Random) -> None:
        self._router = router
        self._lengths = lengths
        self._rate_per_s = rate_per_s
        self._rng = rng
        self._max_open = max(_MAX_OPEN, round(_OPEN_S * rate_per_s))
        self._characters_per_token = _CHARACTERS_PER_TOKEN
        self._models: list[str] = []
        self._models_at = float("-inf")
        self._open: set[asyncio.Task[None]] = set()
        self._done = self._failed = self._skipped = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; open requests are cancelled then."""
        report_at = time.monotonic() + _REPORT_EVERY_S
        while not await _is_set_within(stop, self._rng.expovariate(self._rate_per_s)):
            await self._refresh_models()
            self._send_one()
            if time.monotonic() >= report_at:
                self._report()
                report_at += _REPORT_EVERY_S
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        self._report()

    async def _refresh_models(self) -> None:
        if time.monotonic() - self._models_at < _MODELS_EVERY_S:
            return
        self._models_at = time.monotonic()
        try:
            self._models = await self._router.models()
        except RouterUnavailable as error:
            print(f"router not reachable, trying again: {error}", flush=True)  # noqa: T201

    def _send_one(self) -> None:
        if not self._models or len(self._open) >= self._max_open:
            self._skipped += 1
            return
        task = asyncio.create_task(self._request(self._rng.choice(self._models), self._rng.choice(self._lengths)))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _request(self, model: str, lengths: Lengths) -> None:
        prompt = self._prompt(lengths)
        request = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": lengths.answer_tokens,
            "ignore_eos": True,
            "messages": [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": prompt}],
        }
        try:
            answer = await self._router.chat(request)
        except RouterUnavailable:
            answer = Answer(whole=False)
        if answer.prompt_tokens:
            seen = (len(_SYSTEM) + len(prompt)) / answer.prompt_tokens
            self._characters_per_token += _LEARNING * (seen - self._characters_per_token)
        self._done += answer.whole
        self._failed += not answer.whole

    def _prompt(self, lengths: Lengths) -> str:
        characters = max(1, round(lengths.prompt_tokens * self._characters_per_token) - len(_SYSTEM))
        words = self._rng.choices(_WORDS, k=characters // 5 + 1)
        return " ".join(words)[:characters]

    def _report(self) -> None:
        print(  # noqa: T201
            f"{self._done} answered, {self._failed} failed, {self._skipped} not sent, {len(self._open)} open", flush=True
        )
        self._done = self._failed = self._skipped = 0


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
