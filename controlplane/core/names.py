"""Names that several processes must agree on: environment variables, broker keys, queues, files of the state folder."""

from __future__ import annotations

# Environment of every process. Secrets go by file or environment, never by argv.
ENV_STATE = "TWINPOOL_STATE"  # absolute path of the state folder
ENV_DATABASE_URL = "TWINPOOL_DATABASE_URL"  # role `app`: postgresql://user:password@host:port/name
ENV_DATABASE_OWNER_URL = "TWINPOOL_DATABASE_OWNER_URL"  # role `owner`: migrations only
ENV_VALKEY_URL = "TWINPOOL_VALKEY_URL"  # redis://:password@host:port/0
ENV_TELEMETRY_URL = "TWINPOOL_TELEMETRY_URL"  # another server for telemetry streams; default: the broker
ENV_FLEET_SECRET_FILE = "TWINPOOL_FLEET_SECRET_FILE"  # 0600, 32 bytes; control and routers
ENV_NODE_KEY_FILE = "TWINPOOL_NODE_KEY_FILE"  # 0600, 32 bytes; one node's agent
ENV_DJANGO_SECRET_FILE = "TWINPOOL_DJANGO_SECRET_FILE"
ENV_VLLM_PYTHON = "TWINPOOL_VLLM_PYTHON"  # interpreter that can import vllm
ENV_ADMIN_PASSWORD = "TWINPOOL_ADMIN_PASSWORD"  # of the first admin user; read by seed_fleet alone
ENV_CONSOLE_ORIGINS = "TWINPOOL_CONSOLE_ORIGINS"  # comma-separated origins allowed to open the console and its sockets
ENV_ENGINE_KEY = "VLLM_API_KEY"  # given to an engine process; vLLM's own name, used by simulated engines too

# Valkey keys and channels.
TABLE_KEY = "table"  # the signed routing table
TABLE_CHANNEL = "table"  # message: "<epoch>:<generation>"
FACT_CHANNEL = "fact"  # message: "<kind>:<id>"
FACT_TTL_S = 15
FACT_EVERY_S = 5
TELEMETRY_STREAM = "telemetry"
TELEMETRY_MAXLEN = 60_000
LIVE_CHANNEL_GROUP = "live"  # channel-layer group prefix: live.<topic with ':' as '.'>


def fact_key(kind: str, id: str) -> str:
    """Where an agent or router keeps its present state: `fact:agent:n1`, `fact:router:127.0.0.1-8000`."""
    return f"fact:{kind}:{id}"


def live_key(topic: str) -> str:
    """Hash with the state of one live topic: fields `epoch`, `seq`, `at`, `rows` (JSON list)."""
    return f"live:{topic}"


def node_queue(node: str) -> str:
    """The Celery queue only this node's agent listens on."""
    return f"node.{node}"


CONTROL_QUEUE = "control"

# Celery tasks of a node agent. Each takes one argument: a signed Command (core.protocol) made with the node's key.
TASK_START_ENGINE = "workers.start_engine"
TASK_STOP_ENGINE = "workers.stop_engine"
TASK_DRAIN_ENGINE = "workers.drain_engine"
TASK_LIST_ENGINES = "workers.list_engines"
TASK_TAIL_LOG = "workers.tail_log"
