"""Operations with their steps, and the audit."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0003_engines")]

    operations = [
        migrations.CreateModel(
            name="Operation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("verb", models.CharField(max_length=32)),
                ("state", models.CharField(default="pending", max_length=16)),
                ("actor", models.CharField(max_length=150)),
                ("reason", models.CharField(blank=True, max_length=500)),
                ("before", models.JSONField(blank=True, default=dict)),
                ("after", models.JSONField(blank=True, default=dict)),
                ("outcome", models.CharField(blank=True, max_length=500)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "model",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="operations",
                        to="fleet.model",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="Step",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("index", models.PositiveIntegerField()),
                ("verb", models.CharField(max_length=32)),
                ("role", models.CharField(blank=True, max_length=8)),
                ("engine", models.CharField(blank=True, max_length=16)),
                ("state", models.CharField(default="waiting", max_length=16)),
                ("reason", models.CharField(blank=True, max_length=500)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "operation",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="steps", to="fleet.operation"
                    ),
                ),
            ],
            options={
                "ordering": ["operation_id", "index"],
            },
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(auto_now_add=True)),
                ("actor", models.CharField(max_length=150)),
                ("verb", models.CharField(max_length=32)),
                ("subject", models.CharField(max_length=255)),
                ("reason", models.CharField(blank=True, max_length=500)),
                ("before", models.JSONField(blank=True, default=dict)),
                ("after", models.JSONField(blank=True, default=dict)),
                (
                    "operation",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="audit",
                        to="fleet.operation",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.AddIndex(
            model_name="operation",
            index=models.Index(fields=["state"], name="fleet_opera_state_538f0e_idx"),
        ),
        migrations.AddIndex(
            model_name="operation",
            index=models.Index(fields=["-created_at"], name="fleet_opera_created_db39d2_idx"),
        ),
        migrations.AddConstraint(
            model_name="step",
            constraint=models.UniqueConstraint(fields=("operation", "index"), name="step_per_operation"),
        ),
        migrations.AddIndex(
            model_name="auditentry",
            index=models.Index(fields=["subject", "-id"], name="fleet_audit_subject_ea8567_idx"),
        ),
    ]
