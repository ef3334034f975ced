"""The nodes page: every node with its GPUs, what their agents tell of themselves, and the same to take away."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.access.who import actor_of
from controlplane.console.data import answer, data
from controlplane.console.live_state import snapshot
from controlplane.console.modules import module_files
from controlplane.console.permissions import refusals
from controlplane.fleet import models
from controlplane.telemetry.queries.exports import figures_table
from controlplane.telemetry.queries.figures import Figure
from controlplane.telemetry.queries.gpus import gpu_figures
from controlplane.telemetry.queries.windows import Window
from controlplane.telemetry.topics import NODES

VERBS = ("cordon_node", "uncordon_node")
GPU_SPAN_S = 300


@dataclass(frozen=True)
class NodeFacts:
    """A node as its row has it: what the live topic does not repeat every second."""

    name: str
    address: str
    network_gbps: float
    labels: Mapping[str, str]
    """The operator's win over the agent's."""
    cordoned: bool
    lost: bool
    heard_at: float | None
    """When control last believed its agent's fact, Unix seconds."""
    booted_at: float | None
    """When its agent was started, on the node's clock."""


@require_safe
@never_cache
@login_required
def page(request: HttpRequest) -> HttpResponse:
    """With the newest live rows in it, and who may cordon."""
    first = {
        "now": time.time(),
        "frame": snapshot(NODES),
        "nodes": [asdict(node) for node in node_facts()],
        "refused": refusals(actor_of(request), VERBS),
    }
    return render(request, "console/nodes.html", {"first": first, "modules": module_files("nodespage")})


def node_facts() -> list[NodeFacts]:
    """All nodes by name. Raises django.db.Error."""
    return [
        NodeFacts(
            name=node.name,
            address=node.address,
            network_gbps=node.network_gbps,
            labels={**node.agent_labels, **node.labels},
            cordoned=node.cordoned,
            lost=node.lost,
            heard_at=node.seen_at.timestamp() if node.seen_at else None,
            booted_at=node.agent_booted_at or None,
        )
        for node in models.Node.objects.order_by("name")
    ]


@data
def nodes(request: HttpRequest) -> HttpResponse:
    """Facts of every node; `?format=csv` or `json` to take away."""
    found = node_facts()
    return answer(request, "nodes", lambda: [asdict(node) for node in found], lambda: figures_table(found))


@dataclass(frozen=True)
class PlacedGpu:
    """A GPU's figures of the last GPU_SPAN_S seconds, with where it is."""

    node: str
    index: int
    kind: str
    uuid: str
    engine: str
    role: str
    busy: Figure
    tensor: Figure
    dram: Figure
    memory_used_bytes: Figure
    memory_bytes: int
    power_w: Figure


@data
def gpus(request: HttpRequest) -> HttpResponse:
    """Every GPU that reported within the last five minutes; `?format=csv` or `json` to take away."""
    found = placed_gpus(time.time())
    return answer(request, "gpus", lambda: found, lambda: figures_table(found))


def placed_gpus(now: float) -> list[PlacedGpu]:
    """By node and index; a GPU that is in no row of the fleet any more is left out. Raises django.db.Error."""
    known = models.Gpu.objects.select_related("node").in_bulk()
    rows = [(known[each.uuid], each) for each in gpu_figures(Window.last(GPU_SPAN_S, now)) if each.uuid in known]
    found = [
        PlacedGpu(
            node=gpu.node.name,
            index=gpu.index,
            kind=gpu.kind,
            uuid=gpu.uuid,
            engine=each.engine,
            role=each.role,
            busy=each.busy,
            tensor=each.tensor,
            dram=each.dram,
            memory_used_bytes=each.memory_used_bytes,
            memory_bytes=gpu.memory_bytes,
            power_w=each.power_w,
        )
        for gpu, each in rows
    ]
    return sorted(found, key=lambda gpu: (gpu.node, gpu.index))
