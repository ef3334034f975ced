import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0013_model_launch_number"),
    ]

    operations = [
        migrations.AddField(
            model_name="canary",
            name="evidence",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.CreateModel(
            name="CanarySession",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("session", models.CharField(max_length=16)),
                ("in_canary", models.BooleanField()),
                ("seen_at", models.DateTimeField()),
                ("over", models.BooleanField(default=False)),
                ("failed", models.BooleanField(default=False)),
                ("kv_lost", models.BooleanField(default=False)),
                ("fell_back", models.BooleanField(default=False)),
                ("ttft_ms", models.FloatField(blank=True, null=True)),
                ("itl_ms", models.FloatField(blank=True, null=True)),
                ("counted", models.BooleanField(default=False)),
                (
                    "canary",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="sessions", to="fleet.canary"
                    ),
                ),
            ],
            options={
                "ordering": ["canary_id", "seen_at", "id"],
                "indexes": [models.Index(fields=["canary", "counted", "seen_at"], name="fleet_canar_canary__089698_idx")],
                "constraints": [models.UniqueConstraint(fields=("canary", "session"), name="session_once_per_canary")],
            },
        ),
    ]
