"""Days of a fleet's telemetry for benchmarks, loaded by COPY: 64 GPUs, 16 engines, 3 models, about 3 requests/s each.

What retention leaves: minutes of pools and models for all days, GPUs, engines and pairs for two, requests for seven; the
hours are made by the real roll-up, and those of engines are repeated to what is left of them, 30 days. Engines' histograms
have vLLM's own bounds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import psycopg
from django.db import connection, connections
from psycopg import sql
from psycopg.types.json import Jsonb

from controlplane.config import Config
from controlplane.core.sketches import Sketch, from_cumulative
from controlplane.fleet.models import Model, Operation
from controlplane.telemetry import tables
from controlplane.telemetry.hours import roll_up, roll_up_engines
from controlplane.telemetry.partitions import Partitions, keep
from controlplane.telemetry.records import COUNTERS, HISTOGRAMS
from controlplane.telemetry.tables import Table, moment
from controlplane.telemetry.writer import Writer

DAY_S, HOUR_S, MINUTE_S = 86_400, 3600, 60
VARIANTS = 48
"""Different histograms of each kind; rows take one of them."""
POOLS = (
    ("llama-70b", "prefill", 3, 4),
    ("llama-70b", "decode", 5, 4),
    ("mixtral", "prefill", 2, 2),
    ("mixtral", "decode", 2, 2),
    ("qwen", "prefill", 2, 2),
    ("qwen", "decode", 2, 2),
)
"""Model, role, engines, GPUs of each: 48 GPUs of 16 engines; 16 more are spare."""
MODELS = tuple(dict.fromkeys(model for model, *_ in POOLS))
TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
PHASE_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0)
TRANSFER_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
TOLD = {
    "ttft_ms": (0.3, TTFT_S, 1),
    "itl_ms": (0.025, ITL_S, 300),
    "queue_ms": (0.05, PHASE_S, 1),
    "prefill_ms": (0.3, PHASE_S, 1),
    "decode_ms": (6.0, PHASE_S, 1),
    "transfer_ms": (0.04, TRANSFER_S, 1),
}
"""Of engines: median, bounds, values per request."""
SEEN_MS = {"ttft_ms": 300.0, "handoff_ms": 90.0, "prefill_ms": 200.0, "total_ms": 7000.0, "itl_ms": 25.0}
"""Of requests: medians."""
PER_MINUTE = 180
TYPES = {
    "timestamp with time zone": "timestamptz",
    "double precision": "float8",
    "real": "float4",
    "real[]": "float4[]",
    "integer": "int4",
    "bigint": "int8",
    "smallint": "int2",
    "boolean": "bool",
}
Row = dict[str, Any]


class History:
    def __init__(self, now: float, days: int) -> None:
        """It ends at the last whole minute before `now` (Unix seconds)."""
        self._until = int(now // MINUTE_S) * MINUTE_S
        self._days = days
        self._draw = random.Random(5)
        self._seen = {name: self._of_requests(median) for name, median in SEEN_MS.items()}
        self._told_minute = {name: self._of_engines(*of, PER_MINUTE) for name, of in TOLD.items()}
        self._told_10s = {name: self._of_engines(*of, PER_MINUTE // 6 // 4) for name, of in TOLD.items()}

    def load(self) -> None:
        """Prints how long each part takes."""
        for name in MODELS:
            Model.objects.create(name=name, source=name, config={}, engine_kind="simulated", slo_ttft_ms=1000)
        mixtral = Model.objects.get(name="mixtral")
        Operation.objects.bulk_create(Operation(verb="set_mode", actor="bench", model=mixtral) for _ in range(200))
        partitions = Partitions(keep(Config()))
        for table, days, step_s, rows in (
            (tables.MODEL_MINUTE, self._days, MINUTE_S, self._models),
            (tables.POOL_MINUTE, self._days, MINUTE_S, self._pools),
            (tables.PAIR_MINUTE, 2, MINUTE_S, self._pairs),
            (tables.GPU_MINUTE, 2, MINUTE_S, self._gpus),
            (tables.ENGINE_10S, 2, 10, self._engines),
            (tables.REQUEST, 7, 1, self._requests),
        ):
            starts = range(self._until - min(days, self._days) * DAY_S, self._until, step_s)
            partitions.ensure(table, (moment(start) for start in starts if start % 900 == 0))
            copy(table, (row | {"at": moment(start)} for start in starts for row in rows(start)))
        Writer(partitions).write(tables.Batch(), f"{self._until * 1000}-0", self._until)
        for name, one in (("hours", roll_up), ("engines' hours", roll_up_engines)):
            _roll_up(name, one, partitions)
        _repeat_engine_hours(partitions, min(int(Config().keep_engine_hour_days), self._days))
        connections["owner"].ensure_connection()
        with connections["owner"].cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")

    def _of_requests(self, median_ms: float) -> list[bytes]:
        draws = ([self._draw.lognormvariate(0, 0.6) * median_ms for _ in range(PER_MINUTE)] for _ in range(VARIANTS))
        return [Sketch.of(values).to_bytes() for values in draws]

    def _of_engines(self, median_s: float, bounds: Sequence[float], values: int, requests: int) -> list[bytes]:
        found = []
        for _ in range(VARIANTS):
            draws = [self._draw.lognormvariate(0, 0.5) * median_s for _ in range(values * requests)]
            counts = [float(sum(value <= bound for value in draws)) for bound in bounds]
            found.append(from_cumulative(bounds, counts, float(len(draws)), sum(draws), scale=1000.0).to_bytes())
        return found

    def _one(self, kinds: dict[str, list[bytes]], role: str = "") -> Row:
        """A prefill engine neither pulls KV nor makes more than one token."""
        unknown = ("itl_ms", "decode_ms", "transfer_ms") if role == "prefill" else ()
        return {name: None if name in unknown else self._draw.choice(sketches) for name, sketches in kinds.items()}

    def _models(self, start: int) -> Iterator[Row]:
        counts = {
            "ok": PER_MINUTE,
            "prompt_tokens": PER_MINUTE * 4096,
            "output_tokens": PER_MINUTE * 300,
            "cached_tokens": PER_MINUTE * 900,
            "kv_bytes": PER_MINUTE * 1_300_000_000,
        }
        nothing = dict.fromkeys(("client_error", "engine_error", "cancelled", "cut", "retries"), 0)
        for model in MODELS:
            yield {"model": model, "told_s": 60} | counts | nothing | self._one(self._seen)

    def _pools(self, start: int) -> Iterator[Row]:
        load = {"tensor": 0.4, "dram": 0.3, "running": 20.0, "waiting": 2.0, "waiting_max": 9, "kv_usage": 0.5}
        for model, role, engines, gpus in POOLS:
            counters = dict.fromkeys(COUNTERS, float(PER_MINUTE))
            told = self._one(self._told_minute, role)
            yield {"model": model, "role": role} | self._use(engines, engines * gpus) | load | counters | told
        counters = dict.fromkeys(COUNTERS, 0.0)
        nothing = dict.fromkeys(f"{name}_ms" for name in HISTOGRAMS)
        yield {"model": "", "role": ""} | self._use(0, 16) | load | counters | nothing

    def _use(self, engines: int, gpus: int) -> Row:
        seconds = gpus * 60.0
        use = {"gpu_seconds": seconds, "known_seconds": seconds, "busy_seconds": seconds * self._draw.random()}
        return {"engines": engines, "gpus": gpus, "recorded_s": 60, "told_s": 60} | use

    def _pairs(self, start: int) -> Iterator[Row]:
        for model in MODELS:
            (prefills, decodes) = (engines for name, _, engines, _ in POOLS if name == model)
            for prefill in range(prefills):
                for decode in range(decodes):
                    pair = {"model": model, "prefill": f"{model}-p{prefill}", "decode": f"{model}-d{decode}"}
                    handoffs = {"handoffs": 12, "failed": 0, "kv_bytes": 12 * 1.3e9}
                    yield pair | handoffs | {"handoff_ms": self._draw.choice(self._seen["handoff_ms"])}

    def _gpus(self, start: int) -> Iterator[Row]:
        figures = {"samples": 60, "tensor": 0.4, "tensor_peak": 0.9, "dram": 0.3, "busy": 0.5, "power_w": 500.0}
        for number in range(64):
            gpu = {"uuid": f"g{number}", "node": f"n{number // 8}", "engine": f"e{number // 4}", "role": "decode"}
            yield gpu | figures | {"memory_used_bytes": 70 << 30}

    def _engines(self, start: int) -> Iterator[Row]:
        seconds = {"samples": 10, "told_s": 10}
        load = {"running": 9.0, "running_max": 12, "waiting": 1.0, "waiting_max": 3, "kv_usage": 0.5}
        counters = dict.fromkeys(COUNTERS, 12.0)
        for model, role, engines, _ in POOLS:
            for number in range(engines):
                engine = {
                    "engine": f"{model}-{role[0]}{number}",
                    "incarnation": 1,
                    "role": role,
                    "model": model,
                    "state": "ready",
                }
                yield engine | seconds | load | {"kv_usage_max": 0.6} | counters | self._one(self._told_10s, role)

    def _requests(self, start: int) -> Iterator[Row]:
        ttft = self._draw.lognormvariate(0, 0.6) * 300
        model = "llama-70b"
        way = {"model": model, "path": "disaggregated", "reason": "disaggregated", "router": "r1", "arm": "main"}
        engines = {"prefill_engine": f"{model}-p0", "decode_engine": f"{model}-d0", "passed": Jsonb([])}
        times = {
            "queue_ms": 3.0,
            "prefill_ms": ttft * 0.7,
            "handoff_ms": ttft * 0.3,
            "ttft_ms": ttft,
            "total_ms": ttft + 7000,
        }
        counts = {"prompt_tokens": 4096, "output_tokens": 300, "cached_tokens": 900, "kv_bytes": 1_300_000_000, "weight": 9}
        ended = {"status": 200, "outcome": "ok", "stream": True, "retries": 0, "resumes": 0, "itl_ms": [25.0] * 256}
        session = {
            "id": f"{start:x}",
            "team": "",
            "api_key": "",
            "others_told": True,
            "session": f"{self._draw.getrandbits(64):016x}",
        }
        yield way | engines | times | counts | ended | session


def _roll_up(name: str, one: Callable[[Partitions], int], partitions: Partitions) -> None:
    began, made = time.monotonic(), 0
    while some := one(partitions):
        made += some
    taken = time.monotonic() - began
    print(f"{made} {name} rolled up in {taken:.0f} s: {taken / max(made, 1) * 1000:.0f} ms each", flush=True)


def _repeat_engine_hours(partitions: Partitions, days: int) -> None:
    """The newest day of them, on each day before the last two."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM max(at))::float8 FROM telemetry_engine_hour")
        (newest,) = cursor.fetchone()
        earlier = range(2, days)
        starts = (moment(newest - day * DAY_S - hour * HOUR_S) for day in earlier for hour in range(24))
        partitions.ensure(tables.ENGINE_HOUR, starts)
        columns = ", ".join(column for column in tables.ENGINE_HOUR.columns if column != "at")
        cursor.execute(
            f"INSERT INTO telemetry_engine_hour (at, {columns}) SELECT at - make_interval(days => day), {columns} "
            "FROM telemetry_engine_hour, generate_series(%s, %s) AS day WHERE at > %s",
            [earlier.start, earlier.stop - 1, moment(newest - DAY_S)],
        )


def copy(table: Table, rows: Iterable[Row]) -> None:
    """As the owner, in binary form."""
    began, count = time.monotonic(), 0
    target, columns = sql.Identifier(table.name), sql.SQL(", ").join(map(sql.Identifier, table.columns))
    settings = connections["owner"].get_connection_params()
    with psycopg.connect(**{name: settings[name] for name in ("dbname", "user", "password", "host", "port")}) as connection:
        types = "SELECT attname, atttypid::regtype::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
        of = dict(connection.execute(types, [table.name]).fetchall())
        with connection.cursor().copy(sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(target, columns)) as into:
            into.set_types([TYPES.get(of[column], of[column]) for column in table.columns])
            for row in rows:
                into.write_row([row[column] for column in table.columns])
                count += 1
    print(f"  {table.name}: {count:,} rows in {time.monotonic() - began:.0f} s", flush=True)
