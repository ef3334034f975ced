"""Lets nodes in: keeps users of the broker as rows want them, and answers who asks to join with a token.

Level-triggered: every pass computes from rows what users there must be. A broker that was started again has forgotten them
and gets them back; the user of a node that was removed goes, and its connections with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import redis
from django.db import transaction
from django.utils import timezone

from controlplane.common.valkey import connect_sync
from controlplane.config import config
from controlplane.control.joined import still_asked
from controlplane.core import joining
from controlplane.core.codec import WrongShape, decode, encode
from controlplane.core.joining import Answer, BrokerUser, Question
from controlplane.core.signing import BadSignature, node_key, seal, unseal
from controlplane.fleet.models import AuditEntry, JoinToken, Node

log = logging.getLogger(__name__)


class Admission:
    """Of one process: it remembers what it has written to which broker."""

    def __init__(self) -> None:
        self._written: dict[str, dict[str, BrokerUser]] = {}

    def run(self) -> None:
        """One pass. Raises django.db.Error and redis.RedisError: the next pass does what this one could not."""
        secret, now = config().fleet_secret(), timezone.now()
        tokens = [(row, joining.token_secret(secret, row.pk, row.salt)) for row in still_asked(now)]
        self._keep(_wanted(tokens))
        with connect_sync(_urls()[0]) as valkey:
            for row, token in tokens:
                if (asked := valkey.get(joining.question_key(row.pk))) is not None:
                    self._answer(valkey, row, token, bytes(asked), secret)

    def _keep(self, wanted: list[BrokerUser]) -> None:
        for url in _urls():
            written = self._written.setdefault(url, {})
            with connect_sync(url) as valkey:
                present = [str(name) for name in valkey.acl_users()]
                to_set, to_remove = joining.differences(wanted, present, written)
                _write(valkey, to_set, to_remove)
            written.update({user.name: user for user in to_set})
            for name in written.keys() - {user.name for user in wanted}:
                del written[name]

    def _answer(self, valkey: redis.Redis, row: JoinToken, token: bytes, asked: bytes, secret: bytes) -> None:
        """Answers one question. A kill in between leaves the question where it is, and the next pass answers it."""
        try:
            question = _read(row.pk, token, asked)
        except (BadSignature, WrongShape, ValueError) as error:
            log.warning("a question to join as %s is refused: %s", row.node.name, error)
            valkey.delete(joining.question_key(row.pk))
            return
        sha256 = joining.digest(joining.node_password(token, question.claim))
        refused = _use(row.pk, question.claim, sha256)
        if refused:
            answer = Answer(question.claim, refused=refused)
        else:
            self._keep_node(row.node.name, sha256)
            key = node_key(secret, row.node.name)
            answer = Answer(question.claim, node_key=joining.masked(token, question.claim, key).hex())
        pipeline = valkey.pipeline()
        pipeline.set(joining.answer_key(row.pk), seal(token, encode(answer)), ex=joining.ANSWER_S)
        pipeline.delete(joining.question_key(row.pk))
        pipeline.execute()
        log.info("node %s asked to join: %s", row.node.name, refused or "let in")

    def _keep_node(self, node: str, sha256: str) -> None:
        """The node's user with its new password; who still uses the old one is cut off."""
        user = joining.user_of_node(node, sha256)
        for url in _urls():
            with connect_sync(url) as valkey:
                _write(valkey, [user], [])
                valkey.execute_command("CLIENT", "KILL", "USER", user.name)
            self._written.setdefault(url, {})[user.name] = user


def _wanted(tokens: Iterable[tuple[JoinToken, bytes]]) -> list[BrokerUser]:
    nodes = Node.objects.exclude(broker_sha256="").values_list("name", "broker_sha256")
    return [joining.user_of_token(row.pk, secret) for row, secret in tokens] + [
        joining.user_of_node(name, sha256) for name, sha256 in nodes
    ]


def _read(number: int, token: bytes, asked: bytes) -> Question:
    if len(asked) > joining.MAX_QUESTION_BYTES:
        raise ValueError(f"it has {len(asked)} bytes")
    question = decode(Question, unseal(token, asked))
    if question.token != number or not 16 <= len(question.claim) <= 64 or not question.claim.isalnum():
        raise ValueError("it is another token's, or its claim is none")
    return question


def _use(number: int, claim: str, sha256: str) -> str:
    """Use the token up for this claim and note the node's password. Returns why not, or ""."""
    with transaction.atomic():
        row = JoinToken.objects.select_for_update().select_related("node").filter(pk=number).first()
        if row is None or (row.used_at is None and not still_asked(timezone.now()).filter(pk=number).exists()):
            return "the token was revoked or has expired: make a new one with `manage.py join-token NODE`"
        if row.used_at is not None and row.claim != claim:
            return "the token was used by another machine: if that was not you, remove the node; make a new token"
        if row.used_at is None:
            row.used_at, row.claim = timezone.now(), claim
            row.save(update_fields=["used_at", "claim"])
            AuditEntry.objects.create(
                actor=f"node:{row.node.name}", verb="join", subject=f"node:{row.node.name}", after={"token": number}
            )
        Node.objects.filter(pk=row.node_id).update(broker_sha256=sha256)
    return ""


def _write(valkey: redis.Redis, to_set: Iterable[BrokerUser], to_remove: Iterable[str]) -> None:
    pipeline = valkey.pipeline(transaction=False)
    for user in to_set:
        pipeline.execute_command("ACL", "SETUSER", *user.words())  # type: ignore[no-untyped-call]
    for name in to_remove:
        log.info("user %s of the broker is removed", name)
        pipeline.execute_command("ACL", "DELUSER", name)  # type: ignore[no-untyped-call]
    if len(pipeline):
        pipeline.execute()


def _urls() -> list[str]:
    """Of the broker, and of another server for telemetry if there is one."""
    found = config()
    urls = [url.get_secret_value() for url in (found.valkey_url, found.telemetry_url) if url is not None]
    return list(dict.fromkeys(urls))
