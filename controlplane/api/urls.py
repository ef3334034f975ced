"""Addresses of the REST API. A model's name is one part of an address: a slash in it is written %2F."""

from __future__ import annotations

from django.urls import path, re_path, register_converter

from controlplane.api import (
    converters,
    schema,
    views_advisor,
    views_alerts,
    views_audit,
    views_canary,
    views_channels,
    views_costs,
    views_fleet,
    views_grants,
    views_joining,
    views_keys,
    views_models,
    views_operations,
    views_planner,
    views_state,
)
from controlplane.api.views_operations import waiting

register_converter(converters.ModelName, "model")
register_converter(converters.Word, "word")
register_converter(converters.Number, "number")
register_converter(converters.UserName, "user")

OPERATION = "v1/operations/<number:operation>"
MODEL = "v1/models/<model:name>"
PROPOSAL = "v1/proposals/<number:proposal>"

urlpatterns = [
    path("v1/models", views_models.Models.as_view()),
    path(MODEL, views_models.OneModel.as_view()),
    path(f"{MODEL}/mode", views_models.ModelMode.as_view()),
    path(f"{MODEL}/rebalance", views_models.ModelRebalance.as_view()),
    path(f"{MODEL}/pools/<word:role>", views_models.ModelPool.as_view()),
    path(f"{MODEL}/move-gpus", views_models.ModelMove.as_view()),
    path(f"{MODEL}/roll-out", views_models.ModelRollOut.as_view()),
    path(f"{MODEL}/canary", views_canary.ModelCanary.as_view()),
    path(f"{MODEL}/canary/promote", views_canary.CanaryPromote.as_view()),
    path(f"{MODEL}/cost", views_costs.ModelCost.as_view()),
    path(f"{MODEL}/grants", views_grants.ModelGrants.as_view()),
    path(f"{MODEL}/grants/<user:user>", views_grants.OneGrant.as_view()),
    path(f"{MODEL}/freeze", views_models.ModelFreeze.as_view()),
    path(f"{MODEL}/planner", views_planner.ModelPlanner.as_view()),
    path(f"{MODEL}/advice", views_planner.ModelAdvice.as_view()),
    path("v1/proposals", views_planner.Proposals.as_view()),
    path(PROPOSAL, views_planner.OneProposal.as_view()),
    path(f"{PROPOSAL}/approve", views_planner.ProposalApprove.as_view()),
    path(f"{PROPOSAL}/modify", views_planner.ProposalModify.as_view()),
    path(f"{PROPOSAL}/reject", views_planner.ProposalReject.as_view()),
    path("v1/operations", views_operations.Operations.as_view()),
    path(OPERATION, waiting(views_operations.OneOperation.as_view())),
    path(f"{OPERATION}/events", views_operations.OperationEvents.as_view()),
    path(f"{OPERATION}/cancel", views_operations.OperationCancel.as_view()),
    path(f"{OPERATION}/pause", views_operations.OperationPause.as_view()),
    path(f"{OPERATION}/resume", views_operations.OperationResume.as_view()),
    path(f"{OPERATION}/rollback", views_operations.OperationRollback.as_view()),
    path("v1/alerts", views_alerts.Alerts.as_view()),
    path("v1/alerts/<number:alert>", views_alerts.OneAlert.as_view()),
    path("v1/alerts/<number:alert>/silence", views_alerts.AlertSilence.as_view()),
    path("v1/alert-rules", views_channels.AlertRules.as_view()),
    path("v1/alert-rules/<word:rule>", views_channels.OneAlertRule.as_view()),
    path("v1/channels", views_channels.Channels.as_view()),
    path("v1/channels/<word:name>", views_channels.OneChannel.as_view()),
    path("v1/costs", views_costs.Costs.as_view()),
    path("v1/usage", views_costs.Usage.as_view()),
    path("v1/prices", views_costs.Prices.as_view()),
    path("v1/prices/<number:price>", views_costs.OnePrice.as_view()),
    path("v1/nodes", views_fleet.Nodes.as_view()),
    path("v1/join-tokens", views_joining.JoinTokens.as_view()),
    path("v1/join-tokens/<number:token>", views_joining.OneJoinToken.as_view()),
    path("v1/nodes/<word:name>", views_fleet.OneNode.as_view()),
    path("v1/nodes/<word:name>/cordon", views_fleet.NodeCordon.as_view()),
    path("v1/gpus", views_fleet.Gpus.as_view()),
    path("v1/pools", views_fleet.Pools.as_view()),
    path("v1/engines", views_fleet.Engines.as_view()),
    path("v1/engines/<word:engine>", views_fleet.OneEngine.as_view()),
    path("v1/engines/<word:engine>/drain", views_fleet.EngineDrain.as_view()),
    path("v1/engines/<word:engine>/restart", views_fleet.EngineRestart.as_view()),
    path("v1/engines/<word:engine>/retry", views_fleet.EngineRetry.as_view()),
    path("v1/engines/<word:engine>/log", views_fleet.EngineLog.as_view()),
    path("v1/advisor", views_advisor.Advisor.as_view()),
    path("v1/advisor/<word:advice>", views_advisor.OneAdvice.as_view()),
    path("v1/keys", views_keys.Keys.as_view()),
    path("v1/keys/<model:name>", views_keys.OneKey.as_view()),
    path("v1/keys/<model:name>/rotate", views_keys.KeyRotate.as_view()),
    path("v1/tokens", views_keys.Tokens.as_view()),
    path("v1/tokens/<model:name>", views_keys.OneToken.as_view()),
    path("v1/audit", views_audit.Audit.as_view()),
    path("v1/state", views_state.State.as_view()),
    path("schema/", schema.Schema.as_view(), name="schema"),
    path("docs/", schema.docs, name="api_docs"),
    re_path(r"", schema.nowhere),
]
