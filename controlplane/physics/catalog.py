"""What ships with Twinpool about models and measurements: config.json files by name, and the reference figures.

Nothing here computes; `core` does. The figures' sources are in docs/model-accuracy.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from controlplane.common.files import read_document
from controlplane.core.modelconfig import ConfigRefused

CONFIGS = Path(__file__).parent / "model_configs"
DATA = Path(__file__).parent / "data"


def config_names() -> list[str]:
    """Names of the configs that ship, e.g. `llama-3.1-70b`."""
    return sorted(path.stem for path in CONFIGS.glob("*.json"))


def read_config(name: str) -> dict[str, Any]:
    """The parsed config.json that `name` means: one that ships, else a file. Raises ConfigRefused with the remedy."""
    path = CONFIGS / f"{name}.json" if name in config_names() else Path(name)
    try:
        document = json.loads(read_document(path))
    except OSError as error:
        known = ", ".join(config_names())
        raise ConfigRefused(
            "document", f"cannot read {name!r:.200}: {error.strerror}; give a file or one of: {known}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigRefused("document", f"{name!r:.200} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigRefused("document", f"expected a JSON object, got {type(document).__name__}")
    return document
