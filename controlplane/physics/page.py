"""A forecast as one HTML file that needs nothing else: style, script, Plotly and figures are inside; nothing is fetched.

Every text of the document is escaped by the template, figures go in as JSON that cannot end its element, and the page's own
policy runs no script but the two whose hashes it names.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.template import Context, Engine
from plotly.offline import get_plotlyjs

from controlplane.physics.forecastrows import sheet
from controlplane.physics.forecasttext import facts, limit, milliseconds, number, percent

FOLDER = Path(__file__).parent / "pages"
SHEETS = ("tokens.css", "console.css")
"""The console's own."""
ROLE_LETTERS = {"prefill": "p", "decode": "d", "mixed": "m"}


def rendered(document: Mapping[str, Any]) -> str:
    """The page of a document of `forecasting.forecast`."""
    shown = sheet(document)
    context = {
        "sheet": shown,
        "columns": [_column(layout) for layout in document["layouts"]],
        "kpis": _kpis(document),
        "facts": facts(document),
        "data": _curves(document),
        "model": document["model"],
    }
    return standalone("forecast", context)


def standalone(name: str, context: Mapping[str, Any], styles: Sequence[str] = ("forecast",)) -> str:
    """The page of template NAME.html with NAME.js, Plotly and these style sheets of this folder inside."""
    scripts = {"plotly": get_plotlyjs(), "charts": _own(f"{name}.js")}
    inside = {
        "style": "\n".join([*map(_static, SHEETS), *(_own(f"{style}.css") for style in styles)]),
        "scripts": scripts,
        "hashes": [_hash(text) for text in scripts.values()],
    }
    engine = Engine(dirs=[str(FOLDER)], autoescape=True)
    return engine.get_template(f"{name}.html").render(Context({**context, **inside}))


def _column(layout: Mapping[str, Any]) -> dict[str, Any]:
    """One layout's pools, with their activities as widths of bars."""
    return {
        "name": layout["layout"],
        "mode": layout["mode"],
        "pools": [
            {
                "letter": ROLE_LETTERS[pool["role"]],
                "role": pool["role"],
                "text": pool["text"],
                "gpus": pool["gpus"],
                "tensor": percent(pool["tensor_activity"]),
                "tensor_width": _width(pool["tensor_activity"]),
                "tensor_peak": percent(pool["tensor_peak"]),
                "dram": percent(pool["dram_activity"]),
                "dram_width": _width(pool["dram_activity"]),
                "effective": number(pool["effective_gpus"]),
                "guess": pool["basis"] == "guess",
            }
            for pool in layout["pools"]
        ],
    }


def _width(share: float) -> str:
    return f"{100 * share:.1f}"


def _kpis(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """The winner's figures."""
    slo = document["inputs"]["slo"]
    interval = document["interval"] or {}
    cost = document["cost_per_million_tokens"]
    return [
        _kpi("TTFT", "p99", milliseconds(document["ttft_ms"]["p99"]), f"limit {limit(slo['ttft_ms'])}"),
        _kpi("ITL", "p99", milliseconds(document["itl_ms"]["p99"]), f"limit {limit(slo['itl_ms'])}"),
        _kpi(
            "Goodput",
            "within the SLO",
            f"{number(document['goodput'])} req/s",
            f"{percent(document['attained'])} of requests",
        ),
        _kpi("Per GPU", "output", f"{number(document['tokens_per_second_per_gpu'])} tok/s", _range(interval, "tok/s")),
        _kpi("Effective GPUs", "busy share", number(document["effective_gpus"]), f"of {document['gpus']:,} GPUs"),
        _kpi("Cost", "1M output tokens", f"{number(cost)} US$", f"{document['cost_per_hour']:,.2f} US$/h"),
    ]


def _kpi(label: str, window: str, text: str, foot: str) -> dict[str, str]:
    value, _, unit = text.rpartition(" ")
    return {"label": label, "window": window, "value": value or unit, "unit": unit if value else "", "foot": foot}


def _range(interval: Mapping[str, Any], unit: str) -> str:
    low_high = interval.get("tokens_per_second_per_gpu")
    return f"{number(low_high[0])} – {number(low_high[1])} {unit}" if low_high else "one draw, no interval"


def _curves(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "slo": document["inputs"]["slo"],
        "layouts": [
            {
                "name": layout["layout"],
                "mode": layout["mode"],
                "best": layout["layout"] == document["layout"],
                **layout["distribution"],
            }
            for layout in document["layouts"]
        ],
    }


def _own(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _static(name: str) -> str:
    return (Path(settings.BASE_DIR) / "static" / "css" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
