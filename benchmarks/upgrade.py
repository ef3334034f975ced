"""Upgrades a running fleet in place, as docs/deploy.md says, and counts lost requests: `bench upgrade --from COMMIT`.

The version before runs from a checkout of its own (git worktree) with this environment's packages, beside PostgreSQL and
Valkey: two routers, two web processes, control, ingest, an agent with two simulated engines. Streams run all the time, and
people read pages and the API, through what a proxy does: the next process if one refuses the connection. Step by step each
process becomes this checkout's. Pages are read with a session, the API with a token, both of the version before; any
answer but 200 is lost.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from _servers import servers

from controlplane.common.jointoken import Joined
from controlplane.common.valkey import connect_sync
from controlplane.core import names, signing
from controlplane.core.codec import encode

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "controlplane" / "physics" / "model_configs" / "qwen3-8b.json"
BODY = {"model": "m", "max_tokens": 60, "ignore_eos": True, "stream": True}
STREAMS = 4
READERS = 2
WEBS = ("web-1", "web-2")
PASSWORD = "a long enough one 7"
ADMIN = "from django.contrib.auth.models import User; User.objects.create_superuser('ann', password='{}')"
READ = (
    "/",
    "/models/m",
    "/operations",
    "/api/v1/models",
    "/api/v1/engines",
    "/api/v1/operations",
    "/static/css/app.css",
)
PATIENCE_S = 600.0
CELERY = ("-m", "celery", "-A", "controlplane.celery", "worker", "-Q", "control", "-P", "threads", "-c", "4")


@dataclass
class Traffic:
    """Streams one after the other on a few threads, through whichever routers are in rotation."""

    routers: list[str] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        for number in itertools.count():
            if self.stop.wait(0.2):
                return
            self.ended[self.one(f"{threading.get_ident()} asks {number}")] += 1

    @property
    def lost(self) -> int:
        return sum(count for how, count in self.ended.items() if how != "whole")

    def one(self, prompt: str) -> str:
        for url in (self.routers * 2)[hash(prompt) % len(self.routers) :]:
            try:
                with httpx.stream("POST", f"{url}/v1/completions", json=BODY | {"prompt": prompt}, timeout=120) as answer:
                    lines = [line for line in answer.iter_lines() if line]
                if (
                    answer.status_code == 200
                    and lines[-1] == "data: [DONE]"
                    and not any('"error"' in line for line in lines)
                ):
                    return "whole"
                return f"{answer.status_code} {lines[-1:]}"
            except httpx.ConnectError:
                continue
            except httpx.HTTPError as error:
                return type(error).__name__
        return "no router"


@dataclass
class Readers(Traffic):
    """The same for web processes: `routers` are web processes here. Set `token` and `cookies` before it runs."""

    token: str = ""
    cookies: dict[str, str] = field(default_factory=dict)

    def sign_in(self, fleet: Fleet, checkout: Path, webs: list[str]) -> None:
        """An admin's session and token, of the version in `checkout`."""
        fleet.manage(checkout, "shell", "-c", ADMIN.format(PASSWORD))
        self.token = json.loads(fleet.manage(checkout, "add_token", "ann", "bench").splitlines()[-1])["token"]
        with httpx.Client(base_url=webs[0], timeout=60) as browser:
            form = {"csrfmiddlewaretoken": _csrf(browser.get("/login").text), "username": "ann", "password": PASSWORD}
            if browser.post("/login", data=form, headers={"Origin": webs[0]}).status_code != 302:
                raise SystemExit("nobody can sign in")
            self.cookies = dict(browser.cookies)

    def one(self, prompt: str) -> str:
        path, number = READ[hash(prompt) % len(READ)], hash(prompt) % len(self.routers)
        told = (
            {"headers": {"Authorization": f"Bearer {self.token}"}} if path.startswith("/api/") else {"cookies": self.cookies}
        )
        for url in (self.routers * 2)[number:]:
            try:
                answer = httpx.get(f"{url}{path}", timeout=60, **told)  # type: ignore[arg-type]
            except httpx.ConnectError:
                continue
            except httpx.HTTPError as error:
                return f"{path} {type(error).__name__}"
            return "whole" if answer.status_code == 200 else f"{path} {answer.status_code}"
        return "no web process"


@dataclass
class Fleet:
    folder: Path
    env: dict[str, str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, checkout: Path, *words: str, **more: str) -> None:
        command, env = [sys.executable, *words], self.of(checkout, **more)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, cwd=checkout, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def end(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGTERM)
        self.running[name].wait(PATIENCE_S)

    def manage(self, checkout: Path, *words: str) -> str:
        command, env = [sys.executable, "manage.py", *words], self.of(checkout)
        done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
        if done.returncode:
            raise SystemExit(f"manage.py {' '.join(words)}: {done.stderr[-2000:]}")
        return done.stdout.strip()

    def of(self, checkout: Path, **more: str) -> dict[str, str]:
        return self.env | {"PYTHONPATH": str(checkout)} | more

    def router(self, name: str, checkout: Path, port: int) -> None:
        where = ("--host", "127.0.0.1", "--port", str(port), "--id", name, "--cache", str(self.folder / f"{name}.json"))
        self.start(name, checkout, "-m", "controlplane.router", "--valkey", *where)

    def web(self, name: str, checkout: Path, port: int) -> None:
        self.start(name, checkout, "-m", "controlplane.live.server", "--host", "127.0.0.1", "--port", str(port))

    def agent(self, checkout: Path, token: str = "") -> None:
        words = ("--state", str(self.folder / "node"), "--accelerators", "sim:2xh100-sxm", "--metrics-port", "0")
        self.start("agent", checkout, "manage.py", "agent", *words, **({names.ENV_JOIN_TOKEN: token} if token else {}))


def _csrf(page: str) -> str:
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    if not found:
        raise SystemExit(f"the page to sign in has no form: {page[:300]}")
    return found[1]


@contextmanager
def apart(traffic: Traffic, urls: list[str], url: str) -> Iterator[None]:
    """As a proxy is told before a process ends: nothing is sent there, and a moment for what was."""
    traffic.routers = [each for each in urls if each != url]
    time.sleep(2)
    yield
    traffic.routers = list(urls)


def until(what: str, check: object) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not check():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise SystemExit(f"not {what} within {PATIENCE_S:.0f} s")
        time.sleep(0.3)


def answers(url: str, path: str) -> bool:
    try:
        return httpx.get(url + path, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def ticked_at(url: str) -> float:
    """When control last ended a tick, Unix seconds."""
    with connect_sync(url) as valkey:
        return float(valkey.get(names.CONTROL_KEY) or 0)


@contextmanager
def before(commit: str, folder: Path) -> Iterator[Path]:
    checkout = folder / "before"
    subprocess.run(["git", "worktree", "add", "--detach", checkout, commit], cwd=ROOT, check=True, capture_output=True)
    try:
        yield checkout
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", checkout], cwd=ROOT, check=True, capture_output=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="commit", default="6edabd4", help="the version to upgrade from")
    commit = parser.parse_args().commit
    folder = Path(tempfile.mkdtemp(prefix="twinpool-upgrade-"))
    folder.chmod(0o711)
    with servers(), before(commit, folder) as old:
        return upgrade(folder, old)


def upgrade(folder: Path, old: Path) -> int:
    from controlplane.stack.ports import free_port
    from controlplane.stack.testing import SERVERS

    told = SERVERS.state.environment() | {names.ENV_BOOTSTRAP: "off", names.ENV_STATE: str(SERVERS.state.path)}
    fleet, traffic = Fleet(folder, {**os.environ, **told}), Traffic()
    ports, web_ports = [free_port(), free_port()], [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    webs = [f"http://127.0.0.1:{port}" for port in web_ports]
    fleet.env[names.ENV_CONSOLE_ORIGINS] = ",".join(webs)
    readers = Readers()
    threads = [threading.Thread(target=traffic.run) for _ in range(STREAMS)]
    threads += [threading.Thread(target=readers.run) for _ in range(READERS)]
    began = time.monotonic()

    def said(text: str) -> None:
        print(
            f"{time.monotonic() - began:6.0f} s  {text}; streams so far: {dict(traffic.ended)}, read: {dict(readers.ended)}",
            flush=True,
        )

    try:
        fleet.manage(old, "migrate", "--database", "owner", "--no-input")
        fleet.start("control", old, *CELERY)
        fleet.start("ingest", old, "manage.py", "ingest")
        fleet.manage(old, "add_node", "n1")
        key = signing.node_key(SERVERS.state.fleet_secret(), "n1").hex()
        joined = encode(Joined("n1", key, fleet.env[names.ENV_VALKEY_URL]))  # as tokens of that version were
        fleet.agent(old, base64.urlsafe_b64encode(json.dumps(joined).encode()).decode())
        for name, port in zip(("router-1", "router-2"), ports, strict=True):
            fleet.router(name, old, port)
        pools = ("--kind", "simulated", "--mode", "disaggregated", "--pool", "prefill=1", "--pool", "decode=1")
        fleet.manage(old, "register_model", "m", "--source", "org/m", "--config", str(CONFIG), *pools)
        until("ready", lambda: all(answers(url, "/readyz") for url in urls))
        for name, port in zip(WEBS, web_ports, strict=True):
            fleet.web(name, old, port)
        until("open", lambda: all(answers(url, "/healthz") for url in webs))
        readers.sign_in(fleet, old, webs)
        traffic.routers, readers.routers = list(urls), list(webs)
        for thread in threads:
            thread.start()
        until("under way", lambda: min(traffic.ended["whole"], readers.ended["whole"]) > 10)
        said("the version before serves")
        fleet.manage(ROOT, "backup", str(folder / "before.backup"))
        fleet.manage(ROOT, "migrate", "--database", "owner", "--no-input")
        said("migrated")
        restarted_at = 0.0
        for name, words in (("control", CELERY), ("ingest", ("manage.py", "ingest"))):
            fleet.end(name)
            restarted_at = max(restarted_at, time.time()) if name == "control" else restarted_at
            fleet.start(name, ROOT, *words)
        until("ticking", lambda: ticked_at(fleet.env[names.ENV_VALKEY_URL]) > restarted_at)
        said("control and ingest are new")
        for name, port, url in zip(WEBS, web_ports, webs, strict=True):
            with apart(readers, webs, url):
                fleet.end(name)
                fleet.web(name, ROOT, port)
                until("open", lambda url=url: answers(url, "/healthz"))
            said(f"{name} is new")
        for name, port, url in zip(("router-1", "router-2"), ports, urls, strict=True):
            with apart(traffic, urls, url):
                fleet.end(name)
                fleet.router(name, ROOT, port)
                until("ready", lambda url=url: answers(url, "/readyz"))
            said(f"{name} is new")
        fleet.end("agent")
        fleet.agent(ROOT)
        before_count = traffic.ended["whole"]
        until("serving on", lambda: traffic.ended["whole"] > before_count + 20)
        said("the agent is new")
        engines = fleet.manage(ROOT, "shell", "-c", _ENGINES).splitlines()[-1]
        print(f"engines (state, incarnation): {engines}")
    finally:
        traffic.stop.set()
        readers.stop.set()
        for thread in threads:
            if thread.ident:
                thread.join(150)
        for name in [each for each in fleet.running if each != "agent"]:
            fleet.running[name].kill()
        if "agent" in fleet.running:
            fleet.running["agent"].send_signal(signal.SIGUSR1)
            fleet.running["agent"].wait(60)
    print(f"{traffic.ended['whole']} streams whole, {traffic.lost} lost: {dict(traffic.ended)}")
    print(f"{readers.ended['whole']} pages and answers of the API whole, {readers.lost} lost: {dict(readers.ended)}")
    return int(bool(traffic.lost or readers.lost))


_ENGINES = (
    "from controlplane.fleet.models import Engine; print(list(Engine.objects.values_list('role', 'state', 'incarnation')))"
)

if __name__ == "__main__":
    sys.exit(main())
