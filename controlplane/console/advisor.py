"""The advisor's page, which needs no cluster: a form whose fields stand in the address. What it asks, REST answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.console.modules import module_files
from controlplane.control.newmodel import MAX_CONFIG_BYTES
from controlplane.core.gpus import GPUS
from controlplane.core.protocol import Slo
from controlplane.physics.advicequestion import MAX_TRACE_CHARS
from controlplane.physics.asked import MAX_GBPS, MAX_GPUS, MAX_MS
from controlplane.physics.catalog import config_names
from controlplane.physics.traffic import MAX_TOKENS

OWN = "own"
"""Instead of a model's name: the config.json that was pasted."""
MAX_VALUE = 40
MAX_LINK = 4_000
"""Characters of an address: servers and chats between take that much. A config.json that makes it longer is left out."""
DEFAULTS: Mapping[str, str] = {
    "model": "llama-3.1-70b",
    "config": "",
    "gpu": "h100-sxm",
    "gpus": "64",
    "prefill_gpu": "",
    "decode_gpu": "",
    "network_gbps": "400",
    "transport": "rdma",
    "traffic": "lengths",
    "input_tokens": "4096",
    "output_tokens": "640",
    "prefix_hit": "",
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
    "traffic": ("lengths", "trace"),
    "kv_dtype": ("auto", "bf16", "fp8"),
}
LIMITS: Mapping[str, int] = {
    "gpus": MAX_GPUS,
    "gbps": int(MAX_GBPS),
    "tokens": MAX_TOKENS,
    "ms": int(MAX_MS),
    "config": MAX_CONFIG_BYTES,
    "trace": MAX_TRACE_CHARS,
    "link": MAX_LINK,
}


@require_safe
@never_cache
@login_required
def page(request: HttpRequest) -> HttpResponse:
    """The form as the address fills it; the script asks at once if the address holds a question."""
    context: dict[str, Any] = {
        "values": {name: _value(request, name) for name in DEFAULTS},
        "choices": CHOICES,
        "limits": LIMITS,
        "asked": any(name in request.GET for name in DEFAULTS),
        "modules": module_files("advisor"),
    }
    return render(request, "console/advisor.html", context)


def _value(request: HttpRequest, name: str) -> str:
    """As the address has it; its default if it is missing, absurdly long or no choice."""
    given = request.GET.get(name, "").strip()
    most = MAX_LINK if name == "config" else MAX_VALUE
    choices = CHOICES.get(name)
    known = given in choices if choices and name in request.GET else 0 < len(given) <= most
    return given if known else DEFAULTS[name]
