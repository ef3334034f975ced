"""What a change would do, as the API tells it."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from controlplane.api.documents import ObjectField
from controlplane.core.preview import Estimate, PlannedStep, PoolCourse, Preview


class PlannedStepDocument(serializers.Serializer[PlannedStep]):
    verb = serializers.CharField()
    engine = serializers.CharField(help_text="Empty for one that does not exist yet.")
    label = serializers.CharField()  # type: ignore[assignment]
    role = serializers.CharField(help_text="Of verb switch: the mode.")
    arm = serializers.CharField()
    node = serializers.CharField()
    reason = serializers.CharField()


class PoolCourseDocument(serializers.Serializer[PoolCourse]):
    """Serving engines of one pool: now, at least while it goes on, and at the end."""

    pool = serializers.CharField()
    now = serializers.IntegerField()
    lowest = serializers.IntegerField()
    then = serializers.IntegerField()
    floor = serializers.IntegerField()


class EstimateDocument(serializers.Serializer[Estimate]):
    """From earlier operations of the verb: their median, and the interval that half of them were in."""

    median_s = serializers.FloatField()
    low_s = serializers.FloatField()
    high_s = serializers.FloatField()
    operations = serializers.IntegerField()


class PreviewDocument(serializers.Serializer[Preview]):
    """What a change would do. Nothing of it has been done."""

    verb = serializers.CharField()
    model = serializers.CharField()
    steps = PlannedStepDocument(many=True)
    instant = serializers.BooleanField(help_text="No engine is started or stopped.")
    pools = PoolCourseDocument(many=True)
    waits = serializers.ListField(child=serializers.CharField(), help_text="What it would wait for without end.")
    complete = serializers.BooleanField(help_text="False: there are more steps than these.")
    estimate: Any = EstimateDocument(allow_null=True)
    before = ObjectField()
    after = ObjectField()
