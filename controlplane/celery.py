"""The control plane's Celery application: queue `control`, and the tasks it sends to nodes by name."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

from django.conf import settings

from controlplane.core import names

app = Celery("twinpool")
app.conf.update(
    broker_url=settings.VALKEY_URL,
    result_backend=settings.VALKEY_URL,
    result_expires=60,
    task_default_queue=names.CONTROL_QUEUE,
    task_serializer="json",
    accept_content=["json"],
    task_ignore_result=True,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
    timezone="UTC",
)
app.autodiscover_tasks(["controlplane.control"])
