"""Costs of a month, what API keys used in it, and the price book."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import openapi
from controlplane.api.documents_costs import CostsDocument, PriceDocument, PriceList, SplitCostDocument, UsageDocument
from controlplane.api.preconditions import require_match
from controlplane.api.problems import Problem
from controlplane.api.resource import Resource, carry_out
from controlplane.api.selectors import all_models, one
from controlplane.api.strict import NoQuery, Reason, Strict, Text, read_body, read_query
from controlplane.control import actions
from controlplane.control.newmodel import MAX_ENGINES
from controlplane.control.whatif import at_proposals, at_split
from controlplane.fleet.models import Terms
from controlplane.telemetry.queries import costs
from controlplane.telemetry.queries.exports import csv_file
from controlplane.telemetry.queries.months import month_of
from controlplane.telemetry.queries.prices import prices
from controlplane.telemetry.queries.windows import BadWindow

TAG = "costs"


class MonthQuery(Strict):
    month = serializers.CharField(max_length=7, default="", help_text="2026-11; left out: the present one.")
    zone = serializers.CharField(max_length=64, default="UTC", help_text="Whose months and days: Europe/Berlin, UTC, …")
    format = serializers.ChoiceField(choices=["json", "csv"], default="json", help_text="csv: a table for finance.")


def _engines() -> serializers.IntegerField:
    return serializers.IntegerField(min_value=0, max_value=MAX_ENGINES, required=False, help_text="Left out: as now.")


class CostsQuery(MonthQuery):
    by = serializers.ChoiceField(
        choices=["lines", "models", "pools"], default="lines", help_text="Of csv: what a line is of (day, model, team, key)."
    )


class PriceBody(Strict):
    kind = Text(max_length=32, help_text="As nodes report it: h100-sxm.")
    per_hour = Text(max_length=24, help_text="US dollars of one GPU for one hour, as a text: 2.60.")
    terms = serializers.ChoiceField(choices=Terms.choices, default="hourly")
    valid_from = serializers.DateTimeField(
        default=None, allow_null=True, help_text="A whole hour, ISO 8601 with a time zone; left out: the present hour."
    )
    reason = Reason()


class Costs(Resource):
    @openapi.read("get_costs", TAG, CostsDocument, query=CostsQuery, csv=True)
    def get(self, request: Request) -> Response | HttpResponse:
        """What a month cost by model, team, key, day and pool; all sums agree to the cent."""
        asked = read_query(request, CostsQuery)
        found = _monthly(asked)
        if asked["format"] == "csv":
            return _csv(found, asked["by"])
        return Response(CostsDocument(found).data)


class Usage(Resource):
    @openapi.read("list_usage", TAG, UsageDocument, query=MonthQuery, csv=True)
    def get(self, request: Request) -> Response | HttpResponse:
        """Requests and tokens of a month by API key, team and model."""
        asked = read_query(request, MonthQuery)
        found = _monthly(asked)
        if asked["format"] == "csv":
            return _csv(found, "usage")
        span = {name: getattr(found, name) for name in ("month", "zone", "since", "until", "ends")}
        return Response(UsageDocument({**span, "items": found.usage}).data)


class SplitQuery(Strict):
    prefill = _engines()
    decode = _engines()
    mixed = _engines()
    proposal = serializers.BooleanField(default=False, help_text="Instead: as the planner's open proposal has it.")

    def validate(self, attrs: Any) -> Any:
        sizes = attrs.keys() - {"proposal"}
        if bool(sizes) == attrs["proposal"]:
            raise serializers.ValidationError({"prefill": ["Say how many engines (prefill, decode or mixed), or proposal."]})
        return attrs


class ModelCost(Resource):
    @openapi.read("get_model_cost", TAG, SplitCostDocument, query=SplitQuery, more={422: "What it would cost is not known."})
    def get(self, request: Request, name: str) -> Response:
        """What a model's GPUs cost an hour now, and with so many engines by role (others stay), or as the planner proposes,
        for the same traffic."""
        asked, model = read_query(request, SplitQuery), one(all_models(), name=name)
        if not asked.pop("proposal"):
            return Response(SplitCostDocument(at_split(model, asked, time.time())).data)
        found = next(iter(at_proposals(time.time(), model.name)), None)
        if found is None:
            raise Problem(422, "invalid", "The planner has no open proposal for it.")
        if found.cost is None:
            raise Problem(422, "invalid", found.why_not)
        return Response(SplitCostDocument(found).data)


class Prices(Resource):
    @openapi.read("list_prices", TAG, PriceList, query=NoQuery)
    def get(self, request: Request) -> Response:
        """Every price, and the list prices of kinds that nobody gave one."""
        read_query(request, NoQuery)
        return Response({"items": [PriceDocument(row.document()).data for row in prices()]})

    @openapi.change("set_price", TAG, PriceBody)
    def post(self, request: Request) -> Response:
        """What one GPU-hour of a kind costs from a whole hour on. Admins."""
        body = read_body(request, PriceBody)
        require_match(request)
        return carry_out(request, actions.set_price, body.pop("kind"), body.pop("per_hour"), **body)


class OnePrice(Resource):
    @openapi.change("remove_price", TAG)
    def delete(self, request: Request, price: int) -> Response:
        """Take a price out of the book, as if it had never been given. Admins."""
        require_match(request)
        return carry_out(request, actions.remove_price, price)


def _monthly(asked: Mapping[str, Any]) -> costs.Costs:
    try:
        month = month_of(asked["month"], asked["zone"], time.time())
    except BadWindow as error:
        raise Problem(400, "malformed", str(error)) from error
    return costs.monthly(month)


def _csv(found: costs.Costs, by: str) -> HttpResponse:
    file = HttpResponse(csv_file(costs.table(found, by)), content_type="text/csv; charset=utf-8")
    file.headers["Content-Disposition"] = f'attachment; filename="twinpool-{by}-{found.month}.csv"'
    return file
