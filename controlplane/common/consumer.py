"""A consumer for Celery's workers that refuses what is a message but describes no task. As delivered, that ends a worker.

A module of its own: only workers pay for importing Celery's worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.worker.consumer import Consumer

from controlplane.common.broker import MALFORMED, log, tell


class SoundConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """Rejects a message that is one but describes no task."""

    def create_task_handler(self, *args: Any) -> Callable[[Any], None]:
        handle = super().create_task_handler(*args)

        def on_task_received(message: Any) -> None:
            try:
                handle(message)
            except MALFORMED as error:
                tell(error)
                message.reject_log_error(log, self.connection_errors)

        return on_task_received
