"""`python -m workers` as `up` starts it, with the simulated engines that come with Twinpool."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from controlplane.core.signing import engine_key
from tests.integration.agent_kit import ROOT, AgentKit, until

CONFIG = json.loads((ROOT / "controlplane" / "physics" / "model_configs" / "qwen3-8b.json").read_text())


@pytest.fixture(scope="module")
def agent(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentKit]:
    kit = AgentKit(valkey_url, tmp_path_factory.mktemp("agent"), command=("-m", "workers"))
    try:
        yield kit.start()
    finally:
        kit.close()


def test_a_simulated_engine_serves_with_its_key_and_reports_its_gpu(agent: AgentKit) -> None:
    spec = agent.spec(model_config=CONFIG, gpu_kind="h100-sxm", connector="nixl", args={"max_model_len": 4096})
    agent.send("start", spec=spec)
    fact = agent.engine_when("ready")
    body = {"model": "m", "prompt": "one two three", "max_tokens": 4}
    url = fact.url + "/v1/completions"
    assert httpx.post(url, json=body).status_code == 401
    answer = httpx.post(url, json=body, headers={"Authorization": f"Bearer {engine_key(agent.key, 'e-1', 1)}"})
    assert answer.json()["usage"]["completion_tokens"] == 4

    def sampled() -> bool:
        rows = [record.rows[0] for record in agent.records() if record.kind == "engine"]
        return bool(rows) and rows[-1]["counters"]["generation_tokens"] >= 5 and rows[-1]["histograms"]["ttft"]["count"] >= 2

    until("the engine's counters are sampled", sampled)
    gpu = next(record for record in reversed(agent.records()) if record.kind == "gpu").rows[0]
    assert gpu["engine"] == "e-1" and gpu["memory_used_bytes"] > 10**9
    assert 0 <= gpu["tensor"] <= 1 and 0 <= gpu["dram"] <= 1


def test_a_model_that_does_not_fit_is_refused_with_the_reason(agent: AgentKit) -> None:
    agent.send(
        "start", spec=agent.spec("fat", gpus=(1,), model_config={**CONFIG, "num_hidden_layers": 400}, gpu_kind="h100-sxm")
    )
    assert "cannot start: " in agent.engine_when("failed", "fat").reason


def test_an_argument_outside_the_allow_list_is_refused(agent: AgentKit) -> None:
    spec = agent.spec("args", gpus=(1,), model_config=CONFIG, gpu_kind="h100-sxm", args={"chat_template": "/etc/passwd"})
    agent.send("start", spec=spec)
    assert "chat_template" in agent.engine_when("failed", "args").reason
