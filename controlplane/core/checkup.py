"""What `manage.py doctor` thinks of what it has seen. Pure: figures in, findings with remedies out.

fail: something does not work or is not safe. warn: it works, and will not for long or not as well as it could.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]

CLOCK_WARN_S, CLOCK_FAIL_S = 0.5, 5.0
"""A wrong clock makes leases, drains and charts wrong; beyond five seconds facts of a third of their life look stale."""
DISK_WARN_SHARE, DISK_FAIL_BYTES = 0.10, 1 << 30
LEAST_POSTGRES, LEAST_VALKEY = 14, (7, 2)
SLOW_LINK_SHARE = 0.25
"""KV that moves at less than this share of the declared bandwidth goes another way than was meant."""
TCP_GBPS = 8.0
MEMORY_WARN_SHARE = 0.8
MOST_NAMED = 5


@dataclass(frozen=True)
class Finding:
    """`check` is one word of a closed list; `subject` which node, server or file; `remedy` is empty for ok alone."""

    check: str
    subject: str
    level: Level
    said: str
    remedy: str = ""


def exit_code(findings: Sequence[Finding]) -> int:
    """0: nothing fails; 1: something does."""
    return int(any(each.level == "fail" for each in findings))


def named(names: Collection[str]) -> str:
    """Some of them, for a sentence."""
    some = sorted(names)[:MOST_NAMED]
    return ", ".join(some) + (f" and {len(names) - len(some)} more" if len(names) > len(some) else "")


def clock(subject: str, ahead_s: float) -> Finding:
    """`ahead_s`: by how much its clock is ahead of Valkey's."""
    size = abs(ahead_s)
    said = f"{size:.3f} s {'ahead of' if ahead_s > 0 else 'behind'} Valkey's clock"
    if size < CLOCK_WARN_S:
        return Finding("clock", subject, "ok", said)
    remedy = f"run NTP or chrony on {subject} and on Valkey's machine"
    return Finding("clock", subject, "fail" if size >= CLOCK_FAIL_S else "warn", said, remedy)


def disk(subject: str, free_bytes: float, total_bytes: float | None = None) -> Finding:
    """`total_bytes` None: not known."""
    said = f"{free_bytes / 1e9:.1f} GB free" + (f" of {total_bytes / 1e9:.1f} GB" if total_bytes else "")
    remedy = "free space there: logs, old engine environments and models take the most"
    if free_bytes < DISK_FAIL_BYTES:
        return Finding("disk", subject, "fail", said, remedy)
    low = bool(total_bytes) and free_bytes < DISK_WARN_SHARE * (total_bytes or 0.0)
    return Finding("disk", subject, "warn", said, remedy) if low else Finding("disk", subject, "ok", said)


def postgres_version(version: int) -> Finding:
    """`version` as libpq gives it: 180003."""
    major = version // 10_000
    said = f"PostgreSQL {major}.{version % 10_000}"
    if major >= LEAST_POSTGRES:
        return Finding("version", "postgresql", "ok", said)
    return Finding("version", "postgresql", "fail", said, f"use PostgreSQL {LEAST_POSTGRES} or newer")


def valkey_version(text: str) -> Finding:
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
    if numbers >= LEAST_VALKEY:
        return Finding("version", "valkey", "ok", f"Valkey {text}")
    least = ".".join(map(str, LEAST_VALKEY))
    return Finding("version", "valkey", "fail", f"Valkey {text or 'of unknown version'}", f"use Valkey {least} or newer")


def packages(different: Mapping[str, tuple[str, str]]) -> Finding:
    """`different`: name -> (locked, installed or "")."""
    if not different:
        return Finding("version", "packages", "ok", "as in requirements.lock")
    some = named([f"{name} {have or 'missing'} instead of {locked}" for name, (locked, have) in different.items()])
    return Finding(
        "version", "packages", "warn", some, "install requirements.lock again: delete .venv, or build the image anew"
    )


def engine_versions(model: str, versions: Collection[str]) -> Finding:
    """Of the engines of one model that say what they are."""
    if len(set(versions)) <= 1:
        return Finding("version", f"model {model}", "ok", f"its engines are all {next(iter(versions), 'silent')}")
    remedy = f"make them alike (`manage.py roll_out {model}`): engines of two versions hand no KV to each other"
    return Finding("version", f"model {model}", "warn", f"its engines are {named(set(versions))}", remedy)


def migrations(missing: Collection[str], unknown: Collection[str]) -> Finding:
    """`missing`: of this program, not run. `unknown`: run, but not of this program."""
    if unknown:
        said = f"the database was migrated by a newer version: {named(unknown)}"
        return Finding("migrations", "database", "fail", said, "run that version here too")
    if missing:
        remedy = "run `manage.py migrate --database owner`"
        return Finding("migrations", "database", "fail", f"not run: {named(missing)}", remedy)
    return Finding("migrations", "database", "ok", "all are run")


def app_role(*, superuser: bool, owns: int, changes_audit: bool) -> Finding:
    """What the application's role may do that it should not. `owns`: tables that belong to it."""
    wrong = [
        said
        for said, is_so in (
            ("is a superuser", superuser),
            (f"owns {owns} tables", owns > 0),
            ("may change the audit", changes_audit),
        )
        if is_so
    ]
    if not wrong:
        return Finding("roles", "application", "ok", "may read and write rows, and nothing else")
    remedy = (
        "give TWINPOOL_DATABASE_URL a plain role of its own, and TWINPOOL_DATABASE_OWNER_URL the one that owns the tables"
    )
    return Finding("roles", "application", "fail", f"its role {' and '.join(wrong)}", remedy)


def broker_password(subject: str, *, asks: bool, local: bool) -> Finding:
    """`asks`: whether somebody without the password is refused. `local`: only this machine reaches it."""
    if asks:
        return Finding("broker", subject, "ok", "asks for a password")
    remedy = "set requirepass (or ACL users) and put the password in the URL"
    return Finding("broker", subject, "warn" if local else "fail", "serves anybody without a password", remedy)


def broker_memory(subject: str, policy: str, used_bytes: int, most_bytes: int) -> list[Finding]:
    """`policy` empty: it does not tell. `most_bytes` 0: no limit."""
    found = []
    if policy and policy != "noeviction":
        remedy = "set maxmemory-policy noeviction: queues and facts must not be forgotten"
        found.append(Finding("broker", subject, "fail", f"forgets what is in it when full ({policy})", remedy))
    if most_bytes and used_bytes > MEMORY_WARN_SHARE * most_bytes:
        said = f"uses {used_bytes / 1e6:.0f} of {most_bytes / 1e6:.0f} MB"
        found.append(Finding("broker", subject, "warn", said, "raise maxmemory, or give telemetry a server of its own"))
    return found or [Finding("broker", subject, "ok", f"uses {used_bytes / 1e6:.0f} MB and forgets nothing")]


def fact(subject: str, age_s: float | None, *, life_s: float) -> Finding:
    """How fresh a node's or router's fact is; None: there is none. It is written again every few seconds."""
    if age_s is None:
        return Finding(
            "facts", subject, "fail", "tells nothing", "start its agent, or take it out with `manage.py remove_node`"
        )
    said = f"told its state {age_s:.1f} s ago"
    if age_s <= life_s / 2:
        return Finding("facts", subject, "ok", said)
    return Finding("facts", subject, "warn", said, "look at its log: it is starved, or its way to Valkey is slow")


def table(router: str, has: tuple[int, int], newest: tuple[int, int]) -> Finding:
    """Whether a router works from the newest routing table (epoch, generation)."""
    if has == newest:
        return Finding("table", router, "ok", f"has the newest routing table {newest[0]}:{newest[1]}")
    said = f"has routing table {has[0]}:{has[1]}, the newest is {newest[0]}:{newest[1]}"
    return Finding(
        "table", router, "warn", said, "ask again in some seconds; if it stays, see its log and whether control runs"
    )


def link(subject: str, seen_gbps: float, declared_gbps: float, how: str) -> Finding:
    """`how` it was seen: in a few words."""
    said = f"{seen_gbps:.1f} Gb/s {how}, {declared_gbps:g} declared"
    if seen_gbps >= SLOW_LINK_SHARE * declared_gbps:
        return Finding("link", subject, "ok", said)
    remedy = "see that KV goes over the fast network (--address, UCX_NET_DEVICES), or declare less with --network-gbps"
    return Finding("link", subject, "warn", said, remedy)


def tcp_link(subject: str, gbps: float, connect_ms: float, declared_gbps: float) -> Finding:
    """One TCP stream between two agents. It reaches TCP_GBPS at most, so it says nothing about what is beyond."""
    expected = min(declared_gbps, TCP_GBPS)
    found = link(subject, gbps, expected, "over one TCP stream")
    said = f"{gbps:.1f} Gb/s over one TCP stream, {connect_ms:.1f} ms to connect; {declared_gbps:g} Gb/s declared"
    return Finding(found.check, subject, found.level, said, found.remedy)


def connectors(node: str, missing: Collection[str]) -> Finding:
    if not missing:
        return Finding("connectors", node, "ok", "what moves KV is installed")
    remedy = "run `manage.py engine-env`, or install it where TWINPOOL_VLLM_PYTHON points"
    return Finding("connectors", node, "fail", f"{named(missing)} cannot be imported", remedy)
