"""`up --fleet vllm`: real engines that Celery started, and roles that change while they run, with and without traffic."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.vllm import traffic
from tests.vllm.harness import MODEL, wait_for

ROOT = Path(__file__).resolve().parents[2]
EXCHANGES = 10
Manage = Callable[..., str]


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    """The state folder of a stack of this file."""
    folder = Path(tempfile.mkdtemp(prefix="twinpool-vllm-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def manage(state: Path) -> Iterator[Manage]:
    """`manage.py` on a stack of its own, down again at the end."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TWINPOOL_", "DJANGO_"))}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments, "--state", str(state)],
            cwd=ROOT, env=kept, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        run("up", "--fleet", "vllm", "--detach", "--port", "0", "--router-port", "0")
        yield run
    finally:
        subprocess.run([sys.executable, "manage.py", "down", "--state", str(state)], cwd=ROOT, env=kept, check=False)


def ask(url: str, path: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """How the answer came (path, prefill engine, decode engine), and the answer."""
    response = httpx.post(url + path, json={"model": MODEL, "max_tokens": 24, "temperature": 0, **body}, timeout=120)
    assert response.status_code == 200, response.text
    path_taken, prefill, decode, _ = response.headers["x-twinpool-route"].split("; ")
    return f"{path_taken} {prefill.partition('=')[2]} {decode.partition('=')[2]}", response.json()


def test_a_real_pair_serves_and_exchanges_its_roles_without_a_restart(manage: Manage) -> None:
    url = json.loads(manage("status", "--json"))["router_url"]
    chance = random.Random(7)
    prompts = [[chance.randrange(3, 2048) for _ in range(length)] for length in (1, 40, 300, 1500)]
    chat = {"messages": [{"role": "user", "content": "What is a generator?"}]}

    # The first handshake of a fresh pair may miss its 5 s on a loaded machine; then one engine does all.
    wait_for(lambda: ask(url, "/completions", {"prompt": [5]})[0].startswith("disaggregated "), 60, "a first hand-off")
    before = [ask(url, "/completions", {"prompt": prompt}) for prompt in prompts]
    before.append(ask(url, "/chat/completions", chat))
    pair = before[0][0]
    assert {route for route, _ in before} == {pair}
    path, prefill, decode = pair.split()
    assert path == "disaggregated"
    engines = engine_processes()

    manage("exchange_roles", MODEL, prefill, decode)
    exchanged = f"disaggregated {decode} {prefill}"
    wait_for(lambda: ask(url, "/completions", {"prompt": prompts[0]})[0] == exchanged, 60, "the roles to be exchanged")
    after = [ask(url, "/completions", {"prompt": prompt}) for prompt in prompts]
    after.append(ask(url, "/chat/completions", chat))

    assert {route for route, _ in after} == {exchanged}
    assert [answer["choices"] for _, answer in after] == [answer["choices"] for _, answer in before]
    assert [counts(answer) for _, answer in after] == [counts(answer) for _, answer in before]
    assert engine_processes() == engines


def test_ten_exchanges_under_traffic_lose_no_request_and_change_no_text(manage: Manage, state: Path) -> None:
    url = json.loads(manage("status", "--json"))["router_url"]
    prompts = traffic.clear_prompts(url, 12)
    engines = engine_processes()
    command = [sys.executable, "-m", "tests.vllm.exchanges", str(state), str(EXCHANGES)]
    with traffic.flowing(url, prompts, clients=3) as seen:
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
    seconds = sorted(json.loads(done.stdout))
    split = {route for route in seen.routes if route.startswith("disaggregated ")}
    print(f"{len(seconds)} exchanges, {1000 * seconds[len(seconds) // 2]:.0f} ms in the middle, {1000 * seconds[-1]:.0f} ms "
          f"at most; {seen.exact} requests exact, {len(seen.lost)} lost; ways: {dict(seen.routes)}")  # fmt: skip
    assert seen.lost == []
    assert seen.exact >= EXCHANGES
    assert len(split) == 2, "requests were handed over in one direction only"
    assert engine_processes() == engines


def counts(answer: dict[str, Any]) -> tuple[int, int, int]:
    """Of the usage; how much of a prompt was cached is another after the exchange: the new prefill engine knows it."""
    usage = answer["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]


def engine_processes() -> set[int]:
    """Processes on this machine that serve the tiny model of a stack under test."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"vllm.entrypoints.openai.api_server" in words and any(b"/twinpool-vllm-" in word for word in words):
            found.add(int(folder.name))
    return found
