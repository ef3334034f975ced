"""What a machine is given to join with, and what it is as a node once it has joined."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass, field

from controlplane.common.valkey import usable
from controlplane.core import names
from controlplane.core.codec import WrongShape, decode, encode
from controlplane.stack.errors import StackError


@dataclass(frozen=True)
class JoinToken:
    """Good for one machine, once. `secret` is hex; the URLs hold no password."""

    id: int
    node: str
    secret: str = field(repr=False)
    valkey_url: str
    telemetry_url: str = ""

    def __post_init__(self) -> None:
        names.check_node_name(self.node)
        if len(bytes.fromhex(self.secret)) != 32 or not usable(self.valkey_url):
            raise ValueError("secret must be 32 bytes, and valkey_url one of a Valkey")

    def text(self) -> str:
        return base64.urlsafe_b64encode(json.dumps(encode(self)).encode()).decode()

    def digest(self) -> str:
        """Tells whether two are the same, and nothing else."""
        return hashlib.sha256(self.secret.encode()).hexdigest()


@dataclass(frozen=True)
class Joined:
    """What a node keeps: its key (hex), and URLs with the password of its own user. `token`: digest of the one it
    joined with; empty: one of an earlier version, which held all this itself."""

    node: str
    node_key: str = field(repr=False)
    valkey_url: str = field(repr=False)
    telemetry_url: str = field(default="", repr=False)
    token: str = ""

    def __post_init__(self) -> None:
        names.check_node_name(self.node)
        if len(bytes.fromhex(self.node_key)) != 32:
            raise ValueError("node_key must be 32 bytes")


def read_token(text: str) -> JoinToken | Joined:
    """A token as it was printed; one of an earlier version says all at once. Raises StackError for anything else."""
    try:
        document = json.loads(base64.urlsafe_b64decode(text.strip().encode()))
        if isinstance(document, dict) and "node_key" in document:
            return decode(Joined, document)
        return decode(JoinToken, document)
    except (binascii.Error, ValueError, RecursionError, WrongShape):
        raise StackError("this is no join token: copy the whole line that `manage.py join-token NODE` printed") from None
