"""What pages, alerts and exports read of the past: telemetry tables in, frozen dataclasses out. Reads only.

Every function takes a `windows.Window` (since, until, now), raises `django.db.Error` when PostgreSQL is away, and answers
with `figures.Figure` (value, unit, window, count, newest sample, stale) or `figures.Series` (None = gap). Which roll-up
level answers is chosen from the window (`windows.Level`); percentiles are of merged sketches, never of percentiles.

| module | functions |
|---|---|
| `gpus` | `gpu_figures(window, uuids=None)`, `gpu_series(uuid, window)` |
| `heat` | `gpu_heat(now, span_s, cell_s)` |
| `engines` | `engine_figures(window, model=None, engine=None)`, `engine_series(engine, window)` |
| `pools` | `pool_figures(window, model=None)`, `pool_series(model, window)` by role |
| `effective` | `effective_gpus(window, model=None)` |
| `models` | `model_figures(model, window)`, `model_series(model, window)` |
| `transfers` | `transfer_figures(window, model=None)` by pool, `transfer_series(model, window)` |
| `budgets` | `spent(window, limits)`: requests, and token gaps, beyond their SLO, by model |
| `freshness` | `newest_of_nodes(nodes, now)`, `newest_of_routers(models, now)` |
| `handoffs` | `handoff_split(model, window)` |
| `pairs` | `pair_figures(model, window)`, `pair_series(model, prefill, decode, window)` |
| `waste` | `waste(window)`, `today(now, midnight)`, `thirty_days(now)` |
| `requests` | `search(filter, order, cursor, limit)`, `export(filter, order)`, `summary(filter, now)`, `find(id, since)` |
| `waterfall` | `stages(record)` |
| `markers` | `operation_markers(window, model=None)` |
| `stored` | `stored()`: until when rows are there, and an ETag for what is made of them |
| `exports` | `figures_table(items)`, `series_table(all_series(item))` → `csv_lines(table)`, `json_document(table)` |
"""
