"""Models: what is offered, how it is served, and how large its pools are."""

from __future__ import annotations

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import bodies, openapi
from controlplane.api.documents import ModeDocument, ModelDocument, PoolDocument
from controlplane.api.paging import Listed, page
from controlplane.api.preconditions import conditional, model_tag, require_match
from controlplane.api.resource import Resource, carry_out, carry_out_on_model
from controlplane.api.selectors import all_models, all_pools, count_states, one
from controlplane.api.showing import show, show_all
from controlplane.api.strict import NoQuery, Text, read_body, read_query
from controlplane.control import actions
from controlplane.fleet import models
from controlplane.fleet.models import Mode

TAG = "models"


class ModelsQuery(Listed):
    ORDERS = ("name", "-name", "id", "-id")

    mode = serializers.ChoiceField(choices=Mode.choices, required=False)
    team = Text(max_length=63, required=False)


class Models(Resource):
    @openapi.read("list_models", TAG, openapi.page_of(ModelDocument, "ModelPage"), query=ModelsQuery)
    def get(self, request: Request) -> Response:
        """All models, as they are desired."""
        asked = read_query(request, ModelsQuery)
        rows = all_models().filter(**{name: asked[name] for name in ("mode", "team") if name in asked})
        return Response(page(request, rows, asked, lambda found: show_all(ModelDocument, found)))

    @openapi.change("register_model", TAG, bodies.NewModelBody)
    def post(self, request: Request) -> Response:
        """Register a model. The operation starts its engines."""
        body = read_body(request, bodies.NewModelBody)
        require_match(request)
        return carry_out(request, actions.register_model, bodies.new_model(body), reason=body["reason"])


class OneModel(Resource):
    @openapi.read("get_model", TAG, ModelDocument, query=NoQuery, etag=True)
    def get(self, request: Request, name: str) -> Response:
        """One model, as it is desired."""
        read_query(request, NoQuery)
        model = one(all_models(), name=name)
        return conditional(request, show(ModelDocument, model), model_tag(model))

    @openapi.change("update_model", TAG, bodies.UpdateBody, model=True)
    def patch(self, request: Request, name: str) -> Response:
        """Change settings that no engine has to be restarted for."""
        body = read_body(request, bodies.UpdateBody)
        return carry_out_on_model(request, actions.update_model, name, bodies.update(body), reason=body["reason"])

    @openapi.change("retire_model", TAG, model=True)
    def delete(self, request: Request, name: str) -> Response:
        """Offer a model no more: its engines finish what they have and stop, then it is gone."""
        return carry_out_on_model(request, actions.retire_model, name)


class ModelMode(Resource):
    @openapi.read("get_mode", TAG, ModeDocument, query=NoQuery)
    def get(self, request: Request, name: str) -> Response:
        """The mode that is desired, and the one that routers follow now."""
        read_query(request, NoQuery)
        return Response(show(ModeDocument, one(models.Model.objects.only("mode", "served_mode"), name=name)))

    @openapi.change("set_mode", TAG, bodies.ModeBody, model=True)
    def put(self, request: Request, name: str) -> Response:
        """Serve a model monolithic, disaggregated or conditional."""
        return carry_out_on_model(request, actions.set_mode, name, **read_body(request, bodies.ModeBody))


class ModelRebalance(Resource):
    @openapi.change("rebalance", TAG, bodies.RebalanceBody, model=True)
    def post(self, request: Request, name: str) -> Response:
        """Move engines between the pools of a model while traffic flows."""
        body = read_body(request, bodies.RebalanceBody)
        return carry_out_on_model(request, actions.rebalance, name, body["pools"], reason=body["reason"])


class ModelMove(Resource):
    @openapi.change("move_gpus", TAG, bodies.MoveBody, model=True)
    def post(self, request: Request, name: str) -> Response:
        """Take GPUs from one pool and give them to another, of the same model or of another one."""
        body = read_body(request, bodies.MoveBody)
        roles = body.pop("from_role"), body.pop("to_role")
        return carry_out_on_model(request, actions.move_gpus, name, *roles, body.pop("gpus"), **body)


class ModelRollOut(Resource):
    @openapi.change("roll_out", TAG, bodies.RollOutBody, model=True)
    def post(self, request: Request, name: str) -> Response:
        """Replace every engine by one of another source, config or arguments, pool by pool."""
        body = read_body(request, bodies.RollOutBody)
        return carry_out_on_model(request, actions.roll_out, name, bodies.launch(body), reason=body["reason"])


class ModelPool(Resource):
    @openapi.read("get_pool", TAG, PoolDocument, query=NoQuery)
    def get(self, request: Request, name: str, role: str) -> Response:
        """One pool of a model, with its engines by state."""
        read_query(request, NoQuery)
        pool = one(all_pools(), model__name=name, role=role, arm=models.MAIN)
        count_states([pool])
        return Response(show(PoolDocument, pool))

    @openapi.change("scale_pool", TAG, bodies.PoolBody, model=True)
    def put(self, request: Request, name: str, role: str) -> Response:
        """Scale a pool."""
        body = read_body(request, bodies.PoolBody)
        return carry_out_on_model(request, actions.scale_pool, name, role, body["engines"], reason=body["reason"])


class ModelFreeze(Resource):
    @openapi.change("freeze", TAG, bodies.FreezeBody, model=True)
    def put(self, request: Request, name: str) -> Response:
        """Forbid changes of a model for a time. Running operations and healing go on."""
        body = read_body(request, bodies.FreezeBody)
        return carry_out_on_model(request, actions.freeze, name, body["until"], reason=body["reason"])

    @openapi.change("unfreeze", TAG, model=True)
    def delete(self, request: Request, name: str) -> Response:
        """Allow changes again."""
        return carry_out_on_model(request, actions.unfreeze, name)
