"""The agent's half of joining: asks with its token over the broker and keeps what it is answered."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Callable

import redis
from redis.exceptions import AuthenticationError, NoPermissionError

from controlplane.common.files import write_private
from controlplane.common.jointoken import Joined, JoinToken, with_user
from controlplane.common.valkey import UNREACHABLE, connect_sync, describe
from controlplane.core import joining
from controlplane.core.codec import WrongShape, decode, encode
from controlplane.core.joining import Answer, Question
from controlplane.core.signing import BadSignature, seal, unseal
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder, read_json

PATIENCE_S = 600.0
PAUSE_S = 0.5
AGAIN_S = 10.0
UNKNOWN_AFTER_S = 30.0
"""Control makes a token's user within seconds; a broker that does not know it for so long will not."""


def join(state: StateFolder, token: JoinToken, clock: Callable[[], float] = time.monotonic) -> Joined:
    """What this machine is as a node, asked for with a new token; kept in the state folder. Waits for control while it is
    away. The claim is on disk before it is told, so that an agent that was killed asks with the same one.

    Raises StackError.
    """
    claim = _claim(state, token.digest())
    secret = bytes.fromhex(token.secret)
    url = with_user(token.valkey_url, joining.join_user(token.id), joining.join_password(secret))
    answer = _ask(url, token.id, secret, claim, clock)
    if answer.refused:
        raise StackError(answer.refused)
    user, password = joining.node_user(token.node), joining.node_password(secret, claim)
    joined = Joined(
        node=token.node,
        node_key=joining.masked(secret, claim, bytes.fromhex(answer.node_key)).hex(),
        valkey_url=with_user(token.valkey_url, user, password),
        telemetry_url=with_user(token.telemetry_url, user, password) if token.telemetry_url else "",
        token=token.digest(),
    )
    write_private(state.join_file, json.dumps(encode(joined)).encode())
    return joined


def _claim(state: StateFolder, token: str) -> str:
    """This machine's claim to a token: the one it asked with before, else a new one."""
    file = state.secrets / "joining.json"
    kept = read_json(file)
    if kept.get("token") == token and isinstance(claim := kept.get("claim"), str) and claim.isalnum():
        return claim
    claim = secrets.token_hex(16)
    write_private(file, json.dumps({"token": token, "claim": claim}).encode())
    return claim


def _ask(url: str, token: int, secret: bytes, claim: str, clock: Callable[[], float]) -> Answer:
    began, asked_at, said = clock(), float("-inf"), ""
    while clock() - began < PATIENCE_S:
        try:
            with connect_sync(url) as valkey:
                if (answer := _answered(valkey, token, secret, claim)) is not None:
                    return answer
                if clock() - asked_at >= AGAIN_S:
                    asked_at = clock()
                    question = seal(secret, encode(Question(token, claim)))
                    valkey.set(joining.question_key(token), question, ex=joining.ASKED_S)
            problem = "waiting for the control plane's answer"
        except (AuthenticationError, NoPermissionError):
            if clock() - began > UNKNOWN_AFTER_S:
                raise StackError(
                    "the broker does not know this token: it was used, revoked or has expired, or no control plane runs; "
                    "make a new one with `manage.py join-token NODE`"
                ) from None
            problem = "the broker does not know this token yet"
        except UNREACHABLE as error:
            problem = f"Valkey cannot be reached ({describe(error)})"
        if problem != said:
            print(f"twinpool: {problem}", file=sys.stderr, flush=True)
            said = problem
        time.sleep(PAUSE_S)
    raise StackError(f"nobody answered for {PATIENCE_S:.0f} s ({said}): look whether a control plane runs, then start again")


def _answered(valkey: redis.Redis, token: int, secret: bytes, claim: str) -> Answer | None:
    """The answer to this claim, if it is there; what others may have put there is none."""
    raw = valkey.get(joining.answer_key(token))
    try:
        answer = decode(Answer, unseal(secret, raw)) if raw is not None else None
    except (BadSignature, WrongShape):
        return None
    return answer if answer is not None and answer.claim == claim else None
