"""Seals of the audit, how much of it strangers may cause, and the whole state that was applied last."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("control", "0002_planner"), ("fleet", "0005_audit_append_only")]

    operations = [
        migrations.CreateModel(
            name="AuditSeal",
            fields=[
                ("number", models.PositiveBigIntegerField(primary_key=True, serialize=False)),
                ("first", models.PositiveBigIntegerField()),
                ("last", models.PositiveBigIntegerField(unique=True)),
                ("previous", models.CharField(max_length=64)),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("rows", models.JSONField()),
                ("at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ["number"]},
        ),
        migrations.CreateModel(
            name="AuditBudget",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=32)),
                ("source", models.SmallIntegerField()),
                ("span", models.PositiveBigIntegerField()),
                ("kept", models.PositiveIntegerField(default=0)),
                ("left_out", models.PositiveIntegerField(default=0)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("kind", "source"), name="one_budget_per_kind_and_source")],
            },
        ),
        migrations.CreateModel(
            name="AppliedState",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("document", models.JSONField(default=dict)),
                ("actor", models.CharField(blank=True, max_length=150)),
                ("at", models.DateTimeField(auto_now=True)),
            ],
        ),
    ]
