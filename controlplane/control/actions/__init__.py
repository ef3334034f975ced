"""Everything that changes what is desired: one function per verb, each one transaction of row, operation and audit entry.

Nothing here talks to a node or waits: the loop is woken after the commit and brings the fleet there. Each takes the actor
first and checks the rules of its verb (`control.actor.VERBS`). A refusal raises `Refused` with its reasons and leaves no
trace. `preview(action, …)` says what an action would do, and leaves none either.
"""

from controlplane.control.actions.alerts import RuleChange, end_silence, set_alert_rule, silence_alert, unsilence_alert
from controlplane.control.actions.canaries import end_canary, promote_canary, set_canary, update_canary
from controlplane.control.actions.change import NewStep, forbid, record_change
from controlplane.control.actions.channels import add_channel, channel_secret, remove_channel, try_channel, update_channel
from controlplane.control.actions.engines import drain_engine, exchange_roles, restart_engine, retry_engine, undrain_engine
from controlplane.control.actions.grants import grant_model, ungrant_model
from controlplane.control.actions.joining import add_join_token, revoke_join_token
from controlplane.control.actions.modes import set_mode
from controlplane.control.actions.nodes import add_node, cordon_node, remove_node, uncordon_node
from controlplane.control.actions.planning import PlannerChange, set_planner
from controlplane.control.actions.pools import move_gpus, rebalance, scale_pool
from controlplane.control.actions.preview import preview
from controlplane.control.actions.prices import remove_price, set_price
from controlplane.control.actions.proposals import approve_proposal, modify_proposal, reject_proposal
from controlplane.control.actions.registration import register_model, remove_model
from controlplane.control.actions.steering import cancel, freeze, lock_operation, pause, resume, rollback, unfreeze
from controlplane.control.actions.teams import remove_team, set_team
from controlplane.control.actions.updates import RollOut, Selector, Update, retire_model, roll_out, update_model
from controlplane.control.actions.whole import apply_model

__all__ = [
    "NewStep",
    "PlannerChange",
    "RollOut",
    "RuleChange",
    "Selector",
    "Update",
    "add_channel",
    "add_join_token",
    "add_node",
    "apply_model",
    "approve_proposal",
    "cancel",
    "channel_secret",
    "cordon_node",
    "drain_engine",
    "end_canary",
    "end_silence",
    "exchange_roles",
    "forbid",
    "freeze",
    "grant_model",
    "lock_operation",
    "modify_proposal",
    "move_gpus",
    "pause",
    "preview",
    "promote_canary",
    "rebalance",
    "record_change",
    "register_model",
    "reject_proposal",
    "remove_channel",
    "remove_model",
    "remove_node",
    "remove_price",
    "remove_team",
    "restart_engine",
    "resume",
    "retire_model",
    "retry_engine",
    "revoke_join_token",
    "roll_out",
    "rollback",
    "scale_pool",
    "set_alert_rule",
    "set_canary",
    "set_mode",
    "set_planner",
    "set_price",
    "set_team",
    "silence_alert",
    "try_channel",
    "uncordon_node",
    "undrain_engine",
    "unfreeze",
    "ungrant_model",
    "unsilence_alert",
    "update_canary",
    "update_channel",
    "update_model",
]
