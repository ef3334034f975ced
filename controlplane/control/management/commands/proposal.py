"""`manage.py proposal list|show|approve|reject|modify`: what the planner proposes, and what is decided on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand, sizes
from controlplane.control.models import Proposal, ProposalState
from controlplane.control.planning import selectors
from controlplane.core.storable import storable_text

MOST_NUMBER = 1 << 63


class Command(ChangeCommand):
    help = "List the planner's proposals, show one, approve or reject it, or carry out other sizes instead (modify)."
    versioned = False

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("what", choices=("list", "show", "approve", "reject", "modify"))
        parser.add_argument("proposal", type=int, nargs="?")
        parser.add_argument("--model", metavar="NAME", help="list: of this model alone")
        parser.add_argument("--state", choices=ProposalState.values, help="list: in this state alone")
        parser.add_argument("--limit", type=int, default=20, metavar="N", help="list: at most so many; default 20")
        parser.add_argument("--pool", action="append", default=[], metavar="ROLE=ENGINES", help="modify: may be repeated")
        parser.add_argument("--mode", default="", help="modify: another mode than the proposed one")

    def handle(self, *args: Any, **options: Any) -> None:
        what, number = options["what"], options["proposal"]
        if what == "list":
            self._list(options)
            return
        if number is None or not 0 < number < MOST_NUMBER:
            raise CommandError(f"{what}: give the number of a proposal; `proposal list` shows them")
        if what == "show":
            row = selectors.all_proposals().filter(pk=number).first()
            if row is None:
                raise CommandError(f"there is no proposal {number}; `proposal list` shows them")
            self.say(options, document(row), list(lines(row)))
        elif what == "modify":
            self.change(options, actions.modify_proposal, number, sizes(options["pool"], "--pool"), mode=options["mode"])
        else:
            self.change(options, actions.approve_proposal if what == "approve" else actions.reject_proposal, number)

    def _list(self, options: dict[str, Any]) -> None:
        rows = selectors.all_proposals()
        if options["model"]:
            rows = rows.filter(model__name=storable_text(options["model"]))
        if options["state"]:
            rows = rows.filter(state=options["state"])
        for row in rows[: max(1, options["limit"])]:
            self.say(options, summary(row), [headline(row)])


def summary(row: Proposal) -> dict[str, Any]:
    """One line of a list, for programs."""
    return {
        "proposal": row.pk,
        "model": row.model.name,
        "state": row.state,
        "cause": row.cause,
        "title": row.title,
        "reason": next(iter(row.reasons), ""),
        "expires_at": row.expires_at.isoformat(timespec="seconds"),
        "operation": row.operation_id,
    }


def document(row: Proposal) -> dict[str, Any]:
    """All of one proposal, for programs."""
    names = ("mode_before", "mode", "before", "pools", "moves", "reasons", "alternatives", "inputs", "present", "predicted")
    more = ("trade", "hindrance", "decided_by", "decision", "modified", "actual")
    return summary(row) | {"sizes": row.sizes} | {name: getattr(row, name) for name in (*names, *more)}


def headline(row: Proposal) -> str:
    return f"proposal {row.pk} ({row.state}) of {row.model.name}: {row.title}"


def lines(row: Proposal) -> Iterator[str]:
    """One proposal, for people."""
    yield headline(row)
    yield from (f"  {reason}" for reason in row.reasons)
    for what, figures in (("as it is", row.present), ("proposed", row.predicted), ("came", row.actual)):
        if "ttft_p99_ms" in figures:
            yield f"  {what + ':':10} TTFT p99 {_ms(figures['ttft_p99_ms'])}, ITL p99 {_ms(figures['itl_p99_ms'])}"
    for other in row.alternatives:
        pools = " + ".join(f"{pool['engines']}xTP{pool['tensor_parallel']}@{pool['gpu']}" for pool in other["pools"])
        yield f"  instead:   {other['mode']} {pools}: {other['why_not']}"
    if row.hindrance:
        yield f"  hindered:  {row.hindrance}"
    if row.decided_by:
        yield f"  decided by {row.decided_by}{f': {row.decision}' if row.decision else ''}"


def _ms(value: float | None) -> str:
    return "endless" if value is None else f"{value:,.0f} ms"
