"""Rows that belong to control alone: leases, how the planner is set, what it proposed and why it held still, seals of the
audit, and the whole state as it was applied last.

The planner's rows are written by `control.planning` and `control.actions.planning`; pages read them through
`control.planning.selectors`.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q

from controlplane.fleet.models import Mode, Model, Operation


class Lease(models.Model):
    """Who may do a piece of work now. Claimed by conditional update on the database's clock (control.leases)."""

    name = models.CharField(max_length=32, primary_key=True)
    holder = models.CharField(max_length=64, blank=True)
    until = models.DateTimeField()


class Level(models.TextChoices):
    """What the planner may do with one model: nothing; tell; ask; do it."""

    OFF = "off"
    ADVISE = "advise"
    APPROVE = "approve"
    AUTOMATIC = "automatic"


class PlannerSetting(models.Model):
    """How the planner is set for one model; a model without a row has the defaults, which are these."""

    model = models.OneToOneField(Model, on_delete=models.CASCADE, related_name="planner")
    level = models.CharField(max_length=16, choices=Level.choices, default=Level.ADVISE)
    priority = models.IntegerField(default=0)
    """More is more important: GPUs are taken from lower ones only."""
    modes = models.JSONField(default=list, blank=True)
    """Modes it may propose beside the present one."""
    floors = models.JSONField(default=dict, blank=True)
    """Engines by role that a plan leaves at least; a pool's own floor holds besides."""
    ceilings = models.JSONField(default=dict, blank=True)
    kinds = models.JSONField(default=dict, blank=True)
    """GPU kinds by role that a plan may use beside the pool's own."""
    degrees = models.JSONField(default=dict, blank=True)
    """Tensor-parallel degrees by role, likewise."""
    guards = models.JSONField(default=dict, blank=True)
    """What of core.planner.Guards is set otherwise than by default: change windows and freezes too."""
    peaks = models.JSONField(default=list, blank=True)
    """Loads that are known to come (core.planner.Peak)."""


class ProposalState(models.TextChoices):
    """`approved`: its operation runs; `executed`: that ended well; `failed`: it did not."""

    OPEN = "open"
    APPROVED = "approved"
    EXECUTED = "executed"
    FAILED = "failed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"


class Proposal(models.Model):
    """One change that the planner proposed, with all that it was made from, and what became of it. Infinite latencies (it
    cannot keep up) are null."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="proposals")
    key = models.CharField(max_length=500)
    """The same for the same change of the same state (core.planner.Proposal.id)."""
    state = models.CharField(max_length=16, choices=ProposalState.choices, default=ProposalState.OPEN)
    level = models.CharField(max_length=16, choices=Level.choices)
    """Of the model when it was made."""
    cause = models.CharField(max_length=16)
    title = models.CharField(max_length=500)
    mode_before = models.CharField(max_length=16, choices=Mode.choices)
    mode = models.CharField(max_length=16, choices=Mode.choices)
    before = models.JSONField()
    """Pools as they were (a list of core.planner.PoolPlan)."""
    pools = models.JSONField()
    """Pools as they would be."""
    moves = models.PositiveIntegerField()
    reasons = models.JSONField()
    """Plain sentences, the weightiest first."""
    alternatives = models.JSONField()
    inputs = models.JSONField()
    """What it was made from (core.planner.Inputs)."""
    present = models.JSONField()
    """What the pools as they were would give at the load that was planned for (core.planner.Estimate)."""
    predicted = models.JSONField()
    """What the proposed ones would give at that load."""
    giver = models.ForeignKey(Model, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    """The other model: it gives GPUs, or gets them back."""
    trade = models.JSONField(default=dict, blank=True)
    """Of a trade: `takes`, `gives_back` (core.planner.Lent), `giver_now`, `giver_then`, `giver_pools`."""
    returned = models.BooleanField(default=False)
    """What it took was given back."""
    created_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    """When the planner last came to it."""
    expires_at = models.DateTimeField()
    hindrance = models.CharField(max_length=500, blank=True)
    """Why it was not carried out by itself when that was last tried."""
    decided_at = models.DateTimeField(null=True, blank=True)
    decided_by = models.CharField(max_length=150, blank=True)
    decision = models.CharField(max_length=500, blank=True)
    """The reason that whoever decided gave, or what made it void."""
    modified = models.JSONField(default=dict, blank=True)
    """`mode` and `pools` (engines by role) that a person chose instead; empty: as proposed."""
    operation = models.ForeignKey(Operation, null=True, blank=True, on_delete=models.SET_NULL, related_name="proposals")
    """That carries it out; of a trade the operation of `model`."""
    actual = models.JSONField(default=dict, blank=True)
    """What came in the time after it: `ttft_p99_ms`, `itl_p99_ms`, `requests`, `span_s`, `gaps`, and under `expected` what
    the planner's model gives for the load that really came. Empty: not measured yet."""

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["model"], condition=Q(state="open"), name="one_open_proposal_per_model")
        ]
        indexes = [models.Index(fields=["state", "-id"]), models.Index(fields=["model", "-id"])]

    @property
    def sizes(self) -> dict[str, int]:
        """Engines by role that it asks for, as a person changed it if one did."""
        found: dict[str, Any] = self.modified.get("pools") or {pool["role"]: pool["engines"] for pool in self.pools}
        return found


class PlannerHold(models.Model):
    """Why the planner left a model alone, from `since` until `seen_at`: one row as long as the kind of reason stays."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="planner_holds")
    code = models.CharField(max_length=16)
    """One of core.planner.HoldCode."""
    reason = models.CharField(max_length=500)
    """The newest, one plain sentence."""
    since = models.DateTimeField()
    seen_at = models.DateTimeField()
    present = models.JSONField(null=True, blank=True)
    inputs = models.JSONField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["model", "-id"]), models.Index(fields=["seen_at"])]


class AuditSeal(models.Model):
    """A seal over a batch of audit entries (core.auditchain). Append-only, as they are."""

    number = models.PositiveBigIntegerField(primary_key=True)
    """From 1, without a gap."""
    first = models.PositiveBigIntegerField()
    last = models.PositiveBigIntegerField(unique=True)
    """Ids of entries, both sealed. None between them may come later."""
    previous = models.CharField(max_length=64)
    digest = models.CharField(max_length=64, unique=True)
    rows = models.JSONField()
    """[id, digest] of each entry."""
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["number"]


class AuditBudget(models.Model):
    """How many entries of one kind and source were made in one span of time, and how many were left out: what strangers can
    cause must not fill the disk (control.auditing.notes)."""

    kind = models.CharField(max_length=32)
    source = models.SmallIntegerField()
    """A bucket of sources; -1: all of the kind, by day."""
    span = models.PositiveBigIntegerField()
    """Hours, or days, since 1970."""
    kept = models.PositiveIntegerField(default=0)
    left_out = models.PositiveIntegerField(default=0)
    """Not told yet."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "source"], name="one_budget_per_kind_and_source")]


class AppliedState(models.Model):
    """One row (id 1): the whole state as somebody applied it last. What differs from it by now was changed by hand."""

    document = models.JSONField(default=dict)
    actor = models.CharField(max_length=150, blank=True)
    at = models.DateTimeField(auto_now=True)
