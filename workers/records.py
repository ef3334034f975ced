"""What an agent must remember about its engines over any death of its own: one small file per engine and rank.

A file is replaced whole, so a reader sees the old record or the new one. No secret is in it: keys are derived again, and a
spec names secrets only.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.common.files import write_private
from controlplane.core.codec import decode, encode
from controlplane.core.protocol import EngineSpec
from workers.config import NAME

log = logging.getLogger(__name__)

LIVE = frozenset({"starting", "verifying", "ready", "draining", "stopping"})
"""States in which a process of the engine may exist."""


@dataclass(frozen=True)
class EngineRecord:
    """One rank of one engine. `spec` is None where only a stop was ever seen: the record then keeps late starts out.

    `pid` 0: no process is known yet (the agent may have died between making it and noting it). Times are Unix seconds.
    """

    id: str
    rank: int
    spec_generation: int
    spec: EngineSpec | None = None
    incarnation: int = 0
    state: str = "planned"
    reason: str = ""
    port: int = 0
    side_port: int = 0
    pid: int = 0
    process: str = ""
    """Identity of the process behind `pid` (workers.processes.identity)."""
    started_at: float = 0.0
    ready_at: float | None = None
    ended_at: float | None = None
    start_timeout_s: float = 600.0
    stop_deadline: float | None = None
    drain_ordered_at: float = 0.0
    """`issued_at` of the newest drain or undrain obeyed: an older one that comes late is ignored."""
    exit_code: int | None = None
    key_mark: str = ""
    """Of the node's key from which this start has its own (core.signing.mark_of)."""
    version: str = ""
    compat: str = ""
    log_tail: str = field(default="", repr=False)

    @property
    def key(self) -> tuple[str, int]:
        return (self.id, self.rank)

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def gpus(self) -> tuple[str, ...]:
        return self.spec.ranks[self.rank].gpus if self.spec else ()

    @property
    def log_name(self) -> str:
        return f"{self.id}.{self.rank}.{self.incarnation}.log"


class RecordStore:
    """The records of one agent, in one folder. Only one process may write it (workers.main locks the state folder)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self) -> list[EngineRecord]:
        """All readable records. A damaged file is moved aside and said so: its engine is found again by its marker."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        records = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                records.append(decode(EngineRecord, json.loads(path.read_bytes())))
            except (ValueError, RecursionError) as error:  # no JSON, or of a wrong shape
                log.error("engine record %s cannot be read and is set aside: %s", path.name, error)
                path.rename(path.with_suffix(".damaged"))
        return records

    def save(self, record: EngineRecord) -> None:
        """`record` on disk, durable when this returns. Raises OSError."""
        write_private(self._path(record.id, record.rank), json.dumps(encode(record)).encode())

    def forget(self, record: EngineRecord) -> None:
        self._path(record.id, record.rank).unlink(missing_ok=True)

    def _path(self, engine: str, rank: int) -> Path:
        if not NAME.fullmatch(engine):
            raise ValueError(f"not an engine id: {engine!r:.80}")
        return self.folder / f"{engine}.{rank:d}.json"
