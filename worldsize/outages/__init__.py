"""Failures of a large job over months, and what a policy of saving and restarting makes of them, in virtual time."""

from worldsize.outages.causes import Cause, Failure, draw, published
from worldsize.outages.endurance import Endured, Job, Plan, Policy, Status, endure

__all__ = ["Cause", "Endured", "Failure", "Job", "Plan", "Policy", "Status", "draw", "endure", "published"]
