"""Who may do what, by role and by owner, and that every verb asks."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from controlplane.access import accounts, tokens
from controlplane.control import actions, rotation
from controlplane.control.actor import RANK, VERBS, Actor, may
from controlplane.control.keys import add_key, revoke_key, rotate_key
from controlplane.control.newkey import NewKey
from controlplane.control.state.applying import apply_state
from controlplane.fleet import models
from tests.integration.alert_kit import firing
from tests.integration.control_kit import ANN
from tests.integration.control_rows import NEW, fleet, refusal
from tests.integration.planner_rows import proposal

pytestmark = pytest.mark.django_db

VIEWER = Actor("vic", "viewer")
OWNER = Actor("ola", "owner", frozenset({"search"}))
OPERATOR = Actor("olga", "operator")


def user(name: str, *groups: str) -> User:
    row = User.objects.create_user(name)
    row.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
    return row


def test_a_users_role_is_the_highest_of_the_groups() -> None:
    assert Actor.of_user(user("a", "owner", "operator", "anglers")) == Actor("a", "operator")
    assert Actor.of_user(user("b")) == Actor("b", "viewer")
    assert Actor.of_user(User.objects.create_superuser("c")) == Actor("c", "admin")
    owner = user("d", "owner")
    models.Team.objects.create(name="search").members.add(owner)
    assert Actor.of_user(owner) == Actor("d", "owner", frozenset({"search"}))


def test_who_types_on_the_machine_is_an_admin() -> None:
    assert Actor.command_line() == Actor(f"cli:{getpass.getuser()}", "admin")


@pytest.mark.parametrize("verb", VERBS)
def test_the_table_of_verbs_grows_with_the_role(verb: str) -> None:
    allowed = [role for role in RANK if not may(Actor("x", role), verb, "search")]
    assert allowed == list(RANK)[RANK[VERBS[verb].least] :], "a higher role may what a lower one may"
    assert (may(OWNER, verb, "search") == "") == VERBS[verb].owner
    assert may(OWNER, verb, "ads") and may(OWNER, verb, ""), "an owner may nothing on models of others or of nobody"


def test_a_refusal_says_which_role_it_takes() -> None:
    assert may(VIEWER, "scale_pool") == "scale_pool needs the role operator; vic is viewer"
    assert may(OWNER, "set_mode", "ads") == (
        "set_mode needs the role operator, or owner of the model: the model belongs to team ads; ola is owner"
    )


def asked_of(name: str) -> int:
    """A proposal for the model that somebody is to decide on."""
    return proposal(models.Model.objects.get(name=name)).pk


SOON = timezone.now() + timedelta(hours=1)
ASKED: dict[str, Callable[[Actor], Any]] = {
    "set_mode": lambda actor: actions.set_mode(actor, "m", "monolithic"),
    "rebalance": lambda actor: actions.rebalance(actor, "m", {"decode": 1}),
    "scale_pool": lambda actor: actions.scale_pool(actor, "m", "decode", 1),
    "move_gpus": lambda actor: actions.move_gpus(actor, "m", "decode", "prefill", 1),
    "exchange_roles": lambda actor: actions.exchange_roles(actor, "m", "m-1", "m-3"),
    "drain_engine": lambda actor: actions.drain_engine(actor, "m-1"),
    "undrain_engine": lambda actor: actions.undrain_engine(actor, "m-1"),
    "restart_engine": lambda actor: actions.restart_engine(actor, "m-1"),
    "retry_engine": lambda actor: actions.retry_engine(actor, "m-1"),
    "set_canary": lambda actor: actions.set_canary(actor, "m", "conditional", shared=True),
    "promote_canary": lambda actor: actions.promote_canary(actor, "m"),
    "update_canary": lambda actor: actions.update_canary(actor, "m", {}),
    "end_canary": lambda actor: actions.end_canary(actor, "m"),
    "register_model": lambda actor: actions.register_model(actor, NEW),
    "update_model": lambda actor: actions.update_model(actor, "m", actions.Update()),
    "roll_out": lambda actor: actions.roll_out(actor, "m", actions.RollOut()),
    "apply_model": lambda actor: actions.apply_model(actor, "m", {"slo.ttft_ms": 900.0}),
    "apply_state": lambda actor: apply_state(actor, {}),
    "set_team": lambda actor: actions.set_team(actor, "ads", 8),
    "remove_team": lambda actor: actions.remove_team(actor, "ads"),
    "retire_model": lambda actor: actions.retire_model(actor, "m"),
    "remove_model": lambda actor: actions.remove_model(actor, "m"),
    "rollback": lambda actor: actions.rollback(actor, models.Operation.objects.latest("pk").pk),
    "cancel": lambda actor: actions.cancel(actor, models.Operation.objects.latest("pk").pk),
    "pause": lambda actor: actions.pause(actor, models.Operation.objects.latest("pk").pk),
    "resume": lambda actor: actions.resume(actor, models.Operation.objects.latest("pk").pk),
    "freeze": lambda actor: actions.freeze(actor, "m", SOON),
    "unfreeze": lambda actor: actions.unfreeze(actor, None),
    "cordon_node": lambda actor: actions.cordon_node(actor, "n1"),
    "uncordon_node": lambda actor: actions.uncordon_node(actor, "n1"),
    "add_node": lambda actor: actions.add_node(actor, "n9"),
    "remove_node": lambda actor: actions.remove_node(actor, "n1"),
    "set_planner": lambda actor: actions.set_planner(actor, "m", actions.PlannerChange(level="approve")),
    "set_priority": lambda actor: actions.set_planner(actor, "m", actions.PlannerChange(priority=1)),
    "approve_proposal": lambda actor: actions.approve_proposal(actor, asked_of("m")),
    "modify_proposal": lambda actor: actions.modify_proposal(actor, asked_of("m"), {"decode": 1}),
    "reject_proposal": lambda actor: actions.reject_proposal(actor, asked_of("m"), reason="no"),
    "set_owner": lambda actor: actions.update_model(actor, "m", actions.Update(team="search")),
    "add_key": lambda actor: add_key(actor, NewKey("k", "search")),
    "revoke_key": lambda actor: revoke_key(actor, "k"),
    "rotate_key": lambda actor: rotate_key(actor, "k", overlap_hours=1),
    "add_account": lambda actor: accounts.add_account(actor, "zoe", "viewer"),
    "set_account": lambda actor: accounts.set_account(actor, "zoe", role="viewer"),
    "reset_password": lambda actor: accounts.reset_password(actor, "zoe"),
    "unlock_account": lambda actor: accounts.unlock_account(actor, "zoe"),
    "remove_second_factor": lambda actor: accounts.reset_second_factor(actor, "zoe"),
    "end_sessions": lambda actor: accounts.end_sessions(actor, "zoe"),
    "link_identity": lambda actor: accounts.link_identity(actor, "zoe", "https://id.example", "1"),
    "add_token": lambda actor: tokens.add_token(actor, "zoe", "t", days=1),
    "revoke_token": lambda actor: tokens.revoke_token(actor, "zoe", "t"),
    "grant_model": lambda actor: actions.grant_model(actor, "m", "ann"),
    "ungrant_model": lambda actor: actions.ungrant_model(actor, "m", "ann"),
    "add_join_token": lambda actor: actions.add_join_token(actor, "n9"),
    "revoke_join_token": lambda actor: actions.revoke_join_token(actor, 1),
    "rotate_secret": lambda actor: rotation.prepare(actor),
    "set_price": lambda actor: actions.set_price(actor, "l4", "0.8"),
    "remove_price": lambda actor: actions.remove_price(actor, 1),
    "silence_alert": lambda actor: actions.silence_alert(actor, firing().pk, until=SOON, reason="known"),
    "unsilence_alert": lambda actor: actions.unsilence_alert(actor, firing().pk),
    "set_alert_rule": lambda actor: actions.set_alert_rule(actor, "node_lost", actions.RuleChange(threshold=60)),
    "try_channel": lambda actor: actions.try_channel(actor, "pager"),
    "add_channel": lambda actor: actions.add_channel(actor, "pager", "email", "a@example.com"),
    "update_channel": lambda actor: actions.update_channel(actor, "pager", enabled=False),
    "remove_channel": lambda actor: actions.remove_channel(actor, "pager"),
}


def test_every_verb_is_tried() -> None:
    assert ASKED.keys() == VERBS.keys()


@pytest.mark.parametrize("verb", VERBS)
def test_nobody_does_what_the_role_does_not_allow(verb: str) -> None:
    fleet("disaggregated", prefill=2, decode=2)
    too_low = OPERATOR if VERBS[verb].least == "admin" else VIEWER
    refused = refusal(ASKED[verb], too_low)
    assert refused.kind == "forbidden" and f"needs the role {VERBS[verb].least}" in str(refused)


def test_an_owner_changes_the_models_of_the_team_alone() -> None:
    models.Team.objects.create(name="search")
    fleet("disaggregated", prefill=2, decode=2)
    assert refusal(actions.rebalance, OWNER, "m", {"decode": 1}).kind == "forbidden"
    actions.update_model(ANN, "m", actions.Update(team="search"))
    operation = actions.rebalance(OWNER, "m", {"decode": 1, "prefill": 3})
    assert operation.actor == "ola" and operation.audit.get().actor == "ola"
    actions.cancel(OWNER, operation.pk)
    assert refusal(actions.scale_pool, OWNER, "m", "decode", 1).kind == "forbidden"
