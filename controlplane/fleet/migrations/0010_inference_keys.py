"""Keys of the router's clients, as hashes."""

from django.db import migrations, models

import controlplane.fleet.models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0009_model_kv_parts")]

    operations = [
        migrations.CreateModel(
            name="InferenceKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=63, unique=True)),
                ("team", models.CharField(max_length=63)),
                ("sha256", models.CharField(max_length=64, unique=True)),
                ("model_names", models.JSONField(default=controlplane.fleet.models.all_models)),
                ("requests_per_minute", models.PositiveIntegerField(blank=True, null=True)),
                ("tokens_per_minute", models.PositiveIntegerField(blank=True, null=True)),
                ("max_priority", models.PositiveIntegerField(default=0)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("revoked", models.BooleanField(default=False)),
            ],
            options={
                "ordering": ["id"],
                "constraints": [
                    models.CheckConstraint(condition=models.Q(sha256__regex="^[0-9a-f]{64}$"), name="sha256_of_a_key")
                ],
            },
        ),
    ]
