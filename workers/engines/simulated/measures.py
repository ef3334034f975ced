"""Counts what a simulated engine does, and prints it as vLLM's metrics page."""

from __future__ import annotations

from collections.abc import Mapping

from workers.engines.simulated.families import COUNTERS, GAUGES, HISTOGRAMS, WITHOUT_ENGINE
from workers.engines.simulated.prometheus import Counter, Histogram, head, labelled

Gauges = Mapping[str, float | Mapping[str, float]]
"""Per key of the gauge table: its value, or its values by label value."""


class Measures:
    """All counters and histograms of one engine. `counters[key][label value]`, label value "" where there is none."""

    def __init__(self, model: str, cache_config: Mapping[str, str]) -> None:
        own = {"engine": "0", "model_name": model}
        self.counters = {
            key: {
                value: _counter(name, {"model_name": model} if key in WITHOUT_ENGINE else own, label, value)
                for value in values
            }
            for key, (name, _, label, values) in COUNTERS.items()
        }
        self.histograms = {key: Histogram(name, own, bounds) for key, (name, _, bounds) in HISTOGRAMS.items()}
        self._heads = {key: head(name, "histogram", text) for key, (name, text, _) in HISTOGRAMS.items()}
        self._heads |= {key: head(name, "counter", text) for key, (name, text, *_) in COUNTERS.items()}
        self._own = own
        self._cache_config = (
            head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
            + f"vllm:cache_config_info{labelled({**cache_config, 'engine': '0'})} 1.0\n"
        )

    def add(self, key: str, amount: float, label: str = "") -> None:
        self.counters[key][label].value += amount

    def observe(self, key: str, value: float) -> None:
        self.histograms[key].observe(value)

    def page(self, gauges: Gauges) -> str:
        """The whole metrics page."""
        parts = [gauge_text(key, value, self._own) for key, value in gauges.items()]
        parts += [self._heads[key] + histogram.text() for key, histogram in self.histograms.items()]
        for key, samples in self.counters.items():
            parts.append(self._heads[key] + "".join(sample.text() for sample in samples.values()))
        parts.append(self._cache_config)
        return "".join(parts)


def gauge_text(key: str, value: float | Mapping[str, float], own: Mapping[str, str]) -> str:
    """One gauge of the table with all its samples. `own`: the engine's labels."""
    name, text, label = GAUGES[key]
    labels = {} if label == "gpu" else own
    values = value if isinstance(value, Mapping) else {"": value}
    lines = (
        f"{name}{labelled({**labels, **({label: each} if label else {})})} {float(number)}\n"
        for each, number in values.items()
    )
    return head(name, "gauge", text) + "".join(lines)


def _counter(name: str, own: Mapping[str, str], label: str, value: str) -> Counter:
    return Counter(name, {**own, label: value} if label else own)
