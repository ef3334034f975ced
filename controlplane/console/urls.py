"""Addresses of the console's pages."""

from __future__ import annotations

from django.contrib.auth.views import LogoutView
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.i18n import JavaScriptCatalog, set_language

from controlplane.console import (
    acts,
    advisor,
    alert_acts,
    alerts,
    audit,
    costs,
    engine,
    engine_data,
    find,
    fleet_data,
    history,
    model_data,
    model_page,
    nodes,
    operations,
    rebalance,
    requests_data,
    requests_page,
    views,
    waste,
)

urlpatterns = [
    path("", views.fleet, name="fleet"),
    path("find", find.page, name="find"),
    path("history/gpus", history.gpus, name="history_gpus"),
    path("nodes", nodes.page, name="nodes"),
    path("data/nodes", nodes.nodes, name="data_nodes"),
    path("data/gpus", nodes.gpus, name="data_gpus"),
    *(path(f"nodes/<str:node_name>/{verb}", acts.node, {"verb": verb}, name=f"{verb}_node") for verb in acts.NODE),
    path("advisor", advisor.page, name="advisor"),
    path("audit", audit.page, name="audit"),
    path("data/audit", audit.rows, name="data_audit"),
    path("data/waste", waste.fleet, name="data_waste"),
    path("costs", costs.page, name="costs"),
    path("data/costs", costs.month, name="data_costs"),
    path("data/prices", costs.book, name="data_prices"),
    path("prices", costs.set_price, name="set_price"),
    path("prices/<int:number>/remove", costs.remove_price, name="remove_price"),
    path("alerts", alerts.page, name="alerts"),
    path("alerts/<int:number>", alerts.page, name="alert"),
    path("alerts/<int:number>/silence", alert_acts.silence, name="silence_alert"),
    path("data/alerts", alerts.facts, name="data_alerts"),
    path("data/alerts/history", alerts.history, name="data_alerts_history"),
    path("data/notifications/<uuid:number>", alerts.notification, name="data_notification"),
    path("silences/<int:number>/end", alert_acts.end_silence, name="end_silence"),
    path("alert-rules/<slug:key>", alert_acts.rule, name="set_alert_rule"),
    path("channels", alert_acts.add_channel, name="add_channel"),
    path("channels/<slug:name>", alert_acts.update_channel, name="update_channel"),
    path("channels/<slug:name>/remove", alert_acts.remove_channel, name="remove_channel"),
    path("channels/<slug:name>/try", alert_acts.try_channel, name="try_channel"),
    path("data/fleet/engines", fleet_data.engines, name="data_fleet_engines"),
    path("data/fleet/operations", fleet_data.operations, name="data_fleet_operations"),
    path("data/fleet/heat", fleet_data.heat, name="data_fleet_heat"),
    path("operations", operations.operations, name="operations"),
    path("operations/<int:number>", operations.operation, name="operation"),
    path("operations/<int:number>/rows", operations.rows, name="operation_rows"),
    path("operations/<int:number>/history", operations.history, name="operation_history"),
    *(path(f"operations/<int:number>/{verb}", acts.steer, {"verb": verb}, name=verb) for verb in acts.STEER),
    path("rebalance", rebalance.some_model, name="rebalance_some"),
    path("models/<path:name>/rebalance", rebalance.page, name="rebalance"),
    path("models/<path:name>/rebalance/start", acts.rebalance, name="start_rebalance"),
    path("models/<path:name>/mode", acts.set_mode, name="set_mode"),
    path("models/<path:name>/canary", acts.set_canary, name="set_canary"),
    *(path(f"models/<path:name>/canary/{verb}", acts.canary, {"verb": verb}, name=f"{verb}_canary") for verb in acts.CANARY),
    path("engines/<str:engine_id>", engine.page, name="engine"),
    path("engines/<str:engine_id>/rows", engine.rows, name="engine_rows"),
    path("engines/<str:engine_id>/log", engine.log, name="engine_log"),
    *(
        path(f"data/engines/<str:engine_id>/{what}", engine_data.engine, {"what": what}, name=f"data_engine_{what}")
        for what in engine_data.SOURCES
    ),
    *(path(f"engines/<str:engine_id>/{verb}", acts.engine, {"verb": verb}, name=f"{verb}_engine") for verb in acts.ENGINE),
    path("models/<path:name>/facts", rebalance.facts, name="model_facts"),
    path("models/<path:name>/forecast", rebalance.forecast, name="model_forecast"),
    *(
        path(f"data/models/<path:name>/{what}", model_data.model, {"what": what}, name=f"data_{what}")
        for what in model_data.SOURCES
    ),
    path("data/requests", requests_data.requests, name="data_requests"),
    path("requests", requests_page.page, name="requests"),
    path("models", model_page.some_model, name="model_some"),
    path("models/<path:name>", model_page.page, name="model"),
    path("login", views.Login.as_view(), name="login"),
    path("logout", LogoutView.as_view(), name="logout"),
    path("language", set_language, name="set_language"),
    path("strings.js", never_cache(JavaScriptCatalog.as_view(packages=["controlplane.console"])), name="strings"),
]
