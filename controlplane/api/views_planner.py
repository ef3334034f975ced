"""The planner: how it is set for a model, what it proposes, and what people decide; and the advice on modes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import openapi
from controlplane.api.bodies import MAX_ITEMS, AnyObject, Sizes
from controlplane.api.documents_planner import AdviceDocument, PlannerDocument, ProposalDocument
from controlplane.api.paging import Listed, page
from controlplane.api.preconditions import require_match
from controlplane.api.resource import Resource, carry_out, carry_out_on_model
from controlplane.api.selectors import one
from controlplane.api.showing import show, show_all
from controlplane.api.strict import NoQuery, Reason, ReasonBody, Strict, Text, Whole, read_body, read_query
from controlplane.control import actions
from controlplane.control.actions.planning import MAX_PRIORITY
from controlplane.control.models import Level, ProposalState
from controlplane.control.planning import selectors
from controlplane.control.planning.advice import advice_of
from controlplane.control.planning.plain import plain
from controlplane.fleet.models import Mode, Model

TAG = "planner"


class PlannerBody(Strict):
    """What is left out stays as it is."""

    level = serializers.ChoiceField(choices=Level.choices, required=False)
    priority = Whole(min_value=-MAX_PRIORITY, max_value=MAX_PRIORITY, required=False, help_text="An operator's to set.")
    modes = serializers.ListField(
        child=serializers.ChoiceField(choices=Mode.choices), max_length=3, required=False, help_text="That it may propose."
    )
    floors = Sizes(required=False)
    ceilings = Sizes(required=False)
    kinds = AnyObject(required=False, help_text="By role, GPU kinds that it may propose beside the pool's own.")
    degrees = AnyObject(required=False, help_text="By role, tensor-parallel degrees, likewise.")
    guards = AnyObject(required=False, help_text="By name, null for the default: cooldown_s, moves_per_hour, freezes, …")
    peaks = serializers.ListField(
        child=AnyObject(), max_length=MAX_ITEMS, required=False, help_text="since_s, until_s, rate, daily, why."
    )
    reason = Reason()


class ModifyBody(Strict):
    pools = Sizes(help_text="Engines by role.")
    mode = serializers.ChoiceField(choices=Mode.choices, required=False, help_text="Left out: the proposed one.")
    reason = Reason()


class RejectBody(Strict):
    reason = Reason(allow_blank=False, required=True, default=serializers.empty)


class AdviceQuery(Strict):
    forecast = serializers.BooleanField(default=False, help_text="With the best layout of each mode, which takes longer.")


class ProposalsQuery(Listed):
    ORDERS = ("-id", "id")

    state = serializers.ChoiceField(choices=ProposalState.choices, required=False)
    model = Text(max_length=128, required=False)


class ModelPlanner(Resource):
    @openapi.read("get_planner", TAG, PlannerDocument, query=NoQuery)
    def get(self, request: Request, name: str) -> Response:
        """How the planner is set for a model, and why it proposes nothing now."""
        read_query(request, NoQuery)
        model = one(Model.objects.all(), name=name)
        found = selectors.planner_of(model)
        proposal = found.proposal.pk if found.proposal else None
        return Response(PlannerDocument({**vars(found), "model_name": model.name, "proposal_id": proposal}).data)

    @openapi.change("set_planner", TAG, PlannerBody, model=True)
    def patch(self, request: Request, name: str) -> Response:
        """Set what the planner may do with a model, and within which limits."""
        body = read_body(request, PlannerBody)
        reason = body.pop("reason")
        return carry_out_on_model(request, actions.set_planner, name, _change(body), reason=reason)


class ModelAdvice(Resource):
    @openapi.read("get_advice", TAG, AdviceDocument, query=AdviceQuery)
    def get(self, request: Request, name: str) -> Response:
        """Whether to disaggregate a model, from its traffic of the last half hour."""
        asked = read_query(request, AdviceQuery)
        return Response(plain(advice_of(one(Model.objects.all(), name=name), time.time(), asked["forecast"])))


class Proposals(Resource):
    @openapi.read("list_proposals", TAG, openapi.page_of(ProposalDocument, "ProposalPage"), query=ProposalsQuery)
    def get(self, request: Request) -> Response:
        """What the planner proposed, the newest first."""
        asked = read_query(request, ProposalsQuery)
        filters = {"state": "state", "model": "model__name"}
        rows = selectors.all_proposals().filter(**{field: asked[name] for name, field in filters.items() if name in asked})
        return Response(page(request, rows, asked, lambda found: show_all(ProposalDocument, found)))


class OneProposal(Resource):
    @openapi.read("get_proposal", TAG, ProposalDocument, query=NoQuery)
    def get(self, request: Request, proposal: int) -> Response:
        """One proposal with its inputs, alternatives and reasons, and what came of it."""
        read_query(request, NoQuery)
        return Response(show(ProposalDocument, one(selectors.all_proposals(), pk=proposal)))


class ProposalApprove(Resource):
    @openapi.change("approve_proposal", TAG, ReasonBody)
    def post(self, request: Request, proposal: int) -> Response:
        """Carry it out as it was proposed."""
        body = read_body(request, ReasonBody)
        require_match(request)
        return carry_out(request, actions.approve_proposal, proposal, **body)


class ProposalModify(Resource):
    @openapi.change("modify_proposal", TAG, ModifyBody)
    def post(self, request: Request, proposal: int) -> Response:
        """Carry out other sizes or another mode instead."""
        body = read_body(request, ModifyBody)
        require_match(request)
        return carry_out(request, actions.modify_proposal, proposal, body.pop("pools"), **body)


class ProposalReject(Resource):
    @openapi.change("reject_proposal", TAG, RejectBody)
    def post(self, request: Request, proposal: int) -> Response:
        """Say no, with a reason."""
        body = read_body(request, RejectBody)
        require_match(request)
        return carry_out(request, actions.reject_proposal, proposal, **body)


def _change(body: Mapping[str, Any]) -> actions.PlannerChange:
    """A checked PlannerBody as the action takes it."""
    return actions.PlannerChange(**body)
