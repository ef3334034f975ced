"""The audit can be added to and nothing else, and its seals show where somebody did otherwise."""

from __future__ import annotations

import io
import json
import threading
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import ProgrammingError, connection, transaction

from controlplane.control import actions, tasks
from controlplane.control.auditing import notes, seals
from controlplane.control.models import AuditSeal
from controlplane.control.pacer import BEAT_SCHEDULE
from controlplane.core.auditchain import GENESIS, canonical, digest_row, seal
from controlplane.fleet.models import AuditEntry
from controlplane.stack.postgres import EmbeddedPostgres
from tests.integration.control_kit import ANN, until

pytestmark = pytest.mark.django_db(transaction=True)
CHANGES = (
    "UPDATE {} SET actor = 'eve'",
    "DELETE FROM {}",
    "TRUNCATE {} CASCADE",
)


def entries(count: int) -> list[int]:
    return [
        AuditEntry.objects.create(actor="ann", verb="freeze", subject=f"model:m{n}", after={"n": n}).pk for n in range(count)
    ]


def past_the_guard(postgres: EmbeddedPostgres, statement: str, *values: Any) -> None:
    """As a superuser who switches triggers off."""
    with psycopg.connect(postgres.urls.admin) as admin:
        admin.execute("SET session_replication_role = replica")
        admin.execute(statement, values)  # type: ignore[call-overload]


@pytest.mark.parametrize("statement", CHANGES)
def test_neither_the_application_nor_the_owner_nor_a_superuser_changes_an_entry_or_a_seal(
    postgres: EmbeddedPostgres, statement: str
) -> None:
    entries(1)
    seals.seal_all()
    for table in ("fleet_auditentry", "control_auditseal"):
        text = statement.format(table).replace("actor", "digest" if "seal" in table else "actor")
        with pytest.raises(ProgrammingError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(text)
        for url in (postgres.urls.owner, postgres.urls.admin):
            with psycopg.connect(url) as other, pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
                other.execute(text)  # type: ignore[call-overload]
    assert (AuditEntry.objects.get().actor, AuditSeal.objects.count()) == ("ann", 1)


def test_a_seal_is_over_the_one_before_and_the_entries_since() -> None:
    first = entries(2)
    assert (seals.seal_all(), seals.seal_all()) == (2, 0)
    actions.add_node(ANN, "n1", reason="đổi máy")
    assert seals.seal_all() == 1
    one, two = AuditSeal.objects.all()
    assert (one.number, one.first, one.last, one.previous) == (1, first[0], first[1], GENESIS)
    assert (two.number, two.previous) == (2, one.digest)
    entry = AuditEntry.objects.latest("pk")
    assert two.digest == seal(one.digest, [(entry.pk, digest_row(canonical(seals.fields_of(entry))))])
    found = seals.verify(one.digest)
    assert (found.broken, found.seals, found.entries, found.unsealed, found.newest) == (None, 2, 3, 0, two.digest)


def test_many_entries_take_several_seals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seals, "BATCH", 4)
    entries(9)
    assert seals.seal_all() == 9
    assert [len(row.rows) for row in AuditSeal.objects.all()] == [4, 4, 1]
    assert seals.verify().broken is None


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE fleet_auditentry SET actor = 'eve' WHERE id = %s", "entry {1} was changed after it was sealed (seal 1)"),
        (
            "UPDATE fleet_auditentry SET after = '{\"n\": 2}' WHERE id = %s",
            "entry {1} was changed after it was sealed (seal 1)",
        ),
        ("DELETE FROM fleet_auditentry WHERE id = %s", "entry {1} is gone (seal 1)"),
        ("UPDATE fleet_auditentry SET id = 0 WHERE id = %s", "entry 0 was put in after it was sealed (seal 1)"),
        (
            "UPDATE control_auditseal SET digest = repeat('0', 64) WHERE number = 1 AND last <> %s",
            "seal 1 is not the digest of its rows",
        ),
        ("DELETE FROM control_auditseal WHERE number = 1 AND last <> %s", "seal 1 is missing"),
    ],
)
def test_the_first_place_that_was_tampered_with_is_named(postgres: EmbeddedPostgres, statement: str, what: str) -> None:
    ids = entries(3)
    seals.seal_all()
    entries(1)
    seals.seal_all()
    past_the_guard(postgres, statement, ids[1])
    out = io.StringIO()
    with pytest.raises(CommandError, match="tampered"):
        call_command("audit", "verify", stdout=out)
    expected = what.replace("{1}", str(ids[1]))
    assert json.loads(out.getvalue())["broken"] == expected


def test_an_entry_that_is_put_in_later_is_found(postgres: EmbeddedPostgres) -> None:
    ids = entries(2)
    past_the_guard(postgres, "DELETE FROM fleet_auditentry WHERE id = %s", ids[0])
    seals.seal_all()
    columns = "id, at, actor, verb, subject, reason, before, after"
    put = f"INSERT INTO fleet_auditentry ({columns}) VALUES (%s, now(), 'eve', 'x', '', '', '{{}}', '{{}}')"
    past_the_guard(postgres, put, ids[0])
    assert str(seals.verify().broken) == f"entry {ids[0]} was put in after it was sealed (seal 1)"


def test_whoever_kept_a_seal_elsewhere_finds_a_chain_that_was_written_anew(postgres: EmbeddedPostgres) -> None:
    ids = entries(2)
    seals.seal_all()
    kept = seals.verify().newest
    past_the_guard(postgres, "UPDATE fleet_auditentry SET actor = 'eve' WHERE id = %s", ids[0])
    past_the_guard(postgres, "DELETE FROM control_auditseal WHERE number > %s", 0)
    seals.seal_all()
    assert seals.verify().broken is None
    assert kept in str(seals.verify(kept).broken)


def test_no_entry_comes_below_the_newest_sealed_id() -> None:
    """Two transactions: the one that drew the smaller id commits last."""
    drawn, go = threading.Event(), threading.Event()

    def slow() -> None:
        try:
            with transaction.atomic():
                AuditEntry.objects.create(actor="slow", verb="freeze", subject="model:m")
                drawn.set()
                go.wait(60)
        finally:
            connection.close()

    def seal_now() -> None:
        try:
            until("sealed", seals.seal_all)
        finally:
            connection.close()

    writer, sealer = threading.Thread(target=slow), threading.Thread(target=seal_now)
    writer.start()
    assert drawn.wait(60)
    quick = threading.Thread(target=lambda: (entries(1), connection.close()))
    sealer.start()
    quick.start()
    go.set()
    for thread in (writer, sealer, quick):
        thread.join(60)
    seals.seal_all()
    found = seals.verify()
    assert (found.broken, found.entries, found.unsealed) == (None, 2, 0)


def test_the_export_has_every_entry_with_its_seals() -> None:
    ids = entries(2)
    seals.seal_all()
    ids += entries(1)
    out = io.StringIO()
    call_command("audit", "export", stdout=out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line.get("id", line.get("seal")) for line in lines] == [ids[0], ids[1], 1, ids[2]]
    rows = [(line["id"], digest_row(canonical([line[name] for name in seals.FIELDS]))) for line in lines[:2]]
    assert lines[2]["digest"] == seal(GENESIS, rows), "anybody can check the export alone"


def test_one_worker_seals_at_a_time() -> None:
    entries(1)
    assert seals.run_sealing("one") == 1
    entries(1)
    with seals.lease(seals.LEASE, "another", 60):
        assert seals.run_sealing("one") == 0
    assert seals.run_sealing("one") == 1


def test_the_control_loop_seals_by_itself_and_tells_what_was_left_out() -> None:
    for _ in range(12):
        notes.note("login_failed", "somebody", "user:unknown", source="10.0.0.1")
    tasks.seal_audit()
    assert AuditEntry.objects.get(verb=notes.LEFT_OUT).after == {"entries": 2}
    assert seals.verify().unsealed == 0 and AuditSeal.objects.get().last == AuditEntry.objects.latest("pk").pk
    assert tasks.seal_audit.name in {each["task"] for each in BEAT_SCHEDULE.values()}
