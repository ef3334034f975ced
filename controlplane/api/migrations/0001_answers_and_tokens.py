"""Stored answers of changes that carry an idempotency key, and tokens of programs."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = [
        ("fleet", "0001_grants"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="StoredAnswer",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("actor", models.CharField(max_length=150)),
                ("key", models.CharField(max_length=255)),
                ("method", models.CharField(max_length=8)),
                ("path", models.CharField(max_length=1024)),
                ("digest", models.CharField(max_length=64)),
                ("status", models.PositiveSmallIntegerField(default=0)),
                ("location", models.CharField(blank=True, max_length=255)),
                ("body", models.JSONField(default=dict)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ["id"],
                "indexes": [models.Index(fields=["created_at"], name="api_storeda_created_36c1e6_idx")],
                "constraints": [models.UniqueConstraint(fields=("actor", "key"), name="one_answer_per_actor_and_key")],
            },
        ),
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                ("digest", models.CharField(max_length=128, primary_key=True, serialize=False)),
                ("token_key", models.CharField(db_index=True, max_length=25)),
                ("created", models.DateTimeField(auto_now_add=True)),
                ("expiry", models.DateTimeField(blank=True, null=True)),
                ("name", models.CharField(max_length=63)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="auth_token_set",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("user", "name"), name="token_name_per_user")],
            },
        ),
    ]
