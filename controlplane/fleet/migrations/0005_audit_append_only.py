"""The audit is append-only: the application's role may add and read entries, nothing else."""

from __future__ import annotations

from django.apps.registry import Apps
from django.conf import settings
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def take_back(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    quote = schema_editor.quote_name
    table = apps.get_model("fleet", "AuditEntry")._meta.db_table
    schema_editor.execute(f"REVOKE UPDATE, DELETE, TRUNCATE ON {quote(table)} FROM {quote(settings.DATABASE_APP_ROLE)}")


class Migration(migrations.Migration):
    dependencies = [("fleet", "0004_operations")]
    operations = [migrations.RunPython(take_back, migrations.RunPython.noop)]
