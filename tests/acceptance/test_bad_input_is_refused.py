"""Bad input gets a clear message, and nothing is half-done in the database."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from stack import Stack, until

COUNTS = """
    SELECT (SELECT count(*) FROM fleet_model), (SELECT count(*) FROM fleet_pool), (SELECT count(*) FROM fleet_engine),
           (SELECT count(*) FROM fleet_operation), (SELECT count(*) FROM fleet_auditentry WHERE verb <> 'refused')
"""


def _post(demo: Stack, content: bytes, **headers: str) -> httpx.Response:
    return httpx.post(f"{demo.router_url}/v1/chat/completions", content=content, headers=headers, trust_env=False)


def test_an_unknown_model_is_404(demo: Stack) -> None:
    answer = demo.ask("chat/completions", {"model": "gpt-9", "messages": [{"role": "user", "content": "hi"}]})
    assert answer.status == 404
    assert answer.error
    assert "gpt-9" in answer.error["message"]


@pytest.mark.parametrize("content", [b"{", b"", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000], ids=repr)
def test_malformed_json_is_400(demo: Stack, content: bytes) -> None:
    response = _post(demo, content)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_a_body_over_the_limit_is_413(demo: Stack) -> None:
    body = json.dumps({"model": "llama-3.1-70b", "prompt": "x" * 40_000_000}).encode()
    response = _post(demo, body)
    assert response.status_code == 413
    assert response.json()["error"]["message"]


def test_kv_parameters_of_a_client_never_reach_an_engine(demo: Stack) -> None:
    """With these parameters an engine would end itself: so every engine lives on, and answers as without them."""
    before = {engine.id: engine.incarnation for node in ("n1", "n2", "n3") for engine in demo.engines(node).values()}
    harmful = {"do_remote_prefill": True}
    plain = {"prompt": "one two three", "max_tokens": 8, "seed": 3}
    for model in ("llama-3.1-70b", "qwen3-8b"):
        clean = demo.ask("completions", plain | {"model": model})
        body = plain | {"model": model, "kv_transfer_params": harmful, "vllm_xargs": {"kv_transfer_params": harmful}}
        headers = {"x-prefiller-host-port": "127.0.0.1:1", "x-kv-transfer-params": json.dumps(harmful)}
        response = httpx.post(f"{demo.router_url}/v1/completions", json=body, headers=headers, trust_env=False, timeout=60)
        assert response.status_code == 200
        assert response.json()["choices"][0]["text"] == clean.text
    after = {engine.id: engine.incarnation for node in ("n1", "n2", "n3") for engine in demo.engines(node).values()}
    assert after == before


def _refused(demo: Stack, tmp_path: Path, config: str, *options: str) -> str:
    path = tmp_path / "config.json"
    path.write_text(config)
    before = demo.rows(COUNTS)
    done = demo.manage(
        *("register_model", "new-model", "--source", "some/model", "--kind", "simulated", "--config", str(path)),
        *options,
        check=False,
    )
    assert done.returncode != 0
    assert demo.rows(COUNTS) == before
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("config", ["", "not json", "[1, 2]", '{"hidden_size": 1'])
def test_a_model_config_that_is_no_json_object_is_refused(demo: Stack, tmp_path: Path, config: str) -> None:
    assert "JSON" in _refused(demo, tmp_path, config)


def test_a_model_config_without_a_needed_field_is_refused_by_name(demo: Stack, tmp_path: Path) -> None:
    config = json.loads((Path(__file__).parents[2] / "controlplane/physics/model_configs/llama-3.1-70b.json").read_text())
    del config["num_hidden_layers"]
    assert "num_hidden_layers" in _refused(demo, tmp_path, json.dumps(config))


@pytest.mark.parametrize(
    "argument", ["trust_remote_code=true", "api_key=1", "host=0", "kv_transfer_config={}", "max_num_seqs=-1"]
)
def test_an_engine_argument_outside_the_allow_list_is_refused_by_name(demo: Stack, tmp_path: Path, argument: str) -> None:
    config = (Path(__file__).parents[2] / "controlplane/physics/model_configs/llama-3.1-70b.json").read_text()
    assert argument.split("=")[0] in _refused(demo, tmp_path, config, "--arg", argument)


def test_a_pool_size_that_does_not_fit_says_what_is_missing(demo: Stack) -> None:
    before = demo.rows(COUNTS)
    done = demo.manage("scale_pool", "llama-3.1-70b", "decode", "40", "--reason", "too many", check=False)
    assert done.returncode != 0
    assert "GPU" in done.stderr
    assert demo.rows(COUNTS) == before


def test_the_console_shows_nothing_without_a_login(demo: Stack) -> None:
    page = until(lambda: httpx.get(f"{demo.console_url}/", trust_env=False))
    assert page.status_code == 302
    assert "/login" in page.headers["location"]
