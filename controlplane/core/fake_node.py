"""A node agent without processes, for tests and rehearsals of the control plane. Pure: time comes in, facts come out.

It obeys commands as `workers.agent` does (idempotent by generation, restarts nothing by itself) and its engines become
ready after `start_s`. Trouble is caused by calling `crash`, by `broken` (every start fails) or by not publishing `fact`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from controlplane.core.lifecycle import OVER, SERVING
from controlplane.core.protocol import AgentFact, Command, EngineFact, GpuFact


@dataclass
class FakeNode:
    name: str
    gpu_count: int = 8
    gpu_kind: str = "h100-sxm"
    start_s: float = 1.0
    broken: bool = False
    boot: str = "boot-1"
    labels: dict[str, str] = field(default_factory=dict)
    engines: dict[tuple[str, int], EngineFact] = field(default_factory=dict)
    starts: int = 0
    """How many processes were started in all."""
    _seq: int = 0

    @property
    def gpus(self) -> tuple[GpuFact, ...]:
        return tuple(
            GpuFact(f"{self.name}-gpu-{index}", index, self.gpu_kind, 80 << 30, simulated=True)
            for index in range(self.gpu_count)
        )

    def obey(self, command: Command, now: float) -> None:
        """Do what a start, stop, drain or undrain asks, once."""
        key = (command.spec.id if command.spec else command.engine, command.rank)
        known = self.engines.get(key)
        if known and command.spec_generation < known.spec_generation:
            return
        if command.verb == "start" and (known is None or command.spec_generation > known.spec_generation):
            self._start(key, command, known, now)
        elif command.verb == "stop":
            self._stop(key, command, known)
        elif known and command.verb in ("drain", "undrain") and known.state in SERVING:
            self.engines[key] = replace(known, state="draining" if command.verb == "drain" else "ready")

    def _start(self, key: tuple[str, int], command: Command, known: EngineFact | None, now: float) -> None:
        assert command.spec
        if known and known.state not in OVER:
            self.engines[key] = replace(known, spec_generation=command.spec_generation)
            return
        gpus = command.spec.ranks[key[1]].gpus
        held = {gpu for id, fact in self.engines.items() if id != key and fact.state not in OVER for gpu in fact.gpus}
        refused = sorted(held & set(gpus))
        self.starts += not refused
        number = max(known.incarnation if known else 0, command.spec.incarnation_floor) + 1
        self.engines[key] = EngineFact(
            id=key[0],
            model=command.spec.model,
            rank=key[1],
            incarnation=number,
            spec_generation=command.spec_generation,
            state="failed" if refused else "starting",
            kind=command.spec.kind,
            reason=f"GPU {refused[0]} is held by another engine" if refused else "",
            pid=1000 + self.starts,
            side_port=5000 + self.starts,
            started_at=now,
            gpus=gpus,
        )

    def _stop(self, key: tuple[str, int], command: Command, known: EngineFact | None) -> None:
        known = known or EngineFact(key[0], "", key[1], 0, command.spec_generation, "stopped", "simulated")
        self.engines[key] = replace(known, state="stopped", spec_generation=command.spec_generation)

    def crash(self, engine: str, reason: str = "killed by signal 9") -> None:
        for key, fact in self.engines.items():
            if key[0] == engine and fact.state not in OVER:
                self.engines[key] = replace(fact, state="failed", reason=reason, exit_code=-9, log_tail="last words")

    def work(self, engine: str, running: int) -> None:
        """Let an engine seem busy, or idle again."""
        for key, fact in self.engines.items():
            if key[0] == engine:
                self.engines[key] = replace(fact, running=running, quiet_since=None)

    def step(self, now: float) -> None:
        """Let time pass: engines start, fail if broken, and are scraped."""
        for key, fact in self.engines.items():
            if fact.state == "starting" and self.broken:
                self.engines[key] = replace(fact, state="failed", reason="it cannot start", exit_code=1, log_tail="no luck")
            elif fact.state == "starting" and now - fact.started_at >= self.start_s:
                url = f"http://127.0.0.1:{9000 + fact.pid % 1000}"
                self.engines[key] = replace(fact, state="ready", ready_at=now, url=url, compat="fake")
        for key, fact in self.engines.items():
            if fact.state in SERVING:
                quiet = None if fact.running or fact.waiting else (fact.quiet_since or now)
                self.engines[key] = replace(fact, scraped_at=now, quiet_since=quiet)

    def fact(self, now: float) -> AgentFact:
        self._seq += 1
        return AgentFact(
            node=self.name,
            boot=self.boot,
            seq=self._seq,
            at=now,
            address="127.0.0.1",
            gpus=self.gpus,
            engines=tuple(self.engines.values()),
            labels=dict(self.labels),
        )
