"""The fleet secret is changed under streams: a real agent, a real router, the loop; nothing is lost, and what has the former
secret alone is believed no more."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from django.core.management import call_command

from controlplane.common.keyring import read_ring, ring_path
from controlplane.config import config
from controlplane.control import actions, rotation
from controlplane.control.loop import Loop
from controlplane.control.newmodel import NewModel, NewPool
from controlplane.control.refused import Refused
from controlplane.core import names
from controlplane.core.signing import INCARNATIONS, BadSignature, node_key, table_key, unseal
from controlplane.fleet import models
from controlplane.physics.catalog import CONFIGS
from tests.integration.agent_kit import AgentKit
from tests.integration.control_kit import ANN, new_loop, real_agent, until
from tests.integration.router_process import RouterProcess, router_process

pytestmark = pytest.mark.django_db(transaction=True)
OLD = bytes(range(32, 64))


@pytest.fixture
def secret_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / "fleet.key"
    file.write_bytes(OLD)
    file.chmod(0o600)
    monkeypatch.setenv(names.ENV_FLEET_SECRET_FILE, str(file))
    config.cache_clear()
    yield file
    config.cache_clear()


@pytest.fixture
def agent(secret_file: Path, valkey: redis.Redis, valkey_url: str, tmp_path: Path) -> Iterator[AgentKit]:
    folder = tmp_path / "node"
    folder.mkdir()
    with real_agent(valkey_url, folder) as kit:
        yield kit


@pytest.fixture
def router(secret_file: Path, valkey_url: str, tmp_path: Path) -> Iterator[RouterProcess]:
    with router_process(tmp_path, valkey_url, "--valkey", secret=OLD) as process:
        yield process


class Streams:
    """Streams of answers, one after the other, until told to stop."""

    def __init__(self, url: str) -> None:
        self.done, self.wrong = 0, list[str]()
        self._url, self._stop = url, threading.Event()
        self._thread = threading.Thread(target=self._go)

    def __enter__(self) -> Streams:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()

    def _go(self) -> None:
        body = {"model": "m", "prompt": "one two three four", "max_tokens": 40, "stream": True}
        with httpx.Client(timeout=120, trust_env=False) as client:
            while not self._stop.is_set():
                answer = client.post(f"{self._url}/v1/completions", json=body)
                if answer.status_code != 200 or "[DONE]" not in answer.text or '"error"' in answer.text:
                    self.wrong.append(f"{answer.status_code} {answer.text[-300:]}")
                self.done += 1


def turns(loop: Loop, what: str, check: Any) -> Any:
    def once() -> Any:
        loop.run()
        return check()

    return until(what, once, 120)


def test_nothing_is_lost_and_the_former_secret_is_worth_nothing_after(
    agent: AgentKit, router: RouterProcess, valkey: redis.Redis, secret_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = new_loop()
    actions.add_node(ANN, agent.node)
    config_json = json.loads((CONFIGS / "qwen3-8b.json").read_text())
    pools = (NewPool("mixed", 2),)
    actions.register_model(ANN, NewModel("m", "org/m", config_json, engine_kind="simulated", mode="monolithic", pools=pools))
    turns(loop, "serving", lambda: models.Engine.objects.filter(state="ready").count() == 2)
    turns(loop, "answering", lambda: router.post({"model": "m", "prompt": "a", "max_tokens": 1}).status_code == 200)
    with Streams(router.url) as streams:
        turns(loop, "streaming", lambda: streams.done > 1)
        with pytest.raises(Refused, match="prepare it first"):
            rotation.switch(ANN, valkey)
        rotation.prepare(ANN, reason="yearly")
        loop.run()
        with pytest.raises(Refused, match=f"node {agent.node} has not the new key yet"):
            rotation.switch(ANN, valkey)
        assert rotation.distribute(ANN) == []
        turns(loop, "prepared", lambda: not list(rotation.status(valkey).behind()))
        ring = read_ring(secret_file)
        new = ring.next
        assert new is not None and ring.generation == 0 and secret_file.read_bytes() == OLD
        rotation.switch(ANN, valkey)
        assert secret_file.read_bytes() == new and ring_path(secret_file).stat().st_mode & 0o077 == 0
        turns(loop, "sealed anew", lambda: sealed_with(valkey, new))
        with pytest.raises(Refused, match=r"2 engines of m have keys of the former secret: manage\.py roll_out m first"):
            rotation.finish(ANN, valkey)
        with pytest.raises(Refused, match="finish that rotation first"):
            rotation.prepare(ANN)
        rolled = actions.roll_out(ANN, "m", actions.RollOut())
        turns(loop, "rolled out", lambda: models.Operation.objects.get(pk=rolled.pk).state == "done")
        assert set(rotation.status(valkey).engines) == {1}
        assert models.Engine.objects.filter(state="ready", incarnation__gt=INCARNATIONS).count() == 2
        assert rotation.finish(ANN, valkey) == []
        before = streams.done
        turns(loop, "still streaming", lambda: streams.done > before + 1)
    assert streams.wrong == []

    assert read_ring(secret_file).keys == {1: new}
    agent.key = node_key(new, agent.node)
    agent.kill()
    agent.start()
    turns(loop, "adopted", lambda: router.post({"model": "m", "prompt": "a", "max_tokens": 1}).status_code == 200)
    assert models.Engine.objects.filter(state="ready", incarnation__gt=INCARNATIONS).count() == 2
    fact = valkey.get(names.fact_key("agent", agent.node))
    assert isinstance(fact, bytes)
    with pytest.raises(BadSignature):
        unseal(node_key(OLD, agent.node), fact)
    call_command("rotate_secret", "status")
    told = capsys.readouterr().out
    assert json.loads(told.splitlines()[-1])["behind"] == []
    everything = told + router.log() + agent.log.read_text()
    everything += "".join(f"{entry.before}{entry.after}" for entry in models.AuditEntry.objects.all())
    assert new.hex() not in everything and OLD.hex() not in everything
    steps = [entry.after["step"] for entry in models.AuditEntry.objects.filter(verb="rotate_secret").order_by("pk")]
    assert steps == ["prepare", "distribute", "switch", "finish"]


def sealed_with(valkey: redis.Redis, secret: bytes) -> bool:
    envelope = valkey.get(names.TABLE_KEY)
    try:
        unseal(table_key(secret), envelope if isinstance(envelope, bytes) else b"")
    except BadSignature:
        return False
    return True
