"""The control plane's Celery application: queue `control`, and the tasks it sends to nodes by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from celery import Celery

from controlplane.config import BadSetting, config

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

# `migrate` has run Django's checks before any worker starts; running them here would import every view.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

try:
    config()
except BadSetting as error:
    if Path(sys.argv[0]).name not in ("celery", "__main__.py"):
        raise
    sys.exit(f"twinpool: {error}")  # the worker's command line would show a traceback

from django.conf import settings

from controlplane.common.broker import TRANSPORT
from controlplane.common.valkey import for_celery
from controlplane.core import names

app = Celery("twinpool")
app.conf.update(
    broker_url=for_celery(settings.VALKEY_URL),
    broker_transport=TRANSPORT,
    worker_consumer="controlplane.common.consumer:SoundConsumer",  # by name: only the worker imports it
    result_backend=for_celery(settings.VALKEY_URL),
    result_expires=60,
    task_default_queue=names.CONTROL_QUEUE,
    task_serializer="json",
    accept_content=["json"],
    task_ignore_result=True,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    # A Valkey that is away or hangs must not hold up a tick, or a page that asks for one: they are told, and go on.
    broker_transport_options={
        "socket_timeout": 5,
        "socket_connect_timeout": 3,
        "socket_keepalive": True,
        "max_retries": 1,
        "interval_start": 0.1,
        "interval_max": 0.1,
    },
    redis_socket_timeout=5,
    redis_socket_connect_timeout=3,
    result_backend_transport_options={"retry_policy": {"max_retries": 2, "interval_start": 0.1, "interval_max": 0.5}},
    worker_prefetch_multiplier=1,
    worker_cancel_long_running_tasks_on_connection_loss=True,
    CELERY_DB_REUSE_MAX=100_000,
    timezone="UTC",
)
app.autodiscover_tasks(["controlplane.control"])
