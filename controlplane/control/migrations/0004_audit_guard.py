"""A trigger keeps the audit and its seals append-only for every role, the owner's and a superuser's too, where privileges
keep the application's alone. Getting past it takes a superuser who says so (`session_replication_role`).

Writers of entries share a lock that the sealer takes alone, before their ids are drawn: below the newest id that the sealer
sees there is none that may still come.
"""

from __future__ import annotations

from django.apps.registry import Apps
from django.conf import settings
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

GUARD = """
    CREATE FUNCTION twinpool_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'insufficient_privilege';
    END $$;
"""
SHARE = """
    CREATE FUNCTION twinpool_audit_share() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock_shared(1635083380);
        RETURN NULL;
    END $$;
"""


def guard(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    quote = schema_editor.quote_name
    audit = apps.get_model("fleet", "AuditEntry")._meta.db_table
    seals = apps.get_model("control", "AuditSeal")._meta.db_table
    schema_editor.execute(GUARD, None)
    schema_editor.execute(SHARE, None)
    schema_editor.execute(f"REVOKE UPDATE, DELETE, TRUNCATE ON {quote(seals)} FROM {quote(settings.DATABASE_APP_ROLE)}")
    for table in (audit, seals):
        schema_editor.execute(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {quote(table)} "
            "FOR EACH STATEMENT EXECUTE FUNCTION twinpool_append_only()"
        )
    schema_editor.execute(
        f"CREATE TRIGGER share_with_sealer BEFORE INSERT ON {quote(audit)} "
        "FOR EACH STATEMENT EXECUTE FUNCTION twinpool_audit_share()"
    )


class Migration(migrations.Migration):
    dependencies = [("control", "0003_audit_seals_and_applied_state")]
    operations = [migrations.RunPython(guard, migrations.RunPython.noop)]
