"""What changes take: the types and bounds of their fields. What the values mean is checked by the actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.api.documents import ANY_OBJECT
from controlplane.api.strict import Flag, Number, Reason, Strict, Text, Whole
from controlplane.control.actions import RollOut, Selector, Update
from controlplane.control.newmodel import (
    MAX_ENGINES,
    MAX_PIPELINE_PARALLEL,
    MAX_SLO_MS,
    MAX_TENSOR_PARALLEL,
    NewModel,
    NewPool,
)
from controlplane.core.names import LABEL_KEY, LABEL_VALUE_CHARS
from controlplane.core.protocol import OnPrefillLoss
from controlplane.fleet.models import Mode, Role

MAX_ITEMS = 64


@extend_schema_field(ANY_OBJECT)
class AnyObject(serializers.JSONField):
    """A JSON object of any content."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise serializers.ValidationError("Must be a JSON object.")
        return data


class Named(serializers.DictField):
    """Values by name, a bounded number."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if isinstance(data, Mapping) and len(data) > MAX_ITEMS:
            raise serializers.ValidationError(f"At most {MAX_ITEMS} entries.")
        found: dict[str, Any] = super().to_internal_value(data)
        return found


class Labels(Named):
    """Labels of a node."""

    def __init__(self, **options: Any) -> None:
        super().__init__(child=Text(max_length=LABEL_VALUE_CHARS, allow_blank=True), **options)

    def to_internal_value(self, data: Any) -> dict[str, str]:
        found = super().to_internal_value(data)
        wrong = [key for key in found if not LABEL_KEY.fullmatch(key)]
        if wrong:
            raise serializers.ValidationError(
                f"{wrong[0]!r:.80} is no label: letters, digits, '.', '_' and '-', at most 63."
            )
        return found


class Sizes(Named):
    """Engines by role."""

    def __init__(self, **options: Any) -> None:
        super().__init__(child=Whole(min_value=0, max_value=MAX_ENGINES), allow_empty=False, **options)

    def to_internal_value(self, data: Any) -> dict[str, int]:
        found = super().to_internal_value(data)
        wrong = [role for role in found if role not in Role.values]
        if wrong:
            raise serializers.ValidationError(f"{wrong[0]!r:.40} is no role: {', '.join(Role.values)}.")
        return found


def kinds(**options: Any) -> Any:
    help_text = "Of GPUs; empty: any."
    return serializers.ListField(child=Text(max_length=32), max_length=MAX_ITEMS, help_text=help_text, **options)


def names(**options: Any) -> Any:
    return serializers.ListField(child=Text(max_length=128), max_length=MAX_ITEMS, **options)


def target_ms(**options: Any) -> Number:
    return Number(min_value=1, max_value=MAX_SLO_MS, **options)


class NewPoolBody(Strict):
    role = serializers.ChoiceField(choices=Role.choices)
    engines = Whole(min_value=0, max_value=MAX_ENGINES, default=0)
    tensor_parallel = Whole(min_value=1, max_value=MAX_TENSOR_PARALLEL, default=1)
    pipeline_parallel = Whole(
        min_value=1,
        max_value=MAX_PIPELINE_PARALLEL,
        default=1,
        help_text="Stages of each engine, each on `tensor_parallel` GPUs of one node.",
    )
    gpu_kinds = kinds(default=list)
    node_labels = Labels(default=dict)


class NewModelBody(Strict):
    name = Text(max_length=128)
    source = Text(  # type: ignore[assignment]
        max_length=512, help_text="What the engine loads: a model id or an absolute path."
    )
    config = AnyObject(help_text="The content of the model's Hugging Face config.json.")
    engine_kind = Text(max_length=16, default="vllm")
    engine_args = AnyObject(default=dict, help_text="Allow-listed arguments of the engine.")
    mode = serializers.ChoiceField(choices=Mode.choices, default="monolithic")
    connector = Text(max_length=16, default="nixl")
    pools = NewPoolBody(many=True, default=list)
    aliases = names(default=list)
    kv_lease_s = Number(min_value=1, max_value=3600, default=30.0)
    slo_ttft_ms = target_ms(default=2000.0)
    slo_itl_ms = target_ms(default=50.0)
    reason = Reason()


def new_model(body: Mapping[str, Any]) -> NewModel:
    """A checked NewModelBody as the action takes it."""
    fields = {name: value for name, value in body.items() if name not in ("reason", "pools", "aliases")}
    pools = tuple(NewPool(**{**pool, "gpu_kinds": tuple(pool["gpu_kinds"])}) for pool in body["pools"])
    return NewModel(**fields, pools=pools, aliases=tuple(body["aliases"]))


class SelectorBody(Strict):
    gpu_kinds = kinds(default=list)
    node_labels = Labels(default=dict)


class UpdateBody(Strict):
    """What is left out stays as it is."""

    aliases = names(required=False)
    team = Text(max_length=63, allow_blank=True, required=False, help_text="Who owns it; empty: nobody but operators.")
    slo_ttft_ms = target_ms(required=False)
    slo_itl_ms = target_ms(required=False)
    conditional_min_uncached_tokens = Whole(min_value=0, required=False)
    conditional_min_uncached_ratio = Number(min_value=0, max_value=1, required=False)
    on_prefill_loss = serializers.ChoiceField(choices=get_args(OnPrefillLoss), required=False)
    strict = Flag(required=False)
    floors = Named(child=Whole(min_value=0, max_value=MAX_ENGINES), required=False, help_text="Serving engines, by pool.")
    selectors = Named(child=SelectorBody(), required=False, help_text="GPUs for engines placed from now on, by pool.")
    reason = Reason()


def update(body: Mapping[str, Any]) -> Update:
    """A checked UpdateBody as the action takes it."""
    fields = {name: value for name, value in body.items() if name not in ("reason", "selectors")}
    selectors = {
        pool: Selector(tuple(each["gpu_kinds"]), each["node_labels"]) for pool, each in body.get("selectors", {}).items()
    }
    return Update(**fields, selectors=selectors or None)


class RollOutBody(Strict):
    """What is left out stays as it is; with nothing at all the same is started again."""

    source = Text(max_length=512, required=False)  # type: ignore[assignment]
    config = AnyObject(required=False)
    engine_args = AnyObject(required=False, help_text="They replace all there were.")
    kv_lease_s = Number(min_value=1, max_value=3600, required=False)
    reason = Reason()


def launch(body: Mapping[str, Any]) -> RollOut:
    """A checked RollOutBody as the action takes it."""
    return RollOut(**{name: value for name, value in body.items() if name != "reason"})


class ModeBody(Strict):
    mode = serializers.ChoiceField(choices=Mode.choices)
    split = Sizes(required=False, help_text="Engines by role of the new mode; left out: chosen from the engines there are.")
    min_uncached_tokens = Whole(min_value=0, required=False, help_text="Of mode conditional.")
    min_uncached_ratio = Number(min_value=0, max_value=1, required=False, help_text="Of mode conditional.")
    reason = Reason()


class RebalanceBody(Strict):
    pools = Sizes(help_text="Engines by role; pools that are not named stay.")
    reason = Reason()


class PoolBody(Strict):
    engines = Whole(min_value=0, max_value=MAX_ENGINES)
    reason = Reason()


class MoveBody(Strict):
    from_role = serializers.ChoiceField(choices=Role.choices)
    to_role = serializers.ChoiceField(choices=Role.choices)
    gpus = Whole(min_value=1, max_value=MAX_ENGINES)
    to_model = Text(max_length=128, default="", allow_blank=True, help_text="Left out: the same model.")
    reason = Reason()


class FreezeBody(Strict):
    until = serializers.DateTimeField(help_text="ISO 8601 with a time zone.")
    reason = Reason()


class NodeBody(Strict):
    name = Text(max_length=63)
    labels = Labels(default=dict)
    reason = Reason()
