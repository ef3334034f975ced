"""What changes of a canary take."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rest_framework import serializers

from controlplane.api.bodies import Sizes
from controlplane.api.strict import Flag, Number, Reason, Strict, Whole
from controlplane.core.canary import Guardrails
from controlplane.fleet.models import Mode

MAX_STEPS = 20


class GuardrailsBody(Strict):
    """Limits; what is left out has its default. Their bounds and meaning are core.canary's."""

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {
            field.name: (Whole if isinstance(field.default, int) else Number)(required=False, help_text=f"{field.default:g}")
            for field in fields(Guardrails)
        }

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        try:
            Guardrails(**attrs)
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from error
        return attrs


class CanaryBody(Strict):
    mode = serializers.ChoiceField(choices=Mode.choices)
    engines = Sizes(required=False, help_text="Of the arm, by role; left out: the fewest that the mode needs.")
    share = Number(min_value=0, max_value=1, required=False, help_text="Of sessions; left out: that of the arm's engines.")
    shared = Flag(default=False, help_text="No engines of its own: conditional against disaggregated alone.")
    steps = serializers.ListField(
        child=Number(min_value=0, max_value=1), max_length=MAX_STEPS, default=list, help_text="Shares to come, rising."
    )
    guardrails = GuardrailsBody(required=False)
    reason = Reason()


class CanaryChangeBody(Strict):
    guardrails = GuardrailsBody(help_text="Those that are not named stay.")
    reason = Reason()


class PromoteBody(Strict):
    fully = Flag(default=False, help_text="At once, without the steps that are left.")
    reason = Reason()
