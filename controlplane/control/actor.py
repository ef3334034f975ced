"""Who asks for a change, and what they may do: one table of verbs. Reads users, writes nothing."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from django.db.models import CharField, Value
from django.utils import timezone

from controlplane.fleet.models import good_grants

Role = Literal["viewer", "owner", "operator", "admin", "system"]
RANK: Mapping[Role, int] = {"viewer": 0, "owner": 1, "operator": 2, "admin": 3, "system": 4}
GROUPS: tuple[Role, ...] = ("admin", "operator", "owner", "viewer")
"""Django groups that give a user the role of their name; the highest counts."""


@dataclass(frozen=True)
class Actor:
    """`name` is what operations and audit keep. `teams`: names of the teams that an owner belongs to. `models`: names of
    those that were given to this user alone, who may do with them what an owner may."""

    name: str
    role: Role
    teams: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()

    @classmethod
    def of_user(cls, user: Any) -> Actor:
        """A signed-in user: an admin if a superuser, else the highest role among the groups; without one a viewer. One
        statement; whoever asks more than once of one request asks `access.who`."""
        name, held = user.get_username(), _held_by(user)
        if user.is_superuser:
            return cls(name, "admin", held["team"])
        role: Role = next((role for role in GROUPS if role in held["group"]), "viewer")
        return cls(name, role, held["team"], held["model"])

    @classmethod
    def system(cls, name: str) -> Actor:
        """Twinpool itself, e.g. a canary that promotes by steps."""
        return cls(name, "system")

    @classmethod
    def command_line(cls) -> Actor:
        """Whoever types on the control plane's machine and can read its secrets: an admin, named after the account."""
        try:
            return cls(f"cli:{getpass.getuser()}", "admin")
        except (KeyError, OSError):
            return cls("cli", "admin")


def _held_by(user: Any) -> Mapping[str, frozenset[str]]:
    """Names of a user's groups and teams, and of the models that were given to them and not for a time that is over."""
    good = user.grants.filter(good_grants(timezone.now()))
    named = {"group": (user.groups, "name"), "team": (user.teams, "name"), "model": (good, "model__name")}
    first, *others = (
        rows.order_by().annotate(kind=Value(kind, CharField())).values_list("kind", name)
        for kind, (rows, name) in named.items()
    )
    held = list(first.union(*others, all=True))
    return {kind: frozenset(name for of, name in held if of == kind) for kind in named}


@dataclass(frozen=True)
class Rule:
    """Of one verb. `least`: the lowest role that may; `owner`: an owner may too, on models of their teams, and whoever was
    given the model; `alone`: refused while another operation of the model runs; `frozen`: refused while it is frozen."""

    least: Role = "operator"
    owner: bool = False
    alone: bool = True
    frozen: bool = True


_STEERS = Rule(owner=True, alone=False, frozen=False)
_NODES = Rule(alone=False, frozen=False)
_TOLD = Rule(owner=True, alone=False, frozen=False)

ACCOUNT_VERBS = (
    "add_account",
    "set_account",
    "reset_password",
    "unlock_account",
    "remove_second_factor",
    "end_sessions",
    "link_identity",
    "add_token",
    "revoke_token",
)
"""Of people and their tokens. Everybody may make and revoke tokens of their own."""
VERBS: Mapping[str, Rule] = {
    "set_mode": Rule(owner=True),
    "rebalance": Rule(owner=True),
    "scale_pool": Rule(),
    "move_gpus": Rule(),
    "exchange_roles": Rule(),
    "drain_engine": Rule(frozen=False),
    "undrain_engine": Rule(frozen=False),
    "restart_engine": Rule(),
    "retry_engine": Rule(alone=False, frozen=False),
    "set_canary": Rule(owner=True),
    "promote_canary": Rule(owner=True),
    "update_canary": Rule(owner=True, alone=False, frozen=False),
    "end_canary": Rule(owner=True, frozen=False),
    "register_model": Rule(alone=False),
    "update_model": Rule(alone=False, frozen=False),
    "apply_model": Rule(),
    "apply_state": Rule(alone=False, frozen=False),
    "set_team": Rule("admin", alone=False, frozen=False),
    "remove_team": Rule("admin", alone=False, frozen=False),
    "roll_out": Rule(),
    "retire_model": Rule(),
    "remove_model": Rule(frozen=False),
    "rollback": Rule(owner=True),
    "cancel": _STEERS,
    "pause": _STEERS,
    "resume": _STEERS,
    "freeze": Rule(alone=False, frozen=False),
    "unfreeze": Rule(alone=False, frozen=False),
    "cordon_node": _NODES,
    "uncordon_node": _NODES,
    "add_node": Rule("admin", alone=False, frozen=False),
    "remove_node": Rule("admin", alone=False, frozen=False),
    "add_join_token": Rule("admin", alone=False, frozen=False),
    "revoke_join_token": Rule("admin", alone=False, frozen=False),
    "set_planner": _TOLD,
    "set_priority": Rule(alone=False, frozen=False),
    "approve_proposal": Rule(owner=True),
    "modify_proposal": Rule(owner=True),
    "reject_proposal": _TOLD,
    "set_owner": Rule("admin", alone=False, frozen=False),
    "add_key": Rule("admin", owner=True, alone=False, frozen=False),
    "revoke_key": Rule("admin", owner=True, alone=False, frozen=False),
    "rotate_key": Rule("admin", owner=True, alone=False, frozen=False),
    **dict.fromkeys(ACCOUNT_VERBS, Rule("admin", alone=False, frozen=False)),
    "grant_model": Rule("admin", alone=False, frozen=False),
    "ungrant_model": Rule("admin", alone=False, frozen=False),
    "rotate_secret": Rule("admin", alone=False, frozen=False),
    "set_price": Rule("admin", alone=False, frozen=False),
    "remove_price": Rule("admin", alone=False, frozen=False),
    "silence_alert": _TOLD,
    "unsilence_alert": _TOLD,
    "set_alert_rule": _TOLD,
    "try_channel": Rule(alone=False, frozen=False),
    "add_channel": Rule("admin", alone=False, frozen=False),
    "update_channel": Rule("admin", alone=False, frozen=False),
    "remove_channel": Rule("admin", alone=False, frozen=False),
}
"""Every verb there is. `set_owner` is the part of update_model that gives a model to a team, `set_priority` the part of
set_planner that lets a model take GPUs from others."""
READS: Mapping[str, Rule] = {"engine_log": Rule(owner=True)}
"""What not everybody who is signed in may read: an engine's log may tell more than anybody meant it to."""

TOPICS: Mapping[str, Rule] = dict.fromkeys(("fleet", "nodes", "alerts", "proposals", "model", "operation"), Rule("viewer"))
"""Who may follow a kind of live topic. A kind that is not here nobody may follow."""


def may_follow(actor: Actor, topic: str) -> bool:
    """Whether `actor` may see a live topic ("fleet", "model:llama-70b")."""
    rule = TOPICS.get(topic.partition(":")[0])
    return rule is not None and RANK[actor.role] >= RANK[rule.least]


def rule_of(verb: str) -> Rule:
    """Of a verb or a read. Raises KeyError for neither."""
    return VERBS[verb] if verb in VERBS else READS[verb]


def may(actor: Actor, verb: str, team: str = "", model: str = "") -> str:
    """Empty if `actor` may do `verb` on what `team` owns ("" = nobody does), else why not. `model`: the name of the one that
    it is about, "" for none. Raises KeyError for no verb."""
    rule = rule_of(verb)
    if RANK[actor.role] >= RANK[rule.least]:
        return ""
    if not rule.owner:
        return f"{verb} needs the role {rule.least}; {actor.name} is {actor.role}"
    if (actor.role == "owner" and team and team in actor.teams) or (model and model in actor.models):
        return ""
    owned = f"the model belongs to team {team}" if team else "the model belongs to no team"
    return f"{verb} needs the role {rule.least}, or owner of the model: {owned}; {actor.name} is {actor.role}"
