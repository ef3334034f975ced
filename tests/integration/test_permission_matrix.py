"""Every verb, asked by everybody of every model, through every door: the API, the pages, the command line and sockets give
the answer that RIGHTS says, and where somebody may not do something they do not learn whether it is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import transaction
from django.test import Client
from django.utils import timezone

from controlplane.console import alerts as alert_pages
from controlplane.console import engine as engine_pages
from controlplane.console import model_page
from controlplane.console import nodes as node_pages
from controlplane.console import operations as operation_pages
from controlplane.console import planner as planner_pages
from controlplane.console import proposals as proposal_pages
from controlplane.control import actions
from controlplane.control.actor import TOPICS, VERBS, Actor, may, may_follow
from controlplane.fleet import models
from tests.integration.alert_kit import firing
from tests.integration.control_kit import ANN
from tests.integration.control_rows import CONFIG, fleet, gpus, refusal
from tests.integration.planner_rows import proposal

pytestmark = pytest.mark.django_db

OWNER, OPERATOR, ADMIN = "owner", "operator", "admin"
RIGHTS: dict[str, str] = {
    **dict.fromkeys(("set_mode", "rebalance", "set_canary", "promote_canary", "update_canary", "end_canary"), OWNER),
    **dict.fromkeys(("rollback", "cancel", "pause", "resume"), OWNER),
    **dict.fromkeys(("set_planner", "approve_proposal", "modify_proposal", "reject_proposal"), OWNER),
    **dict.fromkeys(("silence_alert", "unsilence_alert", "set_alert_rule"), OWNER),
    **dict.fromkeys(("scale_pool", "move_gpus", "exchange_roles", "roll_out", "retire_model", "remove_model"), OPERATOR),
    **dict.fromkeys(("drain_engine", "undrain_engine", "restart_engine", "retry_engine"), OPERATOR),
    **dict.fromkeys(("register_model", "update_model", "apply_model", "apply_state", "freeze", "unfreeze"), OPERATOR),
    **dict.fromkeys(("cordon_node", "uncordon_node", "set_priority", "try_channel"), OPERATOR),
    **dict.fromkeys(("set_team", "remove_team", "set_owner", "grant_model", "ungrant_model"), ADMIN),
    **dict.fromkeys(("add_node", "remove_node", "set_price", "remove_price"), ADMIN),
    **dict.fromkeys(("add_channel", "update_channel", "remove_channel"), ADMIN),
}
"""The least that it takes: an owner of the model (or whom it was given to), an operator, an admin. Keys and tokens, which
belong to teams and people and to no model, are tested where they are made."""
OF_TEAMS_AND_PEOPLE = frozenset(VERBS) - RIGHTS.keys()
MODELS = {"m": "search", "x": "ads"}
"""By name, whose they are."""


@dataclass(frozen=True)
class Visitor:
    """`owns`: names of models, by team or because they were given."""

    name: str
    group: str = ""
    teams: tuple[str, ...] = ()
    granted: tuple[str, ...] = ()
    owns: frozenset[str] = frozenset()


VISITORS = (
    Visitor("nobody"),
    Visitor("viewer", "viewer"),
    Visitor("ola", "owner", ("search",), owns=frozenset({"m"})),
    Visitor("adam", "owner", ("ads",), owns=frozenset({"x"})),
    Visitor("teamed", "viewer", ("search",)),
    Visitor("given", "viewer", granted=("m",), owns=frozenset({"m"})),
    Visitor("olga", "operator"),
    Visitor("ann", "admin"),
)
"""`nobody` is not signed in; `teamed` is in a team without being an owner."""


def allowed(visitor: Visitor, verb: str, model: str) -> bool:
    if visitor.group == "admin":
        return True
    if visitor.group == "operator":
        return RIGHTS[verb] != ADMIN
    return RIGHTS[verb] == OWNER and model in visitor.owns


@dataclass
class Ask:
    """How a verb is asked: `{name}` stands for what a `Place` has. `page`: an address of the console, POST. `command`: of
    the management commands."""

    api: tuple[str, str, dict[str, Any] | None] | None = None
    page: tuple[str, dict[str, Any]] | None = None
    command: tuple[str, ...] = ()
    once: bool = field(default=False)
    """It is about no model."""
    plain: bool = False
    """Its page is a plain form, which has no dry run: it is carried out."""


SOON = (timezone.now() + timedelta(hours=1)).isoformat()
SIZES = {"prefill": 1, "decode": 3}
NEW = {"name": "new", "source": "org/new", "config": CONFIG, "engine_kind": "simulated"}
CANARY = {"mode": "conditional", "shared": True}
ASKS: dict[str, Ask] = {
    "set_mode": Ask(
        ("PUT", "models/{model}/mode", {"mode": "monolithic"}),
        ("models/{model}/mode", {"mode": "monolithic"}),
        ("mode", "{model}", "monolithic"),
    ),
    "rebalance": Ask(
        ("POST", "models/{model}/rebalance", {"pools": SIZES}),
        ("models/{model}/rebalance/start", {"sizes": SIZES}),
        ("rebalance", "{model}", "prefill=1", "decode=3"),
    ),
    "set_canary": Ask(
        ("PUT", "models/{model}/canary", CANARY),
        ("models/{model}/canary", CANARY),
        ("canary", "start", "{model}", "--mode", "conditional", "--shared"),
    ),
    "promote_canary": Ask(
        ("POST", "models/{model}/canary/promote", {}),
        ("models/{model}/canary/promote", {}),
        ("canary", "promote", "{model}"),
    ),
    "update_canary": Ask(
        ("PATCH", "models/{model}/canary", {"guardrails": {}}), command=("canary", "guardrails", "{model}")
    ),
    "end_canary": Ask(
        ("DELETE", "models/{model}/canary", None), ("models/{model}/canary/end", {}), ("canary", "end", "{model}")
    ),
    **{
        verb: Ask(("POST", f"operations/{{operation}}/{verb}", {}), (f"operations/{{operation}}/{verb}", {}))
        for verb in ("cancel", "pause", "resume")
    },
    "rollback": Ask(
        ("POST", "operations/{operation}/rollback", {}),
        ("operations/{operation}/rollback", {}),
        ("operation", "rollback", "{operation}"),
    ),
    "set_planner": Ask(
        ("PATCH", "models/{model}/planner", {"level": "approve"}),
        ("models/{model}/planner/set", {"level": "approve"}),
        ("planner", "{model}", "--level", "approve"),
    ),
    "approve_proposal": Ask(
        ("POST", "proposals/{proposal}/approve", {}),
        ("proposals/{proposal}/approve", {}),
        ("proposal", "approve", "{proposal}"),
    ),
    "modify_proposal": Ask(
        ("POST", "proposals/{proposal}/modify", {"pools": SIZES}),
        ("proposals/{proposal}/modify", {"sizes": SIZES}),
        ("proposal", "modify", "{proposal}", "--pool", "decode=3"),
    ),
    "reject_proposal": Ask(
        ("POST", "proposals/{proposal}/reject", {"reason": "no"}),
        ("proposals/{proposal}/reject", {}),
        ("proposal", "reject", "{proposal}"),
    ),
    "silence_alert": Ask(
        ("PUT", "alerts/{alert}/silence", {"until": SOON, "reason": "known"}),
        ("alerts/{alert}/silence", {"minutes": 5}),
        ("silence_alert", "{alert}", "--hours", "1"),
    ),
    "unsilence_alert": Ask(("DELETE", "alerts/{alert}/silence", None), command=("silence_alert", "{alert}", "--off")),
    "set_alert_rule": Ask(
        ("PUT", "alert-rules/pool_empty", {"model": "{model}", "severity": "warn"}),
        ("alert-rules/pool_empty", {"model": "{model}", "severity": "warn"}),
    ),
    "scale_pool": Ask(
        ("PUT", "models/{model}/pools/decode", {"engines": 1}), command=("scale_pool", "{model}", "decode", "1")
    ),
    "move_gpus": Ask(
        ("POST", "models/{model}/move-gpus", {"from_role": "decode", "to_role": "prefill", "gpus": 1}),
        command=("move_gpus", "{model}", "decode", "prefill", "1"),
    ),
    "exchange_roles": Ask(command=("exchange_roles", "{model}", "{engine}", "{other}")),
    "roll_out": Ask(("POST", "models/{model}/roll-out", {}), command=("roll_out", "{model}")),
    "retire_model": Ask(("DELETE", "models/{model}", None), command=("retire_model", "{model}")),
    "remove_model": Ask(command=("remove_model", "{model}")),
    **{
        verb: Ask((method, f"engines/{{engine}}/{address}", body), (f"engines/{{engine}}/{page}", {}), command)
        for verb, method, address, body, page, command in (
            ("drain_engine", "PUT", "drain", {}, "hold", ("drain_engine", "{engine}")),
            ("undrain_engine", "DELETE", "drain", None, "readmit", ("drain_engine", "{engine}", "--undo")),
            ("restart_engine", "POST", "restart", {}, "restart", ("restart_engine", "{engine}")),
            ("retry_engine", "POST", "retry", {}, "retry", ("retry_engine", "{engine}")),
        )
    },
    "register_model": Ask(("POST", "models", NEW), once=True),
    "update_model": Ask(
        ("PATCH", "models/{model}", {"slo_itl_ms": 40}), command=("update_model", "{model}", "--slo-itl-ms", "40")
    ),
    "apply_state": Ask(("PUT", "state", {"version": 1}), once=True),
    "freeze": Ask(("PUT", "models/{model}/freeze", {"until": SOON}), command=("freeze", "{model}", "--hours", "1")),
    "unfreeze": Ask(("DELETE", "models/{model}/freeze", None), command=("freeze", "{model}", "--off")),
    "cordon_node": Ask(("PUT", "nodes/n1/cordon", {}), ("nodes/n1/cordon", {}), ("cordon_node", "n1"), once=True),
    "uncordon_node": Ask(
        ("DELETE", "nodes/n1/cordon", None), ("nodes/n1/uncordon", {}), ("cordon_node", "n1", "--undo"), once=True
    ),
    "set_priority": Ask(
        ("PATCH", "models/{model}/planner", {"priority": 1}),
        ("models/{model}/planner/set", {"priority": 1}),
        ("planner", "{model}", "--priority", "1"),
    ),
    "set_owner": Ask(
        ("PATCH", "models/{model}", {"team": "ads", "slo_itl_ms": 40}),
        command=("update_model", "{model}", "--team", "ads"),
    ),
    "grant_model": Ask(
        ("PUT", "models/{model}/grants/viewer", {}),
        ("grants/give", {"model": "{model}", "user": "viewer"}),
        ("grant_model", "{model}", "viewer"),
        plain=True,
    ),
    "ungrant_model": Ask(
        ("DELETE", "models/{model}/grants/viewer", None),
        ("grants/take", {"model": "{model}", "user": "viewer"}),
        ("grant_model", "{model}", "viewer", "--revoke"),
        plain=True,
    ),
    "add_node": Ask(("POST", "nodes", {"name": "n9"}), command=("add_node", "n9"), once=True),
    "remove_node": Ask(("DELETE", "nodes/n1", None), command=("remove_node", "n1"), once=True),
    "set_price": Ask(
        ("POST", "prices", {"kind": "l4", "per_hour": "0.8"}),
        ("prices", {"kind": "l4", "per_hour": "0.8", "terms": "hourly"}),
        once=True,
    ),
    "remove_price": Ask(("DELETE", "prices/1", None), ("prices/1/remove", {}), once=True),
    "update_channel": Ask(("PATCH", "channels/none", {"enabled": False}), ("channels/none", {"enabled": False}), once=True),
    "remove_channel": Ask(("DELETE", "channels/none", None), ("channels/none/remove", {}), once=True),
}
NO_DOOR = {"apply_model", "set_team", "remove_team", "try_channel", "add_channel"}
"""Parts of `apply_state`, or what shows a secret or sends something and so has no dry run: see test_control_actors."""


@pytest.fixture
def places() -> dict[str, dict[str, Any]]:
    """By model: what the addresses of ASKS need. Everybody of VISITORS is there."""
    for team in ("search", "ads"):
        models.Team.objects.create(name=team)
    found = {}
    for name, team in MODELS.items():
        row = fleet("disaggregated", name, prefill=2, decode=2)
        models.Model.objects.filter(pk=row.pk).update(team=team)
        operation = models.Operation.objects.filter(model=row).latest("pk")
        alert = firing(subject=f"pool:{name}/decode", model=name)
        found[name] = {
            "model": name,
            "engine": f"{name}-1",
            "other": f"{name}-3",
            "operation": operation.pk,
            "proposal": proposal(row).pk,
            "alert": alert.pk,
            "version": models.Model.objects.get(pk=row.pk).version,
        }
    for visitor in VISITORS[1:]:
        user = User.objects.create_user(visitor.name)
        user.groups.add(Group.objects.get_or_create(name=visitor.group)[0])
        user.teams.set(models.Team.objects.filter(name__in=visitor.teams))
        for name in visitor.granted:
            actions.grant_model(ANN, name, visitor.name)
    return found


def client_of(visitor: Visitor) -> Client:
    client = Client(SERVER_NAME="localhost")
    if visitor.group:
        client.force_login(User.objects.get(username=visitor.name))
    return client


def asked_of(ask: Ask, visitor: Visitor) -> list[str]:
    """Of the other model only who owns one is asked too: to the rest the two are alike."""
    return list(MODELS) if visitor.owns and not ask.once else ["m"]


def filled(value: Any, place: dict[str, Any]) -> Any:
    if isinstance(value, str):
        return value.format(**place)
    if isinstance(value, dict) and value is not CONFIG:
        return {key: filled(each, place) for key, each in value.items()}
    return value


def answer_of(status: int) -> str:
    return {401: "not signed in", 403: "forbidden"}.get(status, "allowed" if status < 500 and status != 404 else str(status))


def wanted(visitor: Visitor, verb: str, model: str) -> str:
    if not visitor.group:
        return "not signed in"
    return "allowed" if allowed(visitor, verb, model) else "forbidden"


ABSENT = {
    "unsilence_alert",
    "promote_canary",
    "update_canary",
    "end_canary",
    "ungrant_model",
    "remove_price",
    "update_channel",
    "remove_channel",
}
"""Where those who may are told that there is none."""


def compare(visitor: Visitor, got: dict[tuple[str, str], str]) -> None:
    """Whether each answer is the one that RIGHTS says: (verb, model) -> answer."""
    wrong = {}
    for (verb, model), answer in got.items():
        right = wanted(visitor, verb, model)
        if answer != right and not (right == "allowed" and verb in ABSENT and answer == "404"):
            wrong[verb, model] = f"{answer}, not {right}"
    assert not wrong, visitor.name


everybody = pytest.mark.parametrize("visitor", VISITORS, ids=lambda visitor: visitor.name)
signed_in = pytest.mark.parametrize("visitor", VISITORS[1:], ids=lambda visitor: visitor.name)


def test_there_are_many_cases() -> None:
    doors = [(ask, visitor) for ask in ASKS.values() for visitor in VISITORS]
    assert sum(len(asked_of(ask, each)) * bool(ask.api) for ask, each in doors) > 200
    assert sum(len(asked_of(ask, each)) * (bool(ask.page) + bool(ask.command)) for ask, each in doors) > 400


def test_the_table_has_every_verb() -> None:
    assert RIGHTS.keys() == ASKS.keys() | NO_DOOR
    assert all("token" in verb or "key" in verb or not VERBS[verb].owner for verb in OF_TEAMS_AND_PEOPLE)


@signed_in
def test_the_rules_say_what_the_table_says(places: dict[str, Any], visitor: Visitor) -> None:
    actor = Actor.of_user(User.objects.get(username=visitor.name))
    got = {}
    for verb in RIGHTS:
        for name, team in MODELS.items():
            got[verb, name] = "forbidden" if may(actor, verb, team, name) else "allowed"
    compare(visitor, got)
    assert bool(may(actor, "set_mode", "", "y")) == (visitor.group not in ("operator", "admin")), "nobody's model"


@everybody
def test_the_api_gives_the_answer_of_the_table(places: dict[str, Any], visitor: Visitor) -> None:
    client, got = client_of(visitor), {}
    for verb, ask in ASKS.items():
        for model in asked_of(ask, visitor) if ask.api else ():
            method, address, body = ask.api  # type: ignore[misc]
            path = f"/api/v1/{address.format(**places[model])}?dry_run=true"
            whole = filled(body, places[model])
            sent = {} if body is None else {"data": whole, "content_type": "application/json"}
            got[verb, model] = answer_of(getattr(client, method.lower())(path, **sent).status_code)
    compare(visitor, got)


@everybody
def test_the_pages_give_the_answer_of_the_table(places: dict[str, Any], visitor: Visitor) -> None:
    client, got = client_of(visitor), {}
    for verb, ask in ASKS.items():
        for model in asked_of(ask, visitor) if ask.page else ():
            address, body = ask.page  # type: ignore[misc]
            place = places[model]
            order = {"reason": "r", "version": place["version"], **filled(body, place), "dry_run": True}
            sent = {} if ask.plain else {"content_type": "application/json"}
            found = client.post(f"/{address.format(**place)}", order, **sent)
            away = found.status_code == 302 and found.headers["location"].startswith("/login?")
            got[verb, model] = "not signed in" if away else answer_of(found.status_code)
    compare(visitor, got)


@signed_in
def test_commands_give_the_answer_of_the_table(
    places: dict[str, Any], visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever types on the machine is an admin; were it anybody else, commands would ask the same."""
    actor, got = Actor.of_user(User.objects.get(username=visitor.name)), {}
    monkeypatch.setattr(Actor, "command_line", lambda: actor)
    for verb, ask in ASKS.items():
        for model in asked_of(ask, visitor) if ask.command else ():
            command = [word.format(**places[model]) for word in ask.command]
            got[verb, model] = _typed([*command, "--reason", "r", "--dry-run"])
    compare(visitor, got)


def _typed(command: list[str]) -> str:
    try:
        with transaction.atomic():
            call_command(*command)
    except CommandError as error:
        return "forbidden" if "needs the role" in str(error) else "allowed"
    return "allowed"


@signed_in
def test_sockets_let_everybody_who_is_signed_in_follow(places: dict[str, Any], visitor: Visitor) -> None:
    """What a topic tells, pages and API tell everybody who is signed in too. Strangers: test_live_socket."""
    actor = Actor.of_user(User.objects.get(username=visitor.name))
    assert all(may_follow(actor, f"{kind}:m") for kind in TOPICS)
    assert not may_follow(actor, "keys") and not may_follow(actor, "")


READABLE = (
    *("models/{model}", "models/{model}/mode", "models/{model}/planner", "models/{model}/grants", "engines/{engine}"),
    *("operations/{operation}", "proposals/{proposal}", "alerts/{alert}", "nodes/n1", "engines/{engine}/log"),
)
ABSENT_PLACE = {"model": "none", "engine": "none", "operation": 999_999, "proposal": 999_999, "alert": 999_999}


def test_strangers_are_told_the_same_of_what_is_there_and_what_is_not(places: dict[str, Any]) -> None:
    stranger = Client(SERVER_NAME="localhost")
    for address in READABLE:
        there, absent = (stranger.get(f"/api/v1/{address.format(**place)}") for place in (places["m"], ABSENT_PLACE))
        assert (there.status_code, there.content) == (absent.status_code, absent.content), address
        assert there.status_code == 401 and there.headers == absent.headers


def test_where_nothing_is_everybody_is_told_the_same(places: dict[str, Any]) -> None:
    for address in READABLE:
        path = f"/api/v1/{address.format(**ABSENT_PLACE)}".replace("n1", "none")
        told = {client_of(visitor).get(path).content for visitor in VISITORS[1:]}
        assert len(told) == 1 and b'"status":404' in told.pop(), address


def test_an_owner_gives_a_team_no_more_gpus_than_its_quota(places: dict[str, Any]) -> None:
    """Rebalancing within what the team's models hold together is an owner's; beyond it is nobody's."""
    models.Team.objects.filter(name="search").update(gpu_quota=4)
    gpus(4)
    ola = Actor.of_user(User.objects.get(username="ola"))
    beyond = refusal(actions.rebalance, ola, "m", {"decode": 3})
    assert beyond.kind == "no_capacity" and "may hold 4" in str(beyond)
    assert refusal(actions.rebalance, ANN, "m", {"decode": 3}).kind == "no_capacity"
    assert actions.rebalance(ola, "m", {"prefill": 1, "decode": 3}).actor == "ola"


def test_what_was_given_is_taken_back(places: dict[str, Any]) -> None:
    given = User.objects.get(username="given")
    actions.ungrant_model(ANN, "m", "given")
    assert may(Actor.of_user(given), "set_mode", "search", "m")
    assert refusal(actions.ungrant_model, ANN, "m", "given").kind == "not_found"
    assert refusal(actions.grant_model, ANN, "m", "none").kind == "not_found"
    told = models.AuditEntry.objects.filter(verb__in=("grant_model", "ungrant_model"))
    assert [(each.verb, each.subject) for each in told.order_by("pk")] == [
        ("grant_model", "model:m"),
        ("ungrant_model", "model:m"),
    ]


SAID = ("models/{model}", "models/{model}/rebalance", "models/{model}/planner", "engines/{engine}", "nodes", "costs")
SAID += ("operations", "operations/{operation}", "proposals", "proposals/{proposal}", "alerts")


@signed_in
def test_pages_say_beforehand_what_they_answer_afterwards(places: dict[str, Any], visitor: Visitor) -> None:
    """Each button that somebody may not press says so, and no other."""
    client, told, wrong = client_of(visitor), set(), {}
    for address in SAID:
        for model in MODELS:
            first = client.get(f"/{address.format(**places[model])}").context["first"]
            refused = first["refusals"] if address == "costs" else first["refused"]
            for verb in set(_verbs_of(address)) & RIGHTS.keys():
                told.add(verb)
                said = verb not in refused.get(model, {} if address in LISTS else refused)
                if said != allowed(visitor, verb, model):
                    wrong[address, model, verb] = said
    assert not wrong
    assert {"set_mode", "set_planner", "approve_proposal", "silence_alert", "rollback", "set_price"} <= told


LISTS: dict[str, tuple[str, ...]] = {
    "operations": ("rollback",),
    "proposals": proposal_pages.DECISIONS,
    "alerts": alert_pages.VERBS,
}
"""Pages that say it by model."""


def _verbs_of(address: str) -> tuple[str, ...]:
    """What a page has buttons for."""
    pages = {
        "models/{model}": model_page.VERBS,
        "models/{model}/rebalance": ("rebalance", *operation_pages.STEERING),
        "models/{model}/planner": planner_pages.VERBS,
        "engines/{engine}": engine_pages.VERBS,
        "nodes": node_pages.VERBS,
        "costs": ("set_price", "remove_price"),
        "operations/{operation}": operation_pages.STEERING,
        "proposals/{proposal}": proposal_pages.DECISIONS,
    }
    return tuple(pages.get(address) or LISTS[address])
