"""Which engines may hand KV over to which, and who takes over a prefill whose partners have other roles by now. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from controlplane.core.protocol import EngineRoute, Role
from controlplane.core.scoring import Candidate

C = TypeVar("C", bound=Candidate)

NOT_VERIFIED = "not verified with the prefill engine yet"
_LATE: tuple[Role, ...] = ("decode", "mixed", "prefill")
"""Roles of engines that may take over a finished prefill, best first."""


def may_pair(prefill: EngineRoute, decode: EngineRoute) -> bool:
    """Whether KV may go from the one to the other."""
    return (
        prefill.compat == decode.compat
        and prefill.id != decode.id
        and (not prefill.peers or decode.id in prefill.peers)
        and (not decode.peers or prefill.id in decode.peers)
    )


def why_not_paired(prefill: EngineRoute, decode: EngineRoute) -> str:
    """For two that may not be."""
    if prefill.id == decode.id:
        return "it did the prefill itself"
    return "not compatible with the prefill engine" if decode.compat != prefill.compat else NOT_VERIFIED


def open_compats(routes: Sequence[EngineRoute]) -> set[str]:
    """The compat of those that may be paired with any engine of it: as good as always, all of them."""
    return {route.compat for route in routes if not route.peers}


def moved_on(engines: Sequence[C], arm: str, exclude: Collection[str], prefill: EngineRoute) -> list[C]:
    """Who may decode what `prefill` has finished, when the newest table has no decode engine for it any more: its model was
    switched, engines exchanged their roles, or the arm is over. They can still pull the KV, whatever their role is now."""
    if any(
        (route := engine.route).role == "decode" and route.state == "ready" and route.arm == arm and route.id != prefill.id
        for engine in engines
    ):
        return []
    ranked = [
        ((route.arm != arm, _LATE.index(route.role)), engine)
        for engine in engines
        if (route := engine.route).state == "ready"
        and route.id not in exclude
        and engine.usable
        and may_pair(prefill, route)
    ]
    best = min((rank for rank, _ in ranked), default=None)
    return [engine for rank, engine in ranked if rank == best]
