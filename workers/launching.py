"""Prepares the launch of one incarnation: its folder, its secrets, its place, its driver."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from controlplane.core.protocol import EngineSpec
from controlplane.core.signing import engine_key, mask
from workers import logs
from workers.config import NAME, AgentConfig
from workers.engines.base import Driver, Launch, Place, SpecRefused
from workers.records import EngineRecord

KEPT_INCARNATIONS = 3


def prepare(
    config: AgentConfig, drivers: Mapping[str, Driver], gpu_index: Mapping[str, int], record: EngineRecord, spec: EngineSpec
) -> Launch:
    """The process to start for a record whose incarnation and ports are chosen. Makes the incarnation's folder and removes
    what former ones left. Raises SpecRefused, OSError."""
    driver = drivers.get(spec.kind)
    if driver is None:
        raise SpecRefused(f"this agent runs no {spec.kind} engines")
    clean_up(config, record, KEPT_INCARNATIONS)
    folder, shared = folder_of(config, record), config.state / "shared"
    for each in (folder, shared, config.logs):
        each.mkdir(parents=True, exist_ok=True, mode=0o700)
    place = Place(
        host=config.address,
        port=record.port,
        side_port=record.side_port,
        folder=folder,
        shared=shared,
        incarnation=record.incarnation,
        engine_key=key_of(config, record),
        gpu_indices=tuple(gpu_index[uuid] for uuid in record.gpus),
        gang_key=_gang_key(config, record, spec),
        secrets={name: read_secret(config.state, name) for name in spec.env.values()},
    )
    return driver.launch(spec, record.rank, place)


def folder_of(config: AgentConfig, record: EngineRecord) -> Path:
    """The working folder of the record's incarnation."""
    return config.state / "engines" / f"{record.id}.{record.rank}" / str(record.incarnation)


def key_of(config: AgentConfig, record: EngineRecord) -> str:
    return engine_key(config.node_key.of_mark(record.key_mark), record.id, record.incarnation)


def _gang_key(config: AgentConfig, record: EngineRecord, spec: EngineSpec) -> bytes:
    if len(spec.ranks) == 1:
        return b""
    try:
        return mask(config.node_key.of_mark(record.key_mark), spec.id, bytes.fromhex(spec.gang_key))
    except ValueError as error:
        raise SpecRefused(f"{spec.id}: gang_key must be 32 bytes as hex") from error


def clean_up(config: AgentConfig, record: EngineRecord, keep_logs: int) -> None:
    """Removes the folders of all incarnations, and all but the newest logs. Only while no process of it runs."""
    shutil.rmtree(folder_of(config, record).parent, ignore_errors=True)
    logs.prune(config.logs, record.id, record.rank, keep=keep_logs, newest=record.incarnation)


def read_secret(state: Path, name: str) -> str:
    """The value of a node-side secret, a file in the agent's folder. Raises SpecRefused naming the remedy."""
    path = state / "secrets" / name
    if not NAME.fullmatch(name):
        raise SpecRefused(f"{name!r:.80} is not the name of a secret")
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecRefused(f"the secret {name} is not on this node: write its value to {path}") from error
