"""Moves of running engines between the pools of one model. Pure."""

from __future__ import annotations

PHASES = ("", "leaving", "verifying", "aborted")
"""How far an engine's move is. leaving: it takes no new work and finishes what it has; verifying: probes see whether KV
moves to and from it; aborted: the last move failed (Engine.reason says why) and it serves as before."""
