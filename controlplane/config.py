"""Settings of the control plane's processes, read once from the environment and checked at start. No Django here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from controlplane.common.files import read_key
from controlplane.common.outward import MailServer, read_networks, read_smtp
from controlplane.common.places import read_place
from controlplane.core.engine_args import ArgumentRefused, clean_kv_events


class Config(BaseSettings):
    """Every value comes from TWINPOOL_<NAME>. Secrets are SecretStr or files, so that no repr or traceback shows them."""

    model_config = SettingsConfigDict(env_prefix="TWINPOOL_", extra="ignore")

    state: Path = Field(default=Path(".twinpool"))
    database_url: SecretStr | None = None
    database_owner_url: SecretStr | None = None
    valkey_url: SecretStr | None = None
    telemetry_url: SecretStr | None = None
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
    keep_pool_minute_days: float = Field(default=90, gt=0)
    keep_request_days: float = Field(default=7, gt=0)
    keep_cost_days: float = Field(default=800, gt=0)

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

    @property
    def traces_url(self) -> str:
        """The whole address to which traces are to be sent, not checked; empty: nowhere."""
        return self.otlp_traces_endpoint or (f"{self.otlp_endpoint.rstrip('/')}/v1/traces" if self.otlp_endpoint else "")

    def fleet_secret(self) -> bytes:
        """The fleet secret. Raises BadKey."""
        return read_key(self.fleet_secret_file or self.state / "secrets" / "fleet.key", "the fleet secret")

    def mail_server(self) -> MailServer | None:
        return read_smtp(self.smtp_url.get_secret_value()) if self.smtp_url else None

    def origins(self) -> list[str]:
        return [origin.strip() for origin in self.console_origins.split(",") if origin.strip()]


class BadSetting(ValueError):
    """A TWINPOOL_... variable cannot be used. The message names it and the remedy, never its value."""


@cache
def config() -> Config:
    """Raises BadSetting."""
    try:
        return Config()
    except ValidationError as error:
        wrong = [f"TWINPOOL_{str(each['loc'][0]).upper()} is wrong ({each['msg']})" for each in error.errors()]
        raise BadSetting(f"{'; '.join(wrong)}: correct or unset it") from None
