"""The advisor: whether to disaggregate a model that need not exist, on GPUs that need not exist. It changes nothing."""

from __future__ import annotations

import time
from dataclasses import asdict

from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import openapi
from controlplane.api.bodies_advisor import AdvisorBody, question
from controlplane.api.documents_advisor import AskedDocument
from controlplane.api.problems import Problem
from controlplane.api.resource import Resource
from controlplane.api.strict import NoQuery, read_body, read_query
from controlplane.physics.advicedesk import DeskFull, Seen, desk
from controlplane.telemetry.queries.prices import books

TAG = "advisor"
AGAIN_S = 1
REFUSED = {422: "There is no advice, with `reasons`: what cannot be and what would.", 504: "It took too long or broke."}


class Advisor(Resource):
    @openapi.question("ask_advisor", TAG, AdvisorBody, AskedDocument, more=REFUSED)
    def post(self, request: Request) -> Response:
        """Ask whether to disaggregate. The closed form is there after a second, the simulation after some more: until then
        the answer is 202, and `Location` tells where to ask again."""
        read_query(request, NoQuery)
        body = read_body(request, AdvisorBody)
        try:
            return _answer(desk().ask(question(body, books().at(time.time()).per_hour())))
        except DeskFull as full:
            raise Problem(503, "unavailable", f"{full}.") from None


class OneAdvice(Resource):
    @openapi.read(
        "get_asked_advice", TAG, AskedDocument, query=NoQuery, more={202: "It still works: the same, so far.", **REFUSED}
    )
    def get(self, request: Request, advice: str) -> Response:
        """The advice on a question that was asked, as far as it is known; it is dropped if nobody asks for it."""
        read_query(request, NoQuery)
        seen = desk().seen(advice)
        if seen is None:
            raise Problem(404, "not_found", "No such question is known here (any more): ask it again.")
        return _answer(seen)


def _answer(seen: Seen) -> Response:
    if seen.state == "refused":
        raise Problem(422, "invalid", seen.reason)
    if seen.state == "failed" and seen.advice is None:
        raise Problem(504, "no_answer", seen.reason)
    headers = {} if seen.over else {"Location": f"/api/v1/advisor/{seen.id}", "Retry-After": str(AGAIN_S)}
    return Response(asdict(seen), status=200 if seen.over else 202, headers=headers)
