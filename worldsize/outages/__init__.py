"""Failures of a large job over months, and its goodput under a policy of checkpoints and restarts, in virtual time."""

from worldsize.outages.causes import Cause, NodeFailure, draw, published
from worldsize.outages.endurance import Endured, Policy, SavePlan, Status, TrainingJob, endure

__all__ = [
    "Cause",
    "Endured",
    "NodeFailure",
    "Policy",
    "SavePlan",
    "Status",
    "TrainingJob",
    "draw",
    "endure",
    "published",
]
