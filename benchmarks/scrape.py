"""What reading an engine's metrics page costs: only the wanted families, beside a full parse of the same page.

    manage.py bench scrape [--runs N]

The page is a real one of vLLM (tests/data/vllm_metrics_page.txt, 60 kB); the full parse is that of prometheus-client, which
makes an object of every sample. Processor time of one call, the median of `--runs`. Exit 1 if selecting costs more than a
fifth of parsing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from workers.metrics import read_page

PAGE = (Path(__file__).parent.parent / "tests" / "data" / "vllm_metrics_page.txt").read_bytes()
LIMIT = 0.2


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="manage.py bench scrape", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=300, metavar="N")
    runs = parser.parse_args().runs
    selected = _us(lambda: read_page(PAGE), runs)
    parsed = _us(lambda: list(text_string_to_metric_families(PAGE.decode())), max(runs // 10, 3))
    page = read_page(PAGE)
    wanted = 3 + len(page.counters) + sum(len(each.bounds) + 2 for each in page.histograms.values())
    print(f"{len(PAGE):,} bytes, {len(PAGE.splitlines())} lines; {wanted} figures wanted")
    print(f"selected {selected:,.0f} us, parsed {parsed:,.0f} us: {selected / parsed:.1%} (limit {LIMIT:.0%})")
    print(f"16 engines once a second: {selected * 16 / 1e6:.2%} of a core (parsed: {parsed * 16 / 1e6:.2%})")
    return int(selected / parsed > LIMIT)


def _us(call: Callable[[], object], runs: int) -> float:
    taken = []
    for _ in range(runs):
        began = time.thread_time_ns()
        call()
        taken.append((time.thread_time_ns() - began) / 1000)
    return statistics.median(taken)


if __name__ == "__main__":
    sys.exit(main())
