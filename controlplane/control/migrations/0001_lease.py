"""The lease row that lets one control worker at a time run a tick."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = [("fleet", "0001_grants")]

    operations = [
        migrations.CreateModel(
            name="Lease",
            fields=[
                ("name", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("holder", models.CharField(blank=True, max_length=64)),
                ("until", models.DateTimeField()),
            ],
        ),
    ]
