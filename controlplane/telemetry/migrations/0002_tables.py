"""What happened: RANGE-partitioned tables by `at`, written by COPY and read by `telemetry.queries`. No Django models: arrays
per node, sketches as bytes and partitions are the database's own business.

Units are in the names; a share is 0..1; NULL is "not known", never 0. Histograms are `core.sketches.Sketch.to_bytes` of
milliseconds, so they can be merged over any window.
"""

from __future__ import annotations

from django.db import migrations

POSITION = """
CREATE TABLE telemetry_position (
    stream text PRIMARY KEY,
    last_id text NOT NULL,
    at timestamptz NOT NULL
);
COMMENT ON TABLE telemetry_position IS 'Up to where of a Valkey stream the rows below were made; written with them, in one transaction.';
"""

NODE_SECOND = """
CREATE TABLE telemetry_node_second (
    node text NOT NULL,
    at timestamptz NOT NULL,
    gpus text[] NOT NULL,
    engines text[] NOT NULL,
    roles text[] NOT NULL,
    tensor real[] NOT NULL,
    tensor_peak real[] NOT NULL,
    dram real[] NOT NULL,
    memory_used_bytes bigint[] NOT NULL,
    power_w real[] NOT NULL,
    cpu real,
    node_memory_used_bytes bigint,
    node_memory_total_bytes bigint,
    disk_free_bytes bigint,
    PRIMARY KEY (node, at)
) PARTITION BY RANGE (at);
COMMENT ON TABLE telemetry_node_second IS 'One row per node and second; the arrays run in parallel, one place per GPU. roles: p, d, m or empty.';
"""

GPU_MINUTE = """
CREATE TABLE telemetry_gpu_minute (
    uuid text NOT NULL,
    at timestamptz NOT NULL,
    node text NOT NULL,
    engine text NOT NULL,
    role text NOT NULL,
    samples smallint NOT NULL,
    tensor real,
    tensor_peak real,
    dram real,
    busy real,
    memory_used_bytes bigint,
    power_w real,
    PRIMARY KEY (uuid, at)
) PARTITION BY RANGE (at);
COMMENT ON TABLE telemetry_gpu_minute IS 'Per GPU and minute: averages; tensor_peak and memory are maxima; engine and role are the last ones seen.';
"""

COUNTERS = """
    prompt_tokens double precision NOT NULL,
    generation_tokens double precision NOT NULL,
    requests double precision NOT NULL,
    prefix_queries double precision NOT NULL,
    prefix_hits double precision NOT NULL,
    local_tokens double precision NOT NULL,
    external_tokens double precision NOT NULL,
    transfer_bytes double precision NOT NULL,
    transfers double precision NOT NULL,
    transfers_failed double precision NOT NULL,
    leases_expired double precision NOT NULL,
    preemptions double precision NOT NULL,
    ttft_ms bytea,
    itl_ms bytea,
    queue_ms bytea,
    prefill_ms bytea,
    decode_ms bytea,
    transfer_ms bytea,
"""

ENGINE_10S = f"""
CREATE TABLE telemetry_engine_10s (
    engine text NOT NULL,
    incarnation bigint NOT NULL,
    role text NOT NULL,
    at timestamptz NOT NULL,
    model text NOT NULL,
    state text NOT NULL,
    samples smallint NOT NULL,
    running real NOT NULL,
    running_max integer NOT NULL,
    waiting real NOT NULL,
    waiting_max integer NOT NULL,
    kv_usage real,
    kv_usage_max real,
{COUNTERS}
    PRIMARY KEY (engine, at, incarnation, role)
) PARTITION BY RANGE (at);
CREATE INDEX ON telemetry_engine_10s (model, at);
COMMENT ON TABLE telemetry_engine_10s IS 'Per engine and ten seconds: average gauges, what its counters gained, its latencies.';
"""

POOL_MINUTE = f"""
CREATE TABLE telemetry_pool_minute (
    model text NOT NULL,
    role text NOT NULL,
    at timestamptz NOT NULL,
    engines smallint NOT NULL,
    gpus smallint NOT NULL,
    gpu_seconds double precision NOT NULL,
    busy_seconds double precision NOT NULL,
    tensor real,
    dram real,
    running real NOT NULL,
    waiting real NOT NULL,
    waiting_max integer NOT NULL,
    kv_usage real,
{COUNTERS}
    PRIMARY KEY (model, role, at)
) PARTITION BY RANGE (at);
COMMENT ON TABLE telemetry_pool_minute IS 'Per model, role and minute. busy_seconds / 60 = effective GPUs; running and waiting: averages of the sum over engines.';
"""

MODEL_MINUTE = """
CREATE TABLE telemetry_model_minute (
    model text NOT NULL,
    at timestamptz NOT NULL,
    ok integer NOT NULL,
    client_error integer NOT NULL,
    engine_error integer NOT NULL,
    cancelled integer NOT NULL,
    cut integer NOT NULL,
    retries integer NOT NULL,
    prompt_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    kv_bytes bigint NOT NULL,
    ttft_ms bytea,
    itl_ms bytea,
    prefill_ms bytea,
    handoff_ms bytea,
    total_ms bytea,
    PRIMARY KEY (model, at)
) PARTITION BY RANGE (at);
COMMENT ON TABLE telemetry_model_minute IS 'Finished requests per model and minute as the routers saw them, by outcome, with latencies.';
"""

REQUEST = """
CREATE TABLE telemetry_request (
    id text NOT NULL,
    at timestamptz NOT NULL,
    router text NOT NULL,
    model text NOT NULL,
    path text NOT NULL,
    reason text NOT NULL,
    status smallint NOT NULL,
    outcome text NOT NULL,
    stream boolean NOT NULL,
    prefill_engine text NOT NULL,
    decode_engine text NOT NULL,
    prefill_ms real,
    handoff_ms real,
    ttft_ms real,
    total_ms real,
    itl_ms real[] NOT NULL,
    prompt_tokens bigint,
    output_tokens bigint,
    cached_tokens bigint,
    kv_bytes bigint,
    retries smallint NOT NULL,
    PRIMARY KEY (id, at)
) PARTITION BY RANGE (at);
CREATE INDEX ON telemetry_request (at DESC);
CREATE INDEX ON telemetry_request (model, at DESC);
COMMENT ON TABLE telemetry_request IS 'Finished requests; at = when they arrived, on the router''s clock. Never holds prompts or answers.';
"""

TABLES = {
    "node_second": NODE_SECOND,
    "gpu_minute": GPU_MINUTE,
    "engine_10s": ENGINE_10S,
    "pool_minute": POOL_MINUTE,
    "model_minute": MODEL_MINUTE,
    "request": REQUEST,
}


def _make(name: str) -> migrations.RunSQL:
    table = f"telemetry_{name}"
    return migrations.RunSQL(
        [TABLES[name], f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT"], f"DROP TABLE {table}"
    )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0001_partitions")]
    operations = [migrations.RunSQL(POSITION, "DROP TABLE telemetry_position"), *map(_make, TABLES)]
