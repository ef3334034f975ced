"""The past of the fleet as the page's charts want it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.telemetry.queries.heat import Heat, gpu_heat

RANGES = {(900, 5), (7200, 50)}
"""(span_s, cell_s) that the page offers; nothing else is computed."""
GAP = " "
LETTERS = {"prefill": "p", "decode": "d", "mixed": "m", "": "s", None: GAP}


def shape(heat: Heat) -> dict[str, Any]:
    """`roles` has one letter per cell: p, d, m, s (spare) or a blank (gap); `shares` the busy share 0..1, null in a gap."""
    gpus = [
        {
            "uuid": gpu.uuid,
            "roles": "".join(LETTERS.get(role, GAP) for role in gpu.roles),
            "shares": [None if share is None else round(share, 3) for share in gpu.busy],
        }
        for gpu in heat.gpus
    ]
    return {"start": heat.starts[0], "step_s": heat.cell_s, "gpus": gpus}


View = Callable[..., HttpResponseBase]


def signed_in(view: View) -> View:
    """For data that scripts ask for: 401 without a session, not the login page."""

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return JsonResponse({"error": gettext("Sign in first.")}, status=401)
        return view(request, *args, **kwargs)

    return checked


@require_safe
@never_cache
@signed_in
def gpus(request: HttpRequest) -> JsonResponse:
    """GET ?span_s=900&step_s=5. 401 without a session, 400 for a range that is not offered."""
    asked = (request.GET.get("span_s", ""), request.GET.get("step_s", ""))
    for span_s, cell_s in RANGES:
        if asked == (str(span_s), str(cell_s)):
            return JsonResponse(shape(gpu_heat(time.time(), span_s, cell_s)))
    offered = ", ".join(f"span_s={span_s}&step_s={cell_s}" for span_s, cell_s in sorted(RANGES))
    return JsonResponse(
        {"error": gettext("This range is not offered; one of: %(offered)s") % {"offered": offered}}, status=400
    )
