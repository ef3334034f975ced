"""A transport for Celery that passes over what is no message. As delivered, such a thing ends a worker.

Queues hold what anybody with the broker's password has put there; a worker that is started again only meets the next one.
"""

from __future__ import annotations

import logging
from typing import Any

from kombu.transport import redis

log = logging.getLogger(__name__)

MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What reading a message raises that has not the form of one: no JSON, a list, fields that lack or are of another type."""

TRANSPORT = "controlplane.common.broker:Transport"
"""Value for Celery's setting `broker_transport`; controlplane.common.consumer is the other half."""


class Channel(redis.Channel):
    """Passes over what is no message: it is off the queue already."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]  # kombu has no types
        except MALFORMED as error:
            tell(error)
            return True


class Transport(redis.Transport):
    Channel = Channel


def tell(error: Exception) -> None:
    """The content is not shown: it may be hostile, or a command."""
    log.error("a malformed message on the queue was refused (%s)", type(error).__name__)
