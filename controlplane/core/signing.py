"""Keys and signatures: what makes a document on the broker trustworthy (RFC 2104 HMAC-SHA256).

One fleet secret (32 random bytes in a 0600 file) stays with the control plane and its routers. Everything else is derived:
a node holds its own node key only, so a stolen node cannot sign for another, and write access to the broker is not code
on a node. Pure: secrets come in as bytes, nothing is read or logged here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any


class BadSignature(ValueError):
    """A document was not signed with the expected key, or was changed on its way."""


def _derive(key: bytes, purpose: str) -> bytes:
    return hmac.new(key, purpose.encode(), hashlib.sha256).digest()


def node_key(fleet_secret: bytes, node: str) -> bytes:
    """The key shared by control and one node: signs its commands and its facts."""
    return _derive(fleet_secret, f"node:{node}")


def table_key(fleet_secret: bytes) -> bytes:
    """The key that signs routing tables."""
    return _derive(fleet_secret, "table")


def router_key(fleet_secret: bytes) -> bytes:
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


def seal(key: bytes, document: Any) -> str:
    """`document` as a signed JSON envelope: {"body": "<json>", "sig": "<hex>"}."""
    body = json.dumps(document, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return json.dumps({"body": body, "sig": hmac.new(key, body.encode(), hashlib.sha256).hexdigest()})


def unseal(key: bytes, envelope: str | bytes) -> Any:
    """The document inside an envelope made by `seal`. Raises BadSignature for anything else."""
    try:
        outer = json.loads(envelope)
        body, sig = outer["body"], outer["sig"]
        expected = hmac.new(key, body.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected, sig):
            raise BadSignature("signature does not match")
        return json.loads(body)
    except BadSignature:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadSignature(f"not a signed envelope: {type(error).__name__}") from error
