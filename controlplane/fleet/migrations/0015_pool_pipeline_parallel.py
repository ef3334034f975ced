"""Engines of several pipeline stages."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0014_canary_sessions")]
    operations = [migrations.AddField("pool", "pipeline_parallel", models.PositiveSmallIntegerField(default=1))]
