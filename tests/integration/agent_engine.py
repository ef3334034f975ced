"""A minimal engine process for the agent's tests: vLLM's paths and metric names, no tokens worth reading, and bad manners
on request. Run as `python agent_engine.py JSON`; the key comes from the environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

OPTIONS: dict[str, Any] = json.loads(sys.argv[1])
KEY = os.environ["VLLM_API_KEY"]
STARTED = time.time()


def running() -> int:
    """Requests in flight, as the test wrote them into the engine's folder."""
    file = Path("running")
    return int(file.read_text()) if file.exists() else 0


def metrics() -> str:
    labels = f'{{engine="0",model_name="{OPTIONS["model"]}"}}'
    lines = [
        f"vllm:num_requests_running{labels} {running()}.0",
        f"vllm:num_requests_waiting{labels} 0.0",
        f"vllm:kv_cache_usage_perc{labels} 0.25",
        f"vllm:generation_tokens_total{labels} 7.0",
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 1.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 2.0',
        f"vllm:time_to_first_token_seconds_count{labels} 2.0",
        f"vllm:time_to_first_token_seconds_sum{labels} 0.5",
    ]
    for gpu in OPTIONS["gpus"]:
        lines += [
            f'twinpool:gpu_tensor_activity{{gpu="{gpu}"}} 0.5',
            f'twinpool:gpu_tensor_activity_peak{{gpu="{gpu}"}} 0.9',
            f'twinpool:gpu_dram_activity{{gpu="{gpu}"}} 0.25',
            f'twinpool:gpu_memory_used_bytes{{gpu="{gpu}"}} 1e+09',
            f'twinpool:gpu_power_watts{{gpu="{gpu}"}} 350.0',
        ]
    return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(200 if time.time() - STARTED >= OPTIONS.get("healthy_after_s", 0) else 503, "")
        elif self.path == "/metrics":
            self.answer(200, metrics())
        elif self.path == "/version":
            self.answer(200, json.dumps({"version": "0.0.test"}))
        elif self.path == "/v1/models" and self.authorized():
            self.answer(200, json.dumps({"data": [{"id": OPTIONS.get("serve_as", OPTIONS["model"])}]}))
        else:
            self.answer(401 if self.path.startswith("/v1") else 404, "{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.authorized():
            self.answer(401, "{}")
            return
        usage = {"prompt_tokens": 1, "completion_tokens": body["max_tokens"]}
        self.answer(200, json.dumps({"choices": [{"text": "x"}], "usage": usage}))

    def authorized(self) -> bool:
        return self.headers["Authorization"] == f"Bearer {KEY}"

    def answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


def main() -> None:
    print("engine starts", flush=True)
    if OPTIONS.get("crash"):
        print(f"cannot go on, my key is {KEY}", file=sys.stderr, flush=True)
        sys.exit(3)
    if OPTIONS.get("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if OPTIONS.get("child"):
        env = {} if OPTIONS["child"] == "blank" else None  # vLLM's engine core overwrites its environment
        child = subprocess.Popen(["sleep", "600"], env=env)
        print(f"child {child.pid}", flush=True)
    server = ThreadingHTTPServer((OPTIONS["host"], OPTIONS["port"]), Handler)
    server.daemon_threads = True
    while OPTIONS.get("chatter"):
        server.timeout = 0.02
        server.handle_request()
        print("chatter " * 100, flush=True)
    server.serve_forever()


main()
