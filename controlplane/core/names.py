"""Names that several processes must agree on: environment variables, broker keys, queues, files of the state folder."""

from __future__ import annotations

import re

from controlplane.core.storable import storable_text

NODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
"""A node's name becomes a part of paths, queues, keys and command lines, so it has no dot and begins with no dash."""
LABEL_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
LABEL_VALUE_CHARS = 200


def check_node_name(name: str) -> str:
    """`name`. Raises ValueError unless it may name a node."""
    if not NODE_NAME.fullmatch(name):
        raise ValueError(f"{name!r:.80} is no node name: use letters, digits, `-` and `_`, at most 63, not `-` first")
    return name


def read_label(text: str) -> tuple[str, str]:
    """Key and value of a node's label, written KEY=VALUE. Raises ValueError."""
    key, equals, value = text.partition("=")
    if not equals or not LABEL_KEY.fullmatch(key) or len(value) > LABEL_VALUE_CHARS or storable_text(value) != value:
        raise ValueError(f"{text!r:.80} is no label: write KEY=VALUE, the key of letters, digits, `.`, `_` and `-`")
    return key, value


MOST_ROUTER_PROCESSES = 64
"""That share one port as one router."""

# Environment of every process. Secrets go by file or environment, never by argv.
ENV_STATE = "TWINPOOL_STATE"  # absolute path of the state folder
ENV_DATABASE_URL = "TWINPOOL_DATABASE_URL"  # role `app`: postgresql://user:password@host:port/name
ENV_DATABASE_OWNER_URL = "TWINPOOL_DATABASE_OWNER_URL"  # role `owner`: migrations only
ENV_DATABASE_CONNECTIONS = "TWINPOOL_DATABASE_CONNECTIONS"  # that the threads of one process share; 0: one per thread
ENV_VALKEY_URL = "TWINPOOL_VALKEY_URL"  # redis://:password@host:port/0
ENV_TELEMETRY_URL = "TWINPOOL_TELEMETRY_URL"  # another server for telemetry streams; default: the broker
ENV_FLEET_SECRET_FILE = "TWINPOOL_FLEET_SECRET_FILE"  # 0600, 32 bytes; control and routers
ENV_NODE_KEY_FILE = "TWINPOOL_NODE_KEY_FILE"  # 0600, 32 bytes; one node's agent
ENV_DJANGO_SECRET_FILE = "TWINPOOL_DJANGO_SECRET_FILE"
ENV_VLLM_PYTHON = "TWINPOOL_VLLM_PYTHON"  # interpreter that can import vllm
ENV_ADMIN_PASSWORD = "TWINPOOL_ADMIN_PASSWORD"  # of the first admin user; read by seed_fleet alone
ENV_CONSOLE_ORIGINS = "TWINPOOL_CONSOLE_ORIGINS"  # comma-separated origins allowed to open the console and its sockets
ENV_TRUSTED_PROXIES = "TWINPOOL_TRUSTED_PROXIES"  # comma-separated addresses of proxies in front of the console
ENV_ROUTER_BUILDS = "TWINPOOL_ROUTER_BUILDS"  # folder of compiled routers; default: .compiled in the checkout
ENV_KV_EVENTS = "TWINPOOL_KV_EVENTS"  # tcp://address:port of an indexer, for engines started from now on
ENV_SMTP_URL = "TWINPOOL_SMTP_URL"  # smtps://user:password@host of the server that sends alerts by e-mail; a secret
ENV_METRICS = "TWINPOOL_METRICS"  # address:port on which a control worker or ingest serves /metrics
ENV_JOIN_ADDRESS = "TWINPOOL_JOIN_ADDRESS"  # HOST[:PORT] at which nodes reach Valkey; default: as control reaches it
ENV_JOIN_TOKEN = "TWINPOOL_JOIN_TOKEN"  # what `manage.py agent` joins with; a secret
ENV_BOOTSTRAP = "TWINPOOL_BOOTSTRAP"  # "off": use the interpreter that was started (an image with everything installed)
ENV_POSTGRES_BIN = "TWINPOOL_POSTGRES_BIN"  # folder with initdb and postgres
ENV_VALKEY_BIN = "TWINPOOL_VALKEY_BIN"  # the valkey-server program
ENV_ENGINE_MARKER = "TWINPOOL_ENGINE"  # `<node>/<engine>/<rank>/<incarnation>`, in an engine and all that it starts
ENV_ENGINE_HOME = "TWINPOOL_ENGINE_HOME"  # the state folder of the agent that started it, beside the marker
ENV_ENGINE_KEY = "VLLM_API_KEY"  # given to an engine process; vLLM's own name, used by simulated engines too

# Valkey keys and channels.
TABLE_KEY = "table"  # the signed routing table
TABLE_CHANNEL = "table"  # message: "<epoch>:<generation>"
FACT_CHANNEL = "fact"  # message: "<kind>:<id>", when its fact has news on which something may be decided
ERAS_KEY = "eras"  # hash: "<engine>/<incarnation>/<number>/<salt>" -> signed CacheEra; entries that are outdone are deleted
ERAS_CHANNEL = "eras"  # message: that field
LOADS_CHANNEL = "loads"  # message: signed Reservations of a router process, several times a second
FACT_TTL_S = 15
FACT_EVERY_S = 5
TELEMETRY_STREAM = "telemetry"
TELEMETRY_KEPT_S = 600  # of the stream at least: what ingest can make up for after a death or an outage
TELEMETRY_AT_LEAST = 60_000  # entries are kept, whatever their age
LIVE_CHANNEL_GROUP = "live"  # channel-layer group prefix: live.<topic with ':' as '.'>


def fact_key(kind: str, id: str) -> str:
    """Where an agent or router keeps its present state: `fact:agent:n1`, `fact:router:host-8000`."""
    return f"fact:{kind}:{id}"


def canary_stream(canary: int) -> str:
    """The stream in which routers tell what sessions of a running canary see: signed CanaryReports in field "r"."""
    return f"canary:{canary}"


def live_key(topic: str) -> str:
    """Hash with the state of one live topic: fields `epoch`, `seq`, `at`, `rows` (JSON list)."""
    return f"live:{topic}"


def node_queue(node: str) -> str:
    """The Celery queue only this node's agent listens on."""
    return f"node.{node}"


RESULT_PREFIX = "celery-task-meta-"  # Celery's own, of the keys and channels of answers
CONTROL_QUEUE = "control"
CONTROL_KEY = "control:ticked"  # when the control loop last ended a tick, Unix seconds

# Celery tasks of a node agent. Each takes one argument: a signed Command (core.protocol) made with the node's key.
TASK_START_ENGINE = "workers.start_engine"
TASK_STOP_ENGINE = "workers.stop_engine"
TASK_DRAIN_ENGINE = "workers.drain_engine"
TASK_LIST_ENGINES = "workers.list_engines"
TASK_TAIL_LOG = "workers.tail_log"
TASK_LINK = "workers.link"
TASK_REKEY = "workers.rekey"
