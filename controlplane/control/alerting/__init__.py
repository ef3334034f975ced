"""Alerts as a part of the control worker: what rules look at (observe_*), one look at all of them (watch), and what channels
are told of it (deliver). core.alerts decides."""
