"""What the fleet page costs a viewer's browser at 64 GPUs, and how late it shows a sample.

`manage.py bench console [--seconds S] [--minutes M] [--settle M]`: starts `up --fleet field` (64 simulated
H100, 16 engines) with its traffic in a fresh state folder and opens the fleet page in Debian's chromium.

- first paint, usable (figures of all engines on the page and "live" in its bar): of a browser with an empty cache
- bytes: all that was fetched until then without Plotly, and with everything that came later
- sample to painted: for S seconds (default 120), from the time an agent took a sample (`sampled_at` of an engine's row)
  until the browser drew the frame that shows it; one value per engine and new sample, all by one machine's clock
- main thread: processor time of its tasks during that time, per frame of the topic (with this program's own part)
- heap after a collection, once a minute for M minutes (default 2): the last beside the first. Before, the page stays open
  for the minutes of --settle (default 0; the heat map's 15 minutes are full after 16)

Exit 1 if a limit of the table is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import CDPSession, Page

from tests.acceptance.stack import started, until
from tests.console_visitors import SLOW_MS, chromium, make_people, painted, signed_in

GPUS, ENGINES = 64, 16
WATCH = """
globalThis.watched = { usable: 0, late: [], frames: 0, gpus: 0 };
const engines = new Map();
const Original = WebSocket;
globalThis.WebSocket = class extends Original {
  constructor(...all) {
    super(...all);
    this.addEventListener("message", (event) => {
      const frame = JSON.parse(event.data);
      if (frame.topic !== "fleet" || !frame.rows) return;
      const rows = frame.rows.filter((row) => row.type === "engine" && row.sampled_at);
      const fresh = rows.filter((row) => row.sampled_at > (engines.get(row.id)?.sampled_at ?? Infinity));
      for (const row of rows) engines.set(row.id, row);
      watched.frames += 1;
      watched.gpus = [...engines.values()].reduce((sum, row) => sum + row.gpu_uuids.length, 0);
      if (!watched.late) return; // the heap is measured: nothing is kept
      const shown = () => watched.late?.push(...fresh.map((row) => Date.now() - row.sampled_at * 1000));
      requestAnimationFrame(() => setTimeout(shown)); // after the frame that has it was drawn
    });
  }
};
(function look() {
  const tiles = document.querySelectorAll("#bands [data-engine]").length;
  const live = document.querySelector("#live")?.innerText.startsWith("live");
  if (tiles >= ENGINES && live) watched.usable = performance.now();
  else requestAnimationFrame(look);
})();
""".replace("ENGINES", str(ENGINES))
LOADED = """() => {
  const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  const plotly = Math.min(...all.filter((each) => each.name.includes("plotly.min")).map((each) => each.startTime));
  const size = (list) => list.reduce((sum, each) => sum + each.transferSize, 0);
  return {
    paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
    usable: watched.usable,
    before: size(all.filter((each) => each.startTime < plotly)),
    all: size(all),
  };
}"""


@dataclass(frozen=True, slots=True)
class Line:
    """A figure with its limit, both in `unit`."""

    name: str
    value: float
    unit: str
    limit: float | None = None

    def print(self) -> None:
        limit = "" if self.limit is None else f"   (limit {self.limit:g})"
        print(f"{self.name:44} {self.value:9.1f} {self.unit}{limit}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="manage.py bench console", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=120, metavar="S")
    parser.add_argument("--minutes", type=int, default=2, metavar="M")
    parser.add_argument("--settle", type=int, default=0, metavar="M")
    options = parser.parse_args()
    with started("field", traffic="on") as stack, chromium() as browser:
        stack.manage("shell", "-c", make_people({"ops-1": "operator"}))
        until(lambda: len(stack.model("llama-3.1-70b").engines) == ENGINES, 300, "all engines serve")
        context = signed_in(browser, stack.console_url, "ops-1")
        page = context.new_page()
        page.add_init_script(WATCH)
        tools = context.new_cdp_session(page)
        tools.send("Network.enable")
        tools.send("Network.clearBrowserCache")
        page.goto(stack.console_url)
        page.wait_for_function("watched.usable", timeout=SLOW_MS)
        painted(page)
        lines = [*loading(page), *updates(page, tools, options.seconds), *heap(page, tools, options.settle, options.minutes)]
    for line in lines:
        line.print()
    print(f"load average of {os.cpu_count()} cores: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    return int(any(line.limit is not None and line.value > line.limit for line in lines))


def loading(page: Page) -> list[Line]:
    found: dict[str, float] = page.evaluate(LOADED)
    return [
        Line("first paint", found["paint"], "ms", 500),
        Line("usable", found["usable"], "ms", 1500),
        Line("fetched before Plotly", found["before"] / 1000, "kB", 250),
        Line("fetched in all", found["all"] / 1000, "kB"),
    ]


def updates(page: Page, tools: CDPSession, seconds: int) -> list[Line]:
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.evaluate("Object.assign(watched, { late: [], frames: 0 })")
    before = metrics(tools)
    page.wait_for_timeout(seconds * 1000)
    after = metrics(tools)
    watched: dict[str, Any] = page.evaluate("watched")
    assert watched["gpus"] == GPUS, f"{watched['gpus']} GPUs on the page"
    late, frames = sorted(watched["late"]), watched["frames"]
    spent = {name: 1000 * (after[name] - before[name]) / frames for name in after}
    return [
        Line(f"sample to painted, p50 of {len(late)}", quantile(late, 0.5), "ms"),
        Line("sample to painted, p99", quantile(late, 0.99), "ms", 1500),
        Line(f"main thread per update, mean of {frames}", spent["TaskDuration"], "ms", 50),
        Line("  of it scripts", spent["ScriptDuration"], "ms"),
        Line("  of it style and layout", spent["RecalcStyleDuration"] + spent["LayoutDuration"], "ms"),
    ]


def metrics(tools: CDPSession) -> dict[str, float]:
    """Seconds of processor time that the page's main thread has spent so far, by kind."""
    return {
        each["name"]: each["value"]
        for each in tools.send("Performance.getMetrics")["metrics"]
        if each["name"].endswith("Duration")
    }


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def heap(page: Page, tools: CDPSession, settle: int, minutes: int) -> list[Line]:
    page.evaluate("watched.late = null")
    page.wait_for_timeout(settle * 60_000)
    used = [collected(tools)]
    began = time.monotonic()
    for minute in range(1, minutes + 1):
        page.wait_for_timeout(max(0.0, began + 60 * minute - time.monotonic()) * 1000)
        used.append(collected(tools))
        print(f"minute {minute}: {used[-1] / 1e6:.2f} MB", file=sys.stderr, flush=True)
    growth = 100 * (used[-1] / used[0] - 1)
    return [
        Line("heap at first", used[0] / 1e6, "MB"),
        Line(f"heap {minutes} min later", used[-1] / 1e6, "MB"),
        Line("growth", growth, "%", 10),
    ]


def collected(tools: CDPSession) -> float:
    """Bytes of the page's heap that are in use after a collection."""
    tools.send("HeapProfiler.enable")
    tools.send("HeapProfiler.collectGarbage")
    return float(tools.send("Runtime.getHeapUsage")["usedSize"])


if __name__ == "__main__":
    sys.exit(main())
