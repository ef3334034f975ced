"""A page /metrics, read by Prometheus' own parser, and questions about it."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families


class Page:
    """Names are those of samples: with _total, _count, _bucket."""

    def __init__(self, text: bytes | str) -> None:
        text = text.decode() if isinstance(text, bytes) else text
        self.families: list[Metric] = list(text_string_to_metric_families(text))
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    @property
    def names(self) -> set[str]:
        """Of everything that the page can show, also of series without a sample now."""
        found = {name for name, _ in self.samples}
        for family in self.families:
            found.add(f"{family.name}_total" if family.type == "counter" else family.name)
            if family.type == "histogram":
                found |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
        return found

    def get(self, name: str, /, **labels: str) -> float:
        """The value of one series; 0 if it is not there."""
        return self.samples.get((name, frozenset(labels.items())), 0.0)

    def value(self, name: str, /, **labels: str) -> float:
        """The value of one series, which must be there."""
        key = (name, frozenset(labels.items()))
        assert key in self.samples, f"no {name} {labels}; there are {sorted(map(str, self.samples))}"
        return self.samples[key]

    def total(self, name: str) -> float:
        """The sum of all series of this name."""
        return sum(value for (other, _), value in self.samples.items() if other == name)
