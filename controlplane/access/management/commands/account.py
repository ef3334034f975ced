"""`manage.py account add|list|set|password|unlock|reset-second-factor|end-sessions|link`: people who may come in."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.access import accounts
from controlplane.config import config
from controlplane.control.actor import GROUPS, Actor
from controlplane.control.cli import answer, explained

MAX_PASSWORD = 4096


class Command(BaseCommand):
    help = "Make and change accounts. A new password is read from standard input, or made and shown this once."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="what", required=True)
        verbs.add_parser("list", help="every account, one JSON object a line")
        add = _named(verbs, "add", "make an account")
        add.add_argument("--role", choices=GROUPS, default="viewer")
        _teams(add)
        _password(add)
        change = _named(verbs, "set", "change role, teams, or whether somebody may come in")
        change.add_argument("--role", choices=GROUPS)
        _teams(change)
        change.add_argument("--no-team", action="store_true", help="in no team")
        which = change.add_mutually_exclusive_group()
        which.add_argument("--disable", action="store_true", help="they may not come in; sessions end, tokens are refused")
        which.add_argument("--enable", action="store_true")
        _password(_named(verbs, "password", "give somebody a new password; their sessions end"))
        _named(verbs, "unlock", "forget wrong passwords and codes")
        _named(verbs, "reset-second-factor", "take away a second factor that was lost; their sessions end")
        _named(verbs, "end-sessions", "sign somebody out everywhere")
        link = _named(verbs, "link", "whom the OpenID provider calls SUBJECT comes in as this user")
        link.add_argument("subject", metavar="SUBJECT")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["what"] == "list":
            for row in accounts.accounts():
                self.stdout.write(json.dumps(row))
            return
        with explained():
            self.stdout.write(_carry_out(options))


def _carry_out(options: dict[str, Any]) -> str:
    actor, name, why = Actor.command_line(), options["name"], {"reason": options["reason"]}
    match options["what"]:
        case "add":
            return _told(
                accounts.add_account(actor, name, options["role"], teams=options["team"], password=_given(options), **why),
                options,
            )
        case "set":
            teams = [] if options["no_team"] else options["team"] or None
            active = False if options["disable"] else True if options["enable"] else None
            return answer(accounts.set_account(actor, name, role=options["role"], teams=teams, active=active, **why))
        case "password":
            return _told(accounts.reset_password(actor, name, password=_given(options), **why), options)
        case "unlock":
            return answer(accounts.unlock_account(actor, name, **why))
        case "reset-second-factor":
            return json.dumps({"user": name, "sessions_ended": accounts.reset_second_factor(actor, name, **why)})
        case "end-sessions":
            return answer(accounts.end_sessions(actor, name, **why))
    if not config().oidc_issuer:
        raise CommandError("there is no provider: set TWINPOOL_OIDC_ISSUER")
    return answer(accounts.link_identity(actor, name, config().oidc_issuer, options["subject"], **why))


def _told(done: tuple[Any, str], options: dict[str, Any]) -> str:
    """A password is shown only if it was made here."""
    operation, password = done
    return answer(operation, user=options["name"], **({} if options["password_stdin"] else {"password": password}))


def _given(options: dict[str, Any]) -> str:
    if not options["password_stdin"]:
        return ""
    text = sys.stdin.readline(MAX_PASSWORD).rstrip("\r\n")
    if not text:
        raise CommandError("--password-stdin: no password came on standard input")
    return text


def _named(verbs: Any, name: str, help: str) -> Any:
    parser = verbs.add_parser(name, help=help)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--reason", default="", help="kept in the audit")
    return parser


def _teams(parser: Any) -> None:
    parser.add_argument("--team", action="append", default=[], metavar="NAME", help="may be given more than once")


def _password(parser: Any) -> None:
    parser.add_argument("--password-stdin", action="store_true", help="read the password as a line of standard input")
