"""Engines that move between pools, pools of a canary's arm, teams, and what an operation undoes and changed."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0010_inference_keys"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Canary",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("monolithic", "Monolithic"),
                            ("conditional", "Conditional"),
                            ("disaggregated", "Disaggregated"),
                        ],
                        max_length=16,
                    ),
                ),
                ("shared", models.BooleanField(default=False)),
                ("state", models.CharField(default="running", max_length=16)),
                ("share", models.FloatField()),
                ("steps", models.JSONField(default=list)),
                ("guardrails", models.JSONField(default=dict)),
                ("verdict", models.JSONField(default=dict)),
                ("paused", models.BooleanField(default=False)),
                ("started_at", models.DateTimeField(auto_now_add=True)),
                ("step_since", models.DateTimeField(auto_now_add=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("reason", models.CharField(blank=True, max_length=500)),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="Pair",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("prefill_incarnation", models.PositiveBigIntegerField()),
                ("decode_incarnation", models.PositiveBigIntegerField()),
                ("state", models.CharField(default="asked", max_length=16)),
                ("kv_bytes", models.BigIntegerField(blank=True, null=True)),
                ("handoff_ms", models.FloatField(blank=True, null=True)),
                ("reason", models.CharField(blank=True, max_length=500)),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("at", models.DateTimeField(auto_now=True)),
            ],
        ),
        migrations.CreateModel(
            name="Team",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=63, unique=True)),
                ("gpu_quota", models.PositiveIntegerField(blank=True, null=True)),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.RemoveConstraint(
            model_name="pool",
            name="one_pool_per_model_and_role",
        ),
        migrations.AddField(
            model_name="engine",
            name="held",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="engine",
            name="launch",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name="engine",
            name="move_phase",
            field=models.CharField(blank=True, max_length=16),
        ),
        migrations.AddField(
            model_name="engine",
            name="move_since",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="engine",
            name="next_arm",
            field=models.CharField(blank=True, max_length=32),
        ),
        migrations.AddField(
            model_name="engine",
            name="next_role",
            field=models.CharField(blank=True, max_length=8),
        ),
        migrations.AddField(
            model_name="model",
            name="frozen_reason",
            field=models.CharField(blank=True, max_length=500),
        ),
        migrations.AddField(
            model_name="model",
            name="frozen_until",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="model",
            name="retiring",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="model",
            name="served_mode",
            field=models.CharField(
                choices=[("monolithic", "Monolithic"), ("conditional", "Conditional"), ("disaggregated", "Disaggregated")],
                default="monolithic",
                max_length=16,
            ),
        ),
        migrations.AddField(
            model_name="model",
            name="team",
            field=models.CharField(blank=True, max_length=63),
        ),
        migrations.AddField(
            model_name="model",
            name="version",
            field=models.PositiveBigIntegerField(default=1),
        ),
        migrations.AddField(
            model_name="operation",
            name="measured",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name="operation",
            name="undoes",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="undone_by",
                to="fleet.operation",
            ),
        ),
        migrations.AddField(
            model_name="pool",
            name="arm",
            field=models.CharField(default="main", max_length=32),
        ),
        migrations.AddField(
            model_name="pool",
            name="floor",
            field=models.PositiveIntegerField(default=1),
        ),
        migrations.AddConstraint(
            model_name="pool",
            constraint=models.UniqueConstraint(fields=("model", "role", "arm"), name="one_pool_per_model_role_and_arm"),
        ),
        migrations.AddField(
            model_name="canary",
            name="model",
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="canaries", to="fleet.model"),
        ),
        migrations.AddField(
            model_name="canary",
            name="operation",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="canaries",
                to="fleet.operation",
            ),
        ),
        migrations.AddField(
            model_name="pair",
            name="decode",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="pairs_as_decode", to="fleet.engine"
            ),
        ),
        migrations.AddField(
            model_name="pair",
            name="prefill",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="pairs_as_prefill", to="fleet.engine"
            ),
        ),
        migrations.AddField(
            model_name="team",
            name="members",
            field=models.ManyToManyField(blank=True, related_name="teams", to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddConstraint(
            model_name="canary",
            constraint=models.UniqueConstraint(
                condition=models.Q(("ended_at__isnull", True)), fields=("model",), name="one_running_canary_per_model"
            ),
        ),
        migrations.AddConstraint(
            model_name="pair",
            constraint=models.UniqueConstraint(fields=("prefill", "decode"), name="one_row_per_pair"),
        ),
        migrations.RunSQL("UPDATE fleet_model SET served_mode = mode", migrations.RunSQL.noop),
    ]
