"""An inference key as somebody asks for it, and everything that can be wrong with it. Reads nothing, writes nothing."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
ALL_MODELS = "*"
MAX_LIMIT = 1_000_000_000
MAX_PRIORITY = 1_000_000
MAX_DAYS = 3650
SECRET_BYTES = 32


@dataclass(frozen=True)
class NewKey:
    """`model_names`: names or aliases of models, or `*`. Limits are the key's; None: no limit."""

    name: str
    team: str
    model_names: tuple[str, ...] = (ALL_MODELS,)
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_priority: int = 0
    """A request's `priority` may be as low as minus this."""
    days: int | None = None
    """It expires after so many; None: never."""


def new_secret() -> str:
    """A key as clients send it. Only `digest` of it is ever stored."""
    return f"sk-{secrets.token_urlsafe(SECRET_BYTES)}"


def digest(secret: str) -> str:
    """What routers compare a client's key with."""
    return hashlib.sha256(secret.encode()).hexdigest()


def problems(new: NewKey, served: Collection[str]) -> Iterator[str]:
    """Every problem, each with its remedy. `served`: names and aliases of all models."""
    for what, name in (("key name", new.name), ("team", new.team)):
        if not NAME.fullmatch(name):
            yield f"{what} {name!r:.80}: letters, digits, '.', '_' and '-', at most 63, a letter or digit first"
    if not new.model_names:
        yield f"models: name at least one, or {ALL_MODELS} for all"
    unknown = sorted(set(new.model_names) - {ALL_MODELS, *served})
    if unknown:
        known = ", ".join(sorted(served)[:20])
        yield from (f"there is no model {name!r:.140}; models: {known or 'none'}" for name in unknown)
    for what, limit in (("requests per minute", new.requests_per_minute), ("tokens per minute", new.tokens_per_minute)):
        if limit is not None and not 1 <= limit <= MAX_LIMIT:
            yield f"{what}: 1 to {MAX_LIMIT}; leave it out for no limit"
    if not 0 <= new.max_priority <= MAX_PRIORITY:
        yield f"max priority: 0 to {MAX_PRIORITY}"
    if new.days is not None and not 1 <= new.days <= MAX_DAYS:
        yield f"days: 1 to {MAX_DAYS}; leave it out for a key that does not expire"
