"""The kinds of GPU Twinpool knows: memory, and how NVML names them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

GB = 10**9
GIB = 2**30

MEMORY_BYTES: Mapping[str, int] = {
    "a100-sxm": 80 * GIB,
    "h100-sxm": 80 * GIB,
    "h100-pcie": 80 * GIB,
    "h100-nvl": 94 * GIB,
    "h200-sxm": 141 * GB,
    "b200": 180 * GB,
    "gb200": 186 * GB,
    "l40s": 48 * GIB,
    "l4": 24 * GIB,
    "mi300x": 192 * GIB,
}
"""Memory of one GPU as sold (vendors' data sheets)."""

MAX_KIND_CHARS = 32
"""Of a kind's name, as stored."""

_NVML_NAMES: tuple[tuple[str, str], ...] = (
    (r"\bGB200\b", "gb200"),
    (r"\bB200\b", "b200"),
    (r"\bH200\b", "h200-sxm"),
    (r"\bH100\b.*\bPCIe\b", "h100-pcie"),
    (r"\bH100\b.*\bNVL\b", "h100-nvl"),
    (r"\bH100\b", "h100-sxm"),
    (r"\bA100\b.*\bSXM4?\b", "a100-sxm"),
    (r"\bL40S\b", "l40s"),
    (r"\bL4\b", "l4"),
)


def kind_of_nvml_name(name: str) -> str:
    """Twinpool's kind for NVML's product name ("NVIDIA H100 80GB HBM3" -> "h100-sxm"). A product that is not in the table
    becomes a plain word made of its name, at most MAX_KIND_CHARS long, so that a pool can still select it."""
    for pattern, kind in _NVML_NAMES:
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    word = re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia")).strip("-")
    return word[:MAX_KIND_CHARS].strip("-") or "unknown"
