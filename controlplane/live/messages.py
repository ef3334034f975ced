"""What a client may say: `{"subscribe": ["fleet", "model:llama-70b"]}`. Pure."""

from __future__ import annotations

import orjson

from controlplane.telemetry.topics import is_topic

MAX_BYTES = 8_192
MAX_TOPICS = 32


class BadMessage(ValueError):
    """`code` for the error frame; the text says what would be right."""

    def __init__(self, code: str, message: str, topic: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.topic = topic


def subscription(text: str) -> list[str]:
    """The topics to follow from now on: the list replaces the one before, and each is answered with a snapshot (so asking
    again is how a client closes a gap in `seq`). Raises BadMessage."""
    try:
        message = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadMessage("bad_message", "a message must be a JSON object") from error
    topics = message.get("subscribe") if isinstance(message, dict) else None
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise BadMessage("bad_message", 'a message must be {"subscribe": ["topic", …]}')
    if len(topics) > MAX_TOPICS:
        raise BadMessage("too_many_topics", f"a socket follows at most {MAX_TOPICS} topics")
    for topic in topics:
        if not is_topic(topic):
            raise BadMessage(
                "unknown_topic", 'topics are "fleet", "nodes", "alerts", "model:<name>" and "operation:<id>"', topic[:150]
            )
    return list(dict.fromkeys(topics))
