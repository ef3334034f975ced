"""The audit: who did what, who signed in, what was refused. Read-only."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import openapi
from controlplane.api.documents import ObjectField
from controlplane.api.paging import Listed, page
from controlplane.api.resource import Resource
from controlplane.api.showing import show_all
from controlplane.api.strict import Text, read_query
from controlplane.fleet.models import AuditEntry


class AuditQuery(Listed):
    ORDERS = ("-id", "id")

    verb = Text(max_length=32, required=False)
    actor = Text(max_length=150, required=False)
    subject = Text(max_length=255, required=False, help_text="As it stands there: model:llama-70b")
    since = serializers.DateTimeField(required=False, help_text="At this time or later.")


class AuditDocument(serializers.ModelSerializer[AuditEntry]):
    """One entry; nobody can alter it."""

    operation = serializers.IntegerField(source="operation_id", allow_null=True, read_only=True)
    before = ObjectField(read_only=True)
    after = ObjectField(read_only=True)

    class Meta:
        model = AuditEntry
        fields = ("id", "at", "actor", "verb", "subject", "reason", "before", "after", "operation")
        read_only_fields = fields


class AuditPage(serializers.Serializer[Any]):
    """A page of a list."""

    items = AuditDocument(many=True)
    next = serializers.CharField(allow_null=True, help_text="Address of the next page.")


class Audit(Resource):
    @openapi.read("list_audit", "audit", AuditPage, query=AuditQuery)
    def get(self, request: Request) -> Response:
        """Entries of the audit, the newest first."""
        asked = read_query(request, AuditQuery)
        filters = {"verb": "verb", "actor": "actor", "subject": "subject", "since": "at__gte"}
        rows = AuditEntry.objects.filter(**{field: asked[name] for name, field in filters.items() if name in asked})
        return Response(page(request, rows, asked, lambda found: show_all(AuditDocument, found)))
