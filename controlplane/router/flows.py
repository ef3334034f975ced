"""Which legs a request takes: one for the whole of it, or prefill then decode. A decision of core.routing, carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.core import routing
from controlplane.core.routing import Path, Reason
from controlplane.router import errors, resume
from controlplane.router.split import Split
from controlplane.router.wholly import whole

if TYPE_CHECKING:
    from controlplane.router.exchange import Exchange


async def serve(x: Exchange) -> None:
    """Answers the client. Raises ApiError if no engine could, before or after a part of the answer was sent."""
    try:
        await _legs(x)
        return
    except resume.StreamBroken as error:
        broken = error.with_traceback(None)
    await resume.go_on(x, broken, lambda: _legs(x))  # out here, because it waits: see docs/router-performance.md


async def _legs(x: Exchange) -> None:
    x.model = x.router.directory.models.get(x.model_name, x.model)  # its mode may have changed since the request came
    x.judge_split()
    decision = routing.decide_path(x.model.route, x.engines(), x.need)
    x.arm, x.reason, x.canary = decision.arm, decision.reason, decision.canary
    x.fell_back = decision.reason is Reason.CANARY_UNAVAILABLE
    if decision.path is Path.NONE:
        raise errors.no_engine(x.model_name)
    x.path = decision.path
    if decision.path is Path.DISAGGREGATED:
        await Split(x).run()
    else:
        await whole(x, set())
