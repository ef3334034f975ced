"""Roles, schema and fleet of a stack's database, before the processes that need them start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from controlplane.common.processes import how_ended
from controlplane.core import names
from controlplane.stack.errors import StackError
from controlplane.stack.output import last_error
from controlplane.stack.postgres import EmbeddedPostgres
from controlplane.stack.services import ROOT, Plan, django_environment

_TRIES = 3
"""The server may just have been killed and be starting again."""

_HIDDEN = frozenset(
    {
        *(names.ENV_DATABASE_URL, names.ENV_DATABASE_OWNER_URL, names.ENV_VALKEY_URL, names.ENV_TELEMETRY_URL),
        *(names.ENV_ADMIN_PASSWORD, names.ENV_JOIN_TOKEN, names.ENV_SMTP_URL),
    }
)


def base_environment() -> dict[str, str]:
    """What every process starts from: this one's environment without addresses and secrets of servers."""
    return {name: value for name, value in os.environ.items() if name not in _HIDDEN}


async def make_roles(postgres: EmbeddedPostgres) -> None:
    """Raises StackError if the server refuses."""
    for attempt in range(1, _TRIES + 1):
        try:
            await asyncio.to_thread(postgres.provision)
            return
        except psycopg.Error as error:
            if attempt == _TRIES:
                raise StackError(f"PostgreSQL refused to make the roles: {str(error).splitlines()[0]}") from error
            await asyncio.sleep(1.0)


class Prepared(NamedTuple):
    """`password`: the first administrator's if that was made now, else "". `to_be_served`: models that will be served once
    their engines run."""

    password: str
    to_be_served: tuple[str, ...]


async def prepare_database(plan: Plan, base: Mapping[str, str], fleet: str) -> Prepared:
    """Migrate, and write the fleet. The password travels by environment and is stored only as a hash. Raises StackError."""
    password = secrets.token_urlsafe(12)
    env = django_environment(plan, base) | {
        names.ENV_DATABASE_OWNER_URL: plan.endpoints.owner_url,
        names.ENV_ADMIN_PASSWORD: password,
    }
    log = plan.state.logs / "provision.log"
    for attempt in range(1, _TRIES + 1):
        code, printed = await _provision(fleet, env, log)
        if code == 0:
            told = _last_object(printed)
            return Prepared(password if told.get("admin_created") else "", tuple(told.get("to_be_served", ())))
        await asyncio.sleep(1.0 if attempt < _TRIES else 0.0)
    raise StackError(f"the database cannot be prepared ({how_ended(code)}): {last_error(log)}; see {log}")


async def _provision(fleet: str, env: Mapping[str, str], log: Path) -> tuple[int, bytes]:
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "controlplane.stack.provision", fleet),
            cwd=ROOT,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    try:
        printed, _ = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return process.returncode or 0, printed


def _last_object(printed: bytes) -> dict[str, Any]:
    for line in reversed(printed.decode(errors="replace").splitlines()):
        with contextlib.suppress(ValueError):
            if isinstance(found := json.loads(line), dict):
                return found
    return {}
