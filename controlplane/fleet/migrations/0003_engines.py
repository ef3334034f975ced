"""Engines with their ranks, reservations and history, and the newest routing table."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0002_nodes_and_models")]

    operations = [
        migrations.CreateModel(
            name="Engine",
            fields=[
                ("id", models.CharField(max_length=16, primary_key=True, serialize=False)),
                (
                    "role",
                    models.CharField(
                        choices=[("prefill", "Prefill"), ("decode", "Decode"), ("mixed", "Mixed")], max_length=8
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("kind", models.CharField(max_length=16)),
                ("tensor_parallel", models.PositiveSmallIntegerField(default=1)),
                ("wanted", models.BooleanField(default=True)),
                ("spec_generation", models.PositiveBigIntegerField(default=1)),
                ("arm", models.CharField(default="main", max_length=32)),
                ("weight", models.FloatField(default=1.0)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("state", models.CharField(default="planned", max_length=16)),
                ("state_since", models.DateTimeField(auto_now_add=True)),
                ("reason", models.CharField(blank=True, max_length=500)),
                ("incarnation", models.PositiveBigIntegerField(default=0)),
                ("url", models.CharField(blank=True, max_length=255)),
                ("compat", models.CharField(blank=True, max_length=64)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("ready_at", models.DateTimeField(blank=True, null=True)),
                ("failures", models.PositiveIntegerField(default=0)),
                ("retry_at", models.DateTimeField(blank=True, null=True)),
                (
                    "model",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="engines", to="fleet.model"),
                ),
            ],
            options={
                "ordering": ["model_id", "number"],
            },
        ),
        migrations.CreateModel(
            name="Rank",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("index", models.PositiveSmallIntegerField(default=0)),
                (
                    "engine",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="ranks", to="fleet.engine"),
                ),
                (
                    "node",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="ranks", to="fleet.node"),
                ),
            ],
            options={
                "ordering": ["engine_id", "index"],
            },
        ),
        migrations.CreateModel(
            name="Reservation",
            fields=[
                (
                    "gpu",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="reservation",
                        serialize=False,
                        to="fleet.gpu",
                    ),
                ),
                (
                    "rank",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="reservations", to="fleet.rank"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Incarnation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveBigIntegerField()),
                ("started_at", models.DateTimeField()),
                ("ready_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("reason", models.CharField(blank=True, max_length=500)),
                (
                    "engine",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="incarnations", to="fleet.engine"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("engine", "number"), name="incarnation_per_engine")],
            },
        ),
        migrations.CreateModel(
            name="TableState",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("epoch", models.PositiveBigIntegerField(default=0)),
                ("generation", models.PositiveBigIntegerField(default=0)),
                ("document", models.JSONField(blank=True, null=True)),
                ("published_at", models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.AddConstraint(
            model_name="engine",
            constraint=models.UniqueConstraint(fields=("model", "number"), name="engine_number_per_model"),
        ),
        migrations.AddConstraint(
            model_name="rank",
            constraint=models.UniqueConstraint(fields=("engine", "index"), name="rank_per_engine"),
        ),
    ]
