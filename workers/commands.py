"""Opens and judges the commands that reach an agent. Pure: the agent does what is decided here.

Whatever lies on the broker is hostile until its signature was checked with this node's key; a signed command is then held
to its shape, to this node and to the order of generations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from controlplane.core.codec import WrongShape, decode
from controlplane.core.lifecycle import SERVING
from controlplane.core.protocol import Command, EngineSpec
from controlplane.core.signing import BadSignature, Secret, unseal
from workers.config import NAME
from workers.records import EngineRecord

MAX_ENVELOPE_BYTES = 4 * 2**20
WITHOUT_ENGINE = frozenset({"list_engines", "link_listen", "link_send", "rekey"})


class CommandRefused(ValueError):
    """A command will not be obeyed; the message says why, without repeating untrusted text at length."""


@dataclass(frozen=True)
class Go:
    """Obey."""


@dataclass(frozen=True)
class Renumber:
    """What is asked for already runs: only note the new generation."""


@dataclass(frozen=True)
class Done:
    """It was done before, or there is nothing to do."""

    why: str


Verdict = Go | Renumber | Done


def open_command(envelope: object, node_key: Secret, node: str, verbs: Collection[str]) -> Command:
    """The command inside a signed envelope, if it is meant for `node` and is one of `verbs`. Raises CommandRefused."""
    if not isinstance(envelope, str) or len(envelope) > MAX_ENVELOPE_BYTES:
        raise CommandRefused("not a signed envelope")
    try:
        command = decode(Command, unseal(node_key, envelope))
    except BadSignature as error:
        raise CommandRefused(f"{error}: not made with this node's key") from error
    except WrongShape as error:
        raise CommandRefused(f"malformed command: {error}") from error
    if command.node != node:
        raise CommandRefused(f"it is for node {command.node!r:.80}, this is {node!r}")
    if command.verb not in verbs:
        raise CommandRefused(f"verb {command.verb!r} does not belong to this task")
    if command.verb not in WITHOUT_ENGINE:
        _check_engine(command)
    return command


def _check_engine(command: Command) -> None:
    engine = command.spec.id if command.spec else command.engine
    if not NAME.fullmatch(engine):
        raise CommandRefused(f"malformed command: {engine!r:.80} is no engine id")
    if command.spec and command.engine not in ("", engine):
        raise CommandRefused(f"malformed command: it names {command.engine!r:.80} but its spec is of {engine!r}")
    if command.rank < 0 or command.grace_s < 0:
        raise CommandRefused("malformed command: rank and grace_s may not be negative")
    if command.verb == "start":
        if command.spec is None:
            raise CommandRefused("malformed command: a start needs a spec")
        _check_spec(command, command.spec)


def _check_spec(command: Command, spec: EngineSpec) -> None:
    problems = [
        (command.spec_generation != spec.spec_generation, "command and spec carry different generations"),
        (spec.spec_generation < 1, "spec_generation starts at 1"),
        (spec.incarnation_floor < 0, "incarnation_floor may not be negative"),
        (not spec.model or len(spec.model) > 200, "model must have a name of at most 200 characters"),
        (not command.rank < len(spec.ranks), f"there is no rank {command.rank}"),
        (any(port and not 1024 <= port <= 65535 for port in (spec.port, spec.side_port)), "ports are 0 or 1024 to 65535"),
        (bool(spec.port) and spec.port == spec.side_port, "port and side_port are the same"),
    ]
    for wrong, problem in problems:
        if wrong:
            raise CommandRefused(f"malformed spec of {spec.id}: {problem}")
    place = spec.ranks[command.rank]
    if place.node != command.node:
        raise CommandRefused(f"malformed spec of {spec.id}: rank {command.rank} belongs to node {place.node!r:.80}")
    if not place.gpus or len(set(place.gpus)) != len(place.gpus):
        raise CommandRefused(f"malformed spec of {spec.id}: rank {command.rank} needs one or more different GPUs")


def judge_start(record: EngineRecord, spec: EngineSpec) -> Verdict:
    """What a start means beside what is known of the engine (generation 0: nothing). Raises CommandRefused."""
    if spec.spec_generation > record.spec_generation:
        return _judge_newer(record, spec)
    _refuse_stale(record, spec.spec_generation)
    return Done(f"generation {spec.spec_generation} was started before (now {record.state})")


def _judge_newer(record: EngineRecord, spec: EngineSpec) -> Verdict:
    if not record.live:
        return Go()
    if record.state == "stopping":
        raise CommandRefused(f"{record.id} still stops generation {record.spec_generation}: send it again later")
    if record.spec and same_engine(record.spec, spec):
        return Renumber()
    raise CommandRefused(f"{record.id} still runs another spec (generation {record.spec_generation}): stop it first")


def same_engine(running: EngineSpec, wanted: EngineSpec) -> bool:
    """Whether two specs differ in nothing but their numbering."""
    numbered = replace(wanted, spec_generation=running.spec_generation, incarnation_floor=running.incarnation_floor)
    return running == replace(numbered, leader=running.leader)  # a rank that runs has joined already


def judge_stop(record: EngineRecord, generation: int) -> Verdict:
    """Raises CommandRefused for a stale one."""
    _refuse_stale(record, generation)
    if record.state == "stopped" and generation == record.spec_generation:
        return Done("it has stopped")
    return Go()


def judge_drain(record: EngineRecord, command: Command) -> Verdict:
    """Drain and undrain. Raises CommandRefused for a stale one and for an engine that does not serve."""
    _refuse_stale(record, command.spec_generation)
    if command.issued_at <= record.drain_ordered_at:
        return Done("a newer drain or undrain was obeyed before")
    if record.state not in SERVING:
        raise CommandRefused(f"{record.id} is {record.state}, not serving")
    return Go()


def refuse_gpus(gpus: Collection[str], known: Collection[str], held: Mapping[str, str]) -> str:
    """Why an engine cannot have these GPUs (`held`: uuid -> engine that has it); empty if it can."""
    for uuid in gpus:
        if uuid not in known:
            return f"this node has no GPU {uuid!r:.80}"
        if uuid in held:
            return f"GPU {uuid} is held by engine {held[uuid]}"
    return ""


def _refuse_stale(record: EngineRecord, generation: int) -> None:
    if generation < record.spec_generation:
        raise CommandRefused(f"stale: generation {generation} of {record.id}, {record.spec_generation} was seen")
