"""What a viewer may do, as a page says it: buttons that are not for them stay visible and tell who may."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.utils.translation import gettext

from controlplane.control.actor import Actor, may, rule_of


def why_not(actor: Actor, verb: str, team: str = "", model: str = "") -> str:
    """Empty if `actor` may do `verb` on what `team` owns, else who may, in the viewer's language."""
    if not may(actor, verb, team, model):
        return ""
    rule = rule_of(verb)
    words = {"operator": gettext("operator"), "admin": gettext("admin")}
    role: Any = words.get(rule.least, rule.least)
    if rule.owner and team:
        return gettext("Needs the role %(role)s, or owner in team %(team)s") % {"role": role, "team": team}
    return gettext("Needs the role %(role)s") % {"role": role}


def refusals(actor: Actor, verbs: Iterable[str], team: str = "", model: str = "") -> dict[str, str]:
    """`why_not` by verb, for the verbs that `actor` may not do."""
    return {verb: why for verb in verbs if (why := why_not(actor, verb, team, model))}
