"""Keys and signatures: what makes a document on the broker trustworthy (RFC 2104 HMAC-SHA256).

One fleet secret (32 random bytes in a 0600 file) stays with the control plane and its routers. Everything else is derived:
a node holds its own node key only, so a stolen node cannot sign for another, and write access to the broker is not code
on a node. Pure: secrets come in as bytes, nothing is read or logged here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

INCARNATIONS = 1_000_000
"""Of one generation of the fleet secret: starts of an engine are numbered on from a multiple of it."""
MARK_CHARS = 16


class BadSignature(ValueError):
    """A document was not signed with the expected key, or was changed on its way."""


class Keys(Protocol):
    """A key that is being changed for another: one signs, several are believed. May change at any time."""

    @property
    def present(self) -> bytes:
        """What is signed with."""

    @property
    def newest(self) -> bytes:
        """What will be signed with, or is."""

    @property
    def accepted(self) -> Sequence[bytes]:
        """What is believed."""


class FleetKeys(Keys, Protocol):
    """The fleet secret while it is being changed."""

    @property
    def generation(self) -> int:
        """Of the present one."""

    def of_incarnation(self, incarnation: int) -> bytes:
        """The secret from which this start of an engine has its key."""


Secret = bytes | Keys
FleetSecret = bytes | FleetKeys
S = TypeVar("S", bytes, Secret)


@dataclass(frozen=True)
class Derived:
    """What follows from keys, for one purpose, as they are at each moment."""

    of: Keys = field(repr=False)
    purpose: str

    @property
    def present(self) -> bytes:
        return _of_bytes(self.of.present, self.purpose)

    @property
    def newest(self) -> bytes:
        return _of_bytes(self.of.newest, self.purpose)

    @property
    def accepted(self) -> Sequence[bytes]:
        return [_of_bytes(key, self.purpose) for key in self.of.accepted]


def _of_bytes(key: bytes, purpose: str) -> bytes:
    return hmac.new(key, purpose.encode(), hashlib.sha256).digest()


def _derive(key: S, purpose: str) -> S:
    return _of_bytes(key, purpose) if isinstance(key, bytes) else Derived(key, purpose)


def present(key: Secret) -> bytes:
    return key if isinstance(key, bytes) else key.present


def newest(key: Secret) -> bytes:
    """Whoever signs with it tells that it has it."""
    return key if isinstance(key, bytes) else key.newest


def accepted(key: Secret) -> Sequence[bytes]:
    return (key,) if isinstance(key, bytes) else key.accepted


def mark_of(key: bytes) -> str:
    """What a key is called where it must not be written. Tells nothing of it."""
    return _of_bytes(key, "mark").hex()[:MARK_CHARS]


def generation_of(incarnation: int) -> int:
    """Of the fleet secret from which this start of an engine has its key."""
    return incarnation // INCARNATIONS


def first_incarnation(generation: int) -> int:
    """All starts from it on, up to the next one's, have keys of this generation."""
    return generation * INCARNATIONS


def node_key(fleet_secret: S, node: str) -> S:
    """The key shared by control and one node: signs its commands and its facts."""
    return _derive(fleet_secret, f"node:{node}")


def table_key(fleet_secret: S) -> S:
    """The key that signs routing tables."""
    return _derive(fleet_secret, "table")


def router_key(fleet_secret: S) -> S:
    """The key that signs routers' facts."""
    return _derive(fleet_secret, "router")


def engine_key(key_of_node: bytes, engine_id: str, incarnation: int) -> str:
    """The bearer token of one start of an engine, as hex. Router and agent derive it; it is never sent or stored."""
    return _derive(key_of_node, f"engine:{engine_id}:{incarnation}").hex()


def webhook_key(fleet_secret: bytes, channel: int) -> bytes:
    """What signs the messages to one channel of alerts; its receiver is told it once."""
    return _derive(fleet_secret, f"webhook:{channel}")


def gang_key(fleet_secret: bytes, engine_id: str) -> bytes:
    """What the processes of one engine on several nodes prove to each other that they belong together."""
    return _derive(fleet_secret, f"gang:{engine_id}")


def join_secret(fleet_secret: bytes, token: int, salt: str) -> bytes:
    """What a join token proves itself with."""
    return _derive(fleet_secret, f"join:{token}:{salt}")


def purposed(secret: bytes, purpose: str) -> bytes:
    """32 bytes that follow from a secret and tell nothing of it, for one purpose."""
    return _derive(secret, f"purpose:{purpose}")


def mask(key_of_node: bytes, engine_id: str, secret: bytes) -> bytes:
    """A 32-byte secret of this engine so that only its node can read it, and back again (XOR with a pad that is the node's
    own and never covers another secret)."""
    pad = _derive(key_of_node, f"mask:{engine_id}")
    return bytes(one ^ two for one, two in zip(secret, pad, strict=True))


def seal(key: Secret, document: Any) -> str:
    """`document` as a signed JSON envelope: {"body": "<json>", "sig": "<hex>"}."""
    body = json.dumps(document, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return json.dumps({"body": body, "sig": hmac.new(present(key), body.encode(), hashlib.sha256).hexdigest()})


def unseal(key: Secret, envelope: str | bytes) -> Any:
    """The document inside an envelope made by `seal`. Raises BadSignature for anything else."""
    return opened(key, envelope)[0]


def opened(key: Secret, envelope: str | bytes) -> tuple[Any, bytes]:
    """The document inside an envelope, and which of the keys it was sealed with. Raises BadSignature."""
    try:
        outer = json.loads(envelope)
        body, sig = outer["body"], outer["sig"]
        for each in accepted(key):
            if hmac.compare_digest(hmac.new(each, body.encode(), hashlib.sha256).hexdigest(), sig):
                return json.loads(body), each
        raise BadSignature("signature does not match")
    except BadSignature:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadSignature(f"not a signed envelope: {type(error).__name__}") from error
