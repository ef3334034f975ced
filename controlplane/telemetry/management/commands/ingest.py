from __future__ import annotations

import asyncio
import logging
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.telemetry.ingest import Ingest


class Command(BaseCommand):
    help = "Store telemetry and publish live rows until stopped."
    requires_migrations_checks = False

    def handle(self, *args: Any, **options: Any) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        asyncio.run(run())


async def run() -> None:
    await Ingest().run()
