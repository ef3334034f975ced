"""How a node joins: what its token, its question, the answer and its user of the broker are. Pure.

A token's secret is derived from the fleet secret and a salt that its row keeps, so neither database nor backup holds one or
a hash of one. The question is signed with it, the answer is signed and what must be secret in it is masked: whoever reads
the broker or listens on the way learns no key. Passwords of users go over the wire as Valkey wants them: use TLS.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controlplane.core import names, signing

TOKEN_HOURS = 24.0
MAX_TOKEN_HOURS = 24.0 * 30
ANSWER_S = 600
"""So long after a token was used its holder may ask again: the answer may have been lost."""
ASKED_S = 60
"""How long a question lies on the broker before its agent asks again."""
MAX_QUESTION_BYTES = 4096

PREFIX = "twinpool."
"""Of every user of the broker that is ours to make and to remove."""

_CONNECTION = ("auth", "hello", "ping", "select", "client|setinfo", "quit", "info")
_JOIN = ("get", "set", "del")
# Celery's queue (kombu's transport over Redis), what is taken from it but not done yet, answers, the fact
_OF_A_NODE = """
    brpop rpop llen lpush rpush sadd srem smembers exists set get setex del zadd zrem zrange hset hget hdel
    multi exec discard watch unwatch evalsha script|load publish
"""
_NODE = tuple(_OF_A_NODE.split())
"""A script runs with the rights of the user whose it is."""


@dataclass(frozen=True)
class Question:
    """Agent to control, sealed with the token's secret. `claim`: chosen by the agent, so that a token that was used answers
    nobody else."""

    token: int
    claim: str
    version: int = 1


@dataclass(frozen=True)
class Answer:
    """Control to agent, sealed with the token's secret. `node_key` is masked (see `masked`), as hex."""

    claim: str
    refused: str = ""
    node_key: str = field(default="", repr=False)


@dataclass(frozen=True)
class BrokerUser:
    """One user as it should be; `sha256` of its password, as hex."""

    name: str
    sha256: str
    rules: tuple[str, ...]

    def words(self) -> tuple[str, ...]:
        """The arguments of ACL SETUSER."""
        return (self.name, "reset", "on", f"#{self.sha256}", *self.rules)


def token_secret(fleet_secret: bytes, token: int, salt: str) -> bytes:
    """Of one token; `salt` is 32 random bytes as hex."""
    return signing.join_secret(fleet_secret, token, salt)


def join_password(secret: bytes) -> str:
    """With which a token's holder signs in to the broker: it tells nothing of the secret itself."""
    return signing.purposed(secret, "broker").hex()


def node_password(secret: bytes, claim: str) -> str:
    """Of the user of the node that joined with this token and claim. Both sides know it: it is never sent but to sign in."""
    return signing.purposed(secret, f"node:{claim}").hex()


def digest(password: str) -> str:
    """As the broker and the node's row keep a password."""
    return hashlib.sha256(password.encode()).hexdigest()


def masked(secret: bytes, claim: str, node_key: bytes) -> bytes:
    """A node's key so that only who knows the secret can read it, and back again."""
    return signing.mask(secret, claim, node_key)


def question_key(token: int) -> str:
    return f"join:{token}:question"


def answer_key(token: int) -> str:
    return f"join:{token}:answer"


def join_user(token: int) -> str:
    return f"{PREFIX}join.{token}"


def node_user(node: str) -> str:
    return f"{PREFIX}node.{node}"


def user_of_token(token: int, secret: bytes) -> BrokerUser:
    """May ask to join with this token and read the answer, nothing else."""
    keys = (f"~{question_key(token)}", f"~{answer_key(token)}")
    return BrokerUser(join_user(token), digest(join_password(secret)), (*keys, *_allowed(_JOIN)))


def user_of_node(node: str, sha256: str) -> BrokerUser:
    """May take this node's commands, answer them, tell its fact and add telemetry. It can read nothing of another node, no
    routing table and no telemetry. A node's name has no dot, so no pattern here is the start of another node's."""
    queue = names.node_queue(node)
    keys = (
        f"~{queue}",
        f"~{queue}.*",
        f"~_kombu.binding.{queue}",
        f"~_kombu.binding_permanent.{queue}",
        f"~{names.RESULT_PREFIX}{queue}.*",
        f"~{names.fact_key('agent', node)}",
    )
    telemetry = f"(%W~{names.TELEMETRY_STREAM} +xadd +xlen)"
    channels = (f"&{names.FACT_CHANNEL}", f"&{names.RESULT_PREFIX}{queue}.*")
    return BrokerUser(node_user(node), sha256, (*keys, *channels, *_allowed(_NODE), telemetry))


def _allowed(commands: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"+{command}" for command in (*_CONNECTION, *commands))


def differences(
    wanted: Iterable[BrokerUser], present: Iterable[str], written: Mapping[str, BrokerUser]
) -> tuple[list[BrokerUser], list[str]]:
    """Users to set and names to remove. `present`: names the broker has; `written`: what this process has set before. Users
    that are not ours are left alone."""
    by_name = {user.name: user for user in wanted}
    there = set(present)
    to_set = [user for name, user in by_name.items() if name not in there or written.get(name) != user]
    return to_set, sorted(name for name in there if name.startswith(PREFIX) and name not in by_name)
