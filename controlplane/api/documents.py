"""What the API tells: one serializer per resource, from rows that `selectors` has read. Read-only."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.core.lifecycle import CANARY, ENGINE, OPERATION, STEP
from controlplane.fleet import models

TEXTS = {"type": "array", "items": {"type": "string"}}
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
ENGINE_STATES, STEP_STATES, OPERATION_STATES, CANARY_STATES = map(sorted, (ENGINE, STEP, OPERATION, CANARY))
ANY_OBJECT = {"type": "object", "additionalProperties": True}
COUNTS = {"type": "object", "additionalProperties": {"type": "integer"}}


@extend_schema_field(TEXTS)
class TextsField(serializers.JSONField):
    pass


@extend_schema_field(LABELS)
class LabelsField(serializers.JSONField):
    pass


@extend_schema_field(ANY_OBJECT)
class ObjectField(serializers.JSONField):
    pass


@extend_schema_field({"type": "array", "items": {"type": "number"}})
class NumbersField(serializers.JSONField):
    pass


class PoolSize(serializers.ModelSerializer[models.Pool]):
    """A pool as it is desired."""

    engines = serializers.IntegerField(source="desired_engines", read_only=True)
    gpu_kinds = TextsField(read_only=True)
    node_labels = LabelsField(read_only=True)

    class Meta:
        model = models.Pool
        fields = ("role", "arm", "engines", "floor", "tensor_parallel", "pipeline_parallel", "gpu_kinds", "node_labels")
        read_only_fields = fields


class ModelDocument(serializers.ModelSerializer[models.Model]):
    """A model as it is desired: all of it changes together with `version`, so that its ETag is the version's."""

    aliases = TextsField(read_only=True)
    engine_args = ObjectField(read_only=True)
    pools = PoolSize(many=True, read_only=True)

    class Meta:
        model = models.Model
        fields = (
            *("name", "version", "aliases", "team", "source", "engine_kind", "engine_args", "mode", "connector", "pools"),
            *("slo_ttft_ms", "slo_itl_ms", "conditional_min_uncached_tokens", "conditional_min_uncached_ratio", "strict"),
            *("on_prefill_loss", "kv_lease_s", "block_size", "kv_bytes_per_token", "max_model_len"),
            *("frozen_until", "frozen_reason", "retiring", "created_at"),
        )
        read_only_fields = fields


class ModeDocument(serializers.ModelSerializer[models.Model]):
    """`mode` is desired; `served_mode` is what routers do now."""

    class Meta:
        model = models.Model
        fields = ("mode", "served_mode")
        read_only_fields = fields


class PoolDocument(PoolSize):
    """A pool as it is desired, and its engines by state."""

    model = serializers.CharField(source="model.name", read_only=True)
    states = serializers.SerializerMethodField()

    class Meta(PoolSize.Meta):
        fields = ("id", "model", *PoolSize.Meta.fields, "states")  # type: ignore[assignment]
        read_only_fields = fields  # type: ignore[assignment]

    @extend_schema_field(COUNTS)
    def get_states(self, pool: Any) -> dict[str, int]:
        states: dict[str, int] = pool.states
        return states


class RankDocument(serializers.Serializer[Any]):
    """One process of an engine."""

    index = serializers.IntegerField()
    node = serializers.CharField()
    gpus = TextsField()


class EngineDocument(serializers.ModelSerializer[models.Engine]):
    label = serializers.CharField(read_only=True)  # type: ignore[assignment]
    model = serializers.CharField(source="model.name", read_only=True)
    state = serializers.ChoiceField(choices=ENGINE_STATES, read_only=True)
    ranks = serializers.SerializerMethodField()

    class Meta:
        model = models.Engine
        fields = (
            *("id", "label", "model", "role", "arm", "kind", "tensor_parallel", "wanted", "held", "state", "state_since"),
            *("reason", "next_role", "next_arm", "move_phase", "weight", "incarnation", "url", "failures", "retry_at"),
            *("created_at", "started_at", "ready_at", "ranks"),
        )
        read_only_fields = fields

    @extend_schema_field(RankDocument(many=True))
    def get_ranks(self, engine: Any) -> list[dict[str, Any]]:
        """As `selectors.find_ranks` has set them."""
        placed: list[dict[str, Any]] = engine.placed
        return placed


class LogDocument(serializers.Serializer[Any]):
    engine = serializers.CharField(read_only=True)
    lines = serializers.ListField(child=serializers.CharField(), read_only=True)


class GpuDocument(serializers.ModelSerializer[models.Gpu]):
    node = serializers.CharField(source="node.name", read_only=True)
    engine = serializers.CharField(allow_null=True, read_only=True, help_text="The one that holds it.")

    class Meta:
        model = models.Gpu
        fields = ("uuid", "node", "index", "kind", "memory_bytes", "simulated", "engine")
        read_only_fields = fields


class NodeDocument(serializers.ModelSerializer[models.Node]):
    labels = LabelsField(read_only=True)
    agent_labels = LabelsField(read_only=True)
    gpus = serializers.IntegerField(source="gpu_count", read_only=True)

    class Meta:
        model = models.Node
        fields = (
            *(
                "name",
                "labels",
                "agent_labels",
                "cordoned",
                "lost",
                "address",
                "network_gbps",
                "gpus",
                "seen_at",
                "created_at",
            ),
        )
        read_only_fields = fields


class StepDocument(serializers.ModelSerializer[models.Step]):
    state = serializers.ChoiceField(choices=STEP_STATES, read_only=True)

    class Meta:
        model = models.Step
        fields = ("index", "verb", "role", "arm", "engine", "state", "reason", "started_at", "finished_at")
        read_only_fields = fields


class OperationSummary(serializers.ModelSerializer[models.Operation]):
    """An operation without its steps."""

    model = serializers.SerializerMethodField()
    state = serializers.ChoiceField(choices=OPERATION_STATES, read_only=True)
    before = ObjectField(read_only=True)
    after = ObjectField(read_only=True)
    undoes = serializers.IntegerField(source="undoes_id", read_only=True, allow_null=True)

    class Meta:
        model = models.Operation
        fields: tuple[str, ...] = (
            *("id", "verb", "model", "state", "actor", "reason", "before", "after", "outcome", "undoes"),
            *("created_at", "finished_at"),
        )
        read_only_fields = fields

    def get_model(self, operation: models.Operation) -> str | None:
        return operation.model.name if operation.model else None


class OperationDocument(OperationSummary):
    """An operation with its steps, and with what was measured before and after it once that time has passed."""

    measured = ObjectField(read_only=True)
    steps = StepDocument(many=True, read_only=True)

    class Meta(OperationSummary.Meta):
        fields = (*OperationSummary.Meta.fields, "measured", "steps")
        read_only_fields = fields


class CanaryDocument(serializers.ModelSerializer[models.Canary]):
    model = serializers.CharField(source="model.name", read_only=True)
    operation = serializers.IntegerField(source="operation_id", read_only=True, allow_null=True)
    state = serializers.ChoiceField(choices=CANARY_STATES, read_only=True)
    steps = NumbersField(read_only=True)
    guardrails = ObjectField(read_only=True)
    verdict = ObjectField(read_only=True)

    class Meta:
        model = models.Canary
        fields = (
            *("id", "model", "operation", "mode", "shared", "state", "share", "steps", "guardrails", "verdict", "paused"),
            *("started_at", "step_since", "ended_at", "reason"),
        )
        read_only_fields = fields


class FieldProblem(serializers.Serializer[Any]):
    field = serializers.CharField()
    reason = serializers.CharField()


class ProblemDocument(serializers.Serializer[Any]):
    """Problem details (RFC 9457)."""

    type = serializers.CharField(help_text="urn:twinpool:problem:KIND")
    title = serializers.CharField()
    status = serializers.IntegerField()
    kind = serializers.CharField(help_text="What a program decides by.")
    detail = serializers.CharField()
    reasons = serializers.ListField(child=serializers.CharField(), help_text="Each with what would help.")
    errors = FieldProblem(  # type: ignore[assignment]
        many=True, required=False, help_text="Fields of the request that are wrong."
    )
    operation = serializers.IntegerField(required=False, help_text="The operation that is in the way.")
