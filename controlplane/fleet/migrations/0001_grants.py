"""What the application's database role may do, before any table of ours exists.

`app` reads and writes the rows of every table that the migrating role makes, now and later, and owns none: it can neither
change the schema nor empty a table. Append-only tables take back UPDATE and DELETE in the migration that makes them.
"""

from __future__ import annotations

from django.apps.registry import Apps
from django.conf import settings
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.utils import ProgrammingError


def grant(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    role = settings.DATABASE_APP_ROLE
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role])
        if cursor.fetchone() is None:
            raise ProgrammingError(
                f"the database has no role {role!r}: create the role named in TWINPOOL_DATABASE_URL first "
                "(CREATE ROLE … LOGIN PASSWORD …), then migrate again"
            )
        app = schema_editor.quote_name(role)
        for statement in (
            f"GRANT USAGE ON SCHEMA public TO {app}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {app}",
            f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {app}",
            f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {app}",
            f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT ON SEQUENCES TO {app}",
        ):
            cursor.execute(statement)


class Migration(migrations.Migration):
    initial = True
    operations = [migrations.RunPython(grant, migrations.RunPython.noop)]
