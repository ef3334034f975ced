"""Which migrations were run is for the owner to write: the application's role only reads it."""

from __future__ import annotations

from django.apps.registry import Apps
from django.conf import settings
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.recorder import MigrationRecorder


def take_back(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    quote = schema_editor.quote_name
    table = MigrationRecorder.Migration._meta.db_table
    schema_editor.execute(f"REVOKE INSERT, UPDATE, DELETE ON {quote(table)} FROM {quote(settings.DATABASE_APP_ROLE)}")


class Migration(migrations.Migration):
    dependencies = [("fleet", "0007_agent_booted_at")]
    operations = [migrations.RunPython(take_back, migrations.RunPython.noop)]
