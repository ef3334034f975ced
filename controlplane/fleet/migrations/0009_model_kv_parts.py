"""What a KV transfer moves besides a number per token: states of hybrid models, and layers with a window."""

from django.db import migrations, models

FIELDS = ("kv_fixed_bytes", "kv_window_bytes_per_token", "kv_window_tokens")


class Migration(migrations.Migration):
    dependencies = [("fleet", "0008_migrations_read_only")]

    operations = [migrations.AddField("model", name, models.BigIntegerField(default=0)) for name in FIELDS]
