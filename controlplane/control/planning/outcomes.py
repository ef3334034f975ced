"""What became of approved proposals: whether their operations ended well, and what came of it. From rows alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from django.db import transaction

from controlplane.control.measured import SPAN
from controlplane.control.models import Proposal, ProposalState
from controlplane.control.planning.gather import bare_model, setting_of
from controlplane.control.planning.load import window_between
from controlplane.control.planning.plain import plain
from controlplane.core.codec import decode
from controlplane.core.lifecycle import ENDED
from controlplane.core.perf import DoesNotFit
from controlplane.core.planner import PoolPlan, estimate
from controlplane.core.planner_search import with_counts
from controlplane.core.protocol import Mode
from controlplane.fleet.models import Operation

AT_ONCE = 20


def settle() -> int:
    """Approved proposals whose operations ended become executed or failed; returns how many. May be run at any time."""
    settled = 0
    for row in Proposal.objects.filter(state=ProposalState.APPROVED).select_related("operation"):
        operations = list(_operations(row))
        if operations and not all(each.state in ENDED for each in operations):
            continue
        bad = [each for each in operations if each.state != "done"]
        if not operations or bad:
            why = f"operation {bad[0].pk} is {bad[0].state}: {bad[0].outcome}" if bad else "its operation is gone"
            changed = _approved(row).update(state=ProposalState.FAILED, hindrance=why[:500])
        else:
            with transaction.atomic():
                changed = _approved(row).update(state=ProposalState.EXECUTED)
                _return([each["proposal"] for each in row.trade.get("gives_back", [])])
        settled += changed
    return settled


def measure() -> int:
    """Executed proposals get what came, once their operation has been measured; returns how many."""
    due = Proposal.objects.filter(state=ProposalState.EXECUTED, actual={}, operation__isnull=False)
    measured = 0
    for row in due.select_related("operation", "model").order_by("pk")[:AT_ONCE]:
        actual = _actual(row)
        if actual is not None:
            measured += Proposal.objects.filter(pk=row.pk, actual={}).update(actual=plain(actual))
    return measured


def _operations(row: Proposal) -> Iterable[Operation]:
    if row.operation is None:
        return
    yield row.operation
    if row.trade:
        yield from Operation.objects.filter(pk=row.operation.after.get("partner"))


def _approved(row: Proposal) -> Any:
    return Proposal.objects.filter(pk=row.pk, state=ProposalState.APPROVED)


def _return(numbers: Iterable[str]) -> None:
    Proposal.objects.filter(pk__in=[int(each) for each in numbers if each.isdecimal()]).update(returned=True)


def _actual(row: Proposal) -> dict[str, Any] | None:
    """None while it is not known."""
    operation = row.operation
    if operation is None:
        return None
    if not operation.measured:
        return None if operation.steps.exists() else {"gaps": ["nothing moved"]}
    after = operation.measured.get("after")
    if after is None:
        return {"gaps": operation.measured.get("gaps", [])}
    return {
        "ttft_p99_ms": after["ttft_ms"]["p99"],
        "itl_p99_ms": after["itl_ms"]["p99"],
        "requests": after["requests"],
        "span_s": operation.measured["span_s"],
        "gaps": after["gaps"],
        "expected": _expected(row, operation),
    }


def _expected(row: Proposal, operation: Operation) -> dict[str, Any] | None:
    """What the planner's model gives for the load that came; None where that is not known."""
    if operation.finished_at is None:
        return None
    since_s = operation.finished_at.timestamp()
    window = window_between(row.model.name, since_s, since_s + SPAN.total_seconds())
    model = bare_model(row.model, setting_of(row.model), since_s)
    if window is None or not window.mix.cells or model.obstacle:
        return None
    mode = cast(Mode, row.modified.get("mode", row.mode))
    pools = with_counts([decode(PoolPlan, each) for each in row.pools], cast(Any, row.sizes))
    try:
        found = estimate(replace(model, mode=mode), mode, pools, window.rate, window.mix, window.burst)
    except (DoesNotFit, ValueError):
        return None
    return {
        "rate": window.rate,
        "prompt_tokens": window.mix.prompt_tokens,
        "output_tokens": window.mix.output_tokens,
        **plain(found),
    }
