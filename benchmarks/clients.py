"""Runs somebody else's client against the router in front of simulated engines, and says how the router saw it.

    manage.py bench clients [--engines 2] [--speed 4] -- COMMAND ...

`{url}` and `{model}` in COMMAND are replaced. Engines are Llama-3.1-8B on one H100 each, `--engines` for prefill and as many
for decode, `--speed` times as fast as the real ones. Exit status: the command's, or 1 if the router had to fail a request.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import urllib.request
from dataclasses import replace

from _engines import HOST, MODEL, running, spec
from _routing_live import running_router

_REQUESTS = re.compile(r"^twinpool_router_requests_total\{([^}]*)\} (\d+)", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="manage.py bench clients", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", type=int, default=2, help="of each role; default 2")
    parser.add_argument("--speed", type=float, default=4.0, help="of the engines, real ones are 1; default 4")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="with {url} and {model}")
    options = parser.parse_args()
    names = [f"{role}{number}" for role in "pd" for number in range(options.engines)]
    args = {"speed": options.speed, "max_model_len": 131_072}
    with (
        running([replace(spec(name), args=args) for name in names]) as processes,
        running_router(dict(zip(names, processes, strict=True))) as router,
    ):
        url = f"http://{HOST}:{router.port}"
        command = [word.replace("{url}", url).replace("{model}", MODEL) for word in options.command]
        status = subprocess.run(command, check=False).returncode
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            page = answer.read().decode()
    outcomes = _REQUESTS.findall(page)
    for labels, count in outcomes:
        print(f"{count} x {labels}")
    failed = any(f'outcome="{bad}"' in labels for labels, _ in outcomes for bad in ("engine_error", "cut"))
    return status or int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
