"""Live topics: their names, and the channel-layer group in which a change of one is announced."""

from __future__ import annotations

import hashlib
import re

from controlplane.core import names

FLEET = "fleet"
NODES = "nodes"
ALERTS = "alerts"
PROPOSALS = "proposals"
ALWAYS = frozenset({FLEET, NODES, ALERTS, PROPOSALS})
"""Topics that are there once ingest has run: whoever asks for one earlier just waits."""
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,80}")
_TOPIC = re.compile(r"fleet|nodes|alerts|proposals|model:[^\x00-\x1f\x7f]{1,128}|operation:[1-9][0-9]{0,17}")


def model_topic(model: str) -> str:
    return f"model:{model}"


def operation_topic(number: int) -> str:
    return f"operation:{number}"


def is_topic(topic: str) -> bool:
    """Whether a topic of this name may exist."""
    return bool(_TOPIC.fullmatch(topic))


def group(topic: str) -> str:
    """`live.<topic with ':' as '.'>`; a name that the channel layer does not take (such as one with a slash) is hashed."""
    plain = topic.replace(":", ".")
    if not _PLAIN.fullmatch(plain):
        plain = "x." + hashlib.sha256(topic.encode()).hexdigest()[:32]
    return f"{names.LIVE_CHANNEL_GROUP}.{plain}"
