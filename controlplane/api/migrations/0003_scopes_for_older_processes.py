"""Processes of the version before make tokens without `scopes` until they are restarted: the database says what that means,
which is all that a token could do then."""

from django.db import migrations

COLUMN = "ALTER TABLE api_apitoken ALTER COLUMN scopes"


class Migration(migrations.Migration):
    dependencies = [("api", "0002_scopes_of_tokens")]
    operations = [
        migrations.RunSQL(
            f"""{COLUMN} SET DEFAULT '["read", "write", "secrets"]'::jsonb""",
            f"{COLUMN} DROP DEFAULT",
        )
    ]
