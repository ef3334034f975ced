"""Nodes, GPUs, models and pools: what exists and what is desired."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0001_grants")]

    operations = [
        migrations.CreateModel(
            name="Node",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.SlugField(max_length=63, unique=True)),
                ("labels", models.JSONField(blank=True, default=dict)),
                ("cordoned", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("address", models.CharField(blank=True, max_length=255)),
                ("network_gbps", models.FloatField(default=100.0)),
                ("agent_boot", models.CharField(blank=True, max_length=64)),
                ("seen_at", models.DateTimeField(blank=True, null=True)),
                ("lost", models.BooleanField(default=False)),
            ],
        ),
        migrations.CreateModel(
            name="Gpu",
            fields=[
                ("uuid", models.CharField(max_length=80, primary_key=True, serialize=False)),
                ("index", models.PositiveSmallIntegerField()),
                ("kind", models.CharField(max_length=32)),
                ("memory_bytes", models.BigIntegerField()),
                ("simulated", models.BooleanField(default=False)),
                (
                    "node",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="gpus", to="fleet.node"),
                ),
            ],
            options={
                "ordering": ["node__name", "index"],
            },
        ),
        migrations.CreateModel(
            name="Model",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=128, unique=True)),
                ("aliases", models.JSONField(blank=True, default=list)),
                ("source", models.CharField(max_length=512)),
                ("config", models.JSONField()),
                ("engine_kind", models.CharField(max_length=16)),
                ("engine_args", models.JSONField(blank=True, default=dict)),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("monolithic", "Monolithic"),
                            ("conditional", "Conditional"),
                            ("disaggregated", "Disaggregated"),
                        ],
                        default="monolithic",
                        max_length=16,
                    ),
                ),
                ("connector", models.CharField(default="nixl", max_length=16)),
                ("kv_lease_s", models.FloatField(default=30.0)),
                ("block_size", models.PositiveIntegerField(default=16)),
                ("kv_bytes_per_token", models.BigIntegerField(default=0)),
                ("max_model_len", models.PositiveIntegerField(default=0)),
                ("on_prefill_loss", models.CharField(default="retry", max_length=8)),
                ("strict", models.BooleanField(default=False)),
                ("conditional_min_uncached_tokens", models.PositiveIntegerField(default=512)),
                ("conditional_min_uncached_ratio", models.FloatField(default=0.3)),
                ("slo_ttft_ms", models.FloatField(default=2000.0)),
                ("slo_itl_ms", models.FloatField(default=50.0)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ["created_at", "id"],
            },
        ),
        migrations.CreateModel(
            name="Pool",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "role",
                    models.CharField(
                        choices=[("prefill", "Prefill"), ("decode", "Decode"), ("mixed", "Mixed")], max_length=8
                    ),
                ),
                ("desired_engines", models.PositiveIntegerField(default=0)),
                ("tensor_parallel", models.PositiveSmallIntegerField(default=1)),
                ("gpu_kinds", models.JSONField(blank=True, default=list)),
                ("node_labels", models.JSONField(blank=True, default=dict)),
                (
                    "model",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="pools", to="fleet.model"),
                ),
            ],
            options={
                "ordering": ["model_id", "id"],
            },
        ),
        migrations.AddConstraint(
            model_name="pool",
            constraint=models.UniqueConstraint(fields=("model", "role"), name="one_pool_per_model_and_role"),
        ),
    ]
