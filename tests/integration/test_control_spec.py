"""The spec that an engine is started from, as the rows and settings make it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from controlplane.config import config
from controlplane.control import actions
from controlplane.control.commands import read_spec
from controlplane.control.newmodel import NewModel, NewPool
from controlplane.fleet import models
from controlplane.physics.catalog import CONFIGS
from tests.integration.control_kit import ANN
from workers.engines.simulated.settings import EventsConfig, settings_of

pytestmark = pytest.mark.django_db

NEW = NewModel(
    "m", "org/m", json.loads((CONFIGS / "qwen3-8b.json").read_text()), engine_kind="simulated", pools=(NewPool("mixed", 1),)
)


@pytest.fixture
def engine() -> models.Engine:
    """Placed on one GPU, not started."""
    node = models.Node.objects.create(name="n1", seen_at="2026-01-01T00:00:00Z")
    gpu = models.Gpu.objects.create(uuid="g1", node=node, index=0, kind="h100-sxm", memory_bytes=1)
    actions.register_model(ANN, NEW)
    model = models.Model.objects.get(name="m")
    row = models.Engine.objects.create(id="e-1", model=model, role="mixed", number=1, kind="simulated", state="starting")
    rank = models.Rank.objects.create(engine=row, index=0, node=node)
    models.Reservation.objects.create(rank=rank, gpu=gpu)
    return row


@pytest.fixture(autouse=True)
def _fresh_settings() -> Iterator[None]:
    yield
    config.cache_clear()


def test_engines_tell_no_kv_events_unless_somebody_collects_them(engine: models.Engine) -> None:
    spec = read_spec("e-1")
    assert spec is not None
    assert settings_of(spec, 0, "10.0.0.6", 1, 2).kv_events is None


def test_engines_are_told_who_collects_their_kv_events(engine: models.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINPOOL_KV_EVENTS", "tcp://10.0.0.5:5557")
    config.cache_clear()
    spec = read_spec("e-1")
    assert spec is not None
    assert settings_of(spec, 0, "10.0.0.6", 1, 2).kv_events == EventsConfig("tcp://10.0.0.5:5557", False, "kv@e-1")
