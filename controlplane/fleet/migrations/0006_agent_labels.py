"""Labels that an agent tells, beside those of the operator."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0005_audit_append_only")]

    operations = [migrations.AddField("node", "agent_labels", models.JSONField(blank=True, default=dict))]
