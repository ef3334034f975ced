"""The rows of a large fleet, made at once: eight GPUs a node, engines spread over the nodes, eight models."""

from __future__ import annotations

from _telemetry import Node

from controlplane.fleet import models

MODELS = 8


def make_fleet(gpu_count: int, engine_count: int) -> list[Node]:
    """Rows of models, nodes, GPUs and engines; the same as their agents see it."""

    count = gpu_count // 8
    rows = models.Node.objects.bulk_create(
        models.Node(name=f"n{i:04}", address="127.0.0.1", agent_boot="b") for i in range(count)
    )
    gpus = models.Gpu.objects.bulk_create(
        models.Gpu(uuid=f"GPU-{i:05}-{'0' * 26}", node=rows[i // 8], index=i % 8, kind="h100-sxm", memory_bytes=80 << 30)
        for i in range(count * 8)
    )
    offered = [
        models.Model.objects.create(
            name=f"model-{i}", source="m", config={}, engine_kind="simulated", mode="disaggregated", connector="nixl"
        )
        for i in range(MODELS)
    ]
    models.Pool.objects.bulk_create(
        models.Pool(model=model, role=role, desired_engines=64) for model in offered for role in ("prefill", "decode")
    )
    models.TableState.objects.create(pk=1, epoch=0, generation=1)
    engines, ranks, held = [], [], []
    per_node = max(1, engine_count // count)
    width = 8 // per_node
    on_node: list[list[tuple[str, str]]] = [[] for _ in range(count)]
    of_gpu: dict[str, str] = {}
    for i in range(engine_count):
        place, slot = i % count, i // count
        model = offered[i % MODELS]
        engine = models.Engine(
            id=f"e-{i:06}", model=model, role="prefill" if i // MODELS % 2 else "decode", number=i + 1, kind="simulated",
            state="ready", incarnation=1, tensor_parallel=width,
        )  # fmt: skip
        rank = models.Rank(engine=engine, node=rows[place])
        engines.append(engine)
        ranks.append(rank)
        on_node[place].append((engine.id, model.name))
        for gpu in gpus[place * 8 + slot * width : place * 8 + (slot + 1) * width]:
            held.append(models.Reservation(gpu=gpu, rank=rank))
            of_gpu[gpu.uuid] = engine.id
    models.Engine.objects.bulk_create(engines)
    models.Rank.objects.bulk_create(ranks)
    models.Reservation.objects.bulk_create(held)
    return [
        Node(row.name, [(gpu.uuid, of_gpu.get(gpu.uuid, "")) for gpu in gpus[i * 8 : i * 8 + 8]], on_node[i])
        for i, row in enumerate(rows)
    ]
