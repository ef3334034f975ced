"""What `doctor --links` has agents measure: each node to the next one by name, and the last to the first. In a ring every
node sends once and receives once, and a node on the wrong network shows twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from celery.exceptions import TimeoutError as NoAnswer
from kombu.exceptions import OperationalError

from controlplane.core import checkup
from controlplane.core.checkup import Finding
from controlplane.core.protocol import AgentFact
from controlplane.stack.doctor_fleet import Heard
from controlplane.stack.doctor_servers import Rows

MOST = 256


def ring(heard: Mapping[str, Heard], rows: Rows) -> list[tuple[AgentFact, AgentFact]]:
    """(sender, receiver) of each link to measure: nodes that speak and that the fleet knows."""
    agents = [each.fact for each in heard.values() if isinstance(each.fact, AgentFact) and each.fact.node in rows.nodes]
    agents = sorted(agents, key=lambda fact: fact.node)[:MOST]
    return list(zip(agents, [*agents[1:], *agents[:1]], strict=True)) if len(agents) > 1 else []


def measured(heard: Mapping[str, Heard], rows: Rows, timeout_s: float = 15.0) -> Iterator[Finding]:
    """One after the other, so that no two share a link; `timeout_s` is for each answer. Django must be set up."""
    from controlplane.control.commands import measure_link

    for sender, receiver in ring(heard, rows):
        subject = f"{sender.node} to {receiver.node}"
        try:
            seen = measure_link(sender.node, receiver.node, receiver.address, timeout_s)
        except (NoAnswer, OperationalError):
            seen = {"error": "no answer: an agent is busy, or of an older version"}
        if "error" in seen:
            remedy = f"let {sender.node} reach {receiver.address} on every port, and see both agents' logs"
            yield Finding("link", subject, "fail", str(seen["error"]), remedy)
            continue
        declared = min(sender.network_gbps, receiver.network_gbps)
        yield checkup.tcp_link(subject, float(seen["gbps"]), float(seen["connect_ms"]), declared)
