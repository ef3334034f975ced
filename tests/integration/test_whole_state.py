"""The whole desired state goes out as a document and comes in again; by hand changes are seen and kept."""

from __future__ import annotations

import copy
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client

from controlplane.access.tokens import add_token
from controlplane.alerts.models import RuleSetting
from controlplane.common.yamltext import read as read_yaml
from controlplane.common.yamltext import write
from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.keys import add_key
from controlplane.control.models import AppliedState, PlannerSetting
from controlplane.control.newkey import NewKey
from controlplane.control.state import document
from controlplane.control.state.applying import Applied, apply_state, plan_state
from controlplane.fleet import models
from controlplane.fleet.models import AuditEntry
from tests.integration.control_kit import ANN
from tests.integration.control_rows import CONFIG, TABLES, done, fleet, gpus, refusal

pytestmark = pytest.mark.django_db
OPERATOR = Actor("olga", "operator")


PLANNED = actions.PlannerChange(
    level="approve",
    priority=3,
    modes=["monolithic"],
    floors={"decode": 2},
    ceilings={"decode": 8},
    kinds={"prefill": ["h100-sxm"]},
    degrees={"decode": [2, 4]},
    guards={"cooldown_s": 1800.0, "freezes": [{"since_s": 3600.0, "until_s": 7200.0, "daily": True, "why": "batch"}]},
    peaks=[{"since_s": 28_800.0, "until_s": 36_000.0, "rate": 12.5, "daily": True}],
)


def apply(value: dict[str, Any], actor: Actor = ANN, **ways: Any) -> Applied:
    return apply_state(actor, document.read(value), **ways)


def plan(value: dict[str, Any], **ways: Any) -> Applied:
    return plan_state(ANN, document.read(value), **ways)


def state(**sections: Any) -> dict[str, Any]:
    return {"version": 1, **sections}


def edits(applied: Applied) -> list[tuple[str, str]]:
    return [(each.edit.verb, each.edit.path) for each in applied.done]


def rows() -> list[Any]:
    tables = (*TABLES, RuleSetting, models.Team, models.GpuPrice, PlannerSetting)
    return [list(table.objects.order_by("pk").values()) for table in tables]


def a_fleet() -> None:
    """With something in every part of the document."""
    models.Team.objects.create(name="search", gpu_quota=12)
    models.Team.objects.create(name="ads")
    fleet("disaggregated", prefill=2, decode=2, free=4)
    fleet("monolithic", "org/n", mixed=1)
    update = actions.Update(
        aliases=["on", "1e3"],
        team="search",
        slo_ttft_ms=900,
        conditional_min_uncached_ratio=0.25,
        on_prefill_loss="local",
        strict=True,
        floors={"decode": 2},
        selectors={"prefill": actions.Selector(("l4",), {"zone": "a"})},
    )
    actions.update_model(ANN, "m", update)
    actions.roll_out(ANN, "org/n", actions.RollOut(engine_args={"max_model_len": 4096}))
    actions.set_alert_rule(ANN, "node_lost", actions.RuleChange(threshold=60))
    actions.set_planner(ANN, "m", PLANNED)
    actions.set_price(ANN, "l4", "0.80", terms="owned", valid_from=datetime(2026, 3, 1, tzinfo=UTC))
    actions.set_price(ANN, "l4", "0.75", valid_from=datetime(2026, 6, 1, 12, tzinfo=UTC))
    done()


def empty() -> None:
    """As a system that nobody has used, with the same GPUs."""
    tables = (models.Reservation, models.Rank, models.Engine, models.Model, models.Team, models.GpuPrice)
    for table in (*tables, RuleSetting, AppliedState):
        table.objects.all().delete()


def test_what_is_exported_makes_the_same_on_an_empty_system() -> None:
    a_fleet()
    models.Node.objects.update(labels={"zone": "a"})
    exported = document.export()
    text = write(exported)
    assert read_yaml(text) == exported == json.loads(json.dumps(exported))
    empty()
    assert document.export() == state(teams={}, models={}, planners={}, alert_rules={}, prices={})
    made = apply(read_yaml(text))
    assert [path for verb, path in edits(made) if verb == "create"] == [
        "teams[ads]",
        "teams[search]",
        "models[m]",
        "models[org/n]",
        "planners[m]",
        "planners[org/n]",
        "alert_rules[node_lost]",
        "prices[l4/2026-03-01T00:00Z]",
        "prices[l4/2026-06-01T12:00Z]",
    ]
    assert document.export() == exported and write(document.export()) == text
    assert models.Operation.objects.filter(verb="register_model", model__name="m").latest("pk").steps.count() == 4


def test_applying_twice_is_an_empty_plan() -> None:
    a_fleet()
    exported = document.export()
    first = apply(exported)
    assert not first.done and first.operation, "the document is kept from now on"
    before = rows()
    again = apply(exported)
    assert (again.done, again.drifts, again.operation) == ((), (), 0)
    assert (plan(exported).done, rows()) == ((), before)


def test_a_change_of_a_model_is_one_operation_that_can_be_taken_back() -> None:
    a_fleet()
    exported = document.export()
    wanted = copy.deepcopy(exported)
    wanted["models"]["m"] |= {"mode": "conditional", "strict": False, "kv_lease_s": 45.0}
    wanted["models"]["m"]["pools"]["prefill"] |= {"engines": 1, "node_labels": {}, "gpu_kinds": []}
    wanted["models"]["m"]["pools"]["decode"]["engines"] = 3
    last = models.Operation.objects.latest("pk").pk
    before = rows()
    planned = plan(wanted)
    assert rows() == before, "a plan changes nothing"
    made = apply(wanted, reason="more answers")
    assert edits(made) == edits(planned) == [("change", "models[m]")]
    assert made.done[0].steps == planned.done[0].steps
    assert made.done[0].steps == (
        ("retask", "decode", 1),
        ("replace", "decode", 2),
        ("replace", "prefill", 2),
        ("switch", "", 1),
    )
    new = models.Operation.objects.filter(pk__gt=last).order_by("pk")
    assert [row.verb for row in new] == ["apply_model", "apply_state"]
    assert {entry.reason for entry in AuditEntry.objects.filter(operation__in=new)} == {"more answers"}
    assert document.export() == wanted
    done()
    models.Model.objects.update(served_mode="disaggregated")
    actions.rollback(ANN, new[0].pk)
    assert document.export() == exported


def test_what_was_changed_by_hand_is_told_and_left_alone() -> None:
    a_fleet()
    exported = document.export()
    apply(exported)
    actions.update_model(ANN, "m", actions.Update(slo_itl_ms=77.0))
    actions.set_team(ANN, "ads", 3)
    drifts = [(each.path, each.applied, each.now, each.wanted) for each in apply(exported).drifts]
    assert drifts == [("teams[ads].gpu_quota", None, 3, None), ("models[m].slo.itl_ms", 50.0, 77.0, 50.0)]
    newer = copy.deepcopy(exported)
    newer["models"]["m"]["slo"] = {"ttft_ms": 800.0, "itl_ms": 60.0}
    made = apply(newer)
    assert [path for each in made.done for path in each.edit.fields] == ["slo.ttft_ms"], "what was not touched is changed"
    assert [each.path for each in made.drifts] == ["teams[ads].gpu_quota", "models[m].slo.itl_ms"]
    taken = apply(newer, take=["models[m].slo.itl_ms"])
    assert edits(taken) == [("change", "models[m]")] and [each.path for each in taken.drifts] == ["teams[ads].gpu_quota"]
    assert edits(apply(newer, force=True)) == [("change", "teams[ads]")]
    assert document.export() == newer and not apply(newer).drifts


def test_what_was_removed_by_hand_does_not_come_back_by_itself() -> None:
    models.Team.objects.create(name="ads", gpu_quota=3)
    wanted = state(teams={"ads": {"gpu_quota": 3}})
    apply(wanted)
    actions.remove_team(ANN, "ads")
    assert [each.path for each in apply(wanted).drifts] == ["teams[ads]"]
    assert edits(apply(wanted, force=True)) == [("create", "teams[ads]")]


def test_null_removes_and_what_is_not_named_stays() -> None:
    a_fleet()
    done = apply(state(models={"org/n": None}, teams={"ads": None}, alert_rules={"node_lost": None}))
    assert edits(done) == [("remove", "teams[ads]"), ("remove", "models[org/n]"), ("remove", "alert_rules[node_lost]")]
    now = document.export()
    assert (list(now["models"]), list(now["teams"]), now["alert_rules"]) == (["m"], ["search"], {})
    assert models.Model.objects.get(name="org/n").retiring
    assert not apply(state(models={"org/n": None}, teams={"ads": None}, alert_rules={"node_lost": None})).done


def test_all_is_refused_with_every_reason_or_nothing_is() -> None:
    a_fleet()
    wanted = document.export()
    wanted["teams"]["new"] = {"gpu_quota": 4}
    wanted["models"]["m"]["slo"]["ttft_ms"] = 0.0
    wanted["models"]["org/n"]["connector"] = "example"
    wanted["models"]["x"] = {"mode": "monolithic"}
    wanted["alert_rules"]["no_such_rule"] = {"threshold": 1.0}
    before = rows()
    refused = refusal(lambda actor: apply(wanted, actor), ANN)
    assert refused.kind == "invalid" and rows() == before
    assert [reason.split(":")[0] for reason in refused.reasons] == [
        "models[m]",
        "models[org/n]",
        "models[x]",
        "alert_rules[no_such_rule]",
    ]
    assert "needs source and config" in refused.reasons[2]


def test_a_name_goes_from_one_model_to_another_in_one_go() -> None:
    fleet("monolithic", "a", mixed=1)
    fleet("monolithic", "b", mixed=1)
    actions.update_model(ANN, "b", actions.Update(aliases=["best"]))
    made = apply(state(models={"a": {"aliases": ["best"]}, "b": {"aliases": []}}))
    assert len(made.done) == 2
    assert models.Model.objects.get(name="a").aliases == ["best"]


def test_a_model_on_which_an_operation_runs_is_busy_unless_nothing_of_it_differs() -> None:
    a_fleet()
    exported = document.export()
    running = actions.scale_pool(ANN, "org/n", "mixed", 2)
    exported["models"]["org/n"]["pools"]["mixed"]["engines"] = 2
    assert not apply(exported).done
    exported["models"]["org/n"]["slo"]["ttft_ms"] = 5.0
    refused = refusal(lambda actor: apply(exported, actor), ANN)
    assert (refused.kind, refused.operation) == ("busy", running.pk)


def test_a_pool_is_not_left_below_its_floor_but_may_be_emptied() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    one = state(models={"m": {"pools": {"decode": {"floor": 2, "engines": 1}}}})
    assert refusal(lambda actor: apply(one, actor), ANN).kind == "unsafe"
    none = state(models={"m": {"pools": {"decode": {"engines": 0}, "prefill": {"engines": 0}}}})
    assert apply(none).done[0].steps == (("stop", "prefill", 2), ("stop", "decode", 2))


def test_planner_and_prices_written_by_hand_are_compared_by_what_they_mean() -> None:
    a_fleet()
    short = state(
        planners={"m": {"guards": {"freezes": [{"since_s": 3600, "until_s": 7200, "daily": True, "why": "batch"}]}}},
        prices={"l4/2026-06-01T14:00+02:00": {"per_hour": 0.750}, "h100-sxm/2026-01-01T00:00Z": {"per_hour": "2.60"}},
    )
    assert edits(apply(short)) == [("create", "prices[h100-sxm/2026-01-01T00:00Z]")]
    again = apply(short)
    assert (again.done, again.drifts, again.operation) == ((), (), 0)
    row = models.GpuPrice.objects.get(kind="h100-sxm")
    assert (str(row.per_hour), row.terms) == ("2.600000", "hourly")


def test_of_the_planner_only_what_is_named_is_set_and_prices_are_removed_by_null() -> None:
    a_fleet()
    part = state(planners={"m": {"level": "off", "guards": {"idle_s": 600.0}}}, prices={"l4/2026-03-01T00:00Z": None})
    made = apply(part, reason="quiet")
    assert edits(made) == [("change", "planners[m]"), ("remove", "prices[l4/2026-03-01T00:00Z]")]
    setting = PlannerSetting.objects.get(model__name="m")
    assert (setting.level, setting.priority, setting.guards["idle_s"], setting.guards["cooldown_s"]) == ("off", 3, 600, 1800)
    assert AuditEntry.objects.filter(verb="remove_price", reason="quiet").exists()
    actions.set_planner(ANN, "m", actions.PlannerChange(level="automatic"))
    assert [each.path for each in apply(part).drifts] == ["planners[m].level"]


@pytest.mark.parametrize(
    ("sections", "remedy"),
    [
        ({"planners": {"m": {"level": "wild"}}}, "one of off, advise"),
        ({"planners": {"m": {"guards": {"cooldown_s": -1}}}}, "cooldown_s: 0 to"),
        ({"planners": {"m": {"guards": {"a.b": 1}}}}, "there is no guard"),
        ({"planners": {"m": {"peaks": [{"since_s": "PLANTED"}]}}}, "peaks"),
        ({"planners": {"m": None}}, "level: off"),
        ({"planners": {"nobody": {"level": "off"}}}, "nobody"),
        ({"prices": {"l4": {"per_hour": 1.0}}}, "h100-sxm/2026-12-01T00:00Z"),
        ({"prices": {"l4/2026-12-01T00:30Z": {"per_hour": 1.0}}}, "whole hours"),
        ({"prices": {"l4/2026-12-01T00:00": {"per_hour": 1.0}}}, "when it begins"),
        ({"prices": {"l4/0001-01-01T00:00+14:00": {"per_hour": 1.0}}}, "2020"),
        ({"prices": {"l4/2026-12-01T00:00Z": {"per_hour": "1e999999"}}}, "per_hour"),
        ({"prices": {"l4/2026-12-01T00:00Z": {"per_hour": "cheap"}}}, "no number"),
        ({"prices": {"l4/2026-12-01T00:00Z": {"terms": "owned"}}}, "needs per_hour"),
    ],
)
def test_planner_and_prices_that_cannot_be_are_refused_with_the_remedy(sections: dict[str, Any], remedy: str) -> None:
    a_fleet()
    before = rows()
    refused = refusal(lambda actor: apply(state(**sections), actor), ANN)
    assert remedy in str(refused) and rows() == before


def test_who_may_what_is_as_everywhere() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    vic = Actor("vic", "viewer")
    assert refusal(lambda actor: apply(state(), actor), vic).kind == "forbidden"
    assert apply(state(models={"m": {"slo": {"ttft_ms": 500.0}}}), OPERATOR).done
    done()
    priced = state(prices={"l4/2026-03-01T00:00Z": {"per_hour": 1.0}})
    for admins in (state(teams={"x": {"gpu_quota": 1}}), state(models={"m": {"team": "search"}}), priced):
        models.Team.objects.get_or_create(name="search")
        assert refusal(lambda actor, value=admins: apply(value, actor), OPERATOR).kind == "forbidden"


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"version": 2},
        {"version": True},
        state(nonsense={}),
        state(models=[]),
        state(models={"m": {"sourse": "x"}}),
        state(models={"m": {"mode": 3}}),
        state(models={"m": {"slo": {"ttft_ms": "fast"}}}),
        state(models={"m": {"pools": {"encode": {"engines": 1}}}}),
        state(models={"m": {"pools": {"decode": {"engines": 1.5}}}}),
        state(models={"m": {"pools": {"decode": {"engines": True}}}}),
        state(models={"m": {"mode": None}}),
        state(teams={"t": {"gpu_quota": "PLANTED-VALUE"}}),
        state(teams={f"t{n}": {} for n in range(1001)}),
        [],
        None,
    ],
)
def test_a_document_of_another_form_is_refused_without_repeating_it(value: Any) -> None:
    refused = refusal(lambda _: document.read(value), ANN)
    assert refused.kind == "invalid" and refused.reasons
    assert "PLANTED" not in str(refused) and len(refused.reasons) <= 21


def test_no_secret_is_in_the_document() -> None:
    a_fleet()
    User.objects.create_user("bot")
    secrets = [add_key(ANN, NewKey("web", "search"))[1], add_token(ANN, "bot", "ci", days=None)[1]]
    secrets.append(actions.add_channel(ANN, "pager", "webhook", "https://93.184.216.34/hook/PLANTED")[1])
    text = write(document.export())
    hashes = [row.sha256 for row in models.InferenceKey.objects.all()]
    assert not [each for each in (*secrets, *hashes, "PLANTED", "pager", "sha256") if each in text]


# --- The API and the command


def token(role: str) -> dict[str, Any]:
    user, made = User.objects.get_or_create(username=role)
    if made:
        user.groups.add(Group.objects.get_or_create(name=role)[0])
    name = f"t{models.Operation.objects.count()}"
    return {"HTTP_AUTHORIZATION": f"Bearer {add_token(ANN, role, name, days=None)[1]}"}


def test_the_api_gives_and_takes_json_and_yaml() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    client, admin = Client(), token("admin")
    as_json = client.get("/api/v1/state", **admin)
    as_yaml = client.get("/api/v1/state", HTTP_ACCEPT="application/yaml", **admin)
    assert as_yaml["content-type"].startswith("application/yaml")
    assert read_yaml(as_yaml.content.decode()) == as_json.json() == document.export()
    wanted = as_yaml.content.decode().replace("ttft_ms: 2000.0", "ttft_ms: 700")
    planned = client.put("/api/v1/state?dry_run=true", wanted, "application/yaml", **admin)
    assert planned.status_code == 200 and models.Model.objects.get().slo_ttft_ms == 2000
    (change,) = planned.json()["changes"]
    assert change["fields"] == {"slo.ttft_ms": {"now": 2000.0, "wanted": 700}} and change["operation"] is None
    sent = {"HTTP_IDEMPOTENCY_KEY": "k1", "HTTP_IF_MATCH": as_json["etag"], **admin}
    made = client.put("/api/v1/state?reason=faster", wanted, "application/yaml", **sent)
    assert made.status_code == 202 and models.Model.objects.get().slo_ttft_ms == 700
    again = client.put("/api/v1/state?reason=faster", wanted, "application/yaml", **sent)
    assert (again.json(), again["idempotency-replayed"]) == (made.json(), "true")
    stale = client.put("/api/v1/state", {"version": 1}, "application/json", HTTP_IF_MATCH=as_json["etag"], **admin)
    assert stale.status_code == 412
    unchanged = client.get("/api/v1/state", HTTP_IF_NONE_MATCH=client.get("/api/v1/state", **admin)["etag"], **admin)
    assert unchanged.status_code == 304


def test_the_api_refuses_as_it_does_everywhere() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    client, admin = Client(), token("admin")
    for body in ("a: &x 1", "a: !!python/name:os.system", "[", "- 1", "a: \ud800".encode(errors="surrogatepass")):
        refused = client.put("/api/v1/state", body, "application/yaml", HTTP_ACCEPT="application/yaml", **admin)
        assert (refused.status_code, refused.json()["kind"]) == (400, "malformed")
    assert client.put("/api/v1/state", "a: 1", "text/yaml", **admin).status_code == 415
    assert client.put("/api/v1/state?forse=1", {"version": 1}, "application/json", **admin).status_code == 400
    assert client.put("/api/v1/state", {"version": 1}, "application/json", **token("viewer")).status_code == 403
    assert client.put("/api/v1/state", {"version": 3}, "application/json", **admin).status_code == 422
    assert client.get("/api/v1/state", **token("viewer")).status_code == 200
    assert client.get("/api/v1/state").status_code == 401


def command(*words: str) -> str:
    out = io.StringIO()
    call_command("state", *words, stdout=out)
    return out.getvalue()


def test_the_command_exports_compares_and_applies(tmp_path: Path) -> None:
    fleet("disaggregated", prefill=2, decode=2)
    file = tmp_path / "fleet.yaml"
    file.write_text(command("export"))
    assert json.loads(command("diff", "-f", str(file))) == {"changes": [], "drift": [], "operation": None}
    assert json.loads(command("export", "--format", "json")) == document.export()
    file.write_text(file.read_text().replace("engines: 2", "engines: 1", 1))
    with pytest.raises(SystemExit):
        command("diff", "--exit-code", "-f", str(file))
    made = json.loads(command("apply", "-f", str(file), "--reason", "smaller"))
    assert made["changes"][0]["steps"] == [{"verb": "stop", "role": "decode", "count": 1}]
    assert AuditEntry.objects.filter(verb="apply_state", actor__startswith="cli", reason="smaller").exists()
    for words in (("diff",), ("diff", "-f", str(tmp_path / "none")), ("diff", "-f", str(tmp_path))):
        with pytest.raises(CommandError):
            command(*words)
    file.write_text("a: &b 1")
    with pytest.raises(CommandError, match="anchors and aliases are not taken"):
        command("apply", "-f", str(file))


def test_a_large_config_is_named_by_a_digest_in_plan_and_audit() -> None:
    fleet("monolithic", mixed=1)
    gpus(1)
    config = {**CONFIG, "note": "PLANTED-NOTE"}
    made = apply(state(models={"m": {"config": config}}))
    from controlplane.control.state.applying import shown

    assert "PLANTED-NOTE" not in json.dumps(shown(made))
    assert "sha256:" in json.dumps(shown(made))
