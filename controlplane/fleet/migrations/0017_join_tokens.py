"""Tokens with which nodes join, and what a node's own user of the broker signs in with.

The new column has a default in the database: processes of the version before make nodes without it.
"""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0016_gpu_prices")]

    operations = [
        migrations.AddField(
            model_name="node",
            name="broker_sha256",
            field=models.CharField(blank=True, db_default="", max_length=64),
        ),
        migrations.CreateModel(
            name="JoinToken",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("salt", models.CharField(max_length=64)),
                ("created_by", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField()),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                ("used_at", models.DateTimeField(blank=True, null=True)),
                ("claim", models.CharField(blank=True, max_length=64)),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="join_tokens", to="fleet.node"
                    ),
                ),
            ],
            options={"ordering": ["-id"]},
        ),
    ]
