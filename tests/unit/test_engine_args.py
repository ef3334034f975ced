"""What an operator may tell an engine, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.engine_args import ALLOWED, SET_BY_TWINPOOL, ArgumentRefused, clean_args, clean_env, clean_kv_events

CODE_PATHS_PORTS_AND_LOGS = (
    "trust_remote_code", "chat_template", "middleware", "host", "port", "api_key", "kv_transfer_config", "kv_events_config",
    "lora_modules", "enable_lora", "tool_parser_plugin", "reasoning_parser_plugin", "worker_cls", "worker_extension_cls",
    "scheduler_cls", "logits_processors", "download_dir", "config_format", "hf_overrides", "model_loader_extra_config",
    "enable_log_requests", "enable_log_outputs", "max_log_len", "log_config_file", "uvicorn_log_level", "root_path",
    "ssl_keyfile", "allowed_origins", "allow_credentials", "allowed_local_media_path", "allowed_media_domains", "tokenizer",
    "config", "model", "served_model_name", "data_parallel_address", "ec_transfer_config", "otlp_traces_endpoint",
    "distributed_executor_backend", "compilation_config", "additional_config", "speculative_config", "tool_server",
    "return_tokens_as_token_ids", "enable_server_load_tracking", "headless", "response_role", "weight_transfer_config",
)  # fmt: skip


def test_good_arguments_come_back_ordered_and_unchanged() -> None:
    given = {"max_num_seqs": 16, "dtype": "float32", "enforce_eager": True, "gpu_memory_utilization": 0.9}
    cleaned = clean_args("vllm", given)
    assert cleaned == given
    assert list(cleaned) == sorted(given)


@pytest.mark.parametrize("name", CODE_PATHS_PORTS_AND_LOGS)
@pytest.mark.parametrize("kind", sorted(ALLOWED))
def test_what_loads_code_opens_ports_or_reads_paths_is_refused_by_name(kind: str, name: str) -> None:
    with pytest.raises(ArgumentRefused, match=name) as refusal:
        clean_args(kind, {name: "x"})
    assert refusal.value.name == name
    assert ("set by Twinpool" in str(refusal.value)) == (name in SET_BY_TWINPOOL)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max_model_len", "2048", "whole number from 16"),
        ("max_model_len", True, "whole number from 16"),
        ("max_model_len", 8, "whole number from 16"),
        ("max_num_seqs", 1.0, "whole number from 1"),
        ("gpu_memory_utilization", float("nan"), "number from 0.05"),
        ("gpu_memory_utilization", 1.5, "to 0.98"),
        ("gpu_memory_utilization", True, "number from 0.05"),
        ("enforce_eager", 1, "true or false"),
        ("dtype", "float8", "one of auto, bfloat16"),
        ("block_size", True, "one of 8, 16"),
        ("block_size", 17, "one of 8, 16"),
        ("generation_config", "/etc", "one of auto, vllm"),
        ("load_format", "pt", "one of auto, safetensors"),
        ("revision", "../../etc", "must be a name"),
        ("revision", "--middleware", "must be a name"),
        ("revision", "a" * 65, "at most 64"),
        ("tool_call_parser", "/tmp/p.py", "must be a name"),
        ("tool_call_parser", "hermes\n", "must be a name"),
    ],
)
def test_a_wrong_type_or_bound_is_refused_and_says_what_is_allowed(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ArgumentRefused) as refusal:
        clean_args("vllm", {name: value})
    assert name in str(refusal.value)
    assert allowed in str(refusal.value)


def test_a_near_miss_is_told_the_right_name() -> None:
    with pytest.raises(ArgumentRefused, match="did you mean 'max_model_len'"):
        clean_args("vllm", {"--max-model-len": 2048})


def test_vllm_only_arguments_are_refused_for_simulated_engines() -> None:
    with pytest.raises(ArgumentRefused, match="not allowed for simulated"):
        clean_args("simulated", {"enforce_eager": True})


def test_an_unknown_kind_is_a_plain_error() -> None:
    with pytest.raises(ValueError, match="kinds: simulated, vllm"):
        clean_args("triton", {})


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "PYTHONPATH", "VLLM_PLUGINS", "VLLM_API_KEY", "PATH", "CUDA_VISIBLE_DEVICES"]
)
def test_environment_that_could_load_code_or_undo_the_driver_is_refused(name: str) -> None:
    with pytest.raises(ArgumentRefused, match="HF_TOKEN"):
        clean_env({name: "secret"})


def test_a_secret_is_named_never_given() -> None:
    assert clean_env({"HF_TOKEN": "hub-token"}) == {"HF_TOKEN": "hub-token"}
    with pytest.raises(ArgumentRefused):
        clean_env({"HF_TOKEN": "/etc/passwd"})


def test_kv_events_need_an_address_and_may_be_off() -> None:
    assert clean_kv_events({}) == {}
    assert clean_kv_events({"endpoint": "tcp://10.0.0.5:5557", "enable_kv_cache_events": False}) == {}
    given = {"endpoint": "tcp://10.0.0.5:5557", "hwm": 1000, "replay_endpoint": "tcp://*:5558"}
    assert clean_kv_events(given) == {**given, "enable_kv_cache_events": True}


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.9", "[fd00::1]", "[::1]", "*"])
def test_kv_events_go_to_private_addresses(address: str) -> None:
    assert clean_kv_events({"endpoint": f"tcp://{address}:5557"})["endpoint"] == f"tcp://{address}:5557"


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ({"endpoint": "tcp://8.8.8.8:5557"}, "private address"),
        ({"endpoint": "tcp://0.0.0.0:5557"}, "private address"),
        ({"endpoint": "tcp://[2001:4860::1]:5557"}, "private address"),
        ({"endpoint": "tcp://999.1.1.1:5557"}, "private address"),
        ({"endpoint": "tcp://collector.example:5557"}, "tcp://ADDRESS:PORT"),
        ({"endpoint": "ipc:///tmp/events"}, "tcp://ADDRESS:PORT"),
        ({"endpoint": "tcp://10.0.0.5:0"}, "tcp://ADDRESS:PORT"),
        ({"endpoint": "tcp://10.0.0.5:70000"}, "tcp://ADDRESS:PORT"),
        ({"endpoint": 5557}, "tcp://ADDRESS:PORT"),
        ({"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5557"}, "must differ"),
        ({"enable_kv_cache_events": True}, "is missing"),
        ({"hwm": 10}, "is missing"),
        ({"endpoint": "tcp://*:5557", "hwm": 0}, "whole number from 1"),
        ({"endpoint": "tcp://*:5557", "topic": "x"}, "no setting of KV events"),
        ("tcp://*:5557", "must come as an object"),
    ],
)
def test_bad_kv_events_are_refused_with_the_remedy(events: Any, problem: str) -> None:
    with pytest.raises(ArgumentRefused, match=problem):
        clean_kv_events(events)
