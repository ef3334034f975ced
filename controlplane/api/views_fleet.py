"""Nodes, GPUs, pools and engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.exceptions import TimeoutError as NoAnswer
from kombu.exceptions import OperationalError as BrokerAway
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.access.who import actor_of
from controlplane.api import openapi
from controlplane.api.bodies import NodeBody
from controlplane.api.documents import ENGINE_STATES, EngineDocument, GpuDocument, LogDocument, NodeDocument, PoolDocument
from controlplane.api.paging import Listed, page
from controlplane.api.preconditions import expected_version, require_match
from controlplane.api.problems import Problem
from controlplane.api.resource import Resource, carry_out
from controlplane.api.selectors import (
    all_engines,
    all_gpus,
    all_nodes,
    all_pools,
    count_states,
    find_ranks,
    model_of,
    one,
)
from controlplane.api.showing import show, show_all
from controlplane.api.strict import NoQuery, ReasonBody, Strict, Text, read_body, read_query
from controlplane.control import actions, commands
from controlplane.fleet import models
from controlplane.fleet.models import Role

MAX_LINES = 2000


class NodesQuery(Listed):
    ORDERS = ("name", "-name")

    lost = serializers.BooleanField(required=False, allow_null=True, default=None)
    cordoned = serializers.BooleanField(required=False, allow_null=True, default=None)


class Nodes(Resource):
    @openapi.read("list_nodes", "nodes", openapi.page_of(NodeDocument, "NodePage"), query=NodesQuery)
    def get(self, request: Request) -> Response:
        """All nodes."""
        asked = read_query(request, NodesQuery)
        rows = all_nodes().filter(**{name: asked[name] for name in ("lost", "cordoned") if asked[name] is not None})
        return Response(page(request, rows, asked, lambda found: show_all(NodeDocument, found)))

    @openapi.change("add_node", "nodes", NodeBody)
    def post(self, request: Request) -> Response:
        """Let an agent of this name join."""
        body = read_body(request, NodeBody)
        require_match(request)
        return carry_out(request, actions.add_node, **body)


class OneNode(Resource):
    @openapi.read("get_node", "nodes", NodeDocument, query=NoQuery)
    def get(self, request: Request, name: str) -> Response:
        """One node."""
        read_query(request, NoQuery)
        return Response(show(NodeDocument, one(all_nodes(), name=name)))

    @openapi.change("remove_node", "nodes")
    def delete(self, request: Request, name: str) -> Response:
        """Forget a node; one that is heard must be cordoned and empty."""
        require_match(request)
        return carry_out(request, actions.remove_node, name)


class NodeCordon(Resource):
    @openapi.change("cordon_node", "nodes", ReasonBody)
    def put(self, request: Request, name: str) -> Response:
        """Give a node no new engines; those it has serve on."""
        body = read_body(request, ReasonBody)
        require_match(request)
        return carry_out(request, actions.cordon_node, name, **body)

    @openapi.change("uncordon_node", "nodes")
    def delete(self, request: Request, name: str) -> Response:
        """Give a node new engines again."""
        require_match(request)
        return carry_out(request, actions.uncordon_node, name)


class GpusQuery(Listed):
    ORDERS = ("uuid", "-uuid")

    node = Text(max_length=63, required=False)
    kind = Text(max_length=32, required=False)
    free = serializers.BooleanField(required=False, allow_null=True, default=None, help_text="Held by no engine.")


class Gpus(Resource):
    @openapi.read("list_gpus", "gpus", openapi.page_of(GpuDocument, "GpuPage"), query=GpusQuery)
    def get(self, request: Request) -> Response:
        """All GPUs, each with the engine that holds it."""
        asked = read_query(request, GpusQuery)
        filters = {"node": "node__name", "kind": "kind"}
        rows = all_gpus().filter(**{field: asked[name] for name, field in filters.items() if name in asked})
        if asked["free"] is not None:
            rows = rows.filter(reservation__isnull=asked["free"])
        return Response(page(request, rows, asked, lambda found: show_all(GpuDocument, found)))


class PoolsQuery(Listed):
    ORDERS = ("id", "-id")

    model = Text(max_length=128, required=False)
    role = serializers.ChoiceField(choices=Role.choices, required=False)
    arm = Text(max_length=32, required=False)


class Pools(Resource):
    @openapi.read("list_pools", "pools", openapi.page_of(PoolDocument, "PoolPage"), query=PoolsQuery)
    def get(self, request: Request) -> Response:
        """All pools, each with its engines by state."""
        asked = read_query(request, PoolsQuery)
        filters = {"model": "model__name", "role": "role", "arm": "arm"}
        rows = all_pools().filter(**{field: asked[name] for name, field in filters.items() if name in asked})
        return Response(page(request, rows, asked, _show_pools))


def _show_pools(found: list[models.Pool]) -> object:
    count_states(found)
    return show_all(PoolDocument, found)


class EnginesQuery(Listed):
    ORDERS = ("id", "-id")

    model = Text(max_length=128, required=False)
    role = serializers.ChoiceField(choices=Role.choices, required=False)
    arm = Text(max_length=32, required=False)
    state = serializers.ChoiceField(choices=ENGINE_STATES, required=False)
    node = Text(max_length=63, required=False)
    wanted = serializers.BooleanField(required=False, allow_null=True, default=None)


class Engines(Resource):
    @openapi.read("list_engines", "engines", openapi.page_of(EngineDocument, "EnginePage"), query=EnginesQuery)
    def get(self, request: Request) -> Response:
        """All engines, also those that have stopped."""
        asked = read_query(request, EnginesQuery)
        filters = {"model": "model__name", "role": "role", "arm": "arm", "state": "state"}
        rows = all_engines().filter(**{field: asked[name] for name, field in filters.items() if name in asked})
        if "node" in asked:
            rows = rows.filter(pk__in=models.Rank.objects.filter(node__name=asked["node"]).values("engine"))
        if asked["wanted"] is not None:
            rows = rows.filter(wanted=asked["wanted"])
        return Response(page(request, rows, asked, _show_engines))


class OneEngine(Resource):
    @openapi.read("get_engine", "engines", EngineDocument, query=NoQuery)
    def get(self, request: Request, engine: str) -> Response:
        """One engine."""
        read_query(request, NoQuery)
        return Response(_show_engines([one(all_engines(), pk=engine)])[0])


def _show_engines(found: list[models.Engine]) -> list[dict[str, Any]]:
    find_ranks(found)
    return show_all(EngineDocument, found)


class EngineDrain(Resource):
    @openapi.change("drain_engine", "engines", ReasonBody, model=True)
    def put(self, request: Request, engine: str) -> Response:
        """Take an engine out of the routing table and let it finish what it has; it runs on."""
        return _carry_out(request, actions.drain_engine, engine, **read_body(request, ReasonBody))

    @openapi.change("undrain_engine", "engines", model=True)
    def delete(self, request: Request, engine: str) -> Response:
        """Bring an engine back into the routing table."""
        return _carry_out(request, actions.undrain_engine, engine)


class EngineRestart(Resource):
    @openapi.change("restart_engine", "engines", ReasonBody, model=True)
    def post(self, request: Request, engine: str) -> Response:
        """Replace an engine by a fresh one."""
        return _carry_out(request, actions.restart_engine, engine, **read_body(request, ReasonBody))


class EngineRetry(Resource):
    @openapi.change("retry_engine", "engines", ReasonBody, model=True)
    def post(self, request: Request, engine: str) -> Response:
        """Start an engine again that was given up after too many failures."""
        return _carry_out(request, actions.retry_engine, engine, **read_body(request, ReasonBody))


def _carry_out(request: Request, action: Callable[..., models.Operation], engine: str, **options: Any) -> Response:
    """`If-Match` has the tag of the engine's model: an engine is a part of it and has none of its own."""
    return carry_out(request, action, engine, expected_version=expected_version(request, model_of(engine)), **options)


class LogQuery(Strict):
    lines = serializers.IntegerField(min_value=1, max_value=MAX_LINES, default=200, help_text="From the end.")


class EngineLog(Resource):
    @openapi.read("get_engine_log", "engines", LogDocument, query=LogQuery, more={504: "The node's agent does not answer."})
    def get(self, request: Request, engine: str) -> Response:
        """The end of an engine's log, read by its node's agent."""
        lines: int = read_query(request, LogQuery)["lines"]
        rank = one(models.Rank.objects.select_related("node", "engine__model"), engine_id=engine, index=0)
        actions.forbid(actor_of(request), "engine_log", rank.engine.model.team, rank.engine.model.name)
        try:
            answer = commands.tail_log(rank.node.name, engine, lines)
        except (NoAnswer, BrokerAway) as error:
            reason = f"The agent of {rank.node.name} does not answer: see whether it runs."
            raise Problem(504, "no_answer", reason) from error
        if "error" in answer:
            raise Problem(404, "not_found", str(answer["error"]))
        return Response({"engine": engine, "lines": answer["lines"]})
