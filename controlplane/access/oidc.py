"""Signing in with an OpenID provider: the code flow with PKCE, state and nonce (authlib), and only tokens that are signed by
the provider for us and not over.

What the provider says of groups decides role and teams, at each sign-in anew. Nobody is known by a name alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import requests
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.base_client import OAuthError
from authlib.integrations.django_client import OAuth
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from joserfc.errors import JoseError

from controlplane.access.accounts import NAME, put_in
from controlplane.access.models import Identity
from controlplane.common.files import read_document
from controlplane.config import Config, config, read_pairs
from controlplane.control.actions import record_change
from controlplane.control.actor import GROUPS, Actor, Role
from controlplane.control.refused import Refused
from controlplane.fleet.models import Team

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures of a provider's own key. None that the client's secret or nobody makes."""
TIMEOUT_S = 10
LEEWAY_S = 30
SECOND_FACTORS = frozenset({"mfa", "otp", "hwk", "swk", "sms", "fpt", "face", "iris", "sc"})
"""Values of `amr` (RFC 8176) that say the provider asked for more than a password."""
_PROVIDER = "provider"


class NotBelieved(Exception):
    """The provider's answer was not taken. `why`: one of a few words of our own, for the audit."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True)
class Person:
    """What a provider says of somebody, as far as it matters here. `role` "": none of their groups gives one."""

    subject: str
    name: str
    role: Role | str
    teams: frozenset[str]
    factor: bool


def start(request: HttpRequest, back: str, next_page: str) -> HttpResponse:
    """Send a visitor to the provider; `back` is our address to which it sends them again. Raises NotBelieved."""
    try:
        answer: HttpResponse = _client().authorize_redirect(request, back)
    except (requests.RequestException, ValueError, RuntimeError, KeyError, AuthlibBaseError) as error:
        raise NotBelieved("away") from error
    request.session["provider_next"] = next_page
    return answer


def finish(request: HttpRequest) -> tuple[Person, str]:
    """Who came back from the provider, and to where they wanted. Raises NotBelieved."""
    issuer, client = config().oidc_issuer, _client()
    if request.GET.get("iss", issuer).rstrip("/") != issuer:  # RFC 9207: another provider's answer
        raise NotBelieved("issuer")
    values = {"iss": [client.server_metadata["issuer"]], "aud": [config().oidc_client_id]}
    try:
        token = client.authorize_access_token(
            request,
            claims_options={name: {"essential": True, "values": value} for name, value in values.items()},
            leeway=LEEWAY_S,
        )
    except OAuthError as error:
        raise NotBelieved("state" if error.error == "mismatching_state" else "refused") from error
    except requests.RequestException as error:
        raise NotBelieved("away") from error
    except (JoseError, AuthlibBaseError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise NotBelieved("token") from error
    claims = token.get("userinfo")
    if not isinstance(claims, Mapping):
        raise NotBelieved("token")
    return person(claims, config()), str(request.session.pop("provider_next", ""))


def person(claims: Mapping[str, Any], settings: Config) -> Person:
    """Raises NotBelieved for claims that name nobody."""
    subject, name = claims.get("sub"), claims.get(settings.oidc_username_claim)
    if not isinstance(subject, str) or not 1 <= len(subject) <= 255 or "\x00" in subject:
        raise NotBelieved("subject")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise NotBelieved("name")
    groups = claims.get(settings.oidc_groups_claim)
    held = {each for each in groups if isinstance(each, str)} if isinstance(groups, list) else set()
    roles = {role for group, role in read_pairs(settings.oidc_roles).items() if group in held}
    role = next((each for each in GROUPS if each in roles), settings.oidc_default_role)
    teams = frozenset(team for group, team in read_pairs(settings.oidc_teams).items() if group in held)
    amr = claims.get("amr")
    return Person(subject, name, role, teams, bool(isinstance(amr, list) and SECOND_FACTORS & set(map(str, amr))))


def account_of(found: Person, issuer: str) -> User:
    """The account of somebody whom the provider vouches for, made at the first time, with the role and teams that follow
    from their groups now. Raises NotBelieved: no role, account switched off, or the name is another account's."""
    if not found.role:
        raise NotBelieved("role")
    actor = Actor.system("provider")
    with transaction.atomic():
        known = Identity.objects.select_related("user").filter(issuer=issuer, subject=found.subject).first()
        user = known.user if known else _new_user(found, issuer)
        if not user.is_active:
            raise NotBelieved("inactive")
        before = _held(user)
        teams = sorted(Team.objects.filter(name__in=found.teams).values_list("name", flat=True))
        try:
            put_in(user, found.role, teams)
        except Refused as refused:
            raise NotBelieved("role") from refused
        after = {"role": found.role, "teams": teams}
        if before != after or not known:
            verb = "set_account" if known else "add_account"
            record_change(verb, actor, "", f"user:{user.get_username()}", before=before, after=after, done=True)
    return User.objects.get(pk=user.pk)


def _new_user(found: Person, issuer: str) -> User:
    if User.objects.filter(username__iexact=found.name).exists():
        raise NotBelieved("taken")
    user = User.objects.create_user(found.name)
    Identity.objects.create(user=user, issuer=issuer, subject=found.subject)
    return user


def _held(user: User) -> dict[str, Any]:
    held = Actor.of_user(user)
    return {"role": held.role, "teams": sorted(held.teams)}


def _client() -> Any:
    """The provider's, its metadata read. Raises what reading it raises, and NotBelieved for another provider's."""
    client = _registered()
    try:
        metadata = client.load_server_metadata()
    except (requests.RequestException, ValueError) as error:
        raise NotBelieved("away") from error
    if str(metadata.get("issuer", "")).rstrip("/") != config().oidc_issuer:
        metadata.clear()
        raise NotBelieved("issuer")
    offered: Sequence[str] = metadata.get("id_token_signing_alg_values_supported") or ALGORITHMS[:1]
    metadata["id_token_signing_alg_values_supported"] = [each for each in offered if each in ALGORITHMS]
    return client


@cache
def _registered() -> Any:
    settings = config()
    secret = read_document(settings.oidc_client_secret_file).strip() if settings.oidc_client_secret_file else None
    registry = OAuth()
    registry.register(
        _PROVIDER,
        client_id=settings.oidc_client_id,
        client_secret=secret,
        server_metadata_url=f"{settings.oidc_issuer}/.well-known/openid-configuration",
        client_kwargs={
            "scope": settings.oidc_scopes,
            "code_challenge_method": "S256",
            "default_timeout": TIMEOUT_S,
            **({} if secret else {"token_endpoint_auth_method": "none"}),
        },
    )
    return cast(Any, registry.create_client(_PROVIDER))


def forget() -> None:
    """Read settings and the provider's metadata anew."""
    _registered.cache_clear()
