"""How the planner is set, what it proposed, and why it held still."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("control", "0001_lease"),
        ("fleet", "0015_pool_pipeline_parallel"),
    ]

    operations = [
        migrations.CreateModel(
            name="PlannerSetting",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "level",
                    models.CharField(
                        choices=[("off", "Off"), ("advise", "Advise"), ("approve", "Approve"), ("automatic", "Automatic")],
                        default="advise",
                        max_length=16,
                    ),
                ),
                ("priority", models.IntegerField(default=0)),
                ("modes", models.JSONField(blank=True, default=list)),
                ("floors", models.JSONField(blank=True, default=dict)),
                ("ceilings", models.JSONField(blank=True, default=dict)),
                ("guards", models.JSONField(blank=True, default=dict)),
                ("peaks", models.JSONField(blank=True, default=list)),
                (
                    "model",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="planner", to="fleet.model"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="PlannerHold",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("code", models.CharField(max_length=16)),
                ("reason", models.CharField(max_length=500)),
                ("since", models.DateTimeField()),
                ("seen_at", models.DateTimeField()),
                ("present", models.JSONField(blank=True, null=True)),
                ("inputs", models.JSONField(blank=True, null=True)),
                (
                    "model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="planner_holds", to="fleet.model"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(fields=["model", "-id"], name="control_pla_model_i_cf03dc_idx"),
                    models.Index(fields=["seen_at"], name="control_pla_seen_at_c23d6b_idx"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Proposal",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(max_length=500)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("approved", "Approved"),
                            ("executed", "Executed"),
                            ("failed", "Failed"),
                            ("rejected", "Rejected"),
                            ("expired", "Expired"),
                            ("superseded", "Superseded"),
                        ],
                        default="open",
                        max_length=16,
                    ),
                ),
                (
                    "level",
                    models.CharField(
                        choices=[("off", "Off"), ("advise", "Advise"), ("approve", "Approve"), ("automatic", "Automatic")],
                        max_length=16,
                    ),
                ),
                ("cause", models.CharField(max_length=16)),
                ("title", models.CharField(max_length=500)),
                (
                    "mode_before",
                    models.CharField(
                        choices=[
                            ("monolithic", "Monolithic"),
                            ("conditional", "Conditional"),
                            ("disaggregated", "Disaggregated"),
                        ],
                        max_length=16,
                    ),
                ),
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
                ("before", models.JSONField()),
                ("pools", models.JSONField()),
                ("moves", models.PositiveIntegerField()),
                ("reasons", models.JSONField()),
                ("alternatives", models.JSONField()),
                ("inputs", models.JSONField()),
                ("present", models.JSONField()),
                ("predicted", models.JSONField()),
                ("trade", models.JSONField(blank=True, default=dict)),
                ("returned", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("hindrance", models.CharField(blank=True, max_length=500)),
                ("decided_at", models.DateTimeField(blank=True, null=True)),
                ("decided_by", models.CharField(blank=True, max_length=150)),
                ("decision", models.CharField(blank=True, max_length=500)),
                ("modified", models.JSONField(blank=True, default=dict)),
                ("actual", models.JSONField(blank=True, default=dict)),
                (
                    "giver",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="fleet.model",
                    ),
                ),
                (
                    "model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="proposals", to="fleet.model"
                    ),
                ),
                (
                    "operation",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="proposals",
                        to="fleet.operation",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(fields=["state", "-id"], name="control_pro_state_376d65_idx"),
                    models.Index(fields=["model", "-id"], name="control_pro_model_i_b72ae9_idx"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "open")), fields=("model",), name="one_open_proposal_per_model"
                    )
                ],
            },
        ),
    ]
