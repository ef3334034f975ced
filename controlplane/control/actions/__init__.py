"""Everything that changes what is desired: one function per verb, each one transaction of row, operation and audit entry.

Nothing here talks to a node or waits: the loop is woken after the commit and brings the fleet there. Each takes the actor
first and checks the rules of its verb (`control.actor.VERBS`). A refusal raises `Refused` with its reasons and leaves no
trace. `preview(action, …)` says what an action would do, and leaves none either.
"""

from controlplane.control.actions.change import NewStep, forbid, record_change
from controlplane.control.actions.engines import exchange_roles, retry_engine
from controlplane.control.actions.modes import set_mode
from controlplane.control.actions.nodes import add_node
from controlplane.control.actions.pools import rebalance, scale_pool
from controlplane.control.actions.registration import register_model, remove_model
from controlplane.control.actions.steering import cancel, freeze, pause, resume, rollback, unfreeze

__all__ = [
    "NewStep",
    "add_node",
    "cancel",
    "exchange_roles",
    "forbid",
    "freeze",
    "pause",
    "rebalance",
    "record_change",
    "register_model",
    "remove_model",
    "resume",
    "retry_engine",
    "rollback",
    "scale_pool",
    "set_mode",
    "unfreeze",
]
