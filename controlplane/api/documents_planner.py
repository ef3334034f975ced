"""The planner and its proposals as the API tells them. Read-only."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.api.documents import ANY_OBJECT, COUNTS, ObjectField, TextsField
from controlplane.control.models import PlannerHold, Proposal

OBJECTS = {"type": "array", "items": ANY_OBJECT}


@extend_schema_field(OBJECTS)
class ObjectsField(serializers.JSONField):
    pass


@extend_schema_field(COUNTS)
class CountsField(serializers.JSONField):
    pass


class HoldDocument(serializers.ModelSerializer[PlannerHold]):
    """Why nothing is proposed, one plain sentence, and since when for this kind of reason."""

    class Meta:
        model = PlannerHold
        fields = ("code", "reason", "since", "seen_at")
        read_only_fields = fields


class AccuracyDocument(serializers.Serializer[Any]):
    """Of carried-out proposals: the median of |predicted ÷ actual − 1|; null with fewer than 3."""

    proposals = serializers.IntegerField()
    ttft = serializers.FloatField(allow_null=True)
    itl = serializers.FloatField(allow_null=True)


class PlannerDocument(serializers.Serializer[Any]):
    """How the planner is set for a model, and how it stands to it now. `proposal`: the number of the open one."""

    model = serializers.CharField(source="model_name")
    level = serializers.CharField(source="setting.level")
    priority = serializers.IntegerField(source="setting.priority")
    modes = TextsField(source="setting.modes")
    floors = CountsField(source="setting.floors")
    ceilings = CountsField(source="setting.ceilings")
    kinds = ObjectField(source="setting.kinds")
    degrees = ObjectField(source="setting.degrees")
    guards = ObjectField()
    peaks = ObjectsField(source="setting.peaks")
    hold = HoldDocument(allow_null=True)
    proposal = serializers.IntegerField(source="proposal_id", allow_null=True)
    accuracy = AccuracyDocument()


class ProposalDocument(serializers.ModelSerializer[Proposal]):
    """A change that the planner proposed. Latencies in ms, null where a layout cannot keep up; money in US$. `sizes`:
    engines by role that it asks for, as a person changed it if one did."""

    model = serializers.CharField(source="model.name", read_only=True)
    giver = serializers.CharField(source="giver.name", read_only=True, allow_null=True, default=None)
    operation = serializers.IntegerField(source="operation_id", read_only=True, allow_null=True)
    before = ObjectsField(read_only=True)
    pools = ObjectsField(read_only=True)
    sizes = CountsField(read_only=True)
    reasons = TextsField(read_only=True)
    alternatives = ObjectsField(read_only=True)
    inputs = ObjectField(read_only=True)
    present = ObjectField(read_only=True)
    predicted = ObjectField(read_only=True)
    trade = ObjectField(read_only=True)
    modified = ObjectField(read_only=True)
    actual = ObjectField(read_only=True)

    class Meta:
        model = Proposal
        fields = (
            *("id", "model", "state", "level", "cause", "title", "mode_before", "mode", "before", "pools", "sizes", "moves"),
            *("reasons", "alternatives", "inputs", "present", "predicted", "giver", "trade", "returned", "created_at"),
            *(
                "seen_at",
                "expires_at",
                "hindrance",
                "decided_at",
                "decided_by",
                "decision",
                "modified",
                "operation",
                "actual",
            ),
        )
        read_only_fields = fields


class AdviceDocument(serializers.Serializer[Any]):
    """Whether to disaggregate. `checks`: the five and the rule for short prompts, each with value, threshold, samples and
    one sentence; `gain` and `forecasts` only where the forecast was asked for; `flips`: what would change the verdict."""

    verdict = serializers.ChoiceField(choices=["yes", "no", "not_enough_data", "try_canary"])
    mode = serializers.CharField()
    sentence = serializers.CharField()
    checks = ObjectsField()
    gain = ObjectField(allow_null=True)
    forecasts = ObjectsField()
    flips = ObjectsField()
