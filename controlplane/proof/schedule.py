"""Which changes a proof makes and in which order, at random and repeatable. Pure but for the chance that is handed in."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.core.protocol import Mode

MODES: tuple[Mode, ...] = ("monolithic", "disaggregated", "conditional")


@dataclass(frozen=True)
class Change:
    """`sizes`: engines per role afterwards. `mode` is also the mode afterwards where only the sizes change."""

    verb: str
    mode: Mode
    sizes: Mapping[str, int]

    def __str__(self) -> str:
        shape = " + ".join(f"{count} {role}" for role, count in self.sizes.items())
        if self.verb == "exchange":
            return "exchange of roles"
        return f"rebalance to {shape}" if self.verb == "rebalance" else f"{self.mode}, {shape}"


@dataclass(frozen=True)
class Ended:
    """What became of a change. `state` is the operation's last one, or `refused` or `stuck`."""

    change: Change
    operation: int
    state: str
    outcome: str
    seconds: float

    @property
    def good(self) -> bool:
        return self.state == "done"


def schedule(
    chance: random.Random, engines: int, rebalances: int, toggles: int, mode: Mode = "disaggregated"
) -> list[Change]:
    """So many of each in random order, from `mode` with its `engines` split evenly. A rebalance needs two pools, so that a
    monolithic model is toggled next; the last toggle leaves two pools while rebalances are to come. Two engines cannot be
    split otherwise: they exchange their roles instead. Raises ValueError if that cannot be."""
    if engines < 2 or (rebalances and mode == "monolithic" and not toggles):
        raise ValueError("a rebalance needs two pools")
    changes: list[Change] = []
    prefill = engines // 2
    while rebalances or toggles:
        if mode != "monolithic" and rebalances and chance.random() < rebalances / (rebalances + toggles):
            rebalances -= 1
            others = [size for size in range(1, engines) if size != prefill]
            prefill = chance.choice(others or [prefill])
            changes.append(Change("rebalance" if others else "exchange", mode, _split(engines, prefill)))
            continue
        toggles -= 1
        stays_split = rebalances > 0 and toggles == 0
        mode = chance.choice([each for each in MODES if each != mode and not (stays_split and each == "monolithic")])
        if mode == "monolithic":
            changes.append(Change("set_mode", mode, {"mixed": engines}))
        else:
            prefill = chance.randint(1, engines - 1)
            changes.append(Change("set_mode", mode, _split(engines, prefill)))
    return changes


def _split(engines: int, prefill: int) -> dict[str, int]:
    return {"prefill": prefill, "decode": engines - prefill}
