"""Builds the process of a vLLM engine from a spec: typed fields and allow-listed arguments in, argv and environment out.

Facts about vLLM 0.32 behind the choices: docs of the project, "What vLLM really does". Only builds: nothing is started,
and nothing outside `place.folder` is touched (the model's folder is only looked at).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from controlplane.core.engine_args import ArgumentRefused, clean_args, clean_env
from controlplane.core.names import ENV_ENGINE_KEY
from controlplane.core.protocol import EngineSpec
from workers.engines.base import Launch, Place, SpecRefused
from workers.engines.kvevents import kv_events_config
from workers.engines.vllm.connector import transfer_options
from workers.engines.vllm.environment import NoEngineEnvironment, interpreter

CPU_SITE = Path(__file__).with_name("cpu_site")
PLUGINS = Path(__file__).with_name("plugins")
CPU_KV_BYTES = 256 << 20
SHUTDOWN_TIMEOUT_S = 60
"""How long a stopping engine may finish what runs; the agent kills it earlier when the stop's grace is shorter."""
START_TIMEOUT_S = {"cpu": 300.0, "gpu": 1800.0}

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")


class VllmDriver:
    """See workers.engines.base.Driver."""

    kind = "vllm"

    def launch(self, spec: EngineSpec, rank: int, place: Place) -> Launch:
        """The OpenAI server of vLLM for this spec. Raises SpecRefused for what this node or this driver cannot run."""
        _refuse_impossible(spec, rank, place)
        try:
            args = clean_args("vllm", spec.args)
            secrets = _secrets(spec, place)
            python = interpreter()
        except (ArgumentRefused, NoEngineEnvironment) as problem:
            raise SpecRefused(str(problem)) from problem
        on_cpu = is_cpu(spec, place)
        options = _options(spec, place, args, on_cpu)
        argv = (str(python), "-m", "vllm.entrypoints.openai.api_server", *map(_option, options.items()))
        env = {**_environment(spec, place, args, on_cpu), **secrets}
        return Launch(argv=argv, env=env, start_timeout_s=START_TIMEOUT_S["cpu" if on_cpu else "gpu"])


driver = VllmDriver()


def is_cpu(spec: EngineSpec, place: Place) -> bool:
    """Whether this rank runs on processor cores: its accelerators are the node's `cpu` slots, or it has none."""
    return spec.gpu_kind == "cpu" or not place.gpu_indices


def _refuse_impossible(spec: EngineSpec, rank: int, place: Place) -> None:
    if len(spec.ranks) != 1 or rank != 0:
        raise SpecRefused(
            f"{spec.id} spans {len(spec.ranks)} nodes, which the vllm driver cannot start: give the pool a tensor_parallel "
            "that fits one node"
        )
    needed = spec.tensor_parallel * spec.pipeline_parallel
    if len(spec.ranks[0].gpus) != needed:
        raise SpecRefused(
            f"{spec.id} needs {needed} accelerators (tensor_parallel {spec.tensor_parallel} x pipeline_parallel "
            f"{spec.pipeline_parallel}) and was given {len(spec.ranks[0].gpus)}"
        )
    if spec.gpu_kind not in ("", "cpu") and len(place.gpu_indices) != needed:
        raise SpecRefused(f"{spec.id}: this node does not have all of the GPUs {', '.join(spec.ranks[0].gpus)}")
    if spec.source.startswith("/"):
        if not (Path(spec.source) / "config.json").is_file():
            raise SpecRefused(f"{spec.source} on this node is no model folder (no config.json): copy the model there first")
    elif not _HUB_ID.fullmatch(spec.source):
        raise SpecRefused(f"model source {spec.source!r:.80} is neither an absolute path nor a hub id such as org/name")


def _secrets(spec: EngineSpec, place: Place) -> dict[str, str]:
    values = {}
    for variable, name in clean_env(spec.env).items():
        if name not in place.secrets:
            raise SpecRefused(
                f"{spec.id} wants the secret {name!r} for {variable}, and this node has no secret of that name"
            )
        values[variable] = place.secrets[name]
    return values


Value = bool | int | float | str


def _options(spec: EngineSpec, place: Place, args: Mapping[str, Value], on_cpu: bool) -> dict[str, Value]:
    """Option name -> value. Ours come last, so that nothing given can replace them."""
    defaults: dict[str, Value] = {"enforce_eager": True, "kv_cache_memory_bytes": CPU_KV_BYTES} if on_cpu else {}
    ours: dict[str, Value] = {
        "model": spec.source,
        "served_model_name": spec.model,
        "host": place.host,
        "port": place.port,
        "tensor_parallel_size": spec.tensor_parallel,
        "pipeline_parallel_size": spec.pipeline_parallel,
        "shutdown_timeout": SHUTDOWN_TIMEOUT_S,
        "trust_remote_code": False,
        "enable_prompt_tokens_details": True,  # clients and the router's records want to know what was cached
        # Prompts and answers are never logged; scrapes every second would drown the rest.
        "enable_log_requests": False,
        "enable_log_outputs": False,
        "disable_access_log_for_endpoints": "/health,/metrics",
    }
    return {**defaults, **args, **transfer_options(spec, place, args, on_cpu), **_events(spec), **ours}


def _events(spec: EngineSpec) -> dict[str, Value]:
    config = kv_events_config(spec)
    if "*" in f"{config.get('endpoint', '')}{config.get('replay_endpoint', '')}":
        raise SpecRefused(
            f"{spec.id}: with * in the address of its KV events vLLM listens on every address of the node, and prompts can "
            "be read from them: name the private address that collects them"
        )
    return {"kv_events_config": json.dumps(config, sort_keys=True)} if config else {}


def _option(item: tuple[str, Value]) -> str:
    """`--name=value` in one word: a value that starts with a dash can never become an option of its own."""
    name, value = item[0].replace("_", "-"), item[1]
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


def _environment(spec: EngineSpec, place: Place, args: Mapping[str, Value], on_cpu: bool) -> dict[str, str]:
    env = {
        ENV_ENGINE_KEY: place.engine_key,
        "VLLM_HOST_IP": place.host,
        "VLLM_NIXL_SIDE_CHANNEL_HOST": place.host,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(place.side_port),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",
    }
    folders = [PLUGINS] * (spec.connector == "example") + [CPU_SITE] * on_cpu
    if folders:
        env["PYTHONPATH"] = ":".join(map(str, folders))
    if spec.source.startswith("/"):
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if on_cpu:
        env |= _cpu_environment(place, eager=args.get("enforce_eager", True) is True)
    else:
        env |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, place.gpu_indices))}
    return env


def _cpu_environment(place: Place, *, eager: bool) -> dict[str, str]:
    env = {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # The worker inside the engine core: as a process of its own it spins on sched_yield between steps, which on a
        # busy small machine costs seconds per answer.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    if eager:
        # A few functions (logprobs) are compiled even so: seconds for the first such request, and the engine's death on a
        # machine without a C++ compiler.
        env["TORCHDYNAMO_DISABLE"] = "1"
    if place.host.startswith("127."):
        env["UCX_NET_DEVICES"] = "lo"  # else UCX listens on every address of the machine
    return env
