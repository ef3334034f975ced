"""Django settings. Values come from `controlplane.config`; nothing here reads the environment itself."""

from __future__ import annotations

from pathlib import Path
from secrets import token_urlsafe
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from csp.constants import NONE, SELF
from pydantic import SecretStr

from controlplane.config import config

BASE_DIR = Path(__file__).resolve().parent.parent
_config = config()

DEBUG = _config.debug
SECRET_KEY_FILE = _config.django_secret_file or _config.state / "secrets" / "django.key"
# A management command that needs no secret (makemigrations, a type check) may run before the state folder exists; the web
# process refuses to start then (controlplane.asgi). Whatever is signed meanwhile nobody can forge.
SECRET_KEY = SECRET_KEY_FILE.read_text().strip() if SECRET_KEY_FILE.is_file() else token_urlsafe(48)
CSRF_TRUSTED_ORIGINS = _config.origins()
ALLOWED_HOSTS = sorted({urlsplit(origin).hostname or "" for origin in CSRF_TRUSTED_ORIGINS} | {"127.0.0.1", "localhost"})

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "axes",
    "csp",
    "rest_framework",
    "drf_spectacular",
    "knox",
    "controlplane.fleet",
    "controlplane.alerts",
    "controlplane.physics",
    "controlplane.telemetry",
    "controlplane.control",
    "controlplane.access",
    "controlplane.console",
    "controlplane.api",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "controlplane.console.statics.SmallStaticFiles",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "controlplane.access.middleware.SignedIn",
    "django.contrib.messages.middleware.MessageMiddleware",
    "axes.middleware.AxesMiddleware",
    "controlplane.console.middleware.NulAddress",
    "controlplane.console.middleware.DatabaseAway",
]

ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "controlplane.console.context.console",
            ]
        },
    }
]


def _database(url: SecretStr | None) -> dict[str, Any]:
    parts = urlsplit(url.get_secret_value() if url else "postgresql://app@127.0.0.1:5432/twinpool")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or 5432),
        "OPTIONS": {"connect_timeout": 5, **dict(parse_qsl(parts.query))},  # sslmode and the like
        "CONN_HEALTH_CHECKS": True,
        "CONN_MAX_AGE": 60,
    }


# Of a process whose requests have a thread each, such as web: a connection of its own would cost each of them more than its
# work does, and many at once would take all that PostgreSQL gives. While it is away each waits `timeout` s and is told so.
_POOL = {"min_size": 1, "timeout": 3.0, "reconnect_timeout": 1.0, "max_idle": 120.0, "name": "requests"}


# `default` is the application's role; `owner` may change the schema and is used by `migrate --database owner` alone.
DATABASES = {"default": _database(_config.database_url)}
if _config.database_connections:
    DATABASES["default"] |= {"CONN_MAX_AGE": 0}
    DATABASES["default"]["OPTIONS"]["pool"] = {**_POOL, "max_size": _config.database_connections}
if _config.database_owner_url:
    DATABASES["owner"] = _database(_config.database_owner_url)
DATABASE_APP_ROLE = DATABASES["default"]["USER"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

VALKEY_URL = _config.valkey_url.get_secret_value() if _config.valkey_url else "redis://127.0.0.1:6379/0"
TELEMETRY_URL = _config.telemetry_url.get_secret_value() if _config.telemetry_url else VALKEY_URL
CHANNEL_LAYERS = {"default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [VALKEY_URL]}}}

AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
    {"NAME": "controlplane.access.passwords.NoDressedUpCommonPassword"},
]
SIGNED_IN_BACKEND = "django.contrib.auth.backends.ModelBackend"
SECOND_FACTOR_FOR_ADMINS = _config.admins_need_second_factor()
AXES_FAILURE_LIMIT = 8
AXES_COOLOFF_TIME = 0.25  # hours
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_VERBOSE = False
AXES_DISABLE_ACCESS_LOG = True  # the audit has it, within bounds
AXES_LOCKOUT_CALLABLE = "controlplane.console.signin.locked_out"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "fleet"
LOGOUT_REDIRECT_URL = "login"
SESSION_IDLE_S = _config.session_idle_minutes * 60
SESSION_ABSOLUTE_S = _config.session_hours * 3600
SESSION_COOKIE_AGE = min(SESSION_IDLE_S, SESSION_ABSOLUTE_S)
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
# Where every address of the console is https, cookies travel no other way, and browsers are told to ask no other way.
_TLS_ALONE = bool(CSRF_TRUSTED_ORIGINS) and all(origin.startswith("https://") for origin in CSRF_TRUSTED_ORIGINS)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = LANGUAGE_COOKIE_SECURE = _TLS_ALONE
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if _TLS_ALONE else 0
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    }
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["controlplane.api.tokens.Bearer", "controlplane.api.tokens.Session"],
    "DEFAULT_PERMISSION_CLASSES": [
        "rest_framework.permissions.IsAuthenticated",
        "controlplane.api.tokens.InScope",
        "controlplane.api.tokens.Proved",
    ],
    "DEFAULT_PARSER_CLASSES": ["controlplane.api.parsing.Json"],
    "DEFAULT_RENDERER_CLASSES": ["controlplane.api.rendering.Json"],
    "DEFAULT_THROTTLE_CLASSES": ["controlplane.api.throttles.PerUser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "controlplane.api.problems.answer",
    "URL_FORMAT_OVERRIDE": None,
}
API_READS_PER_MINUTE = _config.api_reads_per_minute
API_CHANGES_PER_MINUTE = _config.api_changes_per_minute
API_STRANGERS_PER_MINUTE = _config.api_strangers_per_minute
KNOX_TOKEN_MODEL = "api.ApiToken"  # noqa: S105 (a class)
REST_KNOX = {"AUTH_HEADER_PREFIX": "Bearer", "TOKEN_PREFIX": "tp-", "TOKEN_TTL": None, "AUTO_REFRESH": False}
SPECTACULAR_SETTINGS = {
    "TITLE": "Twinpool",
    "DESCRIPTION": "Prefill and decode pools, modes, canaries and the operations that change them.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": r"/api/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "ENUM_NAME_OVERRIDES": {
        "ModeEnum": "controlplane.fleet.models.Mode",
        "RoleEnum": "controlplane.fleet.models.Role",
        "EngineStateEnum": "controlplane.api.documents.ENGINE_STATES",
        "StepStateEnum": "controlplane.api.documents.STEP_STATES",
        "OperationStateEnum": "controlplane.api.documents.OPERATION_STATES",
        "CanaryStateEnum": "controlplane.api.documents.CANARY_STATES",
        "AlertStateEnum": "controlplane.api.documents_alerts.ALERT_STATES",
        "SeverityEnum": "controlplane.api.documents_alerts.SEVERITIES",
    },
}

# Alerts by e-mail. Without a server (EMAIL_HOST "") there is none.
_mail = _config.mail_server()
EMAIL_HOST = _mail.host if _mail else ""
EMAIL_PORT = _mail.port if _mail else 25
EMAIL_HOST_USER = _mail.user if _mail else ""
EMAIL_HOST_PASSWORD = _mail.password if _mail else ""
EMAIL_USE_SSL = bool(_mail and _mail.tls)
EMAIL_USE_TLS = bool(_mail and _mail.starttls)
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = _config.mail_from

# Without this Django writes errors nowhere unless DEBUG is on. Refusals (4xx) are for whoever asked.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "loggers": {"django.request": {"handlers": ["stderr"], "level": "ERROR"}},
}

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("vi", "Tiếng Việt")]
LOCALE_PATHS = [BASE_DIR / "controlplane" / "locale"]
LANGUAGE_COOKIE_AGE = 365 * 24 * 3600
LANGUAGE_COOKIE_SAMESITE = "Lax"
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "controlplane.console.finders.WheelFilesFinder",
]
# No collectstatic: whitenoise finds the files at start, in the checkout and in the wheels.
STATIC_ROOT = None
WHITENOISE_USE_FINDERS = True
STATIC_COPIES = _config.state / "static"
"""Of static files, compressed."""
