"""Alerts, settings of their rules, silences, channels and what was told to whom."""

import uuid

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [("fleet", "0001_grants")]  # so that the application's role may use these tables

    operations = [
        migrations.CreateModel(
            name="Channel",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.SlugField(max_length=63, unique=True)),
                ("kind", models.CharField(choices=[("webhook", "Webhook"), ("email", "Email")], max_length=8)),
                ("target", models.CharField(max_length=1000)),
                ("least", models.CharField(choices=[("warn", "Warn"), ("bad", "Bad")], default="warn", max_length=8)),
                ("enabled", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("sent_at", models.DateTimeField(blank=True, null=True)),
                ("error", models.CharField(blank=True, max_length=300)),
                ("error_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Alert",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("rule", models.CharField(max_length=32)),
                ("subject", models.CharField(max_length=200)),
                ("model", models.CharField(blank=True, max_length=128)),
                ("label", models.CharField(max_length=200)),
                (
                    "state",
                    models.CharField(
                        choices=[("pending", "Pending"), ("firing", "Firing"), ("resolved", "Resolved")], max_length=16
                    ),
                ),
                ("severity", models.CharField(choices=[("warn", "Warn"), ("bad", "Bad")], max_length=8)),
                ("value", models.FloatField(blank=True, null=True)),
                ("peak", models.FloatField(blank=True, null=True)),
                ("threshold", models.FloatField()),
                ("facts", models.JSONField(blank=True, default=dict)),
                ("streak_s", models.FloatField(default=0.0)),
                ("looked_at", models.FloatField()),
                ("last", models.CharField(max_length=8)),
                ("began_at", models.DateTimeField()),
                ("fired_at", models.DateTimeField(blank=True, null=True)),
                ("resolved_at", models.DateTimeField(blank=True, null=True)),
                ("reason", models.CharField(blank=True, max_length=100)),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(fields=["state", "-id"], name="alerts_aler_state_fb2aea_idx"),
                    models.Index(fields=["resolved_at"], name="alerts_aler_resolve_08ce04_idx"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "resolved"), _negated=True),
                        fields=("rule", "subject"),
                        name="one_open_alert_per_rule_and_subject",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RuleSetting",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("rule", models.CharField(max_length=32)),
                ("model", models.CharField(blank=True, max_length=128)),
                ("threshold", models.FloatField(blank=True, null=True)),
                ("for_s", models.FloatField(blank=True, null=True)),
                ("clear_s", models.FloatField(blank=True, null=True)),
                ("severity", models.CharField(blank=True, choices=[("warn", "Warn"), ("bad", "Bad")], max_length=8)),
                ("enabled", models.BooleanField(blank=True, null=True)),
            ],
            options={
                "ordering": ["rule", "model"],
                "constraints": [models.UniqueConstraint(fields=("rule", "model"), name="one_setting_per_rule_and_model")],
            },
        ),
        migrations.CreateModel(
            name="Silence",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("rule", models.CharField(blank=True, max_length=32)),
                ("model", models.CharField(blank=True, max_length=128)),
                ("subject", models.CharField(blank=True, max_length=200)),
                ("reason", models.CharField(max_length=500)),
                ("actor", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("until", models.DateTimeField()),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [models.Index(fields=["until"], name="alerts_sile_until_17e8f9_idx")],
            },
        ),
        migrations.CreateModel(
            name="Notification",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("event", models.CharField(max_length=16)),
                ("body", models.JSONField()),
                (
                    "state",
                    models.CharField(
                        choices=[("waiting", "Waiting"), ("sent", "Sent"), ("failed", "Failed")],
                        default="waiting",
                        max_length=16,
                    ),
                ),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("due_at", models.DateTimeField()),
                ("error", models.CharField(blank=True, max_length=300)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("sent_at", models.DateTimeField(blank=True, null=True)),
                (
                    "alert",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notifications",
                        to="alerts.alert",
                    ),
                ),
                (
                    "channel",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="notifications", to="alerts.channel"
                    ),
                ),
            ],
            options={
                "ordering": ["created_at", "id"],
                "indexes": [models.Index(fields=["state", "due_at"], name="alerts_noti_state_d74edc_idx")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("alert", "channel", "event"), name="one_message_per_alert_channel_and_event"
                    )
                ],
            },
        ),
    ]
