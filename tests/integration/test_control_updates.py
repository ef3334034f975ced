"""Settings of a model change at once; what its engines are started with changes by replacing them; and a model retires."""

from __future__ import annotations

import pytest

from controlplane.control import actions
from controlplane.control.actions import RollOut, Selector, Update
from controlplane.fleet import models
from tests.integration.control_kit import ANN
from tests.integration.control_rows import CONFIG, done, fleet, refusal, sizes, steps

pytestmark = pytest.mark.django_db


def model(name: str = "m") -> models.Model:
    return models.Model.objects.get(name=name)


def pool(role: str) -> models.Pool:
    return models.Pool.objects.get(role=role)


def test_settings_change_without_a_step() -> None:
    models.Team.objects.create(name="search")
    fleet("conditional", prefill=1, decode=2)
    update = Update(
        aliases=["small", "org/small"],
        team="search",
        slo_ttft_ms=1500,
        slo_itl_ms=30,
        conditional_min_uncached_tokens=64,
        conditional_min_uncached_ratio=0.25,
        on_prefill_loss="local",
        strict=True,
        floors={"decode": 2},
        selectors={"prefill": Selector(("h100-sxm", "l4"), {"zone": "a"})},
    )
    operation = actions.update_model(ANN, "m", update, reason="tuning")
    row = model()
    assert (row.aliases, row.team, row.slo_ttft_ms, row.slo_itl_ms) == (["small", "org/small"], "search", 1500, 30)
    assert (row.conditional_min_uncached_tokens, row.conditional_min_uncached_ratio) == (64, 0.25)
    assert (row.on_prefill_loss, row.strict, pool("decode").floor) == ("local", True, 2)
    assert (pool("prefill").gpu_kinds, pool("prefill").node_labels) == (["h100-sxm", "l4"], {"zone": "a"})
    assert operation.state == "done" and not operation.steps.exists()
    entry = operation.audit.get()
    assert entry.before["settings"]["slo_ttft_ms"] == 2000 and entry.after["settings"]["slo_ttft_ms"] == 1500
    assert (entry.before["floors"], entry.after["floors"]) == ({"decode": 1}, {"decode": 2})
    actions.rollback(ANN, operation.pk)
    assert (model().aliases, model().team, pool("decode").floor, pool("prefill").gpu_kinds) == ([], "", 1, [])


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (Update(aliases=["a b"]), "alias 'a b': letters, digits"),
        (Update(aliases=["m"]), "an alias repeats another name of the model"),
        (Update(aliases=["other"]), "the name other is taken by model other"),
        (Update(team="nobody"), "there is no team 'nobody'; teams: none"),
        (Update(slo_ttft_ms=0), "slo_ttft_ms: 1 to 10000000, not 0"),
        (Update(slo_itl_ms=float("nan")), "slo_itl_ms: 1 to"),
        (Update(conditional_min_uncached_ratio=2), "conditional_min_uncached_ratio: 0 to 1, not 2"),
        (Update(conditional_min_uncached_tokens=-1), "conditional_min_uncached_tokens: 0 to"),
        (Update(on_prefill_loss="cry"), "on_prefill_loss 'cry': one of retry, local, fail"),
        (Update(floors={"mixed": 1}), "there is no pool 'mixed'; pools: prefill, decode"),
        (Update(floors={"decode": -1}), "floor of pool 'decode': 0 to 1024, not -1"),
        (Update(selectors={"decode": Selector(("abacus",))}), "GPU kind 'abacus' is not known"),
    ],
)
def test_settings_that_make_no_sense_are_refused(update: Update, reason: str) -> None:
    fleet("monolithic", name="other", mixed=1)
    fleet("disaggregated", prefill=1, decode=1)
    refused = refusal(actions.update_model, ANN, "m", update)
    assert refused.kind == "invalid" and reason in str(refused)


def test_a_model_with_an_empty_pool_does_not_become_strict() -> None:
    fleet("disaggregated", prefill=1, decode=0)
    refused = refusal(actions.update_model, ANN, "m", Update(strict=True))
    assert refused.kind == "unsafe" and "pool decode would have 0 engines" in str(refused)
    models.Pool.objects.update(desired_engines=0)
    actions.update_model(ANN, "m", Update(strict=True))
    lax = actions.update_model(ANN, "m", Update(strict=False))
    models.Pool.objects.filter(role="prefill").update(desired_engines=1)
    assert refusal(actions.rollback, ANN, lax.pk).kind == "unsafe", "nor by an undo"


def test_settings_change_while_an_operation_runs() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    actions.rebalance(ANN, "m", {"prefill": 1, "decode": 3})
    actions.update_model(ANN, "m", Update(slo_ttft_ms=900))


# --- roll-outs ------------------------------------------------------------------------------------------------------------


def test_a_roll_out_replaces_every_engine() -> None:
    fleet("disaggregated", prefill=1, decode=2)
    operation = actions.roll_out(ANN, "m", RollOut(engine_args={"max_model_len": 8192, "kv_cache_dtype": "fp8"}))
    row = model()
    assert (row.engine_args, row.max_model_len) == ({"kv_cache_dtype": "fp8", "max_model_len": 8192}, 8192)
    assert (row.kv_bytes_per_token, row.launch_number) == (73_728, 2)
    assert steps(operation) == ["replace m-2", "replace m-3", "replace m-1"]
    assert operation.before["settings"]["max_model_len"] == 40_960


def test_a_roll_out_of_the_same_again_replaces_them_too() -> None:
    fleet("monolithic", mixed=2)
    assert steps(actions.roll_out(ANN, "m", RollOut(), reason="vLLM 0.30")) == ["replace m-1", "replace m-2"]


def test_a_roll_out_that_is_taken_back_replaces_only_what_it_had_replaced() -> None:
    fleet("monolithic", mixed=2)
    operation = actions.roll_out(ANN, "m", RollOut(source="org/m2", kv_lease_s=60))
    from_now_on = dict(models.Engine.objects.get(id="m-1").launch) | {"source": "org/m2", "digest": "new"}
    models.Engine.objects.filter(id="m-2").update(launch=from_now_on)
    models.Operation.objects.filter(pk=operation.pk).update(state="running")
    actions.rollback(ANN, operation.pk)
    assert (model().source, model().kv_lease_s, model().launch_number) == ("org/m", 30, 1)
    models.Operation.objects.filter(pk=operation.pk).update(state="rolled_back", finished_at="2026-01-01T00:00:00Z")
    again = actions.roll_out(ANN, "m", RollOut(source="org/m2"))
    done()
    undo = actions.rollback(ANN, again.pk)
    assert steps(undo) == ["replace m-2"], "m-1 was never replaced"


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        (RollOut(source="--model"), "source: give a model id"),
        (RollOut(config="{"), "model config: is no JSON"),
        (RollOut(config={**CONFIG, "num_attention_heads": 0}), "num_attention_heads"),
        (RollOut(engine_args={"trust_remote_code": True}), "'trust_remote_code' is not allowed"),
        (RollOut(kv_lease_s=0), "kv_lease_s: 1 to 3600 seconds"),
    ],
)
def test_a_roll_out_of_what_cannot_start_is_refused(to: RollOut, reason: str) -> None:
    fleet("monolithic", mixed=1)
    refused = refusal(actions.roll_out, ANN, "m", to)
    assert refused.kind == "invalid" and reason in str(refused)


# --- the end --------------------------------------------------------------------------------------------------------------


def test_a_retired_model_wants_no_engines() -> None:
    fleet("disaggregated", prefill=1, decode=2)
    operation = actions.retire_model(ANN, "m", reason="nobody asks it")
    assert model().retiring and sizes() == {}
    assert steps(operation) == ["stop prefill", "stop decode", "stop decode"]
    assert operation.after == {
        "pools": {"prefill": 0, "decode": 0},
        "settings": {"retiring": True},
    }
    assert "cannot end half-way: roll it back, or pause it" in str(refusal(actions.cancel, ANN, operation.pk))
    actions.rollback(ANN, operation.pk)
    assert not model().retiring and sizes() == {"prefill": 1, "decode": 2}


def test_a_model_with_a_canary_is_not_retired() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    actions.set_canary(ANN, "m", "conditional", shared=True)
    assert refusal(actions.retire_model, ANN, "m").kind == "busy"
