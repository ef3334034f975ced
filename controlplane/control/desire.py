"""What is desired of a model as one plain value that fits into JSON: to be compared, kept in an operation, and restored.

    {"mode": "disaggregated", "pools": {"prefill": 2, "decode": 3, "canary/mixed": 1},
     "floors": {"prefill": 1, …}, "selectors": {"prefill": {"gpu_kinds": ["h100-sxm"], "node_labels": {}}, …},
     "held": {"e-7f3a": true}, "roles": {"e-7f3a": "decode"}, "canary": {"id": 3, "mode": "monolithic"} or null,
     "settings": {"slo_ttft_ms": 1000.0, …}}

An operation's `before` and `after` hold only what it changed.
"""

from __future__ import annotations

from typing import Any

from django.db.models import F, QuerySet
from django.utils import timezone

from controlplane.core.lifecycle import CANARY, ENDED, OPERATION, STEP, move, observe
from controlplane.core.storable import storable_text
from controlplane.fleet import models

Desire = dict[str, Any]
SETTINGS = (
    *("aliases", "team", "source", "config", "engine_args", "launch_number", "max_model_len", "block_size"),
    *("kv_bytes_per_token", "kv_fixed_bytes", "kv_window_bytes_per_token", "kv_window_tokens", "kv_lease_s"),
    *("on_prefill_loss", "strict", "conditional_min_uncached_tokens", "conditional_min_uncached_ratio", "slo_ttft_ms"),
    *("slo_itl_ms", "retiring"),
)
"""Fields of a model's row that actions change, beside its mode."""

KEYED = frozenset({"pools", "floors", "selectors", "held", "roles", "settings"})
"""Parts that hold several values by name."""


def pool_key(role: str, arm: str = models.MAIN) -> str:
    """How a pool is named in a desire and to operators."""
    return role if arm == models.MAIN else f"{arm}/{role}"


def split_key(key: str) -> tuple[str, str]:
    """(role, arm) of a pool's name."""
    arm, slash, role = key.rpartition("/")
    return role, arm if slash else models.MAIN


def desire_of(model: models.Model) -> Desire:
    """Everything that is desired of `model` now, read from its rows."""
    row = models.Model.objects.get(pk=model.pk)
    pools = list(models.Pool.objects.filter(model=row))
    engines = models.Engine.objects.filter(model=row, wanted=True).values_list("id", "role", "next_role", "held")
    canary = row.canaries.filter(ended_at=None).first()
    return {
        "mode": row.mode,
        "pools": {pool_key(pool.role, pool.arm): pool.desired_engines for pool in pools},
        "floors": {pool_key(pool.role, pool.arm): pool.floor for pool in pools},
        "selectors": {
            pool_key(pool.role, pool.arm): {"gpu_kinds": pool.gpu_kinds, "node_labels": pool.node_labels} for pool in pools
        },
        "held": {id: is_held for id, _, _, is_held in engines},
        "roles": {id: next_role or role for id, role, next_role, _ in engines},
        "canary": {"id": canary.pk, "mode": canary.mode} if canary else None,
        "settings": {field: getattr(row, field) for field in SETTINGS},
    }


def changes(old: Desire, new: Desire) -> tuple[Desire, Desire]:
    """What differs: (its old values, its new values). A pool that was not there had no engines."""
    before: Desire = {}
    after: Desire = {}
    for part in new:
        if part in KEYED:
            comparable = [key for key in new[part] if part == "pools" or key in old[part]]
            keys = [key for key in comparable if old[part].get(key, 0) != new[part][key]]
            if keys:
                before[part] = {key: old[part].get(key, 0) for key in keys}
                after[part] = {key: new[part][key] for key in keys}
        elif old[part] != new[part]:
            before[part], after[part] = old[part], new[part]
    return before, after


def overtaken(model: models.Model, desire: Desire) -> list[str]:
    """Where the present desire of `model` is not what `desire` says, as sentences."""
    now = desire_of(model)
    found: list[str] = []
    for part, wanted in desire.items():
        if part not in now:
            continue
        for key, then in wanted.items() if part in KEYED else [("", wanted)]:
            value = now[part].get(key, then) if key else now[part]
            if value != then:
                found.append(f"{f'{part} {key}'.strip()} is {value!r:.80} by now, not {then!r:.80}")
    return found


def restore(model: models.Model, desire: Desire) -> None:
    """Write the parts of a desire that `desire` has, in the caller's transaction; pools and engines that are gone are
    left out."""
    fields = {field: value for field, value in desire.get("settings", {}).items() if field in SETTINGS}
    if "mode" in desire:
        fields["mode"] = desire["mode"]
    models.Model.objects.filter(pk=model.pk).update(version=F("version") + 1, **fields)
    for part, field in (("pools", "desired_engines"), ("floors", "floor")):
        for key, value in desire.get(part, {}).items():
            role, arm = split_key(key)
            models.Pool.objects.filter(model=model, role=role, arm=arm).update(**{field: value})
    for key, value in desire.get("selectors", {}).items():
        role, arm = split_key(key)
        models.Pool.objects.filter(model=model, role=role, arm=arm).update(**value)
    if "canary" in desire:
        _restore_canary(model, desire["canary"])
    for engine, held in desire.get("held", {}).items():
        models.Engine.objects.filter(model=model, id=engine).update(held=held)
    for engine, role in desire.get("roles", {}).items():
        row = models.Engine.objects.filter(model=model, id=engine)
        stays = {"next_role": "", "next_arm": "", "move_phase": ""}
        if not row.filter(role=role, move_phase="together").update(**stays):  # that one serves as it did all the time
            row.update(role=role, move_since=timezone.now(), **stays)


def _restore_canary(model: models.Model, canary: Desire | None) -> None:
    """End a canary that was not there; one that is wanted again runs on: its promotion, or the undoing of its start, was
    taken back."""
    running = model.canaries.filter(ended_at=None)
    if canary is None:
        running.update(
            state=move(CANARY, "running", "cancelled"), ended_at=timezone.now(), reason="its start was taken back"
        )
    elif not running.exists():
        for state, what in (("promoted", "promotion"), ("cancelled", "end")):
            again = model.canaries.filter(pk=canary["id"], state=state)
            again.update(state=move(CANARY, state, "running"), ended_at=None, reason=f"its {what} was taken back")


def skip_open_steps(steps: QuerySet[models.Step], reason: str) -> None:
    """What has not been done yet is not done any more."""
    for step in steps.filter(state__in=("waiting", "running")):
        models.Step.objects.filter(pk=step.pk, state=step.state).update(
            state=observe(STEP, step.state, "skipped"), reason=storable_text(reason)[:500], finished_at=timezone.now()
        )


def end(operation: models.Operation, state: str, outcome: str) -> None:
    """End an open operation in the caller's transaction; what it has not done yet is not done any more."""
    skip_open_steps(operation.steps.all(), outcome)
    models.Operation.objects.filter(pk=operation.pk).update(
        state=observe(OPERATION, operation.state, state), outcome=storable_text(outcome)[:500], finished_at=timezone.now()
    )


def begin_rollback(operation: models.Operation, why: str) -> bool:
    """Turn a running operation round, in the caller's transaction: what was desired before it is desired again, its open
    steps are skipped, and it is `rolling_back` until the fleet is there. False if it is not open (any more)."""
    row = models.Operation.objects.select_for_update().filter(pk=operation.pk).exclude(state__in=ENDED).first()
    if row is None or row.model is None or row.state == "rolling_back":
        return False
    state = move(OPERATION, observe(OPERATION, row.state, "running"), "rolling_back")
    restore(row.model, row.before)
    skip_open_steps(row.steps.all(), why)
    models.Operation.objects.filter(pk=row.pk).update(state=state, outcome=storable_text(why)[:500])
    return True
