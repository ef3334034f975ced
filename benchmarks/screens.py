"""Pictures of every page of the console for docs/screens, from a demonstration fleet of its own.

`manage.py bench screens [--minutes M] [--only PAGE,…] [--to FOLDER]`: starts `up --fleet demo` with its traffic in a fresh
state folder, lets it run for M minutes so that there is a past to show, rebalances a model once, and takes each page dark,
the fleet also light and as on a phone. A picture ends where the page does or at HEIGHT, so that it stays below 200 kB.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from playwright.sync_api import Page

from tests.acceptance.stack import Stack, started
from tests.console_visitors import chromium, make_people, painted, places, signed_in

ROOT = Path(__file__).resolve().parents[1]
MODEL = "llama-3.1-70b"
LIMIT_BYTES = 200_000
LOOKS = {"dark": ("dark", 1440), "light": ("light", 1440), "390-dark": ("dark", 390)}
HEIGHT = 1000
LOWER = {"model-dark.png": 640, "requests-dark.png": 780}
"""Pictures of much text or heat, which take more bytes."""
PAST = {"model": "{}?range=15m", "engine": "{}?range=15m"}
"""Of pages that would show more time than the fleet has lived."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="manage.py bench screens", description=__doc__)
    parser.add_argument("--minutes", type=float, default=16.0, metavar="M", help="of traffic before (default 16)")
    parser.add_argument("--only", default="", metavar="PAGE,…", help="these pages")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "screens", metavar="FOLDER")
    options = parser.parse_args()
    with started("demo", traffic="on") as stack:
        stack.manage("shell", "-c", make_people({"ops-1": "operator"}))
        time.sleep(options.minutes * 60)
        stack.manage("rebalance", MODEL, "prefill=1", "decode=3", "--reason", "long answers since noon", timeout_s=600)
        return take(stack, [name for name in options.only.split(",") if name], options.to)


def take(stack: Stack, only: list[str], folder: Path) -> int:
    """Pictures of these pages, or all; 1 if one of them is too large."""
    engine = next(engine.id for engine in stack.model(MODEL).engines if engine.role == "decode")
    operation = stack.rows("SELECT id FROM fleet_operation WHERE verb = 'rebalance' ORDER BY id DESC LIMIT 1")[0][0]
    pages = {
        name: PAST.get(name, "{}").format(path)
        for name, path in places(engine, operation, MODEL).items()
        if not only or name in only
    }
    folder.mkdir(parents=True, exist_ok=True)
    sizes = []
    with chromium() as browser:
        for look, (theme, width) in LOOKS.items():
            context = signed_in(browser, stack.console_url, "ops-1", theme, width, HEIGHT)
            for name, path in pages.items():
                if look == "dark" or name == "fleet":
                    file = folder / f"{name}-{look}.png"
                    sizes.append(shot(context.new_page(), stack.console_url + path, file))
                    print(f"{file.name:24} {sizes[-1] / 1000:6.1f} kB", flush=True)
            context.close()
    return int(max(sizes, default=0) > LIMIT_BYTES)


def shot(page: Page, url: str, file: Path) -> int:
    """Its size, bytes."""
    page.goto(url)
    painted(page)
    if "rebalance" in file.name:  # with a draft
        page.get_by_label("Prefill engines").press("ArrowRight")
        page.locator("#plan .steps li").first.wait_for()
        painted(page)
    page.evaluate("document.activeElement?.blur()")
    height = min(LOWER.get(file.name, HEIGHT), page.evaluate("Math.ceil(document.body.getBoundingClientRect().height)"))
    page.screenshot(path=file, clip={"x": 0, "y": 0, "width": page.evaluate("innerWidth"), "height": height})
    page.close()
    return file.stat().st_size


if __name__ == "__main__":
    sys.exit(main())
