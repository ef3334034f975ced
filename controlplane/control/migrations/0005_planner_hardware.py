"""Which GPU kinds and tensor-parallel degrees the planner may propose for each pool."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("control", "0004_audit_guard")]

    operations = [
        migrations.AddField(
            model_name="plannersetting",
            name="kinds",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name="plannersetting",
            name="degrees",
            field=models.JSONField(blank=True, default=dict),
        ),
    ]
