from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0012_step_arm")]
    operations = [migrations.AddField("model", "launch_number", models.PositiveIntegerField(default=1))]
