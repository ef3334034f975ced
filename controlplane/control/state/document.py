"""The document: its form, its rows, and both ways between them. Reads rows, writes none, and reads no secret.

    version: 1
    teams: {search: {gpu_quota: 16}}
    models: {llama-70b: {source: …, config: {…}, mode: disaggregated, slo: {ttft_ms: 1000}, pools: {prefill: {engines: 2}}}}
    planners: {llama-70b: {level: approve, ceilings: {decode: 8}, guards: {cooldown_s: 900}}}
    alert_rules: {node_lost: {threshold: 60}, ttft_slo/llama-70b: {enabled: false}}
    prices: {h100-sxm/2026-12-01T00:00Z: {per_hour: "2.6", terms: owned}}

`null` in place of an item: there shall be none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controlplane.alerts.models import RuleSetting
from controlplane.alerts.selectors import FIELDS as RULE_FIELDS
from controlplane.control.actions.planning import PARTS
from controlplane.control.models import PlannerSetting
from controlplane.control.refused import Refused
from controlplane.control.state.plainly import amount_text, canonical, price_name
from controlplane.core.storable import storable
from controlplane.core.threeway import Document
from controlplane.fleet import models

VERSION = 1
SECTIONS = ("teams", "models", "planners", "alert_rules", "prices")
"""In the order in which they are made."""
WHOLE = frozenset({"config", "engine_args", "aliases", "gpu_kinds", "node_labels", "floors", "ceilings", "kinds", "degrees"})
"""Fields that are one value, whatever is in them."""
MAX_ITEMS = 1000
MAX_PROBLEMS = 20

PLAIN = ("source", "config", "aliases", "team", "engine_kind", "engine_args", "connector", "kv_lease_s", "mode")
COLUMNS: Mapping[str, str] = {
    **{name: name for name in PLAIN},
    "slo.ttft_ms": "slo_ttft_ms",
    "slo.itl_ms": "slo_itl_ms",
    "conditional.min_uncached_tokens": "conditional_min_uncached_tokens",
    "conditional.min_uncached_ratio": "conditional_min_uncached_ratio",
    "on_prefill_loss": "on_prefill_loss",
    "strict": "strict",
}
"""Column of a model's row by the field's path."""
POOL_COLUMNS: Mapping[str, str] = {
    "engines": "desired_engines",
    **{name: name for name in ("floor", "tensor_parallel", "pipeline_parallel", "gpu_kinds", "node_labels")},
}


class _Part(BaseModel):
    """What is left out is not the document's business. What values mean is checked by the actions."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Slo(_Part):
    ttft_ms: float = 0
    itl_ms: float = 0


class Conditional(_Part):
    min_uncached_tokens: int = 0
    min_uncached_ratio: float = 0


class PoolPart(_Part):
    engines: int = 0
    floor: int = 0
    tensor_parallel: int = 0
    pipeline_parallel: int = 0
    gpu_kinds: list[str] = []
    node_labels: dict[str, str] = {}


class ModelPart(_Part):
    source: str = ""
    config: dict[str, Any] = {}
    aliases: list[str] = []
    team: str = ""
    engine_kind: str = ""
    engine_args: dict[str, Any] = {}
    connector: str = ""
    kv_lease_s: float = 0
    mode: str = ""
    slo: Slo = Slo()
    conditional: Conditional = Conditional()
    on_prefill_loss: str = ""
    strict: bool = False
    pools: dict[Literal["prefill", "decode", "mixed"], PoolPart] = {}


class TeamPart(_Part):
    gpu_quota: int | None = None


class RulePart(_Part):
    threshold: float = 0
    for_s: float = 0
    clear_s: float = 0
    severity: str = ""
    enabled: bool = False


class PlannerPart(_Part):
    level: str = ""
    priority: int = 0
    modes: list[str] = []
    floors: dict[str, int] = {}
    ceilings: dict[str, int] = {}
    kinds: dict[str, list[str]] = {}
    degrees: dict[str, list[int]] = {}
    guards: dict[str, Any] = {}
    peaks: list[dict[str, Any]] = []


class PricePart(_Part):
    per_hour: str | float = ""
    terms: str = ""


class State(_Part):
    version: int = Field(ge=VERSION, le=VERSION)
    teams: dict[str, TeamPart | None] = Field(default={}, max_length=MAX_ITEMS)
    models: dict[str, ModelPart | None] = Field(default={}, max_length=MAX_ITEMS)
    planners: dict[str, PlannerPart | None] = Field(default={}, max_length=MAX_ITEMS)
    alert_rules: dict[str, RulePart | None] = Field(default={}, max_length=MAX_ITEMS)
    prices: dict[str, PricePart | None] = Field(default={}, max_length=MAX_ITEMS)


def read(value: Any) -> Document:
    """A JSON value as a document. Raises Refused, kind invalid, whose reasons repeat no value."""
    try:
        state = State.model_validate(value)
    except ValidationError as error:
        raise Refused("invalid", *_problems(error)) from None
    given = canonical(state.model_dump(exclude_unset=True))
    return {
        section: {
            str(name): None if item is None else dict(flat(storable(item))) for name, item in given.get(section, {}).items()
        }
        for section in SECTIONS
    }


def _problems(error: ValidationError) -> Iterator[str]:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    for each in found[:MAX_PROBLEMS]:
        place = ".".join(str(part)[:80] for part in each["loc"])
        yield f"{place or 'the document'}: {each['msg'][0].lower()}{each['msg'][1:]}"
    if len(found) > MAX_PROBLEMS:
        yield f"and {len(found) - MAX_PROBLEMS} more"


def flat(item: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Values by their dotted path."""
    for name, value in item.items():
        if isinstance(value, Mapping) and name not in WHOLE:
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def deep(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The other way: fields by dotted path as they are written."""
    found: dict[str, Any] = {}
    for path, value in fields.items():
        *outer, last = path.split(".")
        inside = found
        for name in outer:
            inside = inside.setdefault(name, {})
        inside[last] = value
    return found


def present() -> Document:
    """What is desired now, but for what belongs to a time: canaries, freezes, held engines, models on their way out.
    Raises django.db.Error."""
    rows = models.Model.objects.filter(retiring=False).prefetch_related("pools").order_by("name")
    rules = RuleSetting.objects.order_by("rule", "model")
    return {
        "teams": {row.name: {"gpu_quota": row.gpu_quota} for row in models.Team.objects.order_by("name")},
        "models": {row.name: _model(row) for row in rows},
        "planners": {row.name: dict(flat(_planner(row))) for row in rows.select_related("planner")},
        "alert_rules": {
            f"{row.rule}/{row.model}" if row.model else row.rule: {
                name: value for name in RULE_FIELDS if (value := getattr(row, name)) not in (None, "")
            }
            for row in rules
        },
        "prices": {
            price_name(row.kind, row.valid_from): {"per_hour": amount_text(row.per_hour), "terms": row.terms}
            for row in models.GpuPrice.objects.order_by("kind", "valid_from")
        },
    }


def _planner(row: models.Model) -> dict[str, Any]:
    """All of it, defaults too, but of guards those that were set."""
    setting = getattr(row, "planner", None) or PlannerSetting(model=row)
    return {part: getattr(setting, part) for part in PARTS} | {"level": str(setting.level)}


def _model(row: models.Model) -> dict[str, Any]:
    found = {path: getattr(row, column) for path, column in COLUMNS.items()}
    for pool in sorted(row.pools.all(), key=lambda pool: pool.role):
        if pool.arm == models.MAIN:
            found |= {f"pools.{pool.role}.{name}": getattr(pool, column) for name, column in POOL_COLUMNS.items()}
    return found


def written(document: Document) -> dict[str, Any]:
    """A document as it is shown and kept in a file; `read` reads it back."""
    return {
        "version": VERSION,
        **{
            section: {name: None if item is None else deep(item) for name, item in document.get(section, {}).items()}
            for section in SECTIONS
        },
    }


def export() -> dict[str, Any]:
    """The whole desired state now. Raises django.db.Error."""
    return written(present())
