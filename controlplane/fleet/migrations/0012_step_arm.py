from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0011_moves_arms_and_canaries")]
    operations = [migrations.AddField("step", "arm", models.CharField(default="main", max_length=32))]
