"""Whether to disaggregate a model, from its own traffic of the last half hour. Reads only; raises django.db.Error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from controlplane.control.planning.gather import setting_of, with_traffic
from controlplane.core import kvsize
from controlplane.core.advisor import Advice, Measured, ModeForecast, Situation, Transport, advise
from controlplane.core.advisor_offline import MODES, Offline
from controlplane.core.perf import DoesNotFit
from controlplane.core.planner import ModelNow
from controlplane.core.planner_inputs import MIX_S
from controlplane.core.protocol import Role
from controlplane.core.workload import Mix, merged_mix
from controlplane.fleet import models
from controlplane.physics.advising import layout_of
from controlplane.telemetry.queries import loads

TRANSPORT_LABEL = "transport"
"""Label of nodes that says over what KV goes: rdma or tcp."""
SLOWEST_GBPS = 1e-3


def advice_of(row: models.Model, now_s: float, forecast: bool = False) -> Advice:
    """The advice for a model at `now_s` (Unix seconds). `forecast`: with the closed form's best layout of each mode on the
    same GPUs, which takes a second or more."""
    return advised(row, now_s, forecast)[0]


def advised(row: models.Model, now_s: float, forecast: bool = False) -> tuple[Advice, Situation]:
    """The advice, and the traffic and hardware that it is for."""
    model = with_traffic(row, setting_of(row), now_s)
    recent = [each for each in model.windows if each.complete and each.until_s > now_s - MIX_S - 120]
    mix = merged_mix((each.mix, 1.0) for each in recent)
    samples, seconds = sum(each.samples for each in recent), sum(each.until_s - each.since_s for each in recent)
    situation = _situation(row, model, mix, samples, seconds, now_s)
    forecasts = tuple(_forecasts(model, situation, mix)) if forecast and mix.cells and not model.obstacle else ()
    return advise(situation, forecasts), situation


def _situation(row: models.Model, model: ModelNow, mix: Mix, samples: int, seconds: float, now_s: float) -> Situation:
    def of(value: float) -> Measured:
        known = bool(mix.cells)
        return Measured(value if known else None, samples, seconds, source="its requests")

    share, deviation, counted = loads.decode_share(row.name, now_s - MIX_S, now_s)
    size = 0.0
    if not model.obstacle and mix.cells:
        size = kvsize.transfer_bytes(model.shape, model.kv_dtype, max(1, round(mix.prompt_tokens)))
    return Situation(
        prompt_tokens=of(mix.prompt_tokens),
        output_tokens=of(mix.output_tokens),
        decode_share=Measured(share, counted, MIX_S, deviation, "its streamed requests"),
        kv_bytes_per_request=of(size),
        prefix_hits=of(mix.prefix_hit_share),
        gpus=sum(pool.desired_engines * pool.gpus_per_engine for pool in row.pools.filter(arm=models.MAIN)),
        network_gbps=max(SLOWEST_GBPS, model.network_gbps or SLOWEST_GBPS),
        transport=_transport(row),
    )


def _transport(row: models.Model) -> Transport:
    """As the labels of its engines' nodes say; without one RDMA, which the connectors are meant for."""
    nodes = models.Node.objects.filter(ranks__engine__model=row, ranks__engine__wanted=True)
    labels: list[Mapping[str, str]] = [{**node.agent_labels, **node.labels} for node in nodes.distinct()]
    return "tcp" if any(each.get(TRANSPORT_LABEL) == "tcp" for each in labels) else "rdma"


def _forecasts(model: ModelNow, situation: Situation, mix: Mix) -> Iterator[ModeForecast]:
    """The best layout of each mode on as many GPUs, in closed form."""
    kinds = {pool.role: pool.gpu for pool in model.pools}
    degrees: dict[Role, tuple[int, ...]] = {pool.role: (pool.tensor_parallel,) for pool in model.pools}
    other, (degree, *_) = next(iter(kinds.values())), next(iter(degrees.values()))
    offline = Offline(
        shape=model.shape,
        mix=mix,
        gpus=situation.gpus,
        prefill_gpu=kinds.get("prefill", other),
        decode_gpu=kinds.get("decode", kinds.get("mixed", other)),
        network_gbps=situation.network_gbps,
        slo=model.slo,
        transport=situation.transport,
        kv_dtype=model.kv_dtype,
        degrees={role: degrees.get(role, (degree,)) for role in ("prefill", "decode", "mixed")},
    )
    for mode in MODES:
        try:
            best = offline.best(mode)
        except DoesNotFit:
            return
        if best is None:
            yield ModeForecast(mode, "", 0.0, 0.0, 0.0, notes=("no layout on these GPUs keeps the targets at any rate",))
            continue
        rate, found = best
        given = found.estimate
        yield ModeForecast(
            mode=mode,
            layout=layout_of(found).text,
            requests_per_second=rate,
            low=rate,
            high=rate,
            at_rate=rate,
            ttft_p99_ms=given.ttft_p99_ms,
            itl_p99_ms=given.itl_p99_ms,
            attained=given.attained,
            cost_per_million_tokens=given.cost_per_million_tokens,
            notes=("closed form, not simulated",),
        )
