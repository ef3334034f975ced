"""One proof on a running fleet: streams all the time, changes one after another, and what came of both."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

from controlplane.fleet import models
from controlplane.proof.changes import carry_out
from controlplane.proof.display import Display
from controlplane.proof.fleet import Fleet
from controlplane.proof.learned import in_turn, learned_questions
from controlplane.proof.questions import Question, simulated_questions
from controlplane.proof.report import Report
from controlplane.proof.schedule import Change, Ended
from controlplane.proof.streams import Streams
from controlplane.proof.watch import Watch

LEARNED = 12
"""Questions to real engines."""
PAUSE_S = 0.5
"""At most so long between two changes: streams of both sides of a change are to be open at the next one too."""


def prove(fleet: Fleet, streams: int, changes: Sequence[Change], seed: int, display: Display) -> Report:
    """Every change, under so many streams. Raises database errors, and KeyboardInterrupt when it is stopped."""
    row = models.Model.objects.get()
    model = row.name
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    display.doing("choosing questions")
    questions = _questions(fleet, row, random.Random(seed))  # noqa: S311
    watch, open_streams = Watch(model), Streams("127.0.0.1", fleet.router_port, questions, streams)
    display.planned(len(changes))
    ended: list[Ended] = []
    try:
        open_streams.start()
        _until_open(open_streams)

        def look() -> None:
            watch.look()
            display.counts(open_streams)

        began = time.monotonic()
        for number, change in enumerate(changes, 1):
            display.change(number - 1, change)
            ended.append(carry_out(model, change, look))
            display.ended(number, len(changes), ended[-1])
            if ended[-1].state == "stuck":
                break
            time.sleep(chance.uniform(0, PAUSE_S))
        seconds = time.monotonic() - began
        display.doing("waiting for the ends of the streams")
        open_streams.finish()
    finally:
        open_streams.abandon()
    return Report(seed, open_streams, watch, ended, len(changes), seconds)


def _questions(fleet: Fleet, model: models.Model, chance: random.Random) -> Iterator[Question]:
    if model.engine_kind == "simulated":
        return simulated_questions(model.name, model.block_size, chance)
    vocabulary = int(model.config["vocab_size"])
    return in_turn(learned_questions(fleet.router_port, model.name, vocabulary, LEARNED, chance), chance)


def _until_open(streams: Streams) -> None:
    """Some must have ended before the first change, so that it meets streams of every age."""
    while streams.ended < 1:
        time.sleep(0.05)
