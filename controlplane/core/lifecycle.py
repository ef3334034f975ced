"""The states of engines, steps, operations and canaries, one table each. An illegal move raises. Pure."""

from __future__ import annotations

from collections.abc import Mapping

States = Mapping[str, frozenset[str]]


class IllegalMove(ValueError):
    """A state was asked to become one that its table does not lead to."""


def _table(**moves: str) -> States:
    table = {state: frozenset(targets.split()) for state, targets in moves.items()}
    unknown = {target for targets in table.values() for target in targets} - table.keys()
    assert not unknown, f"targets without a row: {unknown}"
    return table


ENGINE = _table(
    planned="starting stopping stopped failed",
    starting="verifying failed stopping stopped lost",
    verifying="ready failed stopping stopped lost",
    ready="draining failed stopping stopped lost",
    draining="ready failed stopping stopped lost",
    stopping="stopped failed lost",
    stopped="starting",
    failed="starting stopped lost",
    lost="starting verifying ready draining stopping stopped failed",
)
"""An engine as observed. starting: process runs, not yet healthy; verifying: healthy, generating its first token for us;
lost: its agent's fact expired. stopped and failed start again as a new incarnation."""

STEP = _table(
    waiting="running skipped",
    running="done failed waiting",
    done="",
    failed="waiting",
    skipped="",
)

OPERATION = _table(
    pending="running paused refused cancelled",
    running="paused done failed rolling_back cancelled",
    paused="running done failed rolling_back cancelled",
    rolling_back="rolled_back failed cancelled",
    done="",
    failed="",
    refused="",
    cancelled="",
    rolled_back="",
)

CANARY = _table(
    running="promoted rolled_back cancelled",
    promoted="running",
    rolled_back="",
    cancelled="running",
)
"""promoted and cancelled lead back only where the promotion or the end itself was taken back."""

SERVING = frozenset({"ready", "draining"})
"""Engine states in which requests may be in flight."""

OVER = frozenset({"stopped", "failed"})
"""Engine states in which no process is left."""

ENDED = frozenset(state for state, targets in OPERATION.items() if not targets)
"""Operation states that are final."""


def move(table: States, current: str, target: str) -> str:
    """`target`, if the table leads there from `current`; staying is always allowed. Raises IllegalMove."""
    if current == target and current in table:
        return target
    if target not in table.get(current, frozenset()):
        raise IllegalMove(f"{current} cannot become {target}")
    return target


def observe(table: States, current: str, target: str) -> str:
    """`target`, if any chain of moves leads there: what is observed may have passed states that nobody saw.
    Raises IllegalMove."""
    reached, frontier = {current}, [current]
    while frontier and target not in reached:
        frontier = [each for state in frontier for each in table.get(state, frozenset()) if each not in reached]
        reached.update(frontier)
    if target not in table or target not in reached:
        raise IllegalMove(f"{current} can never become {target}")
    return target
