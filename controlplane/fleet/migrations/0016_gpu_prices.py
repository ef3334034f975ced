"""The price book: what an hour of one GPU costs, by kind and from when on."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0015_pool_pipeline_parallel")]

    operations = [
        migrations.CreateModel(
            name="GpuPrice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=32)),
                (
                    "terms",
                    models.CharField(choices=[("owned", "Owned"), ("hourly", "Rented by the hour")], max_length=8),
                ),
                ("per_hour", models.DecimalField(decimal_places=6, max_digits=13)),
                ("valid_from", models.DateTimeField()),
            ],
            options={
                "ordering": ["kind", "-valid_from"],
                "constraints": [
                    models.UniqueConstraint(fields=("kind", "valid_from"), name="one_price_of_a_kind_at_a_time")
                ],
            },
        ),
    ]
