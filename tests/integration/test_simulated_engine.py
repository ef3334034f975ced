"""One engine process as its clients see it: vLLM's HTTP, its errors, and its end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from tests.simulated_engines import KEY, MODEL, RunningEngine, meanwhile, running, spec, until


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with running(tmp_path_factory.mktemp("engine")) as one:
        yield one


def test_it_answers_like_vllm_without_being_asked_for_tokens(engine: RunningEngine) -> None:
    assert engine.http.get("/health").content == b""
    assert "version" in engine.http.get("/version").json()
    assert engine.http.get("/load").json() == {"server_load": 0}
    models = engine.http.get("/v1/models").json()
    assert [(model["id"], model["max_model_len"]) for model in models["data"]] == [(MODEL, 8192)]


def test_tokenize_and_detokenize_are_inverse(engine: RunningEngine) -> None:
    told = engine.http.post("/tokenize", json={"model": MODEL, "prompt": "Ngày mai, 2024!"}).json()
    assert told["count"] == len(told["tokens"])
    assert engine.http.post("/detokenize", json={"tokens": told["tokens"]}).json() == {"prompt": "Ngày mai, 2024!"}
    chat = engine.http.post("/tokenize", json={"messages": [{"role": "user", "content": "hi"}]}).json()
    assert chat["count"] > 4


def test_the_openai_client_understands_it(engine: RunningEngine) -> None:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key=KEY) as client:
        whole = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=12, n=2, extra_body={"ignore_eos": True}
        )
        assert [choice.finish_reason for choice in whole.choices] == ["length", "length"]
        assert whole.choices[0].message.content != whole.choices[1].message.content
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 24
        chunks = list(
            client.completions.create(
                model=MODEL, prompt="hello", max_tokens=12, stream=True, stream_options={"include_usage": True}
            )
        )
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == engine.text("hello", max_tokens=12)
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.completion_tokens, chunks[-2].choices[0].finish_reason) == (12, "length")


def test_echo_puts_the_prompt_before_the_answer(engine: RunningEngine) -> None:
    assert engine.text("hello there", echo=True) == "hello there" + engine.text("hello there")


def test_a_repeated_prompt_hits_the_prefix_cache(engine: RunningEngine) -> None:
    prompt = list(range(7000, 7100))
    engine.text(prompt)
    before = engine.page().counters["prefix_hits"]
    engine.text(prompt)
    assert engine.page().counters["prefix_hits"] - before == 96


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b'{"model":"other","prompt":"x"}', 404),
        ("POST", "/v1/completions", b"[1]", 400),
        ("POST", "/v1/chat/completions", b'{"messages":[]}', 400),
        ("POST", "/tokenize", b"x", 400),
        ("GET", "/v1/completions", b"", 405),
        ("GET", "/nothing", b"", 404),
        ("GET", "/v1/nothing", b"", 404),
    ],
)
def test_bad_requests_get_their_status(engine: RunningEngine, method: str, path: str, body: bytes, status: int) -> None:
    assert engine.http.request(method, path, content=body).status_code == status


def test_an_over_long_prompt_is_refused_with_vllms_message(engine: RunningEngine) -> None:
    refused = engine.complete([1] * 9000)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert "maximum context length is 8192 tokens" in error["message"]
    assert (error["type"], error["code"]) == ("BadRequestError", 400)


@pytest.mark.parametrize("key", [None, "Bearer wrong", KEY, "Bearer", "Bearer \u00e9"])
def test_v1_asks_for_the_engine_key(engine: RunningEngine, key: str | None) -> None:
    headers = {} if key is None else {"Authorization": key.encode("latin-1")}
    with httpx.Client(base_url=engine.url, headers=headers, trust_env=False) as client:
        assert client.get("/v1/models").status_code == 401
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 401
        assert client.get("/health").status_code == 200


def raw(engine: RunningEngine, data: bytes) -> bytes:
    """What comes back for these bytes until the server closes."""
    host, port = engine.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(data)
        answer = b""
        while part := client.recv(65536):
            answer += part
        return answer


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", b"431"),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ncontent-length: 40000000\r\n\r\n" + b"x" * ((16 << 20) + 1), b"413"),
    ],
)
def test_bytes_that_are_no_acceptable_request_are_refused(engine: RunningEngine, data: bytes, status: bytes) -> None:
    assert raw(engine, data).startswith(b"HTTP/1.1 " + status)
    assert engine.http.get("/health").status_code == 200


def test_pipelined_requests_are_answered_in_order(engine: RunningEngine) -> None:
    body = json.dumps({"prompt": "hi", "max_tokens": 3}).encode()
    first = b"POST /v1/completions HTTP/1.1\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
    data = first % (KEY.encode(), len(body), body) + b"GET /version HTTP/1.1\r\nconnection: close\r\n\r\n"
    answer = raw(engine, data)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.index(b"text_completion") < answer.index(b"version")


def test_an_http_1_0_client_gets_an_unframed_stream(engine: RunningEngine) -> None:
    body = json.dumps({"prompt": "hi", "max_tokens": 3, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    answer = raw(engine, head.encode() + body)
    assert b"chunked" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")


def test_a_client_that_leaves_frees_its_blocks(tmp_path: Path) -> None:
    with running(tmp_path, spec(args={"speed": 1.0})) as engine:
        body = {"model": MODEL, "prompt": [1] * 100, "max_tokens": 5000, "ignore_eos": True, "stream": True}
        with engine.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert engine.page().running == 1
            assert engine.http.get("/load").json() == {"server_load": 1}
        until(lambda: engine.page().running == 0)
        assert engine.page().kv_usage == 0
        assert engine.http.get("/load").json() == {"server_load": 0}
        assert engine.metric('vllm:request_success_total{engine="0",finished_reason="abort"') == 1


def test_gpus_are_busy_while_it_generates_and_idle_after(tmp_path: Path) -> None:
    with running(tmp_path, spec(args={"speed": 1.0})) as engine:
        engine.text("hi", max_tokens=120)
        report = engine.page().gpus["GPU-e1"]
        assert (report.dram or 0) > 0.3 > (report.tensor or 1)
        until(lambda: engine.page().gpus["GPU-e1"].dram == 0)
        assert engine.page().gpus["GPU-e1"].memory_used_bytes == pytest.approx(0.9 * 80 * 2**30)


def test_it_is_small(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        for start in range(20):
            engine.text(list(range(start, start + 8000)), n=4)
        assert psutil.Process(engine.process.pid).memory_info().rss < 45 << 20


def test_sigterm_lets_what_runs_finish_and_refuses_the_rest(tmp_path: Path) -> None:
    with running(tmp_path, spec(args={"speed": 1.0})) as engine:
        with meanwhile(lambda: engine.complete("hi", max_tokens=300)) as leg:
            until(lambda: engine.page().running == 1)
            engine.process.send_signal(signal.SIGTERM)
            until(lambda: "stopping" in engine.log.read_text())
            assert engine.http.get("/health").status_code == 200
            assert engine.complete("hi").status_code == 500
        assert leg.result().json()["usage"]["completion_tokens"] == 300
        assert engine.process.wait(60) == 0


def test_an_idle_engine_stops_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(60) == 0


def test_a_taken_port_and_a_bad_spec_are_said_in_one_line(engine: RunningEngine, tmp_path: Path) -> None:
    port = int(engine.url.rpartition(":")[2])
    with pytest.raises(AssertionError, match=r"cannot listen on 127\.0\.0\.1"), running(tmp_path, spec("e2"), port=port):
        pass
    bad = tmp_path / "bad.json"
    bad.write_text('{"spec": {"id": "e1"}, "host": "127.0.0.1", "port": 0, "side_port": 0}')
    command = [sys.executable, "-m", "workers.engines.simulated", "--spec", str(bad)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr.strip().endswith("spec.model: is missing")
