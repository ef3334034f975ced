"""Settings of the control plane's processes, read once from the environment and checked at start. No Django here."""

from __future__ import annotations

import ipaddress
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from controlplane.common import databaseurl, valkey
from controlplane.common.keyring import Keyring
from controlplane.common.outward import MailServer, read_networks, read_smtp
from controlplane.common.places import read_place
from controlplane.core.engine_args import ArgumentRefused, clean_kv_events


class Config(BaseSettings):
    """Every value comes from TWINPOOL_<NAME>. Secrets are SecretStr or files, so that no repr or traceback shows them."""

    model_config = SettingsConfigDict(env_prefix="TWINPOOL_", extra="ignore")

    state: Path = Field(default=Path(".twinpool"))
    database_url: SecretStr | None = None
    database_owner_url: SecretStr | None = None
    database_connections: int = Field(default=0, ge=0, le=1000)
    """How many the threads of this process share; 0: each keeps its own. The web process sets it if nobody does."""
    valkey_url: SecretStr | None = None
    telemetry_url: SecretStr | None = None
    join_address: str = ""
    """HOST[:PORT] at which nodes reach Valkey; empty: as this process does."""
    fleet_secret_file: Path | None = None
    django_secret_file: Path | None = None
    console_origins: str = "http://127.0.0.1:8080,http://localhost:8080"
    debug: bool = False
    kv_events: str = ""
    """tcp://ADDRESS:PORT that collects KV events: engines started from now on connect to it. Empty: they tell none."""
    metrics: str = ""
    """ADDRESS:PORT on which this process serves /metrics (control workers and ingest; web has its own). Empty: nowhere."""
    require_key: bool = False
    """Routers ask clients on their own machine for an API key too. Others need one always."""
    api_reads_per_minute: int = Field(default=6000, ge=1)
    api_changes_per_minute: int = Field(default=300, ge=1)
    """What one user may ask of the REST API, counted by each web process."""
    api_strangers_per_minute: int = Field(default=300, ge=1)
    """Requests from one address that nothing signs in; more are told to wait."""
    session_idle_minutes: int = Field(default=480, ge=5, le=43_200)
    session_hours: int = Field(default=72, ge=1, le=8760)
    """A session of the console ends when nobody did anything for so long, and in any case so long after signing in."""
    second_factor: Literal["auto", "admins", "optional"] = "auto"
    """Who needs one. auto: admins, where the console has an address beyond this machine."""
    oidc_issuer: str = ""
    """https address of an OpenID provider with which people may sign in; empty: with passwords alone."""
    oidc_client_id: str = ""
    oidc_client_secret_file: Path | None = None
    oidc_name: str = Field(default="single sign-on", max_length=40)
    """What the button says."""
    oidc_scopes: str = "openid profile email"
    oidc_username_claim: str = "preferred_username"
    oidc_groups_claim: str = "groups"
    oidc_roles: str = ""
    """GROUP=ROLE, separated by commas: which groups of the provider give which role; the highest counts."""
    oidc_teams: str = ""
    """GROUP=TEAM, separated by commas."""
    oidc_default_role: Literal["", "viewer"] = ""
    """Of people whom no group gives a role; empty: they may not come in."""
    webhook_networks: str = ""
    """Networks that webhooks of alerts may reach though they are not public, separated by commas (10.1.0.0/16)."""
    smtp_url: SecretStr | None = None
    """smtp://, smtp+starttls:// or smtps://[user:password@]host[:port] of the server that sends alerts by e-mail."""
    mail_from: str = Field(default="twinpool@localhost", pattern=r"^[^\s@]+@[^\s@]+$")
    otlp_endpoint: str = Field(default="", validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT")
    otlp_traces_endpoint: str = Field(default="", validation_alias="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    """Where traces of requests go, by OpenTelemetry's own names: the base address, or the whole one, which wins."""
    # How long telemetry is kept. What a table holds: controlplane/telemetry/migrations/0002_tables.py
    keep_node_second_hours: float = Field(default=2, gt=0)
    keep_gpu_minute_days: float = Field(default=2, gt=0)
    keep_engine_10s_days: float = Field(default=2, gt=0)
    keep_engine_hour_days: float = Field(default=30, gt=0)
    keep_pool_minute_days: float = Field(default=90, gt=0)
    keep_request_days: float = Field(default=7, gt=0)
    keep_cost_days: float = Field(default=800, gt=0)

    @field_validator("database_url", "database_owner_url")
    @classmethod
    def _database(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not databaseurl.usable(url.get_secret_value()):
            raise ValueError(databaseurl.HOW)
        return url

    @field_validator("valkey_url", "telemetry_url")
    @classmethod
    def _valkey(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not valkey.usable(url.get_secret_value()):
            raise ValueError(valkey.HOW)
        return url

    @field_validator("kv_events")
    @classmethod
    def _private(cls, endpoint: str) -> str:
        try:
            clean_kv_events({"endpoint": endpoint} if endpoint else {})
        except ArgumentRefused as refusal:
            raise ValueError(refusal.problem) from refusal
        return endpoint

    @field_validator("metrics")
    @classmethod
    def _place(cls, text: str) -> str:
        if text:
            read_place(text)
        return text

    @field_validator("webhook_networks")
    @classmethod
    def _networks(cls, text: str) -> str:
        read_networks(text)
        return text

    @field_validator("smtp_url")
    @classmethod
    def _smtp(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            read_smtp(url.get_secret_value())
        return url

    @field_validator("oidc_issuer")
    @classmethod
    def _issuer(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (parts.scheme != "https" and not (parts.scheme == "http" and is_this_machine(parts.hostname or ""))):
            raise ValueError("must be https (http only on this machine)")
        if url and (not parts.hostname or parts.query or parts.fragment or parts.username):
            raise ValueError("must be an address without query, fragment and user")
        return url.rstrip("/")

    @field_validator("oidc_roles", "oidc_teams")
    @classmethod
    def _pairs(cls, text: str) -> str:
        read_pairs(text)
        return text

    @property
    def traces_url(self) -> str:
        """The whole address to which traces are to be sent, not checked; empty: nowhere."""
        return self.otlp_traces_endpoint or (f"{self.otlp_endpoint.rstrip('/')}/v1/traces" if self.otlp_endpoint else "")

    def fleet_secret(self) -> bytes:
        """The fleet secret. Raises BadKey."""
        return self.fleet_keys().present

    def fleet_keys(self) -> Keyring:
        """The fleet secret with those before and after it, as the files have them now. Raises BadKey."""
        return Keyring(self.fleet_secret_file or self.state / "secrets" / "fleet.key")

    def mail_server(self) -> MailServer | None:
        return read_smtp(self.smtp_url.get_secret_value()) if self.smtp_url else None

    def origins(self) -> list[str]:
        return [origin.strip() for origin in self.console_origins.split(",") if origin.strip()]

    def admins_need_second_factor(self) -> bool:
        if self.second_factor == "auto":
            return not all(is_this_machine(urlsplit(origin).hostname or "") for origin in self.origins())
        return self.second_factor == "admins"


def is_this_machine(host: str) -> bool:
    """Of a name or address in a URL, that nobody elsewhere reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def read_pairs(text: str) -> dict[str, str]:
    """`A=B,C=D` by what is before the last equals sign. Raises ValueError."""
    pairs = [part.strip().rpartition("=") for part in text.split(",") if part.strip()]
    if not all(left and right for left, _, right in pairs):
        raise ValueError("must be GROUP=NAME, separated by commas")
    return {left.strip(): right.strip() for left, _, right in pairs}


class BadSetting(ValueError):
    """A TWINPOOL_... variable cannot be used. The message names it and the remedy, never its value."""


@cache
def config() -> Config:
    """Raises BadSetting."""
    try:
        return Config()
    except ValidationError as error:
        wrong = [
            f"TWINPOOL_{str(each['loc'][0]).upper()} is wrong ({each['msg'].removeprefix('Value error, ')})"
            for each in error.errors()
        ]
        raise BadSetting(f"{'; '.join(wrong)}: correct or unset it") from None
