"""Configs by name for the tests of sizes: those that ship, and those in tests/data/model_configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controlplane.core.modelconfig import read_shape
from controlplane.core.shapes import Shape
from controlplane.physics.catalog import config_names, read_config

FOLDER = Path(__file__).parent.parent / "data" / "model_configs"
NAMES = tuple(sorted({*config_names(), *(path.stem for path in FOLDER.glob("*.json"))}))


def config(name: str) -> dict[str, Any]:
    return read_config(name if name in config_names() else str(FOLDER / f"{name}.json"))


def shape(name: str) -> Shape:
    return read_shape(config(name))
