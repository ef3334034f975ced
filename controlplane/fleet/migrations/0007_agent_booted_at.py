"""When the newest start of an agent began: facts of earlier ones are not believed again."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0006_agent_labels")]

    operations = [migrations.AddField("node", "agent_booted_at", models.FloatField(default=0.0))]
