"""The advisor's page, which needs no cluster: a form whose fields stand in the address. What it asks, REST answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.console import advicefill
from controlplane.console.data import data
from controlplane.console.modules import module_files
from controlplane.control.newmodel import MAX_CONFIG_BYTES
from controlplane.core.cost import MOST_PER_HOUR
from controlplane.core.gpus import GPUS
from controlplane.core.protocol import Slo
from controlplane.fleet.models import Model
from controlplane.physics.advicecharts import kv_terms
from controlplane.physics.advicequestion import MAX_TRACE_CHARS
from controlplane.physics.asked import MAX_GBPS, MAX_GPUS, MAX_MS
from controlplane.physics.catalog import config_names, read_config
from controlplane.physics.phases import stored_shape
from controlplane.physics.traffic import MAX_RATE, MAX_TOKENS
from controlplane.telemetry.queries.prices import books

OWN = "own"
"""Instead of a model's name: the config.json that was pasted."""
MAX_VALUE = 40
MAX_LINK = 4_000
"""Characters of an address: servers and chats between take that much. A config.json that makes it longer is left out."""
MAX_NAME = 200
MAX_OFFERED = 200
"""Models of the fleet that the form can be filled from."""
DEFAULTS: Mapping[str, str] = {
    "model": "llama-3.1-70b",
    "config": "",
    "gpu": "h100-sxm",
    "gpus": "64",
    "prefill_gpu": "",
    "decode_gpu": "",
    "price": "",
    "prefill_price": "",
    "decode_price": "",
    "network_gbps": "400",
    "transport": "rdma",
    "traffic": "lengths",
    "of": "",
    "input_tokens": "4096",
    "output_tokens": "640",
    "prefix_hit": "",
    "rate": "",
    "slo_ttft_ms": f"{Slo.ttft_ms:g}",
    "slo_itl_ms": f"{Slo.itl_ms:g}",
    "kv_dtype": "auto",
}
CHOICES: Mapping[str, tuple[str, ...]] = {
    "model": (*config_names(), OWN),
    "gpu": tuple(GPUS),
    "prefill_gpu": ("", *GPUS),
    "decode_gpu": ("", *GPUS),
    "transport": ("rdma", "tcp"),
    "traffic": ("lengths", "trace", "model"),
    "kv_dtype": ("auto", "bf16", "fp8"),
}
LIMITS: Mapping[str, int] = {
    "gpus": MAX_GPUS,
    "gbps": int(MAX_GBPS),
    "tokens": MAX_TOKENS,
    "ms": int(MAX_MS),
    "price": int(MOST_PER_HOUR),
    "rate": int(MAX_RATE),
    "config": MAX_CONFIG_BYTES,
    "trace": MAX_TRACE_CHARS,
    "link": MAX_LINK,
}


@require_safe
@never_cache
@login_required
def page(request: HttpRequest) -> HttpResponse:
    """The form as the address fills it, or, with `?model=` of the fleet and nothing else, as that model does; the script
    asks at once if the address holds a question."""
    models = Model.objects.filter(retiring=False)
    of = models.filter(name=request.GET.get("model", "")[:MAX_NAME]).first() if set(request.GET) == {"model"} else None
    values = {name: _value(request, name) for name in DEFAULTS}
    values |= advicefill.filled(of, time.time()) if of else {}
    if not models.filter(name=values["of"]).exists():
        values |= {"of": "", "traffic": "lengths"} if values["traffic"] == "model" else {"of": ""}
    book = books().at(time.time()).known()
    context: dict[str, Any] = {
        "values": values,
        "choices": CHOICES,
        "limits": LIMITS,
        "asked": any(name in request.GET for name in DEFAULTS),
        "filled": of,
        "price_fields": [
            {"name": "price", "of": "gpu", "words": gettext("Price"), "value": values["price"]},
            {
                "name": "prefill_price",
                "of": "prefill_gpu",
                "words": gettext("Price, prefill"),
                "value": values["prefill_price"],
            },
            {"name": "decode_price", "of": "decode_gpu", "words": gettext("Price, decode"), "value": values["decode_price"]},
        ],
        "models": models.order_by("name").values_list("name", flat=True)[:MAX_OFFERED],
        "first": {
            "prices": {kind: {"per_hour": price.per_hour, "guess": price.guess} for kind, price in book.items()},
            "shapes": _shapes(),
        },
        "modules": module_files("advisor"),
    }
    return render(request, "console/advisor.html", context)


@data
def traffic(_request: HttpRequest, name: str) -> HttpResponse:
    """What was asked of a model of late, as a trace that the advisor takes: lengths and times, nobody's prompt."""
    if not Model.objects.filter(name=name, retiring=False).exists():
        raise Http404
    found = advicefill.recorded(name, time.time())
    return HttpResponse(advicefill.trace(found), content_type="application/x-ndjson; charset=utf-8")


@cache
def _shapes() -> dict[str, dict[str, int] | None]:
    """Of each config that ships, what its bytes per token are made of."""
    return {name: kv_terms(stored_shape(read_config(name), "auto"), None) for name in config_names()}


def _value(request: HttpRequest, name: str) -> str:
    """As the address has it; its default if it is missing, absurdly long or no choice."""
    given = request.GET.get(name, "").strip()
    most = {"config": MAX_LINK, "of": MAX_NAME}.get(name, MAX_VALUE)
    choices = CHOICES.get(name)
    known = given in choices if choices and name in request.GET else 0 < len(given) <= most
    return given if known else DEFAULTS[name]
