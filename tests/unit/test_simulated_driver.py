"""Launches of simulated engines: what is started, and which specs are refused with which remedy."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.codec import encode
from controlplane.core.protocol import Rank
from controlplane.physics.catalog import config_names, read_config
from tests.simulated_engines import KEY, LLAMA_8B, spec
from workers.engines.base import Place, SpecRefused
from workers.engines.simulated import driver
from workers.engines.simulated.settings import EventsConfig, read_settings, settings_of


def place(folder: Path) -> Place:
    return Place("127.0.0.1", 8101, 5601, folder, folder, 1, KEY, secrets={})


def test_the_key_goes_by_environment_only_and_the_spec_by_a_private_file(tmp_path: Path) -> None:
    launch = driver.launch(spec(), 0, place(tmp_path))
    written = tmp_path / "spec.json"
    assert launch.argv[1:] == ("-m", "workers.engines.simulated", "--spec", str(written))
    assert launch.env["VLLM_API_KEY"] == KEY
    assert KEY not in " ".join(launch.argv) + written.read_text() + repr(launch)
    assert stat.S_IMODE(written.stat().st_mode) == 0o600


def test_the_process_reads_what_the_driver_wrote(tmp_path: Path) -> None:
    driver.launch(spec(args={"max_num_seqs": 7, "block_size": 32}), 0, place(tmp_path))
    settings = read_settings(json.loads((tmp_path / "spec.json").read_text()))
    assert (settings.port, settings.side_port, settings.gpus) == (8101, 5601, ("GPU-e1",))
    assert (settings.limits.max_num_seqs, settings.limits.block_size) == (7, 32)
    assert settings.pull_bytes(3) == 3 * 32 * 131_072
    assert settings.pull_bytes(0) == 0


def test_without_a_length_the_model_and_the_cache_decide() -> None:
    document = {"spec": _plain(), "host": "127.0.0.1", "port": 0, "side_port": 0}
    document["spec"]["args"] = {}
    assert read_settings(document).max_model_len == 131_072
    document["spec"]["args"] = {"kv_cache_memory_bytes": 1000 * 131_072}
    assert read_settings(document).max_model_len == 62 * 16 - 1


def _plain(**changes: Any) -> dict[str, Any]:
    return dict(encode(spec(**changes)))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"args": {"enforce_eager": True}}, "not allowed for simulated"),
        ({"args": {"scheduling_policy": "priority"}}, "without effect on a simulated engine"),
        ({"args": {"speed": 0}}, "speed"),
        ({"args": {"max_model_len": 9_000_000}}, "does not fit the .* tokens of KV cache"),
        ({"gpu_kind": "h900"}, "GPU kind 'h900' is not known"),
        ({"gpu_kind": ""}, "GPU kind '' is not known"),
        ({"gpu_kind": "l4", "args": {"gpu_memory_utilization": 0.2}}, r"\d+\.\d GB more than 20% of its memory"),
        ({"model_config": {}}, "model_type"),
        ({"model_config": dict(LLAMA_8B) | {"kv_lora_rank": 512}}, "kv_lora_rank"),
        ({"tensor_parallel": 2}, "needs 2 GPUs and was given 1"),
        ({"tensor_parallel": 3, "ranks": (Rank("n1", ("a", "b", "c")),)}, "cannot be split over 3 GPUs"),
        ({"pipeline_parallel": 2}, "one rank for each of its 2 pipeline stages, this is rank 0 of 1"),
        ({"ranks": (Rank("n1", ("a",)), Rank("n2", ("b",)))}, "one rank for each of its 1 pipeline stages"),
        ({"pipeline_parallel": 2, "ranks": (Rank("n1", ("a",)), Rank("n2", ("b", "c")))}, "needs 1 GPUs and was given 2"),
        (
            {"pipeline_parallel": 33, "ranks": tuple(Rank("n1", (f"g{i}",)) for i in range(33))},
            "32 layers cannot be divided into 33 pipeline stages",
        ),
        ({"connector": "example"}, "choose nixl or none"),
        ({"kv_lease_s": 0.0}, "must be positive"),
        ({"env": {"LD_PRELOAD": "x"}}, "LD_PRELOAD"),
        ({"args": {"prefix_caching_hash_algo": "xxhash"}}, "one of sha256, sha256_cbor"),
        (
            {"args": {"enable_chunked_prefill": False, "max_num_batched_tokens": 64}},
            r"max_num_batched_tokens \(64\) must not be below max_model_len",
        ),
        ({"kv_events": {"endpoint": "tcp://8.8.8.8:5557"}}, "KV events: .* private address"),
        ({"kv_events": {"hwm": 5}}, "KV events: .*'endpoint' is missing"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecRefused, match=says):
        driver.launch(spec(**changes), 0, place(tmp_path))
    assert not (tmp_path / "spec.json").exists()


def test_two_stages_hold_a_model_that_one_cannot_and_know_their_links() -> None:
    ranks = (Rank("n1", ("a",)), Rank("n2", ("b",)))
    tight = {"gpu_kind": "l4", "args": {"max_model_len": 512, "gpu_memory_utilization": 0.7}}
    with pytest.raises(SpecRefused, match="GB more than 70% of its memory"):
        settings_of(spec(**tight), 0, "127.0.0.1", 1, 2)
    two = spec(**tight, ranks=ranks, pipeline_parallel=2, network_gbps=80.0)
    settings = settings_of(two, 0, "127.0.0.1", 1, 2)
    assert settings.pipeline is not None and settings.pipeline.links == (1e10,)
    assert settings.gpus == ("a",)
    with pytest.raises(SpecRefused, match="rank 1 was not told where rank 0 is"):
        settings_of(two, 1, "127.0.0.1", 1, 2)
    joined = settings_of(replace(two, leader="10.0.0.1:5000"), 1, "127.0.0.1", 1, 2)
    assert (joined.rank, joined.ranks, joined.gpus) == (1, 2, ("b",))


@pytest.mark.parametrize("document", [None, [], {}, {"spec": {}}, {"spec": 5, "host": "x"}])
def test_a_document_that_is_none_is_refused(document: Any) -> None:
    with pytest.raises(SpecRefused):
        read_settings(document)


@pytest.mark.parametrize("port", [-1, 70_000, "8000", None, True])
def test_a_bad_port_is_refused(port: Any) -> None:
    with pytest.raises(SpecRefused, match="two ports"):
        read_settings({"spec": _plain(), "host": "127.0.0.1", "port": port, "side_port": 0})


def test_kv_events_are_named_after_the_engine_and_listen_on_its_own_address_only(tmp_path: Path) -> None:
    events = {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "buffer_steps": 5, "hwm": 10}
    driver.launch(spec(kv_events=events), 0, place(tmp_path))
    settings = read_settings(json.loads((tmp_path / "spec.json").read_text()))
    assert settings.kv_events == EventsConfig("tcp://127.0.0.1:5557", True, "kv@e1", "tcp://127.0.0.1:5558", 5, 10)
    connecting = settings_of(spec(kv_events={"endpoint": "tcp://10.0.0.5:5557"}), 0, "10.0.0.6", 1, 2)
    assert connecting.kv_events == EventsConfig("tcp://10.0.0.5:5557", False, "kv@e1")
    assert settings_of(spec(), 0, "10.0.0.6", 1, 2).kv_events is None


@pytest.mark.parametrize("model", config_names())
def test_every_model_config_that_ships_can_be_simulated(model: str) -> None:
    """On eight GPUs, or as many as its heads allow."""
    config = read_config(model)
    for gpus in (8, 4, 2, 1):
        ranks = (Rank("n1", tuple(f"GPU-{number}" for number in range(gpus))),)
        wanted = spec(model_config=config, ranks=ranks, tensor_parallel=gpus, gpu_kind="b200", args={"max_model_len": 512})
        try:
            settings = settings_of(wanted, 0, "127.0.0.1", 0, 0)
        except SpecRefused as refusal:
            assert "cannot be split" in str(refusal)
            continue
        break
    assert settings.perf.step([(256, 0)], 3, 1000).seconds > 0
    assert settings.pull_bytes(2) > settings.pull_bytes(1) > 0
    assert settings.limits.num_blocks > 100
