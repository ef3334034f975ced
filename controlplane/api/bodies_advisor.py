"""What the advisor takes: a model, hardware, traffic and targets, none of which need exist. It checks what they mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from rest_framework import serializers

from controlplane.api.bodies import AnyObject, Named
from controlplane.api.strict import Number, Strict, Text, Whole
from controlplane.control.newmodel import MAX_CONFIG_BYTES
from controlplane.core.advisor import Transport
from controlplane.core.cost import MOST_PER_HOUR
from controlplane.core.gpus import UnknownGpu, gpu
from controlplane.core.protocol import Slo
from controlplane.physics.advicequestion import MAX_TRACE_CHARS, Question
from controlplane.physics.advising import MAX_HIT, MAX_SEEDS, SEEDS
from controlplane.physics.asked import MAX_GBPS, MAX_GPUS, MAX_MS
from controlplane.physics.catalog import config_names
from controlplane.physics.traffic import MAX_RATE, MAX_TOKENS


def known_gpu(kind: str) -> None:
    try:
        gpu(kind)
    except UnknownGpu as unknown:
        raise serializers.ValidationError(str(unknown)) from None


def _kind(help_text: str, **options: Any) -> Text:
    return Text(max_length=40, validators=[known_gpu], help_text=help_text, **options)


class AdvisorBody(Strict):
    model = serializers.ChoiceField(
        choices=config_names(), required=False, help_text="One whose config ships with Twinpool."
    )
    config = AnyObject(required=False, help_text="Instead: the model's Hugging Face config.json.")
    gpu = _kind("As in the table of GPUs, e.g. h100-sxm.")
    prefill_gpu = _kind("Of prefill engines, if another.", required=False)
    decode_gpu = _kind("Of decode engines, if another.", required=False)
    gpus = Whole(min_value=1, max_value=MAX_GPUS)
    network_gbps = Number(max_value=MAX_GBPS, help_text="Of each engine, Gb/s.")
    transport = serializers.ChoiceField(choices=list(get_args(Transport)), default="rdma")
    input_tokens = Whole(min_value=1, max_value=MAX_TOKENS, required=False, help_text="Mean prompt.")
    output_tokens = Whole(min_value=2, max_value=MAX_TOKENS, required=False, help_text="Mean answer.")
    prefix_hit = Number(
        min_value=0, max_value=MAX_HIT, required=False, help_text="Share of a prompt's KV that the decode side holds."
    )
    trace = Text(
        max_length=MAX_TRACE_CHARS,
        required=False,
        help_text="Recorded requests instead of lengths: a file of docs/forecast.md.",
    )
    slo_ttft_ms = Number(max_value=MAX_MS, default=Slo.ttft_ms)
    slo_itl_ms = Number(max_value=MAX_MS, default=Slo.itl_ms)
    kv_dtype = Text(max_length=40, default="auto", help_text="Of the KV cache, e.g. fp8; auto: the model's own.")
    prices = Named(
        child=Number(min_value=0, max_value=MOST_PER_HOUR),
        required=False,
        help_text="US$ of one GPU for one hour by kind; of kinds that are left out the price book's.",
    )
    rate = Number(max_value=MAX_RATE, required=False, help_text="Requests/s that splits are suggested for.")
    seeds = Whole(
        min_value=0, max_value=MAX_SEEDS, default=SEEDS, help_text="Draws of the traffic to simulate; 0: closed form only."
    )

    def validate_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        if len(json.dumps(config)) > MAX_CONFIG_BYTES:
            raise serializers.ValidationError(
                f"Has more than {MAX_CONFIG_BYTES:,} bytes; leave out what is no size of the model."
            )
        return config

    def validate_prices(self, prices: Mapping[str, float]) -> Mapping[str, float]:
        for kind in prices:
            known_gpu(kind)
        return prices

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        for name in ("network_gbps", "slo_ttft_ms", "slo_itl_ms", "rate"):
            if attrs.get(name, 1.0) <= 0:
                raise serializers.ValidationError({name: "Must be above 0."})
        if ("model" in attrs) == ("config" in attrs):
            raise serializers.ValidationError({"model": "Give either a model or a config."})
        lengths = {"input_tokens", "output_tokens"} & attrs.keys()
        if "trace" in attrs and lengths:
            raise serializers.ValidationError({"trace": "Give either a trace or input_tokens and output_tokens."})
        if "trace" not in attrs and len(lengths) < 2:
            raise serializers.ValidationError({"input_tokens": "Give input_tokens and output_tokens, or a trace."})
        return attrs


def question(body: Mapping[str, Any], book: Mapping[str, float]) -> Question:
    """Of a checked body. `book`: US$ per GPU-hour by kind, of those whose price nobody gave in the body."""
    kinds = {body[name] for name in ("gpu", "prefill_gpu", "decode_gpu") if name in body}
    given = body.get("prices", {})
    prices = {kind: given.get(kind, book[kind]) for kind in sorted(kinds) if kind in given or kind in book}
    return Question(**{**body, "prices": prices})
